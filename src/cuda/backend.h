// backend.h — attn::Backend on a device: attention of few queries there, everything else on the processor (tierkv/cuda.h).
//
// What a call does is in device_attention.h. Scores that leave the range of the fast paths' halves are worked on again by the
// processor.
// REQUIRES: codecs of the views outlive the backend, so a backend belongs to one cache.
#pragma once

#include <memory>

#include "attn/backend.h"
#include "tierkv/cuda.h"

namespace tierkv::cuda {

class DeviceBackend : public attn::Backend, public Device {};

class Machine;

// Errors, of both: tierkv/cuda.h.
Result<std::unique_ptr<Machine>> open_machine(int ordinal);
Result<std::shared_ptr<DeviceBackend>> make_backend(const Options& options);

}  // namespace tierkv::cuda
