// encode.h — what one launch of the encoders reads beside the rows: plain arrays that the host builds (encode_batch.h) and a
// device, or in tests the processor, works through.
//
// A work is one side of one block: rows of one KV head become block bytes, the same bits that the codec itself would make. Rows
// that the codec refuses set the work's flag, and its bytes are undefined then.
// REQUIRES: every coding can be made on a device (codable()); rows and bytes lie in the memory of who works, bytes at 16.
#pragma once

#include <cstdint>

#include "quant/layout.h"

typedef struct CUstream_st* cudaStream_t;

namespace tierkv::cuda {

enum class RowType : uint8_t { f32 = 0, f16 = 1, bf16 = 2 };

inline constexpr uint32_t kNoGuide = 0xFFFFFFFFu;

// Rows first..first+count-1 of a block, in the codes of `coding`, of which the layout counts and the side. Bytes at 4.
struct DecodeDesc {
  const uint8_t* bytes = nullptr;
  uint32_t coding = 0;  // of EncodeLaunch::codings
  uint32_t first = 0, count = 0;
};

struct EncodeDesc {
  const void* rows = nullptr;   // row t of a block begins at element t·stride
  uint8_t* out = nullptr;       // coding.layout.bytes
  uint32_t* refused = nullptr;  // 0 before; 1: the codec does not take these rows
  uint32_t stride = 0;          // in elements
  uint32_t first_position = 0;  // of row 0
  uint32_t coding = 0;          // of EncodeLaunch::codings
  RowType type = RowType::f32;
  uint32_t guide = kNoGuide;  // of EncodeLaunch::guides: what codes keep their errors out of; only where guidable()
  // Where there are some: the rows are theirs, one behind the other, and not those above. Not where rows become 16-bit ones.
  const DecodeDesc* blocks = nullptr;
  uint32_t num_blocks = 0;
};

// A part of a work that one thread block does: all of it, or a tile of 16 tokens where tiles know nothing of each other.
struct EncodePart {
  uint32_t work = 0, tile = 0;
};
inline constexpr uint32_t kEncodeThreads = 512;

struct EncodeLaunch {
  const quant::SideCoding* codings = nullptr;  // with pointers of who works
  const quant::GuideTables* guides = nullptr;
  const EncodeDesc* works = nullptr;
  const EncodePart* parts = nullptr;
  uint32_t num_parts = 0;
  bool decodes = false;         // some works have blocks
  const float* log8 = nullptr;  // the 256 levels of 8-bit scales (log8_table())
  uint32_t shared_bytes = 0;    // of a thread block: the most that a part needs (encode_floats())
};

inline constexpr uint32_t kMostEncodeBytes = 160u << 10;  // of shared memory: what every device of 8.0 and later has

// Whether a coding is one that the encoders below know, in blocks that fit.
bool codable(const quant::SideCoding& coding);
// Whether blocks of this layout can be read there, the bits that their codec decodes: 16-bit rows and packed codes. REQUIRES: no
// rows of them are kept better.
bool decodable(const quant::SideLayout& side);
// Whether codes of it can be guided there (BlockContext::guide): even's keys, in blocks that leave room for the rule.
bool guidable(const quant::SideCoding& coding);
// Floats of shared memory that a part of it needs.
uint32_t encode_floats(const quant::SideCoding& coding, bool guided = false);
// Parts of a work.
uint32_t encode_parts(const quant::SideCoding& coding);
// The levels of 8-bit scales, as meta.cc has them.
const float* log8_table();

// One launch on the current device. 0, or a cudaError_t. Nothing here waits.
int launch_encode(const EncodeLaunch& launch, cudaStream_t stream);

}  // namespace tierkv::cuda
