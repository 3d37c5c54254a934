// Tests of the host on tiny models: the cache's attention in libllama's graph gives libllama's own logits.
#include <map>

#include "llama/test_model.h"
#include "snapshot/deep_testing.h"

namespace tierkv::llama {
namespace {

constexpr size_t kTokens = 150;  // past every tiny model's window

struct Case {
  const char* kind;
  Path path;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.kind << (c.path == Path::patch ? " patched" : " overwritten"); }

class Parity : public testing::TestWithParam<Case> {};

TEST_P(Parity, LogitsAgreeWithStock) {
  const ModelPtr model = load_tiny(GetParam().kind);
  ASSERT_NE(model, nullptr);
  const auto tokens = some_tokens(kTokens, 1);
  const Logits stock = stock_logits(model.get(), tokens, 32);
  for (const uint32_t step : {100u, 17u, 1u}) {
    HostOptions options;
    options.allow_patch = GetParam().path == Path::patch;
    options.self_test = false;
    Hosted hosted;
    const Status opened = hosted.open(model.get(), fp16_config(), test_params(100), options);
    ASSERT_TRUE(opened.ok()) << opened.to_string();
    EXPECT_EQ(hosted.host->path(), GetParam().path);
    const Logits ours = all_logits(hosted.context.get(), tokens, step, [&](const llama_batch& batch) {
      const Status status = hosted.host->decode(hosted.context.get(), batch);
      ASSERT_TRUE(status.ok()) << status.to_string();
    });
    EXPECT_LT(worst_difference(ours, stock), 1e-3) << "steps of " << step;
  }
}

INSTANTIATE_TEST_SUITE_P(Tiny, Parity,
                         testing::Values(Case{"llama", Path::overwrite}, Case{"llama", Path::patch}, Case{"qwen2", Path::overwrite},
                                         Case{"qwen2", Path::patch}, Case{"qwen3", Path::overwrite}, Case{"qwen3", Path::patch},
                                         Case{"phi3", Path::overwrite}, Case{"phi3", Path::patch}, Case{"gemma2", Path::overwrite},
                                         Case{"gemma2", Path::patch}, Case{"gemma3", Path::overwrite}, Case{"gemma3", Path::patch},
                                         Case{"gpt-oss", Path::overwrite}, Case{"gpt-oss", Path::patch}));

// What an observer was shown of one layer and sequence.
struct Watched {
  std::vector<float> queries, keys, values, out;
  float scale = 0.0f;
  uint32_t rows = 0;
};

class Observer : public testing::TestWithParam<Path> {};

TEST_P(Observer, SeesTheAttentionThatWasComputed) {
  constexpr uint32_t kSequences = 3;
  constexpr int kHeads = 4, kKvHeads = 2, kDim = 32;
  std::map<std::pair<uint32_t, int32_t>, Watched> watched;
  HostOptions options;
  options.allow_patch = GetParam() == Path::patch;
  options.observer = [&](const AttentionSeen& seen) {
    Watched& of = watched[{seen.layer, seen.seq}];
    EXPECT_EQ(seen.position, of.rows);
    EXPECT_EQ(seen.queries.type, DType::f32);
    EXPECT_EQ(seen.keys.type, DType::f16);
    const auto half = [](const RowsView& rows, uint32_t t, int h, int c) {
      return ggml_fp16_to_fp32(static_cast<const uint16_t*>(rows.data)[t * rows.token_stride + h * rows.head_stride + c]);
    };
    for (uint32_t t = 0; t < seen.queries.tokens; ++t) {
      for (int i = 0; i < kHeads * kDim; ++i) {
        of.queries.push_back(static_cast<const float*>(
            seen.queries.data)[t * seen.queries.token_stride + i / kDim * seen.queries.head_stride + i % kDim]);
        of.out.push_back(seen.out[t * kHeads * kDim + static_cast<uint32_t>(i)]);
      }
      for (int i = 0; i < kKvHeads * kDim; ++i) {
        of.keys.push_back(half(seen.keys, t, i / kDim, i % kDim));
        of.values.push_back(half(seen.values, t, i / kDim, i % kDim));
      }
    }
    of.rows += seen.queries.tokens;
    of.scale = seen.scale;
  };
  const ModelPtr model = load_tiny("llama");
  llama_context_params params = test_params(32);
  params.n_seq_max = kSequences;
  params.n_threads = params.n_threads_batch = 2;
  Hosted hosted;
  ASSERT_TRUE(hosted.open(model.get(), fp16_config(), params, options).ok());
  EXPECT_EQ(hosted.host->path(), GetParam());
  TestBatch batch(20 * kSequences);
  for (llama_pos t = 0; t < 20; ++t) {
    for (int32_t s = 0; s < static_cast<int32_t>(kSequences); ++s)
      batch.add(some_tokens(20, 5 + static_cast<uint32_t>(s))[static_cast<size_t>(t)], t, s, false);
  }
  batch.batch.logits[batch.batch.n_tokens - 1] = true;
  ASSERT_TRUE(hosted.host->decode(hosted.context.get(), batch.batch).ok());
  ASSERT_EQ(watched.size(), 3 * kSequences);
  for (const auto& [which, of] : watched) {
    ASSERT_EQ(of.rows, 20u);
    double worst = 0.0, size = 0.0;
    for (int t = 0; t < 20; ++t) {
      for (int h = 0; h < kHeads; ++h) {
        std::vector<double> p, sum(kDim, 0.0);
        double total = 0.0;
        for (int s = 0; s <= t; ++s) {
          double score = 0.0;
          for (int c = 0; c < kDim; ++c)
            score += of.queries[(t * kHeads + h) * kDim + c] * of.keys[(s * kKvHeads + h / 2) * kDim + c];
          total += std::exp(score * of.scale);
          p.push_back(std::exp(score * of.scale));
        }
        for (int s = 0; s <= t; ++s) {
          for (int c = 0; c < kDim; ++c) sum[c] += p[s] / total * of.values[(s * kKvHeads + h / 2) * kDim + c];
        }
        for (int c = 0; c < kDim; ++c) {
          worst = std::max(worst, std::fabs(sum[c] - of.out[(t * kHeads + h) * kDim + c]));
          size = std::max(size, std::fabs(sum[c]));
        }
      }
    }
    EXPECT_LT(worst, 1e-4 * size) << "layer " << which.first << ", sequence " << which.second;
  }
}

INSTANTIATE_TEST_SUITE_P(Paths, Observer, testing::Values(Path::overwrite, Path::patch));

class HostTest : public testing::Test {
 protected:
  void open(const std::string& kind, CacheConfig config = fp16_config(), uint32_t sequences = 1, int32_t threads = 1) {
    model_ = load_tiny(kind);
    ASSERT_NE(model_, nullptr);
    llama_context_params params = test_params(32);
    params.n_seq_max = sequences;
    params.n_threads = params.n_threads_batch = threads;
    const Status status = hosted_.open(model_.get(), std::move(config), params, HostOptions());
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
  Status decode(const llama_batch& batch) { return hosted_.host->decode(hosted_.context.get(), batch); }
  Status decode(std::vector<llama_token> tokens) {
    return decode(llama_batch_get_one(tokens.data(), static_cast<int32_t>(tokens.size())));
  }
  std::vector<float> last_logits() {
    const float* row = llama_get_logits_ith(hosted_.context.get(), -1);
    return row ? std::vector<float>(row, row + 384) : std::vector<float>();
  }
  uint32_t length(int32_t seq) { return hosted_.cache->length(hosted_.host->sequence(seq).value()).value(); }

  ModelPtr model_{nullptr, llama_model_free};
  Hosted hosted_;
};

TEST_F(HostTest, SelfTestChoosesThePatch) {
  ASSERT_NO_FATAL_FAILURE(open("llama"));
  EXPECT_EQ(hosted_.host->path(), Path::patch);
}

TEST_F(HostTest, SequencesInOneBatchDoNotSeeEachOther) {
  // Three sequences of different lengths, mixed row by row, on two threads; each must be as if it were alone.
  ASSERT_NO_FATAL_FAILURE(open("gemma3", fp16_config(), 3, 2));
  const std::vector<std::vector<llama_token>> tokens = {some_tokens(70, 1), some_tokens(45, 2), some_tokens(64, 3)};
  std::vector<Logits> mixed(3);
  TestBatch batch(32);
  std::vector<int32_t> owner;
  std::vector<size_t> at(3, 0);
  for (size_t turn = 0; at[0] < tokens[0].size() || at[1] < tokens[1].size() || at[2] < tokens[2].size();) {
    batch.clear();
    owner.clear();
    while (batch.batch.n_tokens < 32 && (at[0] < tokens[0].size() || at[1] < tokens[1].size() || at[2] < tokens[2].size())) {
      const size_t s = turn++ % 5 % 3;  // 0 1 2 0 1: runs, and rows that alternate
      if (at[s] == tokens[s].size()) continue;
      batch.add(tokens[s][at[s]], static_cast<llama_pos>(at[s]), static_cast<llama_seq_id>(s));
      owner.push_back(static_cast<int32_t>(s));
      ++at[s];
    }
    const Status status = decode(batch.batch);
    ASSERT_TRUE(status.ok()) << status.to_string();
    for (size_t i = 0; i < owner.size(); ++i) {
      const float* row = llama_get_logits_ith(hosted_.context.get(), static_cast<int32_t>(i));
      mixed[static_cast<size_t>(owner[i])].emplace_back(row, row + 384);
    }
  }
  for (size_t s = 0; s < 3; ++s) {
    EXPECT_EQ(length(static_cast<int32_t>(s)), tokens[s].size());
    EXPECT_LT(worst_difference(mixed[s], stock_logits(model_.get(), tokens[s], 32)), 1e-3) << "sequence " << s;
  }
}

TEST_F(HostTest, ThreadsOfGgmlShareASequence) {
  ASSERT_NO_FATAL_FAILURE(open("qwen3", fp16_config(), 1, 3));
  const auto tokens = some_tokens(90, 11);
  const Logits ours = all_logits(hosted_.context.get(), tokens, 30, [&](const llama_batch& batch) {
    const Status status = decode(batch);
    ASSERT_TRUE(status.ok()) << status.to_string();
  });
  EXPECT_LT(worst_difference(ours, stock_logits(model_.get(), tokens, 30)), 1e-3);
}

TEST_F(HostTest, LongBatchesAreSplitAndKeepTheLastLogits) {
  ASSERT_NO_FATAL_FAILURE(open("qwen3"));
  const auto tokens = some_tokens(100, 4);
  ASSERT_TRUE(decode(tokens).ok());  // 32 + 32 + 32 + 4
  const Logits stock = stock_logits(model_.get(), tokens, 32);
  EXPECT_LT(worst_difference({last_logits()}, {stock.back()}), 1e-3);
  EXPECT_EQ(hosted_.host->times().calls, 4u);
  EXPECT_EQ(llama_n_ctx(hosted_.context.get()), 256u);  // libllama's smallest
}

TEST_F(HostTest, TruncateAndForkGoOnFromTheSamePlace) {
  ASSERT_NO_FATAL_FAILURE(open("llama", fp16_config(), 2));
  const auto tokens = some_tokens(60, 5);
  ASSERT_TRUE(decode(std::vector(tokens.begin(), tokens.begin() + 50)).ok());
  ASSERT_TRUE(hosted_.host->fork(0, 1).ok());
  ASSERT_TRUE(decode(std::vector(tokens.begin() + 50, tokens.end())).ok());
  const std::vector<float> direct = last_logits();
  ASSERT_TRUE(hosted_.host->truncate(0, 50).ok());
  ASSERT_TRUE(decode(std::vector(tokens.begin() + 50, tokens.end())).ok());
  EXPECT_EQ(last_logits(), direct);
  TestBatch batch(16);
  for (int i = 50; i < 60; ++i) batch.add(tokens[static_cast<size_t>(i)], i, 1, i == 59);
  ASSERT_TRUE(decode(batch.batch).ok());
  EXPECT_EQ(last_logits(), direct);
  EXPECT_EQ(hosted_.cache->sequences().size(), 2u);
  ASSERT_TRUE(hosted_.host->remove(1).ok());
  EXPECT_EQ(hosted_.cache->sequences().size(), 1u);
}

TEST_F(HostTest, DetachRestoresStockAttention) {
  ASSERT_NO_FATAL_FAILURE(open("gemma2"));
  const auto tokens = some_tokens(32, 6);
  ASSERT_EQ(hosted_.host->path(), Path::patch);
  // The graph is patched now, and the same graph comes back below.
  all_logits(hosted_.context.get(), tokens, 32, [&](const llama_batch& batch) { ASSERT_TRUE(decode(batch).ok()); });
  hosted_.host->detach();
  EXPECT_FALSE(hosted_.host->attached());
  EXPECT_EQ(decode(tokens).code(), StatusCode::failed_precondition);
  const Logits ours = all_logits(hosted_.context.get(), tokens, 32,
                                 [&](const llama_batch& batch) { ASSERT_EQ(llama_decode(hosted_.context.get(), batch), 0); });
  EXPECT_EQ(worst_difference(ours, stock_logits(model_.get(), tokens, 32, /*flash=*/true)), 0.0);
}

TEST_F(HostTest, AFailedBatchLeavesNothing) {
  CacheConfig config = fp16_config();
  config.max_seq_len = 40;
  ASSERT_NO_FATAL_FAILURE(open("llama", config));
  const auto tokens = some_tokens(65, 7);
  ASSERT_TRUE(decode(std::vector(tokens.begin(), tokens.begin() + 5)).ok());
  const Status status = decode(std::vector(tokens.begin() + 5, tokens.end()));  // the first of two micro-batches fits
  EXPECT_EQ(status.code(), StatusCode::resource_exhausted);
  EXPECT_NE(status.message().find("max_seq_len"), std::string::npos) << status.message();
  EXPECT_EQ(length(0), 5u);
  ASSERT_TRUE(decode(std::vector(tokens.begin() + 5, tokens.begin() + 40)).ok());
  const std::vector<llama_token> head(tokens.begin(), tokens.begin() + 40);
  EXPECT_LT(worst_difference({last_logits()}, {stock_logits(model_.get(), head, 32).back()}), 1e-3);
}

TEST_F(HostTest, ImpossibleBatchesAreRefusedWithTheReason) {
  ASSERT_NO_FATAL_FAILURE(open("llama", fp16_config(), 2));
  ASSERT_TRUE(decode(some_tokens(5, 8)).ok());
  TestBatch batch(64);
  const auto refused = [&](const char* why) {
    const Status status = decode(batch.batch);
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
    EXPECT_NE(status.message().find(why), std::string::npos) << status.message();
    EXPECT_EQ(length(0), 5u);
    batch.clear();
  };
  refused("empty");
  batch.add(1, 7, 0);
  refused("goes on at position 5");
  batch.add(1, 0, 2);
  refused("sequences 0 to 1");
  batch.add(1, 5, 0);
  batch.batch.n_seq_id[0] = 2;
  batch.batch.seq_id[0][1] = 1;
  refused("fork");
  EXPECT_EQ(hosted_.host->decode(nullptr, batch.batch).code(), StatusCode::invalid_argument);
}

TEST_F(HostTest, TheModelsContextIsTheEnd) {
  ASSERT_NO_FATAL_FAILURE(open("llama"));
  hosted_.context.reset();
  hosted_.host.reset();
  hosted_.shape.context = 8;
  llama_context_params params = test_params(32);
  auto attached = Host::attach(params, hosted_.shape, *hosted_.cache);
  ASSERT_TRUE(attached.ok()) << attached.status().to_string();
  hosted_.host = std::move(attached).value();
  hosted_.context.reset(llama_init_from_model(model_.get(), params));
  const Status status = decode(some_tokens(9, 9));
  EXPECT_EQ(status.code(), StatusCode::out_of_range);
  EXPECT_TRUE(decode(some_tokens(8, 9)).ok());
}

TEST_F(HostTest, ACacheOfAnotherShapeIsRefused) {
  ASSERT_NO_FATAL_FAILURE(open("gemma3"));
  llama_context_params params = test_params(32);
  CacheConfig config = fp16_config();
  hosted_.shape.apply(config);
  config.overrides.clear();  // no windows
  auto cache = AdaptiveKVCache::create(config);
  ASSERT_TRUE(cache.ok());
  const Status windows = Host::attach(params, hosted_.shape, **cache).status();
  EXPECT_NE(windows.message().find("window"), std::string::npos) << windows.message();
  config.num_layers = 3;
  cache = AdaptiveKVCache::create(config);
  const Status layers = Host::attach(params, hosted_.shape, **cache).status();
  EXPECT_NE(layers.message().find("3 layers"), std::string::npos) << layers.message();
  EXPECT_EQ(params.cb_eval, nullptr);
}

TEST_F(HostTest, CompressedTiersStayCloseToStock) {
  // Eight bits everywhere but the newest tokens: no parity, but nothing near the noise of a wrong row.
  CacheConfig config;
  ASSERT_TRUE(apply_preset("int8", config).ok());
  ASSERT_NO_FATAL_FAILURE(open("qwen3", config));
  const auto tokens = some_tokens(600, 10);
  for (size_t at = 0; at < tokens.size(); at += 30) {
    ASSERT_TRUE(decode(std::vector(tokens.begin() + static_cast<long>(at), tokens.begin() + static_cast<long>(at) + 30)).ok());
  }
  EXPECT_LT(worst_difference({last_logits()}, {stock_logits(model_.get(), tokens, 128).back()}), 0.05);
  EXPECT_GT(hosted_.cache->memory_usage()[Tier::warm].tokens + hosted_.cache->memory_usage()[Tier::archive].tokens, 0u);
}

TEST(HostPark, AParkedSequenceIsRefusedAndKeptUntilItWakes) {
  const ModelPtr model = load_tiny("llama");
  ASSERT_NE(model, nullptr);
  CacheConfig config;
  ASSERT_TRUE(apply_inline("hot=16,warm=32,archive=rot4,archive_block=64,warm_block=32,sinks=4", config).ok());
  Hosted hosted;
  ASSERT_TRUE(hosted.open(model.get(), config, test_params(64), {}).ok());
  const auto tables = snapshot::testing::deep_calibration(hosted.shape.layers, hosted.shape.kv_heads);
  ASSERT_TRUE(hosted.cache->set_calibration(tables).ok());
  const auto tokens = some_tokens(240, 1);
  const auto decode = [&](const llama_batch& batch) {
    const Status status = hosted.host->decode(hosted.context.get(), batch);
    ASSERT_TRUE(status.ok()) << status.to_string();
  };
  all_logits(hosted.context.get(), tokens, 40, decode);
  const SeqId id = hosted.host->sequence(0).value();
  DeepOptions options;
  options.ratio = 4.0;
  const Status parked = hosted.cache->park(id, options);
  ASSERT_TRUE(parked.ok()) << parked.to_string();
  TestBatch batch(1);
  batch.add(5, 240, 0);
  const Status refused = hosted.host->decode(hosted.context.get(), batch.batch);
  EXPECT_EQ(refused.code(), StatusCode::failed_precondition);
  EXPECT_NE(refused.message().find("wake("), std::string::npos) << refused.message();
  EXPECT_EQ(hosted.host->sequence(0).value(), id);
  EXPECT_EQ(hosted.cache->length(id).value(), 240u);
  ASSERT_TRUE(hosted.cache->wake(id).ok());
  decode(batch.batch);
  EXPECT_EQ(hosted.cache->length(id).value(), 241u);
}

}  // namespace
}  // namespace tierkv::llama
