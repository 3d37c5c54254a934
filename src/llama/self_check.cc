#include "llama/self_check.h"

#include <cmath>

#include "base/status_macros.h"

namespace tierkv::llama {
namespace {

using Context = std::unique_ptr<llama_context, decltype(&llama_free)>;

constexpr int32_t kFirst = 11, kSecond = 3;
// Stock attention rounds queries to f16 and sums in f16, and quantized weights amplify it: 1e-2 is usual. What goes wrong here goes
// wrong by 1. The two paths make the same calls on the same rows and differ by rounding at most.
constexpr double kAgreesWithStock = 0.15, kAgreesWithOverwrite = 0.02;

llama_context_params small(llama_context_params params) {
  params.n_ctx = 256;
  params.n_batch = params.n_ubatch = 32;
  params.n_seq_max = 1;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
  params.type_k = params.type_v = GGML_TYPE_F16;
  params.offload_kqv = params.op_offload = false;
  params.cb_eval = nullptr;
  params.abort_callback = nullptr;
  params.samplers = nullptr;
  params.n_samplers = 0;
  return params;
}

// The last token's logits after two batches.
template <class Decode>
Result<std::vector<float>> logits_of(const ModelShape& shape, llama_context* context, const Decode& decode) {
  const int32_t vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(shape.model));
  std::vector<llama_token> tokens(kFirst + kSecond);
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<llama_token>((i * 7919 + 13) % static_cast<size_t>(vocabulary));
  TIERKV_RETURN_IF_ERROR(decode(llama_batch_get_one(tokens.data(), kFirst)));
  TIERKV_RETURN_IF_ERROR(decode(llama_batch_get_one(tokens.data() + kFirst, kSecond)));
  const float* logits = llama_get_logits_ith(context, -1);
  if (logits == nullptr) return error(StatusCode::internal, "the self-test got no logits from libllama");
  return std::vector<float>(logits, logits + vocabulary);
}

Result<std::vector<float>> stock_logits(const llama_context_params& params, const ModelShape& shape) {
  const Context context(llama_init_from_model(shape.model, params), llama_free);
  if (!context) return error(StatusCode::internal, "libllama could not make a context");
  return logits_of(shape, context.get(), [&](const llama_batch& batch) -> Status {
    if (llama_decode(context.get(), batch) == 0) return {};
    return error(StatusCode::internal, "libllama could not decode the self-test's tokens");
  });
}

Result<std::vector<float>> host_logits(llama_context_params params, ModelShape shape, bool patch) {
  shape.context = 0;  // no limit: the caller's may be shorter than these few tokens
  CacheConfig config;
  TIERKV_RETURN_IF_ERROR(apply_preset("fp16", config));
  shape.apply(config);
  TIERKV_ASSIGN_OR_RETURN(auto cache, AdaptiveKVCache::create(config));
  HostOptions options;
  options.allow_patch = patch;
  options.self_test = false;
  TIERKV_ASSIGN_OR_RETURN(auto host, Host::attach(params, shape, *cache, options));
  const Context context(llama_init_from_model(shape.model, params), llama_free);
  if (!context) return error(StatusCode::internal, "libllama could not make a context");
  return logits_of(shape, context.get(), [&](const llama_batch& batch) { return host->decode(context.get(), batch); });
}

}  // namespace

double relative_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0.0, size = 0.0;
  for (size_t i = 0; i < a.size() && i < b.size(); ++i) {
    if (!std::isfinite(a[i]) || !std::isfinite(b[i])) return 1.0;
    difference += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
    size += static_cast<double>(b[i]) * b[i];
  }
  return size > 0.0 ? std::sqrt(difference / size) : (difference > 0.0 ? 1.0 : 0.0);
}

Result<Path> self_check(const llama_context_params& params, const ModelShape& shape, bool allow_patch) {
  const llama_context_params reduced = small(params);
  TIERKV_ASSIGN_OR_RETURN(const std::vector<float> stock, stock_logits(reduced, shape));
  TIERKV_ASSIGN_OR_RETURN(const std::vector<float> overwritten, host_logits(reduced, shape, /*patch=*/false));
  if (const double off = relative_difference(overwritten, stock); !(off < kAgreesWithStock)) {
    return error(StatusCode::unsupported, "a model of architecture ", shape.architecture,
                 " cannot use the cache: with it, logits differ from libllama's own by ", off * 100.0, " %");
  }
  if (!allow_patch) return Path::overwrite;
  const auto patched = host_logits(reduced, shape, /*patch=*/true);
  return patched.ok() && relative_difference(*patched, overwritten) < kAgreesWithOverwrite ? Path::patch : Path::overwrite;
}

}  // namespace tierkv::llama
