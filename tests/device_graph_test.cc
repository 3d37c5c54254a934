// Steps of decoding that are recorded once and launched as a graph, on a device's twin: rows are made inside of the graph, and what
// is kept of them and what attention says is what a cache on the processor has that got the same rows.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "cuda/device_attention.h"
#include "cuda/twin_machine_testing.h"
#include "tierkv/cache.h"
#include "tierkv/cuda.h"

namespace tierkv {
namespace {

using cuda::DeviceAttention;
using cuda::testing::TwinMachine;

constexpr double kTolerance = 2e-2;  // the processor's own kernels round
constexpr uint32_t kHeads = 4, kKvHeads = 2;
const char* const kSmall = "hot=16,warm=32,warm_block=16,archive_block=32,warm_codec=kivi8-g16,archive=kivi4-g16,sinks=4";

struct Shape {
  uint32_t layers = 3, dim = 32, tokens = 1;
  bool lazy = true, gaps = false;
  uint64_t memory = 0;
};

// What a model computes, by layer, sequence and step.
float number(uint32_t what, uint32_t layer, uint64_t seq, uint64_t step, size_t i) {
  uint64_t x = (((what * 131 + layer) * 131 + seq) * 100003 + step) * 1000003 + i;
  x ^= x >> 31, x *= 0x9E3779B97F4A7C15u, x ^= x >> 29, x *= 0xBF58476D1CE4E5B9u;
  return static_cast<float>(x >> 40) / static_cast<float>(1 << 23) - 1.0f;
}

// A model's step: rows and queries of every layer at fixed addresses, made by work that is captured between the calls.
struct Model {
  explicit Model(const char* spec = kSmall, Shape with = {}) : shape(with) {
    auto made = std::make_unique<TwinMachine>(cuda::MachineFacts{7, true}, shape.memory, shape.lazy);
    machine = made.get();
    device = std::make_shared<DeviceAttention>(std::move(made), 0);
    CacheConfig config;
    config.num_layers = shape.layers, config.num_heads = kHeads, config.num_kv_heads = kKvHeads, config.head_dim = shape.dim;
    EXPECT_TRUE(apply_spec(spec, config).ok());
    for (auto* cache : {&there, &here}) *cache = AdaptiveKVCache::create(config).value();
    there->attend_with(device);
  }

  SeqId add(uint32_t tokens) {
    const SeqId id = *there->add_sequence();
    EXPECT_EQ(*here->add_sequence(), id);
    prompt(id, tokens);
    return id;
  }
  void prompt(SeqId id, uint32_t tokens) {
    for (uint32_t layer = 0; layer < shape.layers && tokens != 0; ++layer) {
      std::vector<float> rows(size_t{tokens} * kKvHeads * shape.dim);
      for (size_t i = 0; i < rows.size(); ++i) rows[i] = number(9, layer, id, *here->length(id, layer), i);
      const RowsView view = RowsView::f32(rows.data(), tokens, kKvHeads, shape.dim);
      for (auto* cache : {here.get(), there.get()}) EXPECT_TRUE(cache->append(id, layer, view, view).ok());
    }
  }

  size_t row() const { return size_t{shape.tokens} * kKvHeads * shape.dim; }
  size_t query() const { return size_t{shape.tokens} * kHeads * shape.dim; }
  size_t stride() const { return query() + (shape.gaps ? 4 : 0); }
  RowsView on_device(const std::vector<float>& of, size_t at, uint32_t heads) {
    RowsView view = RowsView::f32(of.data() + at, shape.tokens, heads, shape.dim);
    view.place = MemoryPlace::device, view.ready = &streams;
    return view;
  }
  std::vector<AppendItem> appends(uint32_t layer) {
    std::vector<AppendItem> items;
    for (size_t s = 0; s < ids.size(); ++s)
      items.push_back({ids[s], on_device(keys[layer], s * row(), kKvHeads), on_device(values[layer], s * row(), kKvHeads), {}});
    return items;
  }
  std::vector<AttentionItem> asks(uint32_t layer) {
    std::vector<AttentionItem> items;
    for (size_t s = 0; s < ids.size(); ++s)
      items.push_back({ids[s], on_device(queries[layer], s * query(), kHeads), out[layer].data() + s * stride()});
    return items;
  }
  // The model's own work before layer `layer`.
  void make_rows(uint32_t layer, uint64_t step) {
    for (size_t s = 0; s < ids.size(); ++s) {
      for (size_t i = 0; i < row(); ++i) {
        keys[layer][s * row() + i] = number(1, layer, ids[s], step, i);
        values[layer][s * row() + i] = number(2, layer, ids[s], step, i);
      }
      for (size_t i = 0; i < query(); ++i) queries[layer][s * query() + i] = 3.0f * number(3, layer, ids[s], step, i);
    }
    if (layer == spoiled_layer && step == spoiled_step) (spoil_query ? queries : keys)[layer][5] = NAN;
  }

