// Memory that runs out anywhere in a call, through the C++ API: nothing ends the process, nothing changes the cache.
#include <gtest/gtest.h>

#include <unistd.h>
#include <cstdio>
#include <random>

#include "base/folder_testing.h"
#include "memory_faults.h"
#include "snapshot/deep_testing.h"
#include "tierkv/snapshot.h"

namespace tierkv {
namespace {

using testing::Call;
using testing::FailingMemory;
using testing::Faults;
using testing::refuse_each;

constexpr uint32_t kLayers = 2, kHeads = 4, kKvHeads = 2, kDim = 64;
constexpr const char* kTiers = "hot=32,warm=64,archive=rot2,sinks=4,warm_block=32,archive_block=64";
constexpr const char* kBetterRows = "hot=32,warm=64,archive=rot2+top3,sinks=4,warm_block=32,archive_block=64";

std::vector<float> random_rows(uint32_t tokens, uint32_t heads, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(static_cast<size_t>(tokens) * heads * kDim);
  for (float& x : out) x = normal(rng);
  return out;
}

CacheConfig config_of(const std::string& spec) {
  CacheConfig config;
  config.num_layers = kLayers;
  config.num_heads = kHeads;
  config.num_kv_heads = kKvHeads;
  config.head_dim = kDim;
  config.threads = 2;
  EXPECT_TRUE(apply_inline(spec, config).ok()) << spec;
  return config;
}

// A cache with one sequence, and what calls on it need.
struct World {
  std::unique_ptr<AdaptiveKVCache> cache;
  SeqId seq = 0;
  std::vector<float> rows, out;
  std::vector<std::byte> bytes;

