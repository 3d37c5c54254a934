// Two conversations on one libllama context with one tiered cache, from C++: the model's shape, the cache and the host are yours.
//
//     embed_llama MODEL.gguf "a shared beginning"
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <ggml-backend.h>
#include <llama.h>
#include <tierkv/llama.h>

namespace {

int fail(const tierkv::Status& status) {
  std::fprintf(stderr, "%s\n", status.to_string().c_str());
  return 1;
}

std::vector<llama_token> tokenize(const llama_vocab* vocab, const std::string& text) {
  std::vector<llama_token> tokens(text.size() + 8);
  const int32_t count = llama_tokenize(vocab, text.data(), static_cast<int32_t>(text.size()), tokens.data(),
                                       static_cast<int32_t>(tokens.size()), /*add_special=*/true, /*parse_special=*/false);
  tokens.resize(count > 0 ? static_cast<size_t>(count) : 0);
  return tokens;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return std::fprintf(stderr, "usage: %s MODEL.gguf [TEXT]\n", argv[0]), 2;
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  ggml_backend_load_all();
  llama_model_params model_params = llama_model_default_params();
  model_params.n_gpu_layers = 0;  // the cache is in host memory
  const std::unique_ptr<llama_model, decltype(&llama_model_free)> model(llama_model_load_from_file(argv[1], model_params),
                                                                        llama_model_free);
  if (!model) return std::fprintf(stderr, "cannot load %s\n", argv[1]), 1;

  // [attach]
  // What the model's attention looks like, found by running three tokens; a model that cannot be served is refused here, by name.
  auto shape = tierkv::llama::inspect(model.get());
  if (!shape.ok()) return fail(shape.status());
  tierkv::CacheConfig config;
  config.model = argv[1];
  config.threads = 2;
  if (tierkv::Status status = tierkv::apply_spec("balanced", config); !status.ok()) return fail(status);
  shape->apply(config);
  // The one that config.calibration names, that `tierkv calibrate` made here, or that ships with tierkv; none is no error.
  auto calibration = tierkv::llama::find_calibration(*shape, config);
  if (!calibration.ok()) return fail(calibration.status());
  auto cache = tierkv::AdaptiveKVCache::create(config, *calibration);
  if (!cache.ok()) return fail(cache.status());

  llama_context_params params = llama_context_default_params();
  params.n_seq_max = 2;   // sequences 0 and 1
  params.n_ubatch = 256;  // tokens that libllama computes at a time; all the context it needs
  params.n_threads = params.n_threads_batch = 2;
  auto host = tierkv::llama::Host::attach(params, *shape, **cache);
  if (!host.ok()) return fail(host.status());
  // Declared after the host, and so destroyed before it: the context calls the host, the host uses the cache.
  const std::unique_ptr<llama_context, decltype(&llama_free)> context(llama_init_from_model(model.get(), params), llama_free);
  if (!context) return 1;
  // [/attach]

  // [sequences]
  // Both conversations begin alike: read the beginning once, and let the second share its blocks.
  std::vector<llama_token> prompt = tokenize(llama_model_get_vocab(model.get()), argc > 2 ? argv[2] : "Once upon a time");
  if (prompt.size() < 2) return std::fprintf(stderr, "the text is too short\n"), 1;
  llama_token last[2] = {prompt.back(), prompt.front()};
  prompt.pop_back();
  tierkv::Status status = (*host)->decode(context.get(), llama_batch_get_one(prompt.data(), static_cast<int32_t>(prompt.size())));
  if (status.ok()) status = (*host)->fork(0, 1);
  if (!status.ok()) return fail(status);

  // One token of each a step, in one batch. Each answers for itself: one without room would not hold the other up.
  std::vector<tierkv::llama::SequenceStatus> answers;
  llama_batch batch = llama_batch_init(2, 0, 1);
  llama_sampler* sampler = llama_sampler_init_greedy();
  for (int step = 0; step < 16; ++step) {
    batch.n_tokens = 2;
    for (int32_t s = 0; s < 2; ++s) {
      batch.token[s] = last[s];
      batch.pos[s] = static_cast<llama_pos>(prompt.size()) + step;
      batch.n_seq_id[s] = 1;
      batch.seq_id[s][0] = s;
      batch.logits[s] = true;
    }
    if (status = (*host)->decode(context.get(), batch, answers); !status.ok()) return fail(status);  // the first that failed
    for (int32_t s = 0; s < 2; ++s) last[s] = llama_sampler_sample(sampler, context.get(), s);
  }
  llama_sampler_free(sampler);
  llama_batch_free(batch);
  // [/sequences]

  // [memory]
  const tierkv::MemoryStats memory = (*cache)->memory_usage();  // blocks that both share are counted once
  std::printf("two sequences of %zu tokens: %llu bytes, and %zu that libllama holds itself\n", prompt.size() + 16,
              static_cast<unsigned long long>(memory.resident_bytes()), (*host)->micro_batch_bytes());
  // [/memory]

  // [rollback]
  // Back to the shared beginning, then forget one of the two.
  status = (*host)->truncate(0, static_cast<uint32_t>(prompt.size()));
  if (status.ok()) status = (*host)->remove(1);
  // [/rollback]
  if (!status.ok()) return fail(status);

  // [detach]
  (*host)->detach();  // from here on llama_decode() is stock again, over libllama's own small cache
  if (llama_decode(context.get(), llama_batch_get_one(prompt.data(), static_cast<int32_t>(prompt.size()))) != 0) return 1;
  // [/detach]
  return 0;
}