  void begin_capture(std::vector<SeqId> of) {
    ids = std::move(of);
    keys.assign(shape.layers, std::vector<float>(ids.size() * row(), NAN));
    values = keys;
    queries.assign(shape.layers, std::vector<float>(ids.size() * query(), NAN));
    out.assign(shape.layers, std::vector<float>(ids.size() * stride(), NAN));
    machine->capturing = &streams, machine->captured = graph.get();
  }
  void record(std::vector<SeqId> of) {
    auto recording = there->record_step();
    ASSERT_TRUE(recording.ok()) << recording.status().message();
    step = std::move(recording).value();
    graph->places.clear();
    begin_capture(std::move(of));
    for (uint32_t layer = 0; layer < shape.layers; ++layer) {
      machine->capture([this, layer] { make_rows(layer, launched); });
      std::vector<AppendItem> items = appends(layer);
      std::vector<AttentionItem> asked = asks(layer);
      const Status appended = there->append_many(layer, items), attended = there->attention(layer, asked);
      ASSERT_TRUE(appended.ok() && attended.ok()) << appended.message() << attended.message();
    }
    machine->capture([this] { ++launched; });
    const Status ended = step->end();
    ASSERT_TRUE(ended.ok()) << ended.message();
    machine->captured = nullptr, machine->capturing = nullptr;
  }

  Status advance() { return step->advance(graph.get(), &streams); }
  void launch() { machine->launch(*graph); }
  // One step of both, and what the processor's says.
  void take_step() {
    const Status advanced = advance();
    ASSERT_TRUE(advanced.ok()) << advanced.message();
    launch();
    follow();
  }
  void follow() {
    want.assign(shape.layers, std::vector<float>(ids.size() * query(), NAN));
    const uint64_t now = steps++;
    for (uint32_t layer = 0; layer < shape.layers; ++layer) {
      for (size_t s = 0; s < ids.size(); ++s) {
        std::vector<float> k(row()), v(row()), q(query());
        for (size_t i = 0; i < row(); ++i) k[i] = number(1, layer, ids[s], now, i), v[i] = number(2, layer, ids[s], now, i);
        for (size_t i = 0; i < query(); ++i) q[i] = 3.0f * number(3, layer, ids[s], now, i);
        ASSERT_TRUE(here->append(ids[s], layer, RowsView::f32(k.data(), shape.tokens, kKvHeads, shape.dim),
                                 RowsView::f32(v.data(), shape.tokens, kKvHeads, shape.dim))
                        .ok());
        ASSERT_TRUE(here->attention(ids[s], layer, RowsView::f32(q.data(), shape.tokens, kHeads, shape.dim),
                                    want[layer].data() + s * query())
                        .ok());
      }
    }
  }
  void compare() {
    ASSERT_FALSE(::testing::Test::HasFatalFailure());
    const Status checked = device->check();
    ASSERT_TRUE(checked.ok()) << checked.message();
    for (uint32_t layer = 0; layer < shape.layers; ++layer) {
      double off = 0.0, size = 0.0;
      for (size_t s = 0; s < ids.size(); ++s) {
        for (size_t i = 0; i < query(); ++i) {
          const double wanted = want[layer][s * query() + i], got = out[layer][s * stride() + i];
          off += (got - wanted) * (got - wanted), size += wanted * wanted;
        }
        for (size_t i = query(); i < stride(); ++i) ASSERT_TRUE(std::isnan(out[layer][s * stride() + i]));
      }
      ASSERT_LT(std::sqrt(off / size), exact ? kTolerance : 0.15) << "layer " << layer << " step " << steps;
    }
  }
  void expect_same_tokens() {
    for (const SeqId id : here->sequences()) {
      EXPECT_EQ(*there->length(id), *here->length(id));
      if (!exact) continue;
      const auto mine = there->freeze(id), theirs = here->freeze(id);
      ASSERT_TRUE(mine.ok() && theirs.ok()) << mine.status().message();
      EXPECT_TRUE(*mine == *theirs) << "sequence " << id;
    }
  }

