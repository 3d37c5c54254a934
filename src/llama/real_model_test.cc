// Parity on real models, where they have been downloaded (tools/fetch.py smollm2, gemma3-270m, wikitext2); skipped where not.
//
// Quantized weights make small models noisy: libllama's own two ways to compute attention differ by more than rounding. So the
// bound for the cache's divergence from one of them is 1.5 times their divergence from each other.
// ctest: slow
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "llama/test_model.h"
#include "quant/isa.h"

namespace tierkv::llama {
namespace {

std::string in_cache(const std::string& name) {
  const char *own = std::getenv("TIERKV_CACHE"), *xdg = std::getenv("XDG_CACHE_HOME"), *home = std::getenv("HOME");
  if (own && *own) return std::string(own) + "/" + name;
  if (xdg && *xdg) return std::string(xdg) + "/tierkv/" + name;
  return std::string(home ? home : "") + "/.cache/tierkv/" + name;
}

std::vector<llama_token> text_tokens(const llama_model* model, size_t count) {
  std::ifstream file(in_cache("text/wiki.test.raw"), std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  text.resize(std::min(text.size(), count * 8));
  std::vector<llama_token> tokens(text.size() + 1);
  const int32_t n = llama_tokenize(llama_model_get_vocab(model), text.data(), static_cast<int32_t>(text.size()), tokens.data(),
                                   static_cast<int32_t>(tokens.size()), /*add_special=*/true, /*parse_special=*/false);
  tokens.resize(n < 0 ? 0 : std::min(count, static_cast<size_t>(n)));
  return tokens;
}

std::vector<double> log_softmax(const std::vector<float>& logits) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (const float x : logits) sum += std::exp(x - top);
  std::vector<double> result;
  for (const float x : logits) result.push_back(x - top - std::log(sum));
  return result;
}

struct Comparison {
  double log_ppl_reference = 0.0, log_ppl = 0.0, divergence = 0.0;
};

Comparison compare(const Logits& reference, const Logits& other, const std::vector<llama_token>& tokens) {
  Comparison result;
  const size_t count = tokens.size() - 1;
  for (size_t t = 0; t < count; ++t) {
    const std::vector<double> p = log_softmax(reference[t]), q = log_softmax(other[t]);
    result.log_ppl_reference -= p[static_cast<size_t>(tokens[t + 1])] / static_cast<double>(count);
    result.log_ppl -= q[static_cast<size_t>(tokens[t + 1])] / static_cast<double>(count);
    for (size_t i = 0; i < p.size(); ++i) result.divergence += std::exp(p[i]) * (p[i] - q[i]) / static_cast<double>(count);
  }
  return result;
}

void expect_parity(const std::string& file, size_t count, uint32_t step) {
  if (!std::ifstream(in_cache(file)) || !std::ifstream(in_cache("text/wiki.test.raw")))
    GTEST_SKIP() << file << " is not downloaded";
  const ModelPtr model = load_model(in_cache(file));
  ASSERT_NE(model, nullptr);
  const std::vector<llama_token> tokens = text_tokens(model.get(), count);
  ASSERT_EQ(tokens.size(), count);
  const Logits stock = stock_logits(model.get(), tokens, step, /*flash=*/true);
  const Comparison floor = compare(stock, stock_logits(model.get(), tokens, step, /*flash=*/false), tokens);
  Hosted hosted;
  const Status opened = hosted.open(model.get(), fp16_config(), test_params(step), HostOptions());
  ASSERT_TRUE(opened.ok()) << opened.to_string();
  EXPECT_EQ(hosted.host->path(), Path::patch);
  const Comparison ours = compare(stock,
                                  all_logits(hosted.context.get(), tokens, step,
                                             [&](const llama_batch& batch) {
                                               const Status status = hosted.host->decode(hosted.context.get(), batch);
                                               ASSERT_TRUE(status.ok()) << status.to_string();
                                             }),
                                  tokens);
  EXPECT_LT(ours.divergence, 1.5 * floor.divergence);
  // Over so few tokens the noise of a model's quantized weights moves perplexity by a few parts in a thousand.
  EXPECT_NEAR(ours.log_ppl, ours.log_ppl_reference, 0.01);
  testing::Test::RecordProperty("ppl_stock", std::to_string(std::exp(ours.log_ppl_reference)));
  testing::Test::RecordProperty("ppl_cache", std::to_string(std::exp(ours.log_ppl)));
}

// The kernels round queries and weights to bytes; plain C++ does not. On a compressed cache their predictions differ by less than
// libllama's own two ways to compute attention do (the same bound as for parity).
TEST(RealModel, FastKernelsStayWithinTheParityFloor) {
  const std::string file = "models/SmolLM2-135M-Instruct.Q4_1.gguf";
  if (!std::ifstream(in_cache(file)) || !std::ifstream(in_cache("text/wiki.test.raw")))
    GTEST_SKIP() << file << " is not downloaded";
  if (quant::available_isas().size() < 2) GTEST_SKIP() << "this processor has plain C++ alone";
  const ModelPtr model = load_model(in_cache(file));
  ASSERT_NE(model, nullptr);
  constexpr uint32_t kCount = 384, kStep = 64;
  const std::vector<llama_token> tokens = text_tokens(model.get(), kCount);
  const Comparison floor = compare(stock_logits(model.get(), tokens, kStep, /*flash=*/true),
                                   stock_logits(model.get(), tokens, kStep, /*flash=*/false), tokens);
  const std::string_view best = quant::active_isa();
  // Every chunk is decoded twice on one and the same cache, in plain C++ and then with the kernels: what a different rounding does
  // to the codes of later tokens (any does, and 2-bit codes magnify it) is not the kernels' error.
  const auto both_ways = [&](const char* kv, Logits& reference, Logits& fast) {
    CacheConfig config;
    ASSERT_TRUE(apply_spec(kv, config).ok());
    Hosted hosted;
    const Status opened = hosted.open(model.get(), config, test_params(kStep), HostOptions());
    ASSERT_TRUE(opened.ok()) << opened.to_string();
    for (uint32_t at = 0; at < kCount; at += kStep) {
      const std::vector<llama_token> chunk(tokens.begin() + at, tokens.begin() + std::min(at + kStep, kCount));
      for (const bool kernels : {false, true}) {
        quant::set_active_isa(kernels ? best : "scalar");
        const Logits rows = all_logits(
            hosted.context.get(), chunk, kStep,
            [&](const llama_batch& batch) {
              const Status status = hosted.host->decode(hosted.context.get(), batch);
              ASSERT_TRUE(status.ok()) << status.to_string();
            },
            static_cast<llama_pos>(at));
        (kernels ? fast : reference).insert((kernels ? fast : reference).end(), rows.begin(), rows.end());
        if (!kernels) {
          ASSERT_TRUE(hosted.host->truncate(0, at).ok());
        }
      }
    }
  };
  for (const char* kv : {"int8", "kivi4,hot=64,warm_block=64,archive_block=64", "balanced,hot=64,warm=64,archive_block=64"}) {
    Logits reference, fast;
    both_ways(kv, reference, fast);
    const Comparison result = compare(reference, fast, tokens);
    EXPECT_LT(result.divergence, 1.5 * floor.divergence) << kv;
    testing::Test::RecordProperty(std::string("divergence_") + std::string(kv).substr(0, 5), std::to_string(result.divergence));
  }
}

TEST(RealModel, SmolLM2HasParity) { expect_parity("models/SmolLM2-135M-Instruct.Q4_1.gguf", 384, 64); }

// Longer than its window of 512 tokens.
TEST(RealModel, Gemma3HasParityPastItsWindow) { expect_parity("models/gemma-3-270m-q4_k_m.gguf", 640, 128); }

}  // namespace
}  // namespace tierkv::llama
