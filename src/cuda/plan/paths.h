// paths.h — which ways a device could read blocks of a codec: the tensor-core paths, the warm one, staged, or the general one; what
// decides is how the codec lays its bytes out (quant/layout.h). Host code, no device needed. What a launch makes of it: plan.h.
#pragma once

#include <optional>

#include "cuda/launch/desc.h"
#include "quant/codec.h"

namespace tierkv::cuda {

// Of values, as the staged path has them: all views of a segment in one.
enum class Frame : uint8_t { plain = 0, hadamard = 1 };

// Whether blocks of these codecs can be read at all: fills both sides. Pointers are the codecs' own.
bool readable(const quant::Codec& key, const quant::Codec& value, CodecDesc& out);

// The fast path that whole blocks of a codec could take; general where there is none.
Path fast_path(const CodecDesc& codec, uint32_t group);
// The same where the codec's tables are on the device already; general where not.
Path ready_path(const CodecDesc& codec, uint32_t group);

// Whether whole blocks of a codec can take the warm path.
bool takes_warm(const CodecDesc& codec, uint32_t group);

// Whether views of a codec are halves that the plain path reads as they are.
bool takes_plain(const CodecDesc& codec);

// Whether views of a codec can be staged, and the frame of their values.
std::optional<Frame> staged_frame(const CodecDesc& codec);

// Bytes of both sides of a whole block on a device.
uint64_t block_bytes(const CodecDesc& codec);

// The paths of klt's keys: their segments bring a basis along.

}  // namespace tierkv::cuda