  const Shape shape;
  TwinMachine* machine;
  std::shared_ptr<DeviceAttention> device;
  std::unique_ptr<AdaptiveKVCache> there, here;
  std::vector<SeqId> ids;
  std::vector<std::vector<float>> keys, values, queries, out, want;  // by layer
  uint64_t launched = 0, steps = 0;
  bool exact = true;  // false: one of the caches was ahead once, and has blocks that the other has not yet
  uint32_t spoiled_layer = UINT32_MAX;
  uint64_t spoiled_step = 0;
  bool spoil_query = false;
  int streams = 0;
  std::unique_ptr<TwinMachine::Captured> graph = std::make_unique<TwinMachine::Captured>();
  std::unique_ptr<cuda::StepGraph> step;
};

class DeviceGraph : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Twin, DeviceGraph, ::testing::Values(false, true),
                         [](const auto& info) { return info.param ? "lazy" : "eager"; });

// Ragged lengths, blocks that graduate and are demoted in steps of different sequences, and nobody waits for any of it.
TEST_P(DeviceGraph, StepsGiveTheSameResults) {
  for (const char* spec : {kSmall, "balanced", "fp16", "hot=16,warm=64,archive=rot4,hot_type=bf16", "hot=8,warm=0,archive=kivi2"}) {
    SCOPED_TRACE(spec);
    Shape shape;
    shape.lazy = GetParam();
    Model model(spec, shape);
    model.record({model.add(30), model.add(101), model.add(7)});
    uint64_t waits = 0;
    for (int step = 0; step < 150; ++step) {
      model.take_step();
      if (step > 1) {
        EXPECT_EQ(model.machine->waits, waits) << step;
      }
      if (step % 7 == 0 || step > 140) model.compare();
      if (HasFatalFailure()) return;
      waits = model.machine->waits;
    }
    EXPECT_EQ(model.device->usage().on_processor, 0u);
    EXPECT_EQ(model.device->counts().rows_taken, 3u * 3 * 150);
    model.expect_same_tokens();
  }
}

// Between two blocks a launch differs from the one before it by where its rows go.
TEST(DeviceGraph, WhatIsTheSameIsNotToldAgain) {
  Shape shape;
  shape.dim = 128;
  Model model("hot=64,warm=0,archive=kivi2,sinks=4", shape);
  model.record({model.add(4 + 128 * 3 + 70), model.add(4 + 128 + 66)});
  for (int step = 0; step < 3; ++step) model.take_step();
  model.compare();
  const uint64_t before = model.machine->updates, sends = model.machine->sends;
  for (int step = 0; step < 20; ++step) model.take_step();
  EXPECT_EQ(model.machine->updates - before, 20u * (shape.layers + 1));
  EXPECT_EQ(model.machine->sends - sends, 20u) << "a parcel a step";
  model.compare();
}

TEST_P(DeviceGraph, SeveralTokensAndResultsApart) {
  Shape shape;
  shape.lazy = GetParam(), shape.tokens = 3, shape.gaps = true, shape.dim = 64;
  Model model(kSmall, shape);
  model.record({model.add(30), model.add(64)});
  for (int step = 0; step < 40; ++step) {
    model.take_step();
    if (step % 3 == 0) model.compare();
    if (HasFatalFailure()) return;
  }
  model.expect_same_tokens();
}

// Between two launches anything may happen to the sequences, and there may be calls without the graph.
TEST_P(DeviceGraph, SequencesChangeBetweenLaunches) {
  Shape shape;
  shape.lazy = GetParam();
  Model model(kSmall, shape);
  model.record({model.add(30), model.add(101)});
  std::mt19937 rng(5);
  for (int step = 0; step < 120; ++step) {
    const SeqId any = model.ids[rng() % 2];
    switch (rng() % 8) {
      case 0: {
        const uint32_t length = *model.here->length(any) - static_cast<uint32_t>(rng() % 5);
        for (auto* cache : {model.here.get(), model.there.get()}) ASSERT_TRUE(cache->truncate(any, length).ok());
        break;
      }
      case 1: model.prompt(any, 1 + static_cast<uint32_t>(rng() % 70)); break;
      case 2: {
        const SeqId fork = *model.here->fork(any);
        ASSERT_EQ(*model.there->fork(any), fork);
        if (rng() % 2) {
          for (auto* cache : {model.here.get(), model.there.get()}) ASSERT_TRUE(cache->remove(fork).ok());
        }
        break;
      }
      case 3: {  // a call without the graph
        std::vector<float> q(size_t{kHeads} * shape.dim, 0.5f), a(q.size()), b(q.size());
        const RowsView view = RowsView::f32(q.data(), 1, kHeads, shape.dim);
        ASSERT_TRUE(model.here->attention(any, 1, view, a.data()).ok());
        ASSERT_TRUE(model.there->attention(any, 1, view, b.data()).ok());
        for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 5e-3);
        break;
      }
      default: break;
    }
    model.take_step();
    if (rng() % 3 == 0) model.compare();
    if (HasFatalFailure()) return;
  }
  model.expect_same_tokens();
}