  explicit World(const std::string& spec, uint32_t tokens) : out(64 * kHeads * kDim) {
    cache = AdaptiveKVCache::create(config_of(spec)).value();
    seq = cache->add_sequence().value();
    for (uint32_t l = 0; l < kLayers && tokens; ++l) EXPECT_EQ(append(l, tokens), StatusCode::ok);
    rows = random_rows(200, kHeads, 7);
  }
  StatusCode append(uint32_t layer, uint32_t tokens) {
    if (rows.size() < static_cast<size_t>(tokens) * kKvHeads * kDim) rows = random_rows(tokens, kKvHeads, 5 + layer);
    const RowsView view = RowsView::f32(rows.data(), tokens, kKvHeads, kDim);
    return cache->append(seq, layer, view, view).code();
  }
  StatusCode attend(uint32_t queries, const AttentionOptions& options) {
    return cache->attention(seq, 0, RowsView::f32(rows.data(), queries, kHeads, kDim), out.data(), options).code();
  }
  StatusCode step() {
    const RowsView row = RowsView::f32(rows.data(), 1, kKvHeads, kDim);
    AppendItem append{seq, row, row, {}};
    AttentionItem ask{seq, RowsView::f32(rows.data(), 1, kHeads, kDim), out.data(), -1, nullptr, {}, DType::bf16};
    return cache->step(0, {&append, 1}, {&ask, 1}).code();
  }
};

using Do = std::function<StatusCode(World&)>;

void prepare(World& world, const Do& first) {
  if (first) {
    EXPECT_EQ(first(world), StatusCode::ok);
  }
}

// The call is made on a fresh cache of `spec` with `tokens` tokens.
long check(const char* name, const std::string& spec, uint32_t tokens, const Do& run, Faults faults = {},
           const Do& first = nullptr) {
  const long refusals = refuse_each(
      [&] {
        auto world = std::make_shared<World>(spec, tokens);
        prepare(*world, first);
        return Call{name, [world, run] { return run(*world); }, world->cache.get()};
      },
      faults);
  EXPECT_TRUE(refusals > 0 || faults.may_need_none) << name << " asked for no memory: the test tests nothing";
  return refusals;
}

// Nothing that frees may ask for memory.
void check_asks_for_nothing(const char* name, const std::string& spec, uint32_t tokens, const Do& run, const Do& first = nullptr) {
  World world(spec, tokens);
  prepare(world, first);
  testing::FailingMemory::arm(1, testing::FailingMemory::Mode::from_then_on);
  const StatusCode code = run(world);
  const bool asked = testing::FailingMemory::disarm();
  EXPECT_EQ(code, StatusCode::ok) << name;
  EXPECT_FALSE(asked) << name;
}

TEST(MemoryFaults, Create) {
  const CacheConfig config = config_of(kTiers);
  EXPECT_GT(refuse_each([&] {
              return Call{"create", [&] { return AdaptiveKVCache::create(config).status().code(); }, nullptr};
            }),
            0);
}

TEST(MemoryFaults, Configuration) {
  const auto applied = [](const char* name, Status (*apply)(std::string_view, CacheConfig&), std::string_view text) {
    EXPECT_GT(refuse_each([=] {
                auto config = std::make_shared<CacheConfig>();
                return Call{name, [=] { return apply(text, *config).code(); }, nullptr};
              }),
              0)
        << name;
  };
  applied("apply_inline", apply_inline, "balanced,hot=32,evict=h2o");
  applied("apply_spec", apply_spec, "balanced,hot=32");
  applied(
      "apply_toml", [](std::string_view t, CacheConfig& c) { return apply_toml(t, c); },
      "hot = 32\n[eviction]\npolicy = \"h2o\"\n");
  applied(
      "apply_json", [](std::string_view t, CacheConfig& c) { return apply_json(t, c); },
      "{\"warm\": 128, \"archive_codec\": \"rot3\"}");
  EXPECT_GT(refuse_each([] {
              CacheConfig bad = config_of(kTiers);
              bad.head_dim = 33;
              return Call{"validate",
                          [bad] {
                            const StatusCode code = validate(bad).code();
                            return code == StatusCode::invalid_argument ? StatusCode::ok : code;
                          },
                          nullptr};
            }),
            0);
}

// What returns text or lists by value throws std::bad_alloc, and nothing else happens.
TEST(MemoryFaults, ValuesThatCannotBeMadeAreAnException) {
  World world(kTiers, 100);
  const CacheConfig config = config_of(kTiers);
  const auto thrown = [](const auto& call) {
    try {
      (void)call();
      return StatusCode::ok;
    } catch (const std::bad_alloc&) {
      return StatusCode::resource_exhausted;
    }
  };
  const auto check_value = [&](const char* name, const std::function<StatusCode()>& run) {
    EXPECT_GT(refuse_each([&] { return Call{name, run, world.cache.get()}; }), 0) << name;
  };
  check_value("to_json", [&] { return thrown([&] { return to_json(config); }); });
  check_value("sequences", [&] { return thrown([&] { return world.cache->sequences(); }); });
  check_value("thresholds", [&] { return thrown([&] { return world.cache->thresholds(); }); });
  check_asks_for_nothing("memory_usage", kTiers, 300, [](World& w) { return w.cache->memory_usage(), StatusCode::ok; });
}

TEST(MemoryFaults, Sequences) {
  check("add_sequence", kTiers, 0, [](World& w) { return w.cache->add_sequence().status().code(); });
  check("fork", kTiers, 300, [](World& w) { return w.cache->fork(w.seq).status().code(); });
  check_asks_for_nothing("remove", kTiers, 300, [](World& w) { return w.cache->remove(w.seq).code(); });
  check_asks_for_nothing("destroy", kTiers, 300, [](World& w) { return w.cache.reset(), StatusCode::ok; });
  const Do fork = [](World& w) { return w.cache->fork(w.seq).status().code(); };
  check_asks_for_nothing(
      "destroy with a fork", kTiers, 300, [](World& w) { return w.cache.reset(), StatusCode::ok; }, fork);
}

TEST(MemoryFaults, Append) {
  long refusals = 0;
  for (const uint32_t tokens : {0u, 30u, 63u, 67u, 99u, 131u, 163u, 195u, 300u}) {  // nothing due, sinks, graduation, demotion
    refusals += check("append one", kTiers, tokens, [](World& w) { return w.append(0, 1); }, {.may_need_none = true});
  }
  EXPECT_GT(refusals, 20);
  check("append many", kTiers, 50, [](World& w) { return w.append(1, 200); }, {.sparse = true});
  check(
      "append to a shared tail", kTiers, 140, [](World& w) { return w.append(0, 40); }, {},
      [](World& w) { return w.cache->fork(w.seq).status().code(); });
  for (const char* archive : {"fp16", "int8", "kivi2", "rot3", "squat2", "ruvector4"}) {
    const std::string spec = std::string("hot=32,warm=0,sinks=4,archive_block=64,archive=") + archive;
    CacheConfig config = config_of("hot=32");
    if (!apply_inline(spec, config).ok() || !AdaptiveKVCache::create(config).ok()) continue;  // needs tables
    check(archive, spec, 99, [](World& w) { return w.append(0, 30); }, {.sparse = true});
  }
  check("append to a window", "hot=32,warm=32,archive=rot2,window=64,warm_block=32,archive_block=32", 120,
        [](World& w) { return w.append(0, 40); });
}

// Three sequences of which each has something due. What is refused is as it was, and the others have all of their rows.
TEST(MemoryFaults, AppendMany) {
  const std::vector<float> rows = random_rows(200, kKvHeads, 9);
  const auto append = [&](AdaptiveKVCache& cache, const std::vector<SeqId>& ids, uint32_t tokens, std::vector<AppendItem>& items) {
    const RowsView view = RowsView::f32(rows.data(), tokens, kKvHeads, kDim);
    items.clear();
    for (const SeqId id : ids) items.push_back({id, view, view, {}});
    return cache.append_many(0, items);
  };
  for (const uint32_t tokens : {1u, 100u}) {
    const auto make = [&](std::vector<SeqId>& ids) {
      auto cache = AdaptiveKVCache::create(config_of(kTiers)).value();
      ids.clear();
      for (const uint32_t before : {67u, 131u, 195u}) {
        ids.push_back(cache->add_sequence().value());
        const RowsView view = RowsView::f32(rows.data(), before, kKvHeads, kDim);
        EXPECT_TRUE(cache->append(ids.back(), 0, view, view).ok());
      }
      return cache;
    };
    std::vector<SeqId> ids;
    std::vector<AppendItem> items;
    const auto reference = make(ids);
    ASSERT_TRUE(append(*reference, ids, tokens, items).ok());
    long refusals = 0, some = 0;
    for (const auto mode : {FailingMemory::Mode::once, FailingMemory::Mode::from_then_on}) {
      for (long nth = 1;; nth = testing::next_request(nth, {.sparse = true})) {
        const auto cache = make(ids);
        bool refused = false;
        items.clear();
        items.reserve(ids.size());
        std::thread([&] {
          FailingMemory::arm(nth, mode);
          (void)append(*cache, ids, tokens, items);
          refused = FailingMemory::disarm();
        }).join();
        ASSERT_EQ(testing::books_problem(*cache), "") << nth;
        if (!refused) break;
        ++refusals;
        for (const AppendItem& item : items) {
          const uint32_t before = *reference->length(item.seq, 0) - tokens;
          ASSERT_EQ(*cache->length(item.seq, 0), before + (item.status.ok() ? tokens : 0)) << nth << " " << item.status.message();
          some += !item.status.ok();
          if (item.status.ok()) continue;
          ASSERT_EQ(item.status.code(), StatusCode::resource_exhausted);
          ASSERT_TRUE(cache->append(item.seq, 0, item.keys, item.values).ok());
        }
        for (const SeqId id : ids) {
          ASSERT_TRUE(cache->verify(id).ok());
          ASSERT_EQ(cache->length(id, 0).value(), reference->length(id, 0).value());
        }
      }
    }
    EXPECT_GT(refusals, 20);
    EXPECT_GT(some, 0);
  }
}

TEST(MemoryFaults, AppendThatEvicts) {
  const std::string spec = std::string(kTiers) + ",evict=h2o,max_seq_len=160";
  // What a policy gave up before an append was refused is gone.
  check("append with eviction", spec, 160, [](World& w) { return w.append(0, 1); }, {.digest = false});
  check("append many with eviction", spec, 150, [](World& w) { return w.append(0, 60); }, {.digest = false});
}

TEST(MemoryFaults, Attention) {
  AttentionOptions plain;
  check("attention of one query", kTiers, 300, [=](World& w) { return w.attend(1, plain); });
  check("attention of many queries", kTiers, 300, [=](World& w) { return w.attend(40, plain); });
  // Rows that are in stay in.
  check("a step", kTiers, 300, [](World& w) { return w.step(); }, {.digest = false});
  for (const uint32_t queries : {1u, 40u}) {
    check("attention that says which rows are kept better", kBetterRows, 300, [=](World& w) { return w.attend(queries, plain); });
  }
  // What the policy had learned of it before it failed stays learned.
  check("attention that observes", std::string(kTiers) + ",evict=h2o", 300, [=](World& w) { return w.attend(20, plain); },
        {.digest = false});
  auto mass = std::make_shared<MassReport>();
  mass->want_tokens = true;
  AttentionOptions with_mass;
  with_mass.mass = mass.get();
  check("attention with masses", kTiers, 300, [mass, with_mass](World& w) { return w.attend(3, with_mass); });
}

TEST(MemoryFaults, Reading) {
  check("positions", kTiers, 300, [](World& w) { return w.cache->positions(w.seq, 0, 0).status().code(); });
  check("get", kTiers, 300, [](World& w) {
    const uint32_t at[] = {3, 40, 150, 299};
    return w.cache->get(w.seq, 0, at, w.out.data(), nullptr).code();
  });
  check("an error's own text", kTiers, 300, [](World& w) {
    const StatusCode code = w.cache->length(w.seq, 99).status().code();
    return code == StatusCode::out_of_range ? StatusCode::ok : code;
  });
}

TEST(MemoryFaults, Shortening) {
  check_asks_for_nothing("truncate", kTiers, 300, [](World& w) { return w.cache->truncate(w.seq, 200).code(); });
  check_asks_for_nothing("truncate into the middle of a block", kTiers, 300,
                         [](World& w) { return w.cache->truncate(w.seq, 77).code(); });
  check_asks_for_nothing("truncate to nothing", kTiers, 300, [](World& w) { return w.cache->truncate(w.seq, 0).code(); });
  check("truncate to less than the sinks", kTiers, 300, [](World& w) { return w.cache->truncate(w.seq, 2).code(); },
        {.may_need_none = true});
  check("flush", kTiers, 300, [](World& w) { return w.cache->flush().code(); }, {.digest = false});
}

TEST(MemoryFaults, Evict) {
  for (const char* policy : {"h2o", "snapkv", "streaming_llm", "pyramidkv"}) {
    const std::string spec = std::string(kTiers) + ",evict=" + policy;
    check(policy, spec, 300, [](World& w) { return w.cache->evict(w.seq, 100).code(); }, {.digest = false});
  }
}

TEST(MemoryFaults, Snapshots) {
  check("freeze", kTiers, 300, [](World& w) { return w.cache->freeze(w.seq).status().code(); });
  const Do freeze = [](World& w) { return w.bytes = w.cache->freeze(w.seq).value(), StatusCode::ok; };
  check(
      "unfreeze", kTiers, 300, [](World& w) { return w.cache->unfreeze(w.bytes).status().code(); }, {}, freeze);
  const TestFolder folder;
  const std::string path = folder.file("snapshot");
  check("save", kTiers, 150, [&](World& w) { return w.cache->save(w.seq, path).code(); });
  check("load", kTiers, 150, [&](World& w) { return w.cache->load(path).status().code(); });
  EXPECT_GT(refuse_each([&] { return Call{"inspect", [&] { return inspect_snapshot(path).status().code(); }, nullptr}; }), 0);
}

TEST(MemoryFaults, Statistics) {
  const TestFolder folder;
  const std::string path = folder.file("thresholds");
  check("save_thresholds", kTiers, 10, [&](World& w) { return w.cache->save_thresholds(path).code(); });
  const std::vector<LayerThresholds> wanted(kLayers, {48, 64, 3});
  check("set_thresholds", kTiers, 5, [&](World& w) { return w.cache->set_thresholds(wanted).code(); });
  check("load_thresholds", kTiers, 10, [&](World& w) { return w.cache->load_thresholds(path).code(); });
  check("adapt_thresholds", kTiers, 10,
        [](World& w) {
          for (int i = 0; i < 16; ++i) {
            if (const Status status = w.cache->adapt_thresholds({0.5}); !status.ok()) return status.code();
          }
          return StatusCode::ok;
        },
        {.digest = false});  // sixteen calls, of which the first may have gone well
}

TEST(MemoryFaults, CalibrationsOfAStretchedModel) {
  const CalibrationPtr tables = snapshot::testing::calibration();
  const CalibrationInfo own = describe(*tables);
  std::vector<calib::Rope> slower = own.ropes;
  for (calib::Rope& rope : slower) {
    for (calib::RopePair& pair : rope) pair.angle /= 4;
  }
  EXPECT_GT(refuse_each([&] { return Call{"check_fit", [&] { return check_fit(*tables, own).code(); }, nullptr}; }), 0);
  EXPECT_GT(refuse_each(
                [&] {
                  return Call{"with_ropes", [&] { return with_ropes(tables, slower).status().code(); }, nullptr};
                },
                {.sparse = true}),
            0);
}

TEST(MemoryFaults, ParkAndWake) {
  using namespace snapshot::testing;
  const CalibrationPtr tables = calibration();
  const auto made = [&](bool parked) {
    auto world = std::make_shared<Filled>(filled("hot=32,warm=64,archive=rot4,sinks=4,threads=2", 500, tables));
    if (parked) {
      EXPECT_TRUE(world->cache->park(world->seq, at_ratio(10.0)).ok());
    }
    return world;
  };
  const Faults sparse{.sparse = true, .books = false};
  EXPECT_GT(refuse_each(
                [&] {
                  auto w = made(false);
                  return Call{"park", [w] { return w->cache->park(w->seq, at_ratio(10.0)).code(); }, w->cache.get()};
                },
                sparse),
            0);
  EXPECT_GT(refuse_each(
                [&] {
                  auto w = made(true);
                  return Call{"wake", [w] { return w->cache->wake(w->seq).code(); }, w->cache.get()};
                },
                sparse),
            0);
}

}  // namespace
}  // namespace tierkv
