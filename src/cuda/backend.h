// backend.h — attn::Backend on a device: attention of few queries there, everything else on the processor (tierkv/cuda.h).
//
// A call is: blocks that are not there yet and hot rows to the device, descriptors and queries in one parcel, one launch, results
// back, one wait. Scores that leave the range of the fast paths' halves are worked on again by the processor.
// REQUIRES: codecs of the views outlive the backend, so a backend belongs to one cache.
#pragma once

#include <memory>

#include "attn/backend.h"
#include "tierkv/cuda.h"

namespace tierkv::cuda {

class DeviceBackend : public attn::Backend, public Device {};

// Errors: tierkv/cuda.h.
Result<std::shared_ptr<DeviceBackend>> make_backend(const Options& options);

}  // namespace tierkv::cuda
