// Planner by itself: which codec and which lengths follow from what it was given, and what a failed or a slow change does not do.
#include "plan/planner.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <map>
#include <thread>

#include "solve/testing.h"

namespace tierkv::plan {
namespace {

constexpr uint32_t kHotRows = 256;

calib::SyntheticShape small_shape(uint32_t seed = 1) {
  calib::SyntheticShape shape;
  shape.head_dim = 32, shape.seed = seed;
  return shape;
}

CalibrationPtr klt_tables(uint32_t seed = 1) {
  static std::map<uint32_t, CalibrationPtr> made;
  if (!made[seed]) made[seed] = solve::klt_calibration(calib::SyntheticModel(small_shape(seed)).statistics()).value();
  return made[seed];
}

// As from a model where the keys of these heads, [layer][kv head], were never far from their queries.
CalibrationPtr klt_tables_without(std::initializer_list<size_t> heads) {
  const calib::Statistics s = calib::SyntheticModel(small_shape()).statistics();
  auto out = std::make_shared<calib::Calibration>(s, calib::Origin{"synthetic", s.tokens, "test"});
  auto klt = std::make_shared<calib::KltTables>(*klt_tables()->klt);
  for (const size_t head : heads) klt->heads[head] = {};
  out->klt = klt;
  EXPECT_TRUE(out->finish().ok());
  return out;
}

CalibrationPtr length_tables() {
  static const CalibrationPtr made = solve::kvquant_and_squat(calib::SyntheticModel(small_shape()).statistics()).value();
  return made;
}

CacheConfig config_of(const std::string& kv) {
  CacheConfig config;
  config.num_layers = 2, config.num_heads = 4, config.num_kv_heads = 2, config.head_dim = 32;
  EXPECT_TRUE(apply_spec(kv, config).ok()) << kv;
  return config;
}

struct Planned {
  CacheConfig config;
  quant::CodecSet codecs;
  std::unique_ptr<Planner> planner;

