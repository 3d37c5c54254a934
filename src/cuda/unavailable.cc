// What tierkv/cuda.h answers in a build without CUDA.
#ifndef TIERKV_CUDA

#include "base/status_macros.h"
#include "tierkv/cuda.h"

namespace tierkv::cuda {
namespace {

Status not_built() { return error(StatusCode::unsupported, "this build has no CUDA; configure with -DTIERKV_CUDA=ON"); }

}  // namespace

Status available(int) { return not_built(); }
Result<std::shared_ptr<const Device>> attach(AdaptiveKVCache&, const Options&) { return not_built(); }
Status detach(AdaptiveKVCache&) { return {}; }
Result<std::unique_ptr<StepGraph>> record(AdaptiveKVCache&) { return not_built(); }

}  // namespace tierkv::cuda

#endif