// Parcels of all calls lie one behind the other: more than the front of the device's list has room for at the start.
TEST(DeviceGraph, AStepThatOutgrowsItsRoomIsPlannedAgain) {
  Shape shape;
  shape.layers = 40, shape.lazy = true;
  Model model(kSmall, shape);
  std::vector<SeqId> ids;
  for (uint32_t i = 0; i < 6; ++i) ids.push_back(model.add(40 + 20 * i));
  model.record(ids);
  for (int step = 0; step < 20; ++step) {
    model.take_step();
    model.compare();
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(model.device->counts().parcel_bytes, 4096u * 32);
  model.expect_same_tokens();
}

// As a server has them: one for each size of batch, launched in turn.
TEST(DeviceGraph, BatchesOfSeveralSizesHaveOneEach) {
  Shape shape;
  shape.lazy = false;
  Model model(kSmall, shape);
  const SeqId a = model.add(30), b = model.add(50);
  struct Batch {
    std::vector<SeqId> ids;
    std::vector<std::vector<float>> keys, values, queries, out;
    std::unique_ptr<TwinMachine::Captured> graph = std::make_unique<TwinMachine::Captured>();
    std::unique_ptr<cuda::StepGraph> step;
  } other;
  const auto change = [&] {  // buffers and graphs keep their addresses
    std::swap(model.ids, other.ids), std::swap(model.keys, other.keys), std::swap(model.values, other.values);
    std::swap(model.queries, other.queries), std::swap(model.out, other.out);
    std::swap(model.graph, other.graph), std::swap(model.step, other.step);
  };
  model.record({a});
  change();
  EXPECT_TRUE(model.there->record_step().ok());  // and given up
  {
    const auto recording = model.there->record_step();
    ASSERT_TRUE(recording.ok());
    EXPECT_EQ(model.there->record_step().status().code(), StatusCode::failed_precondition) << "one at a time";
  }
  model.record({a, b});
  for (int step = 0; step < 60; ++step) {
    if (step % 3 == 0) change();
    model.take_step();
    model.compare();
    if (HasFatalFailure()) return;
  }
  model.expect_same_tokens();
}

TEST(DeviceGraph, WhatAGraphCannotDoIsRefusedWhenItIsRecorded) {
  Model model;
  const SeqId id = model.add(30);
  const auto refused = [&](StatusCode code, const auto& call) {
    const Status status = call();
    EXPECT_EQ(status.code(), code) << status.message();
    EXPECT_EQ(*model.there->length(id), 30u);
  };
  {  // without a recording
    model.begin_capture({id});
    model.machine->captured = nullptr;
  }
  auto step = model.there->record_step().value();
  EXPECT_EQ(step->end().code(), StatusCode::failed_precondition) << "no calls";
  EXPECT_EQ(step->advance(model.graph.get(), &model.streams).code(), StatusCode::failed_precondition);
  model.begin_capture({id});
  std::vector<AppendItem> items = model.appends(0);
  std::vector<AttentionItem> asked = model.asks(0);
  std::vector<float> many(size_t{20} * kHeads * model.shape.dim);
  refused(StatusCode::unsupported, [&] {
    AppendItem prompt = items[0];
    prompt.keys = prompt.values = model.on_device(many, 0, kKvHeads);
    prompt.keys.tokens = prompt.values.tokens = 20;
    return model.there->append_many(0, {&prompt, 1});
  });
  refused(StatusCode::invalid_argument, [&] {
    AppendItem other = items[0];
    other.values.ready = nullptr;
    return model.there->append_many(0, {&other, 1});
  });
  refused(StatusCode::out_of_range, [&] { return model.there->append_many(7, items); });
  refused(StatusCode::unsupported, [&] {
    AttentionItem other = asked[0];
    other.first_position = 3;
    return model.there->attention(0, {&other, 1});
  });
  refused(StatusCode::unsupported, [&] {
    AttentionItem other = asked[0];
    MassReport mass;
    other.mass = &mass;
    return model.there->attention(0, {&other, 1});
  });
  ASSERT_TRUE(model.there->append_many(0, items).ok());
  ASSERT_TRUE(model.there->attention(0, asked).ok());
  refused(StatusCode::unsupported, [&] { return model.there->append_many(0, items); });  // after it was attended to
  EXPECT_EQ(step->advance(model.graph.get(), &model.streams).code(), StatusCode::failed_precondition) << "not ended";
  ASSERT_TRUE(step->end().ok());
  EXPECT_EQ(step->end().code(), StatusCode::failed_precondition);
  EXPECT_EQ(*model.there->length(id), 30u);
  EXPECT_TRUE(std::isnan(model.out[0][0]));

  for (const char* spec : {"hot=64,window=48,window_slack=4", "hot=16,warm=32,max_seq_len=70,evict=h2o,sinks=4,protect_recent=8"}) {
    Model other(spec);
    const SeqId mine = other.add(30);
    const auto recording = other.there->record_step();
    ASSERT_TRUE(recording.ok());
    other.begin_capture({mine});
    std::vector<AppendItem> rows = other.appends(0);
    EXPECT_EQ(other.there->append_many(0, rows).code(), StatusCode::unsupported) << spec;
    EXPECT_EQ(rows[0].status.code(), StatusCode::unsupported);
  }
  Model better("hot=16,warm=48,warm_block=16,archive_block=32,warm_codec=kivi8-g16,archive=kivi4-g16+top3,sinks=4");
  const SeqId mine = better.add(100);
  const auto recording = better.there->record_step();
  ASSERT_TRUE(recording.ok());
  better.begin_capture({mine});
  std::vector<AttentionItem> rows = better.asks(0);
  EXPECT_EQ(better.there->attention(0, rows).code(), StatusCode::unsupported);
  better.there->attend_with(nullptr);
  EXPECT_EQ(better.there->record_step().status().code(), StatusCode::unsupported) << "the processor has no graphs";
}

// Steps that are taken back leave the blocks that became due by them, so tokens are the same bits where none do.
class TakenBack : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Specs, TakenBack, ::testing::Values("hot=all", kSmall),
                         [](const auto& info) { return info.index == 0 ? "hot" : "tiers"; });