  explicit Planned(const CacheConfig& c, CalibrationPtr calibration = nullptr) : config(c), codecs(c.head_dim) {
    auto made = Planner::create(config, codecs, std::move(calibration), kHotRows);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    planner = std::move(*made);
  }
  explicit Planned(const std::string& kv, CalibrationPtr calibration = nullptr) : Planned(config_of(kv), std::move(calibration)) {}
  std::string archive(uint32_t layer, uint32_t length, uint32_t head = 0) const {
    return quant::to_string(planner->layer(layer, length).archive(head)->pair);
  }
  std::string name(uint32_t layer = 0) const { return planner->now()->archive_codec(layer); }
};

TEST(Planner, AutoFollowsTheCalibration) {
  const struct {
    const char *archive, *with, *without;
  } cases[] = {{"auto", "klt1.875", "even4/mid2"},
               {"auto1", "klt1.5", "even3/mid2"},
               {"auto3", "klt2.5", "even4/mid3"},
               {"auto-cuda", "klt1.875", "rot4/mid2"},
               {"auto1-cuda", "klt1.5", "rot4/mid2"},
               {"auto3-cuda", "klt2.5", "rot4"},
               {"rot4", "rot4", "rot4"}};
  for (const auto& c : cases) {
    const std::string kv = std::string("hot=32,warm=64,archive=") + c.archive;
    EXPECT_EQ(Planned(kv).name(), c.without) << kv;
    EXPECT_EQ(Planned(kv, klt_tables()).name(), c.with) << kv;
    // Tables of other codecs are no reason to leave the uncalibrated one.
    EXPECT_EQ(Planned(kv, length_tables()).name(), c.without) << kv;
  }
}

TEST(Planner, RowsChooseAnUncalibratedAutoOnce) {
  Planned planned("hot=32,warm=64,archive=auto");
  const auto kept = planned.planner->now();
  const LayerPlan before = kept->layer(1, 1000);
  ASSERT_EQ(before.choices.size(), quant::fallback_choices().size());
  EXPECT_EQ(planned.archive(1, 1000), "even4/mid2");
  EXPECT_EQ(kept->chosen().of, 2u);
  EXPECT_EQ(kept->chosen().layers, 0u);
  const double bits = kept->archive_bits();

  EXPECT_EQ(planned.planner->choose(1, 2), 2u);
  EXPECT_EQ(planned.planner->choose(1, 0), 2u) << "the first call decides";
  EXPECT_EQ(planned.archive(1, 1000), "even5/mid3");
  EXPECT_EQ(planned.archive(0, 1000), "even4/mid2");
  EXPECT_EQ(planned.name(1), "even5/mid3");
  EXPECT_TRUE(kept->layer(1, 1000).choices.empty()) << "plans that somebody keeps follow";
  EXPECT_EQ(kept->chosen().layers, 1u);
  EXPECT_GT(kept->archive_bits(), bits);
  // What was set is the same, and setting it again changes nothing.
  EXPECT_EQ(planned.planner->thresholds()[1].archive_bits, 4u);
  ASSERT_TRUE(planned.planner->set_thresholds(planned.planner->thresholds()).ok());
  EXPECT_EQ(planned.archive(1, 1000), "even5/mid3");
}

TEST(Planner, TablesAndOtherBitsEndTheChoice) {
  Planned planned("hot=32,warm=64,archive=auto");
  (void)planned.planner->choose(0, 0);
  std::vector<LayerThresholds> wanted = planned.planner->thresholds();
  wanted[0].archive_bits = wanted[1].archive_bits = 5;
  ASSERT_TRUE(planned.planner->set_thresholds(wanted).ok());
  for (uint32_t l = 0; l < 2; ++l) EXPECT_EQ(planned.archive(l, 1000), "even5/mid3");
  EXPECT_EQ(planned.planner->now()->chosen().of, 0u);
  ASSERT_TRUE(planned.planner->set_calibration(klt_tables()).ok());
  for (uint32_t l = 0; l < 2; ++l) EXPECT_EQ(planned.archive(l, 1000), "klt1.875");
  EXPECT_TRUE(planned.planner->layer(0, 1000).choices.empty());
}

TEST(Planner, OtherArchivesHaveNothingToChoose) {
  for (const char* archive : {"even4/mid2", "auto1", "auto3", "auto-cuda", "adaptive", "fp16"}) {
    const Planned planned(std::string("hot=32,warm=64,archive=") + archive);
    EXPECT_TRUE(planned.planner->layer(0, 1000).choices.empty()) << archive;
  }
  EXPECT_TRUE(Planned("hot=32,warm=64,archive=auto", klt_tables()).planner->layer(0, 1000).choices.empty());
}

TEST(Planner, EveryHeadHasItsOwnTables) {
  const Planned planned("hot=32,warm=64,archive=auto", klt_tables());
  for (uint32_t l = 0; l < 2; ++l) {
    const LayerPlan p = planned.planner->layer(l, 1000);
    ASSERT_NE(p.archive_heads, nullptr);
    EXPECT_EQ(p.archive_codec, p.archive(0));
    for (uint32_t h = 0; h < 2; ++h) {
      EXPECT_EQ(p.archive(h)->layer, l);
      EXPECT_EQ(p.archive(h)->head, h);
      EXPECT_EQ(p.archive(h)->calibration, klt_tables());
      ASSERT_NE(p.archive(h)->fallback, nullptr);
    }
  }
}

TEST(Planner, WarmBlocksHaveTheTablesOfTheirHeadToo) {
  Planned planned("hot=32,warm=64,warm_codec=klt4,archive=auto", klt_tables());
  for (const uint32_t seed : {1u, 2u}) {
    ASSERT_TRUE(planned.planner->set_calibration(klt_tables(seed)).ok());
    for (uint32_t l = 0; l < 2; ++l) {
      for (uint32_t h = 0; h < 2; ++h) {
        const CodecEntry* warm = planned.planner->layer(l, 0).first_codec(h);
        EXPECT_EQ(quant::to_string(warm->pair), "klt4");
        EXPECT_EQ(warm->tokens, planned.config.warm_block);
        EXPECT_EQ(warm->layer, l);
        EXPECT_EQ(warm->head, h);
        EXPECT_EQ(warm->calibration, klt_tables(seed));
      }
    }
  }
}

TEST(Planner, WarmAutoFollowsTheCalibration) {
  const auto warm = [](const Planned& planned, uint32_t layer, uint32_t head) {
    return quant::to_string(planned.planner->layer(layer, 0).warm_of(head)->pair);
  };
  const std::string kv = "hot=32,warm=64,warm_codec=auto,archive=rot2";
  EXPECT_EQ(warm(Planned(kv), 0, 0), "even4");
  EXPECT_EQ(warm(Planned(kv, length_tables()), 0, 0), "even4") << "tables of other codecs";
  Planned planned(kv, klt_tables_without({3}));  // layer 1, head 1
  EXPECT_EQ(warm(planned, 0, 1), "kltk4/rot4");
  EXPECT_EQ(warm(planned, 1, 0), "even4") << "a layer that lacks tables is whole without them";
  EXPECT_EQ(warm(planned, 1, 1), "even4");
  ASSERT_TRUE(planned.planner->set_calibration(klt_tables()).ok());
  EXPECT_EQ(warm(planned, 1, 1), "kltk4/rot4");
}

TEST(Planner, AdaptiveChoosesByLength) {
  const Planned planned("hot=32,warm=64,archive=adaptive", length_tables());
  const struct {
    uint32_t length;
    const char* codec;
  } cases[] = {{0, "kivi2"}, {2047, "kivi2"}, {2048, "squat2"}, {8191, "squat2"}, {8192, "kvquant3"}, {UINT32_MAX, "kvquant3"}};
  for (const auto& c : cases) EXPECT_EQ(planned.archive(1, c.length), c.codec) << c.length;
  EXPECT_EQ(planned.name(), "kivi2, from 2048 tokens on squat2, from 8192 tokens on kvquant3");

  const std::vector<LayerPlan> all = planned.planner->all(std::vector<uint32_t>{100, 9000});
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(quant::to_string(all[0].archive_codec->pair), "kivi2");
  EXPECT_EQ(quant::to_string(all[1].archive_codec->pair), "kvquant3");
  EXPECT_EQ(all[0].archive_heads, nullptr);
  ASSERT_NE(all[1].archive_heads, nullptr);
  EXPECT_EQ(all[1].archive(1)->head, 1u);
}

TEST(Planner, AdaptiveWithoutTablesHasPlainCodecs) {
  const Planned planned("hot=32,warm=64,archive=adaptive");
  EXPECT_EQ(planned.name(), "kivi2, from 2048 tokens on kivi2, from 8192 tokens on kivi3");
}

// A windowed layer's keys may never be far from their queries; then calibration has no tables for it.
TEST(Planner, AWindowedLayerWithoutTablesIsUncalibrated) {
  const CalibrationPtr calibration = klt_tables_without({2, 3});  // layer 1
  CacheConfig config = config_of("hot=32,warm=64,archive=auto");
  quant::CodecSet unused(32);
  EXPECT_EQ(Planner::create(config, unused, calibration, kHotRows).status().code(), StatusCode::failed_precondition);
  EXPECT_EQ(unused.calibration(), nullptr);
  LayerOverride windowed;
  windowed.first = windowed.last = 1;
  windowed.window = 256;
  config.overrides.push_back(windowed);
  const Planned planned(config, calibration);
  EXPECT_EQ(planned.archive(0, 1000), "klt1.875");
  EXPECT_EQ(planned.archive(1, 1000, 0), "even4/mid2");
  EXPECT_EQ(planned.archive(1, 1000, 1), "even4/mid2");
  EXPECT_EQ(planned.planner->shape(1).window, 256u);
  EXPECT_EQ(planned.planner->shape(1).sinks, 0u);
  EXPECT_FALSE(planned.planner->shape(1).ring);
}

TEST(Planner, ARingNeedsNoTiers) {
  const Planned planned("hot=64,window=48,window_slack=8,archive=rot2");
  EXPECT_TRUE(planned.planner->shape(0).ring);
  EXPECT_EQ(planned.planner->shape(0).slack, 8u);
  EXPECT_EQ(planned.planner->layer(0, 10).tail_bound(), 0u);
}

TEST(Planner, RawRowsAreOfTheHotType) {
  for (const char* type : {"fp16", "bf16"}) {
    const Planned planned("hot=32,warm=64,archive=rot2,sinks=4,hot_type=" + std::string(type));
    const LayerPlan p = planned.planner->layer(0, 0);
    for (const CodecEntry* entry : {&planned.planner->hot_codec(), p.sink_codec, p.raw_warm, p.raw_archive})
      EXPECT_EQ(quant::to_string(entry->pair), type);
    EXPECT_EQ(planned.planner->hot_codec().tokens, kHotRows);
    EXPECT_EQ(p.sink_codec->tokens, 4u);
    EXPECT_EQ(p.raw_warm->tokens, planned.config.warm_block);
    EXPECT_EQ(p.raw_archive->tokens, planned.config.archive_block);
  }
}

TEST(Planner, TheLargestBlockIsOfAnyLength) {
  const auto key_bytes = [](const CodecEntry& entry) { return quant::to_string(entry.pair) == "kvquant3" ? 7u : 3u; };
  EXPECT_EQ(Planned("warm=64,archive=adaptive", length_tables()).planner->now()->largest_block(key_bytes, 2), 7u);
  EXPECT_EQ(Planned("warm=64,archive=adaptive").planner->now()->largest_block(key_bytes, 2), 3u);
}

TEST(Planner, ThresholdsMoveLengthsAndWidths) {
  Planned planned("hot=32,warm=64,archive=rot3/rot2");
  EXPECT_EQ(planned.planner->thresholds(), (std::vector<LayerThresholds>{{32, 64, 3}, {32, 64, 3}}));
  const auto before = planned.planner->now();
  ASSERT_TRUE(planned.planner->set_thresholds(std::vector<LayerThresholds>{{48, 128, 4}, {16, kAll, 2}}).ok());
  EXPECT_EQ(planned.name(0), "rot4/rot3");
  EXPECT_EQ(planned.name(1), "rot2");
  EXPECT_EQ(planned.planner->layer(0, 0).hot, 48u);
  EXPECT_EQ(planned.planner->layer(0, 0).warm, 128u);
  EXPECT_EQ(planned.planner->layer(1, 0).hot, 16u);
  EXPECT_EQ(planned.planner->layer(1, 0).warm, 64u) << "tiers do not come and go";
  EXPECT_EQ(before->archive_codec(0), "rot3/rot2") << "plans that were handed out stay";
  EXPECT_EQ(planned.planner->set_thresholds(std::vector<LayerThresholds>(3)).code(), StatusCode::invalid_argument);
}

TEST(Planner, WidthsOfCalibratedHeadsMoveTogether) {
  Planned planned("hot=32,warm=64,archive=auto", klt_tables());
  ASSERT_TRUE(planned.planner->set_thresholds(std::vector<LayerThresholds>{{32, 64, 3}, {32, 64, 2}}).ok());
  EXPECT_EQ(planned.archive(0, 100, 1), "klt3");
  EXPECT_EQ(planned.archive(1, 100, 1), "klt1.875");
  // A calibration that comes later starts again at what is configured; the lengths stay.
  ASSERT_TRUE(planned.planner->set_thresholds(std::vector<LayerThresholds>{{40, 64, 3}, {32, 64, 3}}).ok());
  ASSERT_TRUE(planned.planner->set_calibration(klt_tables(2)).ok());
  EXPECT_EQ(planned.archive(0, 100, 1), "klt1.875");
  EXPECT_EQ(planned.planner->layer(0, 0).hot, 40u);
  EXPECT_EQ(planned.planner->layer(0, 0).archive(1)->calibration, klt_tables(2));
}

TEST(Planner, ScoresMoveThresholdsByTheRule) {
  Planned planned("hot=100,warm=64,archive=rot2,quality_target=0.9");
  for (uint64_t i = 0; i < QualityTracker::kMinSamples; ++i) ASSERT_TRUE(planned.planner->add_score(0.5).ok());
  EXPECT_EQ(planned.planner->thresholds()[0], (LayerThresholds{120, 64, 3}));
  EXPECT_EQ(planned.planner->quality_metrics().adaptations, 1u);
  EXPECT_FALSE(planned.planner->add_score(-1.0).ok());
  EXPECT_EQ(planned.planner->quality_metrics().samples, QualityTracker::kMinSamples);
}

// A calibration whose bytes can be taken away and changed, as a file's can.
class Bytes {
 public:
  explicit Bytes(const calib::Calibration& calibration) {
    const std::vector<std::byte> file = calibration.serialize();
    size_ = file.size();
    at_ = static_cast<std::byte*>(::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    std::memcpy(at_, file.data(), size_);
  }
  ~Bytes() { ::munmap(at_, size_); }
  CalibrationPtr parse() const { return calib::Calibration::parse({at_, size_}, "test", /*bytes_stay=*/true).value(); }
  void damage() { at_[size_ / 2] ^= std::byte{1}; }
  void protect(int how) const { ::mprotect(at_, size_, how); }

 private:
  std::byte* at_ = nullptr;
  size_t size_ = 0;
};

TEST(Planner, AFailedChangeChangesNothing) {
  Bytes bytes(*klt_tables(2));
  const CalibrationPtr broken = bytes.parse();
  bytes.damage();
  for (const CalibrationPtr& first : {CalibrationPtr(), klt_tables()}) {
    Planned planned("hot=32,warm=64,archive=auto,quality_target=0.9", first);
    ASSERT_TRUE(planned.planner->set_thresholds(std::vector<LayerThresholds>{{48, 128, 3}, {48, 128, 3}}).ok());
    const auto plans = planned.planner->now();
    const size_t tables = planned.codecs.table_bytes();
    EXPECT_EQ(planned.planner->set_calibration(broken).code(), StatusCode::data_loss);
    EXPECT_EQ(planned.planner->set_calibration(nullptr).code(), StatusCode::invalid_argument);
    EXPECT_EQ(planned.planner->now(), plans);
    EXPECT_EQ(planned.codecs.calibration(), first);
    EXPECT_EQ(planned.codecs.table_bytes(), tables) << "codecs of a calibration that never came";
  }
}

// Heads of one layer fail after those of another were made: nothing of either stays.
TEST(Planner, AChangeThatFailsHalfWayLeavesNoCodecs) {
  const CalibrationPtr partial = klt_tables_without({3});
  Planned planned("hot=32,warm=64,archive=auto", klt_tables());
  const auto plans = planned.planner->now();
  const size_t tables = planned.codecs.table_bytes();
  EXPECT_EQ(planned.planner->set_calibration(partial).code(), StatusCode::failed_precondition);
  EXPECT_EQ(planned.planner->now(), plans);
  EXPECT_EQ(planned.codecs.table_bytes(), tables);
}

// A page fault that waits: whoever reads the calibration's bytes stops in the middle of it.
std::atomic<const Bytes*> g_held{nullptr};
std::atomic<bool> g_entered{false}, g_released{false};

void wait_in_fault(int, siginfo_t*, void*) {
  const Bytes* held = g_held.load();
  if (!held) ::_exit(3);
  g_entered = true;
  while (!g_released) {
    const timespec nap{0, 1000000};
    ::nanosleep(&nap, nullptr);
  }
  held->protect(PROT_READ | PROT_WRITE);
}

TEST(PlannerThreads, NobodyWaitsForAWriterThatReadsItsTables) {
  struct sigaction now {
  }, before{};
  now.sa_sigaction = wait_in_fault;
  now.sa_flags = SA_SIGINFO;
  ASSERT_EQ(::sigaction(SIGSEGV, &now, &before), 0);
  Bytes bytes(*klt_tables(2));
  const CalibrationPtr slow = bytes.parse();
  Planned planned("hot=32,warm=64,archive=auto", klt_tables());
  bytes.protect(PROT_NONE);
  g_held = &bytes;
  std::thread writer([&] { EXPECT_TRUE(planned.planner->set_calibration(slow).ok()); });
  while (!g_entered) std::this_thread::yield();

  auto reader = std::async(std::launch::async, [&] {
    EXPECT_EQ(planned.name(), "klt1.875");
    EXPECT_EQ(planned.planner->layer(1, 100).archive(1)->calibration, klt_tables());
    EXPECT_EQ(planned.planner->thresholds().size(), 2u);
    EXPECT_EQ(planned.planner->quality_metrics().samples, 0u);
    EXPECT_EQ(planned.codecs.calibration(), klt_tables());
    EXPECT_GT(planned.codecs.table_bytes(), 0u);
    EXPECT_TRUE(planned.codecs.get(quant::parse_codec_pair("klt2").value(), 128, 0, 0).ok());
    EXPECT_GT(slow->bytes(), 0u);
  });
  EXPECT_EQ(reader.wait_for(std::chrono::seconds(20)), std::future_status::ready) << "a reader waits for a writer";
  g_released = true;
  writer.join();
  reader.wait();
  g_held = nullptr;
  ::sigaction(SIGSEGV, &before, nullptr);
  EXPECT_EQ(planned.planner->layer(1, 100).archive(1)->calibration, slow);
}

TEST(PlannerThreads, ReadersAlwaysSeeWholePlans) {
  Planned planned("hot=32,warm=64,archive=auto,quality_target=0.9", klt_tables());
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&] {
      while (!stop) {
        const auto plans = planned.planner->now();
        const std::vector<LayerPlan> all = plans->all(std::vector<uint32_t>{100, 9000});
        ASSERT_EQ(all[0].archive(0)->calibration, all[1].archive(1)->calibration);
        ASSERT_EQ(all[0].hot, all[1].hot);
        (void)planned.planner->quality_metrics();
        (void)planned.codecs.table_bytes();
      }
    });
  }
  threads.emplace_back([&] {  // what reading a snapshot does
    for (const char* codec : {"klt2", "klt3", "klt4", "klt2.5"})
      for (uint32_t h = 0; h < 2; ++h) ASSERT_TRUE(planned.codecs.get(quant::parse_codec_pair(codec).value(), 128, 1, h).ok());
  });
  for (uint32_t i = 0; i < 12; ++i) {
    ASSERT_TRUE(planned.planner->set_calibration(klt_tables(1 + i % 3)).ok());
    ASSERT_TRUE(planned.planner->set_thresholds(std::vector<LayerThresholds>(2, {32 + i, 64, 2 + i % 3})).ok());
    for (int s = 0; s < 20; ++s) ASSERT_TRUE(planned.planner->add_score(0.5).ok());
  }
  stop = true;
  for (std::thread& t : threads) t.join();
}

}  // namespace
}  // namespace tierkv::plan
