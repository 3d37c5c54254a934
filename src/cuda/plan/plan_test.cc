// The descriptors of a launch, and what their scalar twin makes of them.
#include "cuda/plan/plan.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "cuda/launch/better.h"
#include "cuda/launch/fast_codec.h"
#include "cuda/plan/planned_testing.h"
#include "cuda/plan/scene_testing.h"
#include "cuda/plan/twin_testing.h"

namespace tierkv::cuda {
namespace {

using testing::plan_of;
using testing::Planned;
using testing::Scene;
using testing::SceneShape;

void check(const SceneShape& shape, uint32_t seed, uint32_t ctas, double tolerance = 1e-4) {
  const Scene scene(shape, seed);
  ASSERT_TRUE(scene.status().ok()) << scene.status().message();
  Planned planned;
  plan_of(scene, ctas, false, planned);
  std::vector<float> out(scene.queries().size(), NAN), lse(scene.rows(), NAN);
  const Launch launch = testing::launch_of(planned.input, planned.plan, scene.queries().data(), scene.sinks());
  testing::Twin(launch, planned.plan.partials).run(out.data(), lse.data());
  testing::expect_answers(scene, out, lse, tolerance, 1e-3);
}

TEST(CudaPlan, TheTwinReadsEveryCodec) {
  testing::for_each_codec([](const SceneShape& shape) { check(shape, 7, 3); });
}

TEST(CudaPlan, RowsThatAQuerySees) {
  testing::for_random_scenes({32, 64, 96, 128}, 4,
                             [](const SceneShape& shape, uint32_t seed, uint32_t ctas) { check(shape, seed, ctas); });
}

TEST(CudaPlan, EverySeenRowIsInOnePieceAndPiecesAreEqual) {
  SceneShape shape;
  shape.codecs = {"kivi2"};
  shape.lengths = {20480, 1024, 6144, 128};  // 434 whole blocks in all, two heads each
  shape.hot = 0, shape.group = 1;
  const Scene scene(shape, 3);
  ASSERT_TRUE(scene.status().ok());
  for (const uint32_t ctas : {2u, 7u, 33u}) {
    Planned planned;
    plan_of(scene, ctas, true, planned);
    const Plan& plan = planned.plan;
    EXPECT_EQ(plan.fast, Path::whole22);
    ASSERT_LE(plan.cta_begin.size(), ctas + 1);
    EXPECT_EQ(plan.cta_begin.back(), plan.segments.size());
    std::vector<uint64_t> rows(scene.tasks());
    std::set<uint32_t> partials;
    std::vector<uint32_t> fast_views(ctas);
    for (uint32_t c = 0; c + 1 < plan.cta_begin.size(); ++c) {
      for (uint32_t i = plan.cta_begin[c]; i < plan.cta_begin[c + 1]; ++i) {
        const SegmentDesc& segment = plan.segments[i];
        EXPECT_TRUE(partials.insert(segment.partial).second);
        const TaskDesc& task = plan.tasks[segment.task];
        EXPECT_TRUE(segment.partial >= task.first_partial && segment.partial < task.first_partial + task.partials);
        for (uint32_t v = 0; v < segment.views; ++v) {
          const ViewDesc& view = plan.views[segment.first_view + v];
          rows[segment.task] += view.end - view.begin;
          EXPECT_TRUE(segment.path == Path::general || view.end - view.begin == kTileRows);
        }
        if (segment.path != Path::general) fast_views[c] += segment.views;
      }
    }
    for (size_t t = 0; t < scene.tasks(); ++t) EXPECT_EQ(rows[t], scene.position(t) + 1);
    const uint32_t most = *std::max_element(fast_views.begin(), fast_views.end());
    EXPECT_LE(most, 434 / ctas + 48) << ctas;
  }
}

TEST(CudaPlan, AThreadBlockHasOneKindOfWorkInTheOrderOfPaths) {
  SceneShape shape;
  shape.codecs = {"klt1.25+top4"};
  shape.lengths = {5000, 700, 40};
  shape.hot = 100, shape.sinks = 4, shape.group = 1, shape.dead = true;
  const Scene scene(shape, 3);
  ASSERT_TRUE(scene.status().ok());
  for (const uint32_t ctas : {1u, 2u, 5u, 60u}) {
    SCOPED_TRACE(ctas);
    Planned planned;
    plan_of(scene, ctas, true, planned);
    const Plan& plan = planned.plan;
    EXPECT_EQ(plan.fast, Path::klt_better);
    const uint32_t before = plan.general_ctas + plan.staged_ctas;
    EXPECT_GT(plan.general_ctas, 0u);  // klt's blocks with dead rows
    EXPECT_GT(plan.staged_ctas, 0u);   // hot rows
    EXPECT_LT(before, plan.cta_begin.size() - 1);
    EXPECT_EQ(plan.first_staged, plan.cta_begin[plan.general_ctas]);
    for (uint32_t c = before; c + 1 < plan.cta_begin.size(); ++c) {
      const CtaFirst& first = plan.firsts.of[c - before];
      const SegmentDesc& segment = plan.segments[plan.cta_begin[c]];
      EXPECT_EQ(first.at, plan.cta_begin[c]);
      EXPECT_EQ(first.segments, plan.cta_begin[c + 1] - plan.cta_begin[c]);
      ASSERT_LT(first.codec, kMostFirstCodecs);
      const FastCodec& known = plan.firsts.codecs[first.codec];
      const SegmentDesc told = first_segment(first, known.index, plan.fast);
      EXPECT_EQ(std::memcmp(&told, &segment, sizeof told), 0);
      const CodecDesc& codec = planned.codecs[segment.codec];
      EXPECT_EQ(known.key_bytes, padded_bytes(codec.key.bytes));
      EXPECT_EQ(known.value_bytes, padded_bytes(codec.value.bytes) + better_bytes(kMostFastBetter, 128));
      EXPECT_EQ(known.steps, klt_steps(codec.key));
      EXPECT_EQ(known.value_bits, codec.value.bits);
    }
    for (uint32_t c = 0; c + 1 < plan.cta_begin.size(); ++c) {
      for (uint32_t i = plan.cta_begin[c]; i < plan.cta_begin[c + 1]; ++i)
        EXPECT_EQ(plan.segments[i].path, c < plan.general_ctas ? Path::general : c < before ? Path::plain : plan.fast);
    }
  }
}

// Staged views may be cut, but every seen row is in one piece of about the size of the others, all with values in one frame.
TEST(CudaPlan, StagedRowsAreSharedOut) {
  for (const uint32_t ctas : {1u, 3u, 40u}) {
    SCOPED_TRACE(ctas);
    SceneShape shape;
    shape.codecs = {"even4", "kivi3", "rot3"};
    shape.lengths = {3000, 200};
    shape.hot = 200, shape.sinks = 4, shape.group = 1, shape.cut = true;
    const Scene scene(shape, 3);
    ASSERT_TRUE(scene.status().ok());
    Planned planned;
    plan_of(scene, ctas, true, planned);
    const Plan& plan = planned.plan;
    EXPECT_EQ(plan.staged_ctas, plan.cta_begin.size() - 1);
    EXPECT_LE(plan.staged_ctas, std::max(8u, 5 * ctas));  // a run has one at least
    std::vector<uint64_t> rows(scene.tasks()), want(scene.tasks());
    for (const SegmentDesc& segment : plan.segments) {
      EXPECT_TRUE(segment.path == Path::staged || segment.path == Path::plain);
      uint32_t own = 0;
      for (uint32_t v = segment.first_view; v < segment.first_view + segment.views; ++v) {
        const ViewDesc& view = plan.views[v];
        own += view.end - view.begin;
        EXPECT_EQ(planned.codecs[view.codec].value.hadamard, planned.codecs[segment.codec].value.hadamard);
      }
      EXPECT_LE(own, ctas == 40 ? 80u : 3000u);
      rows[segment.task] += own;
    }
    for (size_t t = 0; t < scene.tasks(); ++t) {
      for (const attn::BlockView& view : scene.views(t)) want[t] += view.rows;
    }
    EXPECT_EQ(rows, want);
  }
}

// What was shared out once and is remembered is what would be shared out anew.
TEST(CudaPlan, ARememberedSharingIsTheSame) {
  Sharings sharings;
  sharings.most = 8;
  for (uint32_t round = 0; round < 2; ++round) {
    for (uint32_t seed = 1; seed <= 12; ++seed) {
      SCOPED_TRACE(seed);
      std::mt19937 rng(seed);
      SceneShape shape;
      shape.codecs = {"kivi2", "rot4"};
      shape.lengths = {1 + static_cast<uint32_t>(rng() % 3000), 1 + static_cast<uint32_t>(rng() % 900)};
      shape.hot = rng() % 200, shape.group = 1;
      const Scene scene(shape, 3);
      ASSERT_TRUE(scene.status().ok());
      Planned planned;
      plan_of(scene, 9, true, planned);
      planned.input.sharings = &sharings;
      const Plan again = make_plan(planned.input);
      ASSERT_EQ(again.cta_begin, planned.plan.cta_begin);
      ASSERT_EQ(again.segments.size(), planned.plan.segments.size());
      for (size_t i = 0; i < again.segments.size(); ++i) {
        const SegmentDesc &a = again.segments[i], &b = planned.plan.segments[i];
        EXPECT_TRUE(a.task == b.task && a.first_view == b.first_view && a.views == b.views && a.partial == b.partial &&
                    a.codec == b.codec && a.path == b.path);
      }
    }
  }
  EXPECT_EQ(sharings.kept.size(), sharings.most);
}

// Warm blocks and hot rows beside a long archive are a few multiprocessors' work; beside a short one they go first, on all.
TEST(CudaPlan, WhatIsBesideALongArchiveIsLeftToAFewMultiprocessors) {
  SceneShape shape;
  shape.codecs = {"kivi2"};
  shape.lengths.assign(100, 300);
  shape.hot = 44, shape.group = 4, shape.kv_heads = 1;
  const Scene scene(shape, 3);
  ASSERT_TRUE(scene.status().ok());
  Planned planned;
  plan_of(scene, 132, true, planned);
  const uint32_t codec = planned.placed[0][0].codec;
  for (const uint32_t blocks : {10u, 16384u}) {
    SCOPED_TRACE(blocks);
    const std::vector<ViewDesc> descs(blocks);
    SettledRun run;
    run.codec = codec, run.path = Path::whole22, run.views = blocks, run.descs = descs.data();
    PlanInput input = planned.input;
    std::vector<PlanTask> tasks(input.tasks.begin(), input.tasks.end());
    for (PlanTask& task : tasks) task.settled = {&run, 1};
    input.tasks = tasks;
    const Plan plan = make_plan(input);
    EXPECT_EQ(plan.fast, Path::whole22);
    EXPECT_GT(plan.staged_ctas, 0u);
    EXPECT_EQ(plan.staged_last, blocks == 16384);
    EXPECT_TRUE(plan.only_beside);
    const auto fast = plan.cta_begin.size() - 1 - plan.general_ctas - plan.staged_ctas;
    EXPECT_LE(fast, plan.staged_last ? 128u : 132u);
  }
}

TEST(CudaPlan, TwoBitsAreWholeNumbersForGroupsOfUpToFour) {
  for (const char* name : {"kivi2", "rot2"}) {
    for (const uint32_t group : {1u, 4u, 5u, 8u, 9u}) {
      SCOPED_TRACE(std::string(name) + " " + std::to_string(group));
      SceneShape shape;
      shape.codecs = {name};
      shape.lengths = {2048};
      shape.hot = 0, shape.group = group;
      const Scene scene(shape, 3);
      ASSERT_TRUE(scene.status().ok());
      Planned planned;
      plan_of(scene, 4, true, planned);
      EXPECT_EQ(planned.plan.fast, group <= 4 ? Path::whole22 : group <= 8 ? Path::packed22 : Path::general);
    }
  }
}

// Sinks and hot rows are blocks of their own lengths, so of their own codecs.
TEST(CudaPlan, RowsOfHalvesAreReadAsOneCodecs) {
  SceneShape shape;
  shape.codecs = {"kivi2"};
  shape.lengths = {1000};
  shape.hot = 60, shape.sinks = 4, shape.group = 2;
  const Scene scene(shape, 3);
  ASSERT_TRUE(scene.status().ok());
  Planned planned;
  plan_of(scene, 4, true, planned);
  uint32_t plain = 0;
  for (const CodecDesc& codec : planned.codecs) plain += codec.key.kind == quant::LayoutKind::rows16;
  ASSERT_GE(plain, 2u);
  std::set<uint32_t> seen;
  for (const ViewDesc& view : planned.plan.views) {
    if (planned.codecs[view.codec].key.kind == quant::LayoutKind::rows16) seen.insert(view.codec);
  }
  EXPECT_EQ(seen.size(), 1u);
}

TEST(CudaPlan, ATaskThatSeesNothingIsStillWritten) {
  SceneShape shape;
  shape.codecs = {"kivi2"};
  shape.lengths = {64};
  shape.hot = 64, shape.dead = true;
  shape.group = 3;
  SCOPED_TRACE("dead rows");
  for (uint32_t seed = 0; seed < 6; ++seed) check(shape, seed, 4);
}

}  // namespace
}  // namespace tierkv::cuda