TEST_P(TakenBack, AStepThatFailsChangesNothing) {
  Model model(GetParam());
  model.exact = GetParam() != kSmall;
  const SeqId a = model.add(30), b = model.add(101), c = model.add(12);
  model.record({a, b});
  for (int i = 0; i < 20; ++i) model.take_step();
  const auto intact = [&] {
    model.expect_same_tokens();
    model.take_step();
    model.compare();
  };
  TwinMachine::Captured another;
  EXPECT_EQ(model.step->advance(&another, &model.streams).code(), StatusCode::invalid_argument);
  intact();
  for (uint64_t failing = 1; failing < 14; ++failing) {
    model.machine->updates_that_fail = failing;
    const Status failed = model.advance();
    const bool came = model.machine->updates_that_fail == 0;
    model.machine->updates_that_fail = 0;
    if (came) EXPECT_EQ(failed.code(), StatusCode::io_error) << failing;
    else {
      EXPECT_GT(failing, 9u) << failed.message();  // 3 layers: rows, queries, attention, and the end
      model.launch();
      model.follow();
    }
    intact();
    if (HasFatalFailure()) return;
  }
  uint32_t failures = 0;
  for (uint64_t failing = 1; failing < 8; ++failing) {
    model.prompt(a, 33);  // so that something is sent
    model.machine->sends_that_fail = failing;
    const Status failed = model.advance();
    model.machine->sends_that_fail = 0;
    if (failed.ok()) {
      model.launch();
      model.follow();
    }
    failures += !failed.ok();
    intact();
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(failures, 2u);
  for (auto* cache : {model.there.get(), model.here.get()}) ASSERT_TRUE(cache->remove(b).ok());
  EXPECT_EQ(model.advance().code(), StatusCode::not_found);
  model.record({a, c});
  intact();
  model.there->attend_with(nullptr);
  EXPECT_EQ(model.advance().code(), StatusCode::failed_precondition);
  model.expect_same_tokens();
  model.there->attend_with(model.device);
  EXPECT_EQ(model.advance().code(), StatusCode::ok) << "it is the same device";
  model.launch();
  model.follow();
  model.compare();
}

TEST(DeviceGraph, ASequenceWithoutRowsIsRefused) {
  Model model;
  const SeqId a = model.add(30), empty = model.add(0);
  model.record({a, empty});
  const Status refused = model.advance();
  EXPECT_EQ(refused.code(), StatusCode::failed_precondition);
  EXPECT_EQ(*model.there->length(a), 30u);
  model.expect_same_tokens();
  model.prompt(empty, 1);
  model.take_step();
  model.compare();
}

// What was never launched has no rows. It is said by whoever asks for them, and nothing else is lost.
TEST_P(TakenBack, AStepThatIsNotLaunchedIsFound) {
  Model model(GetParam());
  model.exact = GetParam() != kSmall;
  const SeqId a = model.add(30), b = model.add(101);
  model.record({a, b});
  for (int i = 0; i < 5; ++i) model.take_step();
  ASSERT_TRUE(model.advance().ok());
  const Status refused = model.there->freeze(a).status();
  EXPECT_EQ(refused.code(), StatusCode::failed_precondition);
  EXPECT_NE(refused.message().find("not launched"), std::string::npos) << refused.message();
  EXPECT_EQ(model.advance().code(), StatusCode::failed_precondition);
  for (const SeqId id : {a, b}) ASSERT_TRUE(model.there->truncate(id, *model.here->length(id)).ok());
  model.expect_same_tokens();
  // The launch that comes after it all the same is a step too many.
  ASSERT_TRUE(model.advance().ok());
  model.launch();
  EXPECT_EQ(model.there->freeze(a).status().code(), StatusCode::failed_precondition);
  EXPECT_EQ(model.advance().code(), StatusCode::failed_precondition);
  for (const SeqId id : {a, b}) ASSERT_TRUE(model.there->truncate(id, *model.here->length(id)).ok());
  EXPECT_EQ(model.advance().code(), StatusCode::failed_precondition) << "from now on";
  model.expect_same_tokens();
  model.launched = model.steps;
  model.record({a, b});
  model.take_step();
  model.compare();
  ASSERT_FALSE(HasFatalFailure());
  ASSERT_TRUE(model.advance().ok());
  model.launch(), model.launch();
  EXPECT_EQ(model.there->freeze(a).status().code(), StatusCode::failed_precondition) << "twice";
}

TEST_P(TakenBack, WhatOnlyTheDeviceKnowsIsSaidLater) {
  Model model(GetParam());
  model.exact = GetParam() != kSmall;
  const SeqId a = model.add(30);
  model.record({a});
  for (int i = 0; i < 3; ++i) model.take_step();
  model.spoiled_layer = 1, model.spoiled_step = 3, model.spoil_query = true;
  ASSERT_TRUE(model.advance().ok());
  model.launch();
  model.follow();
  const Status late = model.device->check();
  EXPECT_EQ(late.code(), StatusCode::out_of_range);
  EXPECT_NE(late.message().find("layer 1"), std::string::npos) << late.message();
  EXPECT_TRUE(model.device->check().ok());
  model.take_step();
  model.compare();
  model.spoil_query = false, model.spoiled_step = 5;
  ASSERT_TRUE(model.advance().ok());
  model.launch();
  ASSERT_TRUE(model.machine->wait().ok());
  const Status refused = model.there->freeze(a).status();
  EXPECT_EQ(refused.code(), StatusCode::invalid_argument);
  EXPECT_NE(refused.message().find("layer 1 at position 35"), std::string::npos) << refused.message();
  EXPECT_EQ(model.advance().code(), StatusCode::invalid_argument);
  ASSERT_TRUE(model.there->truncate(a, 35).ok());
  model.expect_same_tokens();
}

// A sequence may go while a launch that brings its rows is on its way, and so may the step.
TEST(DeviceGraph, WhatIsUnderWayMayBeGivenUp) {
  Model model;
  const SeqId a = model.add(30), b = model.add(101);
  model.record({a, b});
  for (int i = 0; i < 4; ++i) model.take_step();
  for (auto* cache : {model.there.get(), model.here.get()}) ASSERT_TRUE(cache->remove(a).ok());
  model.step.reset();
  model.expect_same_tokens();
}

}  // namespace
}  // namespace tierkv
