// Tests of the host with many sequences: each answers for itself, and every token that asked has its logits.
#include <functional>

#include "llama/test_model.h"
#include "snapshot/deep_testing.h"

namespace tierkv::llama {
namespace {

class Sequences : public testing::TestWithParam<Path> {
 protected:
  void open(const std::string& kind, CacheConfig config, uint32_t together, uint32_t micro_batch = 32) {
    model_ = load_tiny(kind);
    ASSERT_NE(model_, nullptr);
    llama_context_params params = test_params(micro_batch);
    params.n_seq_max = together;
    params.n_threads = params.n_threads_batch = 2;
    HostOptions options;
    options.allow_patch = GetParam() == Path::patch;
    options.self_test = false;
    const Status status = hosted_.open(model_.get(), std::move(config), params, options);
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
  // Tokens from..to-1 of a sequence, all of them with logits.
  void add(TestBatch& batch, int32_t seq, size_t from, size_t to) {
    const auto all = tokens(seq, to);
    for (size_t i = from; i < to; ++i) batch.add(all[i], static_cast<llama_pos>(i), seq);
  }
  static std::vector<llama_token> tokens(int32_t seq, size_t count) { return some_tokens(count, 20 + static_cast<uint32_t>(seq)); }

  Status decode_each(const TestBatch& batch) { return hosted_.host->decode(hosted_.context.get(), batch.batch, results_); }
  Status status_of(int32_t seq) const {
    for (const SequenceStatus& of : results_) {
      if (of.seq == seq) return of.status;
    }
    return Status(StatusCode::internal, "not in the batch");
  }
  uint32_t length(int32_t seq) { return hosted_.cache->length(hosted_.host->sequence(seq).value()).value(); }
  // Rows of the last batch, compared with libllama's own logits of the sequence's tokens from `from` on.
  void expect_stock(int32_t first_row, int32_t seq, size_t from, size_t to) {
    const Logits stock = stock_logits(model_.get(), tokens(seq, to), 32);
    Logits ours;
    for (size_t i = from; i < to; ++i) {
      const auto row = hosted_.host->logits(first_row + static_cast<int32_t>(i - from));
      ASSERT_TRUE(row.ok()) << row.status().to_string();
      ours.emplace_back(row->begin(), row->end());
    }
    EXPECT_LT(worst_difference(ours, Logits(stock.begin() + static_cast<ptrdiff_t>(from), stock.end())), 1e-3)
        << "sequence " << seq;
  }

  // Tables of a made-up model: enough to park by.
  void give_deep_tables() {
    const auto tables = snapshot::testing::deep_calibration(hosted_.shape.layers, hosted_.shape.kv_heads);
    ASSERT_TRUE(hosted_.cache->set_calibration(tables).ok());
  }

  ModelPtr model_{nullptr, llama_model_free};
  Hosted hosted_;
  std::vector<SequenceStatus> results_;
};

INSTANTIATE_TEST_SUITE_P(Paths, Sequences, testing::Values(Path::overwrite, Path::patch));

TEST_P(Sequences, LogitsOfEveryTokenThatAskedAreThere) {
  ASSERT_NO_FATAL_FAILURE(open("llama", fp16_config(), 1));
  TestBatch batch(100);
  add(batch, 0, 0, 100);  // 32 + 32 + 32 + 4
  batch.batch.logits[50] = 0;
  ASSERT_TRUE(hosted_.host->decode(hosted_.context.get(), batch.batch).ok());
  EXPECT_EQ(hosted_.host->logits(50).status().code(), StatusCode::failed_precondition);
  EXPECT_EQ(hosted_.host->logits(100).status().code(), StatusCode::out_of_range);
  EXPECT_EQ(hosted_.host->logits(-2).status().code(), StatusCode::out_of_range);
  const Logits stock = stock_logits(model_.get(), tokens(0, 100), 32);
  Logits ours, expected;
  for (int32_t i = 0; i < 100; ++i) {
    if (i == 50) continue;
    const auto row = hosted_.host->logits(i);
    ASSERT_TRUE(row.ok()) << row.status().to_string();
    ours.emplace_back(row->begin(), row->end());
    expected.push_back(stock[static_cast<size_t>(i)]);
  }
  EXPECT_LT(worst_difference(ours, expected), 1e-3);
  EXPECT_EQ(hosted_.host->logits(-1)->data(), hosted_.host->logits(99)->data());
  EXPECT_EQ(hosted_.host->logits(99)->data(), llama_get_logits_ith(hosted_.context.get(), -1)) << "nothing is copied of the last";
}

TEST_P(Sequences, OneWithoutRoomDoesNotRollTheOthersBack) {
  CacheConfig config = fp16_config();
  config.max_seq_len = 50;
  ASSERT_NO_FATAL_FAILURE(open("llama", config, 3));
  TestBatch batch(200);
  for (const int32_t seq : {0, 1, 2}) add(batch, seq, 0, seq == 1 ? 45 : 20);
  ASSERT_TRUE(decode_each(batch).ok());
  // Sequence 1 runs out of room in the second of several micro-batches, in the midst of the others' rows.
  batch.clear();
  for (const int32_t seq : {0, 1, 2}) add(batch, seq, seq == 1 ? 45 : 20, seq == 1 ? 75 : 44);
  const Status status = decode_each(batch);
  EXPECT_EQ(status.code(), StatusCode::resource_exhausted) << status.to_string();
  ASSERT_EQ(results_.size(), 3u);
  EXPECT_TRUE(status_of(0).ok()) << status_of(0).to_string();
  EXPECT_EQ(status_of(1).code(), StatusCode::resource_exhausted);
  EXPECT_TRUE(status_of(2).ok()) << status_of(2).to_string();
  EXPECT_EQ(length(0), 44u);
  EXPECT_EQ(length(1), 45u);
  EXPECT_EQ(length(2), 44u);
  expect_stock(0, 0, 20, 44);
  expect_stock(54, 2, 20, 44);
  EXPECT_EQ(hosted_.host->logits(30).status().code(), StatusCode::failed_precondition) << "of the one that failed";
  // It goes on from where it was.
  batch.clear();
  add(batch, 1, 45, 50);
  ASSERT_TRUE(decode_each(batch).ok());
  expect_stock(0, 1, 45, 50);
}

TEST_P(Sequences, WithinOneMicroBatchTheOthersGoOn) {
  CacheConfig config = fp16_config();
  config.max_seq_len = 50;
  ASSERT_NO_FATAL_FAILURE(open("gemma3", config, 3));
  TestBatch batch(100);
  for (const int32_t seq : {0, 1}) add(batch, seq, 0, seq == 1 ? 50 : 30);
  ASSERT_TRUE(decode_each(batch).ok());
  batch.clear();
  add(batch, 1, 50, 51);
  add(batch, 0, 30, 33);
  add(batch, 2, 0, 5);
  EXPECT_EQ(decode_each(batch).code(), StatusCode::resource_exhausted);
  EXPECT_EQ(hosted_.host->times().calls, 4u) << "one micro-batch was enough";
  EXPECT_EQ(length(0), 33u);
  EXPECT_EQ(length(1), 50u);
  EXPECT_EQ(length(2), 5u);
  expect_stock(1, 0, 30, 33);
  expect_stock(4, 2, 0, 5);
}

TEST_P(Sequences, AllOrNothingLeavesNothing) {
  CacheConfig config = fp16_config();
  config.max_seq_len = 50;
  ASSERT_NO_FATAL_FAILURE(open("llama", config, 3));
  TestBatch batch(200);
  for (const int32_t seq : {0, 1}) add(batch, seq, 0, 20);
  ASSERT_TRUE(decode_each(batch).ok());
  batch.clear();
  add(batch, 0, 20, 30);
  add(batch, 2, 0, 5);
  add(batch, 1, 20, 60);
  EXPECT_EQ(hosted_.host->decode(hosted_.context.get(), batch.batch).code(), StatusCode::resource_exhausted);
  EXPECT_EQ(length(0), 20u);
  EXPECT_EQ(length(1), 20u);
  EXPECT_EQ(hosted_.cache->sequences().size(), 2u) << "sequence 2 did not begin";
  EXPECT_FALSE(hosted_.host->logits(0).ok());
}

TEST_P(Sequences, WhatIsWrongWithOneIsItsOwnAffair) {
  ASSERT_NO_FATAL_FAILURE(open("llama", fp16_config(), 3));
  TestBatch batch(64);
  add(batch, 0, 0, 10);
  ASSERT_TRUE(decode_each(batch).ok());
  batch.clear();
  batch.add(1, 99, 1);  // a wrong position
  add(batch, 0, 10, 14);
  EXPECT_EQ(decode_each(batch).code(), StatusCode::invalid_argument);
  EXPECT_EQ(status_of(1).code(), StatusCode::invalid_argument);
  EXPECT_TRUE(status_of(0).ok());
  expect_stock(1, 0, 10, 14);
  // A batch that is wrong as a whole changes nothing and speaks of no sequence.
  batch.clear();
  add(batch, 0, 14, 16);
  batch.add(1, 0, 7);
  EXPECT_EQ(decode_each(batch).code(), StatusCode::invalid_argument);
  EXPECT_TRUE(results_.empty());
  EXPECT_EQ(length(0), 14u);
  // One that somebody removed from the cache says so once, and its slot is empty then.
  ASSERT_TRUE(hosted_.cache->remove(hosted_.host->sequence(0).value()).ok());
  batch.clear();
  add(batch, 0, 14, 16);
  EXPECT_EQ(decode_each(batch).code(), StatusCode::not_found);
  batch.clear();
  add(batch, 0, 0, 4);
  ASSERT_TRUE(decode_each(batch).ok());
  expect_stock(0, 0, 0, 4);
}

TEST_P(Sequences, SlotsMayBeAddedWhileAHostRuns) {
  // Five sequences, of which libllama sees two at a time.
  ASSERT_NO_FATAL_FAILURE(open("qwen3", fp16_config(), 2));
  TestBatch batch(100);
  add(batch, 0, 0, 8);
  batch.add(1, 0, 2);
  EXPECT_EQ(decode_each(batch).code(), StatusCode::invalid_argument) << "there is no slot 2 yet";
  for (const int32_t number : {2, 3, 4}) EXPECT_EQ(hosted_.host->add_slot().value(), number);
  EXPECT_EQ(hosted_.host->slots(), 5u);
  batch.clear();
  for (int32_t seq = 0; seq < 5; ++seq) add(batch, seq, 0, 8);
  Status status = decode_each(batch);
  ASSERT_TRUE(status.ok()) << status.to_string();
  EXPECT_EQ(results_.size(), 5u);
  for (int32_t seq = 0; seq < 5; ++seq) expect_stock(8 * seq, seq, 0, 8);
  // One token of each, mixed: 4 0 3 1 2.
  batch.clear();
  for (const int32_t seq : {4, 0, 3, 1, 2}) add(batch, seq, 8, 9);
  ASSERT_TRUE(decode_each(batch).ok());
  int32_t row = 0;
  for (const int32_t seq : {4, 0, 3, 1, 2}) expect_stock(row++, seq, 8, 9);
  ASSERT_TRUE(hosted_.host->fork(4, 2).ok());
  EXPECT_EQ(length(2), 9u);
}

TEST_P(Sequences, WithChunksItDoesNotMatterHowAPromptIsCutIntoBatches) {
  model_ = load_tiny("llama");
  CacheConfig config;
  ASSERT_TRUE(apply_inline("hot=16,warm=32,archive=rot2,archive_block=64,warm_block=32,sinks=4", config).ok());
  // The logits of the last of 240 tokens that were decoded `step` at a time.
  const auto last = [&](uint32_t chunk, size_t step) {
    Hosted hosted;
    HostOptions options;
    options.allow_patch = GetParam() == Path::patch;
    options.self_test = false;
    options.chunk = chunk;
    EXPECT_TRUE(hosted.open(model_.get(), config, test_params(96), options).ok());
    for (size_t at = 0; at < 240; at += step) {
      TestBatch batch(static_cast<int32_t>(step));
      add(batch, 0, at, std::min<size_t>(at + step, 240));
      EXPECT_TRUE(hosted.host->decode(hosted.context.get(), batch.batch).ok());
    }
    const auto row = hosted.host->logits(-1);
    EXPECT_TRUE(row.ok());
    return Logits{{row->begin(), row->end()}};
  };
  const double chunked = std::max(worst_difference(last(4, 4), last(4, 96)), worst_difference(last(4, 12), last(4, 96)));
  EXPECT_LT(chunked, 1e-4);
  EXPECT_GT(worst_difference(last(0, 4), last(0, 96)), 10 * chunked) << "without them it does: they are good for something";
}

// libllama asks about a node that it is about to compute.
bool call_back(ggml_tensor*, bool asking, void* user) {
  if (asking) (*static_cast<std::function<void()>*>(user))();
  return false;
}

TEST_P(Sequences, OneParkedInTheMidstOfADecodeEndsAloneAndIsWholeAfterWaking) {
  // What another thread or a pressure handler may do: park sequence 0 between two micro-batches of its own.
  model_ = load_tiny("llama");
  CacheConfig config;
  ASSERT_TRUE(apply_inline("hot=16,warm=32,archive=rot4,archive_block=64,warm_block=32,sinks=4", config).ok());
  llama_context_params params = test_params(64);
  params.n_seq_max = 2;
  std::function<void()> asked = [] {};
  params.cb_eval = call_back;
  params.cb_eval_user_data = &asked;
  HostOptions options;
  options.allow_patch = GetParam() == Path::patch;
  options.self_test = false;
  ASSERT_TRUE(hosted_.open(model_.get(), config, params, options).ok());
  ASSERT_NO_FATAL_FAILURE(give_deep_tables());

  TestBatch batch(300);
  add(batch, 0, 0, 240);
  add(batch, 1, 0, 20);
  ASSERT_TRUE(decode_each(batch).ok());
  const SeqId id = hosted_.host->sequence(0).value();
  asked = [&] {
    if (hosted_.cache->is_parked(id).value() || hosted_.cache->length(id).value() != 304) return;
    DeepOptions deep;
    deep.ratio = 4.0;
    EXPECT_TRUE(hosted_.cache->park(id, deep).ok());
  };
  batch.clear();
  add(batch, 0, 240, 310);  // 64 rows, then 6 beside the other's
  add(batch, 1, 20, 22);
  EXPECT_EQ(decode_each(batch).code(), StatusCode::failed_precondition);
  EXPECT_EQ(status_of(0).code(), StatusCode::failed_precondition);
  EXPECT_TRUE(status_of(1).ok()) << status_of(1).to_string();
  EXPECT_EQ(length(1), 22u);
  asked = [] {};
  batch.clear();
  add(batch, 0, 240, 243);
  EXPECT_EQ(decode_each(batch).code(), StatusCode::failed_precondition) << "still parked";
  ASSERT_TRUE(hosted_.cache->wake(id).ok());
  EXPECT_EQ(hosted_.cache->length(id).value(), 304u) << "of the failed batch, until it is used";
  const Status status = decode_each(batch);
  ASSERT_TRUE(status.ok()) << status.to_string();
  EXPECT_EQ(hosted_.cache->length(id).value(), 243u);
}

TEST_P(Sequences, AHandlerParksTheIdleOneSoThatTheOtherGrows) {
  constexpr size_t kTokens = 800;
  CacheConfig config;
  ASSERT_TRUE(apply_inline("hot=16,warm=32,archive=fp16,archive_block=64,warm_block=32,sinks=4", config).ok());
  ASSERT_NO_FATAL_FAILURE(open("llama", config, 2, 64));
  TestBatch batch(static_cast<int32_t>(kTokens));
  add(batch, 0, 0, kTokens);
  ASSERT_TRUE(decode_each(batch).ok());
  config.byte_budget = hosted_.cache->memory_usage(hosted_.host->sequence(0).value()).value().total_bytes * 17 / 10;

  hosted_.context.reset();
  hosted_.host.reset();
  hosted_.cache.reset();
  ASSERT_NO_FATAL_FAILURE(open("llama", config, 2, 64));
  ASSERT_NO_FATAL_FAILURE(give_deep_tables());
  ASSERT_TRUE(decode_each(batch).ok()) << status_of(0).to_string();
  std::vector<int32_t> asked;
  Status parked;
  const Status kept = hosted_.cache->set_pressure_handler([&](const MemoryPressure& pressure) {
    asked.push_back(hosted_.host->number_of(pressure.seq));
    DeepOptions deep;
    deep.ratio = 4.0;
    parked = hosted_.host->park(0, deep);
    return parked.ok();
  });
  ASSERT_TRUE(kept.ok());
  batch.clear();
  add(batch, 1, 0, kTokens);
  const Status status = decode_each(batch);
  ASSERT_TRUE(status.ok()) << status.to_string() << ", and parking: " << parked.to_string();
  EXPECT_EQ(asked, std::vector<int32_t>{1});
  EXPECT_TRUE(hosted_.cache->is_parked(hosted_.host->sequence(0).value()).value());
  EXPECT_EQ(length(1), kTokens);
  // And back, when there is room again.
  EXPECT_EQ(hosted_.host->wake(0).code(), StatusCode::resource_exhausted);
  ASSERT_TRUE(hosted_.host->remove(1).ok());
  ASSERT_TRUE(hosted_.host->wake(0).ok());
  batch.clear();
  add(batch, 0, kTokens, kTokens + 1);
  EXPECT_TRUE(decode_each(batch).ok());
}

TEST_P(Sequences, OneOfTheBatchThatAHandlerRemovesFailsAlone) {
  CacheConfig config = fp16_config();
  constexpr size_t kTokens = 300;
  config.byte_budget = 3ull * 2 * 32 * 4 * kTokens * 3 / 2;
  ASSERT_NO_FATAL_FAILURE(open("llama", config, 2));
  const Status kept = hosted_.cache->set_pressure_handler(
      [&](const MemoryPressure& pressure) { return pressure.attempt == 0 && hosted_.host->remove(0).ok(); });
  ASSERT_TRUE(kept.ok());
  // Sequence 0 has rows before and after those of sequence 1 that do not fit beside it.
  TestBatch batch(static_cast<int32_t>(3 * kTokens));
  add(batch, 0, 0, 200);
  add(batch, 1, 0, kTokens);
  add(batch, 0, 200, 220);
  EXPECT_EQ(decode_each(batch).code(), StatusCode::not_found);
  EXPECT_EQ(status_of(0).code(), StatusCode::not_found) << status_of(0).to_string();
  EXPECT_TRUE(status_of(1).ok()) << status_of(1).to_string();
  EXPECT_EQ(length(1), kTokens);
  expect_stock(200, 1, 0, kTokens);
  EXPECT_EQ(length(0), 0u) << "a new one";
}

}  // namespace
}  // namespace tierkv::llama
