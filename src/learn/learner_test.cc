// Tests of learning on made-up attention: sums against formulas in double, memory, and what must be refused.
#include "learn/learner.h"

#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "base/file.h"
#include "base/folder_testing.h"
#include "base/thread_pool.h"
#include "learn/sums.h"
#include "learn/testing.h"

namespace tierkv::learn {
namespace {

SumsFrame frame_of(const LearnModel& model, const LearnSettings& settings) {
  return {model.id, settings.block, settings.sinks, settings.distance, std::vector<bool>(model.id.layers, true)};
}

Sums sums_of(const Learner& learner, const LearnModel& model, const LearnSettings& settings) {
  TestFolder folder;
  const Status saved = learner.save_sums(folder.file("sums"));
  EXPECT_TRUE(saved.ok()) << saved.message();
  auto sums = load_sums(folder.file("sums"), frame_of(model, settings));
  EXPECT_TRUE(sums.ok()) << sums.status().message();
  return sums.ok() ? std::move(*sums) : Sums();
}

std::vector<float> some_gram() {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<float> gram(kHeads * kDim * kDim), w(kDim * kDim);
  for (uint32_t h = 0; h < kHeads; ++h) {
    for (float& x : w) x = normal(random) * static_cast<float>(h + 1);
    for (uint32_t r = 0; r < kDim; ++r) {
      for (uint32_t c = 0; c < kDim; ++c) {
        for (uint32_t k = 0; k < kDim; ++k) gram[(h * kDim + r) * kDim + c] += w[k * kDim + r] * w[k * kDim + c];
      }
    }
  }
  return gram;
}

// |a - b| over |b|, b full and a an upper triangle.
double apart(const std::vector<double>& a, const std::vector<double>& b) {
  double error = 0.0, size = 0.0;
  size_t at = 0;
  for (uint32_t r = 0; r < kDim; ++r) {
    for (uint32_t c = r; c < kDim; ++c, ++at) {
      error += std::pow(a[at] - b[r * kDim + c], 2);
      size += std::pow(b[r * kDim + c], 2);
    }
  }
  return std::sqrt(error / size);
}

std::vector<double> both_kinds(const HeadSums& head) {
  std::vector<double> all(head.metric[kFit].begin(), head.metric[kFit].end());
  for (size_t i = 0; i < all.size(); ++i) all[i] += head.metric[kHeldOut][i];
  return all;
}

TEST(Learner, SumsAreThoseOfTheFormulas) {
  auto synthetic = small_model();
  const Text text(synthetic, 0, 600);
  LearnModel model = learn_model(synthetic);
  model.grams = {some_gram()};
  const LearnSettings settings = small_settings();
  const auto learner = make_learner(model, settings);
  text.feed(*learner, 7, 0, 100);
  EXPECT_EQ(learner->tokens(), text.n);
  const Sums sums = sums_of(*learner, model, settings);
  const calib::Turner turner(text.rope, kDim);
  for (uint32_t h = 0; h < kKvHeads; ++h) {
    const HeadSums& head = sums.layers[0].heads[h];
    // The lot that blocks are drawn by leaves some noise.
    EXPECT_LT(apart(both_kinds(head), text.metric(h, settings, model.grams[0])), 0.05);
    std::vector<double> square(kDim * kDim, 0.0), mean(kDim, 0.0);
    std::vector<float> k(kDim);
    for (uint32_t s = settings.sinks; s < text.n; ++s) {
      for (uint32_t c = 0; c < kDim; ++c) k[c] = static_cast<float>(text.key(s, h, c));
      turner.turn(k.data(), 1, -static_cast<int64_t>(calib::block_start(s, settings.sinks, settings.block)), k.data());
      for (uint32_t r = 0; r < kDim; ++r) {
        mean[r] += k[r];
        for (uint32_t c = 0; c < kDim; ++c) square[r * kDim + c] += static_cast<double>(k[r]) * k[c];
      }
    }
    EXPECT_EQ(head.keys, text.n - settings.sinks);
    EXPECT_LT(apart(head.square, square), 1e-5);
    for (uint32_t c = 0; c < kDim; ++c) EXPECT_NEAR(head.key[c], mean[c], 1e-3 * text.n);
    for (uint32_t g = 0; g < kGroup; ++g) {
      double expected = 0.0;
      for (uint32_t t = 0; t < text.n; t += settings.query_stride) {
        for (uint32_t s = settings.sinks; s + settings.distance <= t; ++s)
          expected += std::pow(text.probability(t, s, h * kGroup + g), 2);
      }
      EXPECT_NEAR(head.value[kFit][g] + head.value[kHeldOut][g], expected, 1e-3 * expected);
    }
  }
}

TEST(Learner, AThinnedSampleAddsUpToTheSame) {
  auto synthetic = small_model();
  const Text text(synthetic, 0, 1500);
  const LearnModel model = learn_model(synthetic);
  LearnSettings all = small_settings(), few = all;
  few.sample_tokens = 256;
  const auto a = make_learner(model, all), b = make_learner(model, few);
  text.feed(*a, 0, 0);
  text.feed(*b, 0, 0);
  EXPECT_LT(b->bytes(), a->bytes());
  const Sums many = sums_of(*a, model, all), thinned = sums_of(*b, model, few);
  for (uint32_t h = 0; h < kKvHeads; ++h) {
    const HeadSums &x = many.layers[0].heads[h], &y = thinned.layers[0].heads[h];
    EXPECT_EQ(x.square, y.square);  // moments are over all tokens
    EXPECT_NEAR(y.weight / x.weight, 1.0, 0.2);
    EXPECT_NEAR(y.size / x.size, 1.0, 0.2);
  }
}

TEST(Learner, ThreadsChangeNothing) {
  auto synthetic = small_model(2);
  const Text texts[] = {Text(synthetic, 0, 500), Text(synthetic, 1, 500)};
  const LearnModel model = learn_model(synthetic, 2);
  LearnSettings settings = small_settings();
  settings.query_stride = 2;
  settings.sample_tokens = 300;
  TestFolder folder;
  ThreadPool pool(4);
  const Executor crew = [&](uint32_t count, const std::function<void(uint32_t)>& task) { pool.run(count, task); };
  for (const Executor* run : {&kSerial, &crew}) {
    const auto learner = make_learner(model, settings);
    for (uint32_t l = 0; l < 2; ++l) texts[l].feed(*learner, 3, l, 250, *run);
    ASSERT_TRUE(learner->save_sums(folder.file(run == &crew ? "many" : "one")).ok());
  }
  EXPECT_EQ(read_file(folder.file("one"), 1 << 30).value(), read_file(folder.file("many"), 1 << 30).value());
}

TEST(Learner, SequencesAtOnceAddUp) {
  auto synthetic = small_model();
  const Text text(synthetic, 0, 300);
  const LearnModel model = learn_model(synthetic);
  const LearnSettings settings = small_settings();
  const auto learner = make_learner(model, settings), alone = make_learner(model, settings);
  std::vector<std::thread> threads;
  for (uint64_t seq = 0; seq < 4; ++seq) threads.emplace_back([&, seq] { text.feed(*learner, seq, 0, 50); });
  for (std::thread& thread : threads) thread.join();
  text.feed(*alone, 0, 0);
  EXPECT_EQ(learner->tokens(), 4 * text.n);
  const Sums four = sums_of(*learner, model, settings), one = sums_of(*alone, model, settings);
  for (uint32_t h = 0; h < kKvHeads; ++h) {
    EXPECT_EQ(four.layers[0].heads[h].keys, 4 * one.layers[0].heads[h].keys);
    EXPECT_NEAR(four.layers[0].heads[h].weight, 4.0 * one.layers[0].heads[h].weight, 1e-3 * four.layers[0].heads[h].weight);
  }
}

TEST(Learner, SingleTokensAreAsGoodAsMany) {
  auto synthetic = small_model();
  const Text text(synthetic, 0, 300);
  const LearnModel model = learn_model(synthetic);
  const LearnSettings settings = small_settings();
  const auto pieces = make_learner(model, settings), whole = make_learner(model, settings);
  text.feed(*pieces, 0, 0, 1);
  text.feed(*whole, 0, 0, 300);
  const Sums a = sums_of(*pieces, model, settings), b = sums_of(*whole, model, settings);
  for (uint32_t h = 0; h < kKvHeads; ++h) {
    for (size_t i = 0; i < a.layers[0].heads[h].square.size(); ++i) {
      EXPECT_NEAR(a.layers[0].heads[h].square[i], b.layers[0].heads[h].square[i], 1e-2);
    }
    EXPECT_NEAR(a.layers[0].heads[h].weight, b.layers[0].heads[h].weight, 1e-4 * b.layers[0].heads[h].weight);
  }
}

TEST(Learner, ForgottenSequencesMeetNoQuery) {
  auto synthetic = small_model();
  const Text text(synthetic, 0, 400);
  const LearnModel model = learn_model(synthetic);
  const LearnSettings settings = small_settings();
  const auto learner = make_learner(model, settings), half = make_learner(model, settings);
  for (Learner* each : {learner.get(), half.get()}) text.feed(*each, 0, 0, 0, 200, kSerial);
  learner->forget(0);
  text.feed(*learner, 0, 0, 200, 64, kSerial);  // less than the distance: nothing but forgotten keys would be met
  const Sums after = sums_of(*learner, model, settings), before = sums_of(*half, model, settings);
  EXPECT_EQ(after.layers[0].heads[0].weight, before.layers[0].heads[0].weight);
  EXPECT_EQ(after.layers[0].heads[0].keys, before.layers[0].heads[0].keys + 64);
}

// A host that reads a prompt layer by layer has all of it in the first one before the others see any.
TEST(Learner, EveryLayerSeesEnough) {
  auto synthetic = small_model(2);
  const Text text(synthetic, 0, 1100, 0.6f);
  LearnSettings settings = small_settings();
  settings.tokens = 1000;
  const auto learner = make_learner(learn_model(synthetic, 2), settings);
  text.feed(*learner, 0, 0);
  EXPECT_FALSE(learner->ready()) << "the last layer has seen nothing";
  EXPECT_EQ(learner->tokens(), 0u);
  EXPECT_FALSE(learner->solve("half of it").ok());
  EXPECT_TRUE(learner->has_enough(0));
  EXPECT_FALSE(learner->has_enough(1));
  EXPECT_FALSE(learner->has_enough(2));
  text.feed(*learner, 0, 1);
  EXPECT_TRUE(learner->ready());
  EXPECT_EQ(learner->tokens(), text.n);
  const auto solved = learner->solve("all of it");
  ASSERT_TRUE(solved.ok()) << solved.status().message();
  EXPECT_EQ((*solved)->origin.tokens, text.n);
}

TEST(Learner, LayersWithoutAnArchiveCostNothing) {
  auto synthetic = small_model(2);
  const Text text(synthetic, 0, 300);
  LearnModel model = learn_model(synthetic, 2);
  model.windows = {64, 100};
  const LearnSettings settings = small_settings();
  const auto learner = make_learner(model, settings);
  EXPECT_FALSE(learner->wants_query(0, 128));
  EXPECT_TRUE(learner->wants_query(1, 128));
  EXPECT_FALSE(learner->wants_query(1, 129));
  EXPECT_FALSE(learner->wants_query(1, 64));
  text.feed(*learner, 0, 0);
  EXPECT_EQ(learner->tokens(), 0u);
  text.feed(*learner, 0, 1);
  EXPECT_EQ(learner->tokens(), text.n);
  model.windows = {64, 64};
  EXPECT_EQ(Learner::create(model, settings).status().code(), StatusCode::invalid_argument);
}

// Rows of a real shape: SmolLM2-135M and Gemma-3-270M.
void expect_a_quarter(LearnModel model, size_t bytes) {
  const calib::ModelId& id = model.id;
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> rows(static_cast<size_t>(512) * id.kv_heads * id.head_dim);
  for (uint16_t& x : rows) x = f32_to_f16(normal(random));
  const RowsView view = RowsView::dense(rows.data(), DType::f16, 512, id.kv_heads, id.head_dim);
  const uint32_t layers = id.layers;
  const auto learner = make_learner(std::move(model), {});
  ASSERT_TRUE(learner);
  size_t most = 0;
  for (uint32_t at = 0; at < 2048; at += 512) {
    for (uint32_t l = 0; l < layers; ++l) learner->add_rows(0, l, at, view, view);
    most = std::max(most, learner->bytes());
  }
  EXPECT_GT(most, bytes / 2);
  EXPECT_LE(most, bytes);
}

TEST(Learner, MemoryStaysWithinAQuarterOfTheCache) {
  LearnModel smol;
  smol.id = {"smol", 1, 30, 9, 3, 64};
  smol.ropes.resize(30);
  smol.grams.assign(30, std::vector<float>(9 * 64 * 64, 1.0f));
  expect_a_quarter(smol, size_t{45} << 20);
  LearnModel gemma;
  gemma.id = {"gemma", 1, 18, 4, 1, 256};
  calib::Rope rope;
  for (uint16_t p = 0; p < 128; ++p) rope.push_back({p, static_cast<uint16_t>(p + 128), std::pow(1e6, -p / 128.0)});
  gemma.ropes.assign(18, rope);
  gemma.windows.assign(18, 512);
  for (const uint32_t l : {5u, 11u, 17u}) gemma.windows[l] = 0;
  gemma.grams.assign(18, std::vector<float>(4 * 256 * 256, 1.0f));
  expect_a_quarter(gemma, size_t{8} << 20);
}

TEST(Learner, ShortTextsAddUpOverRuns) {
  auto synthetic = small_model();
  const Text text(synthetic, 0, 600, 0.6f), next(synthetic, 0, 600, 0.6f);
  const LearnModel model = learn_model(synthetic);
  const LearnSettings settings = small_settings();
  TestFolder folder;
  const std::string path = folder.file("model.sums");
  {
    const auto learner = make_learner(model, settings);
    EXPECT_EQ(learner->load_sums(path).code(), StatusCode::not_found);
    text.feed(*learner, 0, 0);
    EXPECT_FALSE(learner->ready());
    ASSERT_TRUE(learner->save_sums(path).ok());
    EXPECT_EQ(learner->save_sums(path).code(), StatusCode::failed_precondition);  // once
  }
  const auto learner = make_learner(model, settings);
  ASSERT_TRUE(learner->load_sums(path).ok());
  EXPECT_EQ(learner->tokens(), text.n);
  next.feed(*learner, 0, 0);
  EXPECT_TRUE(learner->ready());
  const auto solved = learner->solve("two texts");
  ASSERT_TRUE(solved.ok()) << solved.status().message();
  EXPECT_EQ((*solved)->origin.tokens, 1200u) << "both texts count";
  EXPECT_EQ(folder.count(), 1u);
}

TEST(Learner, ARepeatedTokenIsRefused) {
  auto synthetic = small_model();
  Text text(synthetic, 0, 1100);
  const size_t row = kKvHeads * kDim;
  for (size_t i = row; i < text.values.size(); ++i) text.values[i] = text.values[i % (3 * row)];  // three tokens in turn
  const auto learner = make_learner(learn_model(synthetic), small_settings());
  text.feed(*learner, 0, 0);
  const Status status = learner->solve("the same again").status();
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_NE(status.message().find("repeats 3 different tokens over 1100"), std::string::npos) << status.message();
}

TEST(Learner, WhatIsNotFiniteIsRefused) {
  auto synthetic = small_model();
  const Text good(synthetic, 0, 1100);
  for (const int what : {0, 1, 2, 3}) {
    Text text = good;
    if (what == 0) text.keys[900 * kKvHeads * kDim + 5] = 0x7E00;
    if (what == 1) text.values[900 * kKvHeads * kDim + 5] = 0x7C00;
    if (what == 2) text.queries[900 * kHeads * kDim + 5] = std::nanf("");
    if (what == 3) text.lse[900 * kHeads] = -INFINITY;
    const auto learner = make_learner(learn_model(synthetic), small_settings());
    text.feed(*learner, 0, 0);
    const Status status = learner->solve("broken").status();
    EXPECT_EQ(status.code(), StatusCode::invalid_argument) << what;
    EXPECT_NE(status.message().find("layer 0 are not finite"), std::string::npos) << status.message();
    TestFolder folder;
    EXPECT_EQ(learner->save_sums(folder.file("sums")).code(), StatusCode::invalid_argument);
    EXPECT_EQ(folder.count(), 0u);
  }
}

TEST(Learner, TablesThatDoNotHelpAreRefused) {
  // Keys and queries that are the same in every direction: there is nothing to learn.
  auto synthetic = small_model();
  Text text(synthetic, 0, 1100);
  for (uint16_t& x : text.keys) x = f32_to_f16(synthetic.noise(1)[0]);
  for (float& x : text.queries) x = synthetic.noise(1)[0];
  std::fill(text.lse.begin(), text.lse.end(), 8.0f);
  const auto learner = make_learner(learn_model(synthetic), small_settings());
  text.feed(*learner, 0, 0);
  LearnCheck check;
  const Status status = learner->solve("noise", {}, &check).status();
  EXPECT_EQ(status.code(), StatusCode::failed_precondition);
  EXPECT_NE(status.message().find("would not help"), std::string::npos) << status.message();
  EXPECT_GT(check.calibrated, 0.0);
}

TEST(Learner, SolvingStopsWhenAsked) {
  auto synthetic = small_model();
  const Text text(synthetic, 0, 1100);
  const auto learner = make_learner(learn_model(synthetic), small_settings());
  text.feed(*learner, 0, 0);
  EXPECT_EQ(learner->solve("stopped", [] { return true; }).status().code(), StatusCode::failed_precondition);
}

TEST(Learner, ModelsThatMakeNoSenseAreRefused) {
  auto synthetic = small_model();
  LearnModel model = learn_model(synthetic);
  model.ropes.clear();
  EXPECT_EQ(Learner::create(model, {}).status().code(), StatusCode::invalid_argument);
  model = learn_model(synthetic);
  model.grams = {{1.0f}};
  EXPECT_EQ(Learner::create(model, {}).status().code(), StatusCode::invalid_argument);
  model = learn_model(synthetic);
  model.id.kv_heads = 3;
  EXPECT_EQ(Learner::create(model, {}).status().code(), StatusCode::invalid_argument);
}

}  // namespace
}  // namespace tierkv::learn
