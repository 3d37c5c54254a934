// What rows receive, said by a device's backend on a twin (twin_machine_testing.h), against the processor's.
#include <gtest/gtest.h>

#include "attn/cpu_backend.h"
#include "cuda/device_attention.h"
#include "cuda/plan/scene_testing.h"
#include "cuda/twin_machine_testing.h"

namespace tierkv::cuda {
namespace {

using testing::kAlone;
using testing::Scene;
using testing::SceneShape;
using testing::TwinMachine;

struct Twin {
  explicit Twin(size_t few_rows = 0, uint64_t memory = 0, bool lazy = false) {
    auto made = std::make_unique<TwinMachine>(MachineFacts{7, true}, memory, lazy);
    machine = made.get();
    device = std::make_unique<DeviceAttention>(std::move(made), 0, few_rows);
  }
  TwinMachine* machine;
  std::unique_ptr<DeviceAttention> device;
};

// All sequences of a scene in one call, several queries each, asked about all views but the first few of a head.
struct Call {
  Call(const Scene& scene, uint32_t queries, uint32_t from, std::vector<attn::MassLane> wanted, bool there = false)
      : lanes(std::move(wanted)) {
    const SceneShape& shape = scene.shape();
    const uint32_t heads = shape.kv_heads * shape.group;
    const size_t row = size_t{queries} * heads;
    rows.resize(row * shape.head_dim);
    for (size_t i = 0; i < rows.size(); ++i) rows[i] = scene.queries()[i % scene.queries().size()] * (i % 3 ? 1.0f : 0.9f);
    out.assign(shape.lengths.size() * row * shape.head_dim, NAN);
    positions.resize(shape.lengths.size());
    for (size_t s = 0; s < shape.lengths.size(); ++s) {
      attn::AttendWork& work = works.emplace_back();
      for (uint32_t q = 0; q < queries; ++q) {
        const uint32_t last = scene.position(s * shape.kv_heads), less = queries - 1 - q;
        positions[s].push_back(last < less ? 0 : last - less);
      }
      work.queries = RowsView::f32(rows.data(), queries, heads, shape.head_dim);
      if (there) work.queries.place = MemoryPlace::device;
      work.positions = positions[s].data(), work.out = out.data() + s * row * shape.head_dim;
      work.sink_logits = scene.sinks(), work.params = shape.params;
      for (uint32_t h = 0; h < shape.kv_heads; ++h) {
        work.heads.push_back(scene.views(s * shape.kv_heads + h));
        attn::HeadMass mass;
        mass.from = std::min(from, static_cast<uint32_t>(work.heads[h].size()));
        for (const attn::BlockView& view : work.heads[h].subspan(mass.from)) mass.rows += view.rows;
        mass.lanes = lanes;
        sums.emplace_back(mass.rows * mass.num_lanes(), 0.25f);  // written over
        mass.sums = sums.back().data();
        work.mass.push_back(mass);
      }
    }
  }
  std::vector<attn::MassLane> lanes;
  std::vector<float> rows, out;
  std::vector<std::vector<uint32_t>> positions;
  std::vector<std::vector<float>> sums;  // of works, by head
  std::vector<attn::AttendWork> works;
};

// Returns what all rows received together.
double expect_same(const Call& here, const Call& there) {
  constexpr double kRelative = 1e-2;  // the processor's own kernels round
  double all = 0.0;
  for (const attn::AttendWork& work : here.works) EXPECT_TRUE(work.status.ok()) << work.status.message();
  for (const attn::AttendWork& work : there.works) EXPECT_TRUE(work.status.ok()) << work.status.message();
  for (size_t h = 0; h < here.sums.size(); ++h) {
    EXPECT_EQ(here.sums[h].size(), there.sums[h].size());
    for (size_t i = 0; i < here.sums[h].size(); ++i) {
      EXPECT_NEAR(there.sums[h][i], here.sums[h][i], kRelative * here.sums[h][i] + 2e-5) << h << " " << i;
      all += here.sums[h][i];
    }
  }
  EXPECT_LT(testing::distance({here.out.begin(), here.out.end()}, there.out.data()), 2e-2);
  return all;
}

TEST(DeviceMass, EveryCodec) {
  const Twin twin;
  testing::for_each_codec([&](const SceneShape& shape) {
    const Scene scene(shape, 5);
    Call here(scene, 1, 0, {}), there(scene, 1, 0, {});
    attn::cpu_backend().attend(here.works, kAlone);
    twin.device->attend(there.works, kAlone);
    EXPECT_NEAR(expect_same(here, there), shape.group, 0.02);
  });
  EXPECT_EQ(twin.device->usage().on_processor, 0u);
  EXPECT_EQ(twin.machine->weighs, twin.device->usage().launches);
}

// Several queries and sequences; weights that leave queries out, and counts whose threshold nothing is near to.
TEST(DeviceMass, LanesOfSeveralQueries) {
  const Twin twin;
  constexpr uint32_t kQueries = 3;
  const float some[kQueries] = {0.0f, 0.5f, 2.0f}, last[kQueries] = {0.0f, 0.0f, 1.0f};
  const float all[kQueries] = {100.0f, 100.0f, 100.0f}, none[kQueries] = {};
  const std::vector<std::vector<attn::MassLane>> wanted = {
      {}, {{some, nullptr}}, {{last, nullptr}}, {{}, {some, nullptr}, {nullptr, all}, {some, all}, {nullptr, none}}};
  double given = 0.0;
  testing::for_random_scenes({64, 128}, 5, [&](const SceneShape& shape, uint32_t seed, uint32_t) {
    const Scene scene(shape, seed);
    for (const bool there : {false, true}) {
      Call here(scene, kQueries, seed % 3, wanted[seed % 4]), on(scene, kQueries, seed % 3, wanted[seed % 4], there);
      attn::cpu_backend().attend(here.works, kAlone);
      twin.device->attend(on.works, kAlone);
      given += expect_same(here, on);
    }
  });
  EXPECT_GT(given, 100.0);
  EXPECT_EQ(twin.device->usage().on_processor, 0u);
  EXPECT_GT(twin.device->counts().weighed_rows, 0u);
}

TEST(DeviceMass, OnceForWholeCallsAndWithoutAWaitInBetween) {
  SceneShape shape;
  shape.codecs = {"kivi2"};
  shape.lengths = {700, 40, 300};
  const Scene scene(shape, 2);
  for (const bool there : {false, true}) {
    const Twin twin(0, 0, true);
    Call here(scene, 1, 1, {}), on(scene, 1, 1, {}, there);
    here.works[1].mass.clear(), on.works[1].mass.clear();  // one does not ask
    here.sums[2].clear(), here.sums[3].clear(), on.sums[2].clear(), on.sums[3].clear();
    attn::cpu_backend().attend(here.works, kAlone);
    twin.device->attend(on.works, kAlone);
    EXPECT_EQ(twin.machine->waits, 1u);
    EXPECT_EQ(twin.machine->weighs, 1u);
    EXPECT_GT(expect_same(here, on), 0.1);
  }
}

TEST(DeviceMass, FewRowsAreTheProcessors) {
  SceneShape shape;
  shape.codecs = {"kivi2"};
  shape.lengths = {700};
  const Scene scene(shape, 2);
  Call here(scene, 1, 1, {}), few(scene, 1, 1, {}), many(scene, 1, 1, {});
  const size_t rows = most_rows_asked(here.works);
  attn::cpu_backend().attend(here.works, kAlone);
  const Twin above(rows - 1), at(rows);
  at.device->attend(few.works, kAlone);
  EXPECT_EQ(at.machine->weighs, 0u);
  EXPECT_GT(expect_same(here, few), 0.1);
  above.device->attend(many.works, kAlone);
  EXPECT_EQ(above.machine->weighs, 1u);
  EXPECT_EQ(above.device->counts().weighed_rows, rows * shape.kv_heads);
  EXPECT_GT(expect_same(here, many), 0.1);
}

// Attention is the device's all the same.
TEST(DeviceMass, WithoutMemoryForItTheProcessorDoesIt) {
  SceneShape shape;
  shape.codecs = {"fp16"};
  shape.kv_heads = 1, shape.group = 1, shape.head_dim = 32;
  shape.lengths = {6000};
  const Scene scene(shape, 2);
  ASSERT_TRUE(scene.status().ok());
  Call here(scene, 1, 0, {}), plain(scene, 1, 0, {});
  attn::cpu_backend().attend(here.works, kAlone);
  plain.works[0].mass.clear();
  const Twin roomy;
  roomy.device->attend(plain.works, kAlone);
  const uint64_t without = roomy.device->usage().peak_bytes;
  for (const bool there : {false, true}) {
    Call on(scene, 1, 0, {}, there);
    bool landed = false;
    on.works[0].land = [&] {
      landed = true;
      return Status();
    };
    const Twin twin(0, without + 16384);  // and nothing for 6,000 sums
    twin.device->attend(on.works, kAlone);
    EXPECT_EQ(twin.machine->weighs, 0u);
    EXPECT_EQ(twin.device->usage().launches, 1u);
    EXPECT_EQ(twin.device->usage().on_processor, 0u);
    EXPECT_TRUE(landed);
    EXPECT_GT(expect_same(here, on), 0.1);
  }
}

TEST(DeviceMass, SomethingElseThatGoesWrongIsSaid) {
  SceneShape shape;
  shape.codecs = {"kivi2"};
  shape.lengths = {700};
  const Scene scene(shape, 2);
  const Twin counting;
  Call first(scene, 1, 0, {});
  counting.device->attend(first.works, kAlone);
  const Twin twin;
  twin.machine->sends_that_fail = counting.machine->sends;  // the last: of what is asked
  Call call(scene, 1, 0, {}), again(scene, 1, 0, {});
  twin.device->attend(call.works, kAlone);
  EXPECT_EQ(call.works[0].status.code(), StatusCode::io_error);
  twin.device->attend(again.works, kAlone);
  EXPECT_GT(expect_same(first, again), 0.1);
}

// Scores past the range of floats: all of the call is the processor's then, and so is what it says.
TEST(DeviceMass, WhatTheDeviceCannotHoldIsDoneAgain) {
  SceneShape shape;
  shape.codecs = {"fp16"};
  shape.lengths = {300};
  shape.hot = 40;
  const Scene scene(shape, 2);
  const Twin twin;
  Call here(scene, 1, 0, {}), on(scene, 1, 0, {});
  for (Call* call : {&here, &on}) std::fill_n(call->rows.begin(), shape.head_dim, 3e38f);
  attn::cpu_backend().attend(here.works, kAlone);
  twin.device->attend(on.works, kAlone);
  EXPECT_EQ(here.works[0].status.code(), StatusCode::invalid_argument);
  EXPECT_EQ(on.works[0].status.code(), StatusCode::invalid_argument);
  EXPECT_EQ(twin.machine->weighs, 1u);
}

TEST(MassPlan, EveryRowIsSaidOnce) {
  testing::for_random_scenes({32}, 2, [](const SceneShape& shape, uint32_t seed, uint32_t multiprocessors) {
    const Scene scene(shape, seed);
    std::vector<PlanTask> tasks;
    std::vector<std::vector<Placed>> placed(scene.tasks());
    for (size_t t = 0; t < scene.tasks(); ++t) {
      placed[t].resize(scene.views(t).size());
      tasks.push_back({scene.views(t), placed[t], scene.position(t), static_cast<uint32_t>(t) * shape.group, 0});
    }
    const MassPlan plan = make_mass_plan({tasks, shape.params, multiprocessors});
    ASSERT_EQ(plan.tasks.size(), tasks.size());
    size_t rows = 0;
    for (const SegmentDesc& segment : plan.segments) {
      EXPECT_EQ(segment.partial, rows);
      EXPECT_EQ(segment.first_row, tasks[segment.task].first_row);
      EXPECT_GE(segment.first_view, plan.tasks[segment.task].first_view);
      EXPECT_LE(segment.first_view + segment.views, plan.tasks[segment.task].first_view + plan.tasks[segment.task].views);
      for (uint32_t v = 0; v < segment.views; ++v) {
        const ViewDesc& view = plan.views[segment.first_view + v];
        rows += view.end - view.begin;
      }
    }
    EXPECT_EQ(rows, plan.rows);
  });
}

TEST(MassPlan, CountsKnowWhereTheirThresholdIs) {
  // Two views of three rows; the query at 4 sees the last two of the first and two of the second.
  attn::BlockView views[2];
  views[0].rows = views[1].rows = 3, views[1].ctx.first_position = 3;
  const Placed placed[2] = {};
  attn::AttendParams params;
  params.window = 4;
  const PlanTask task{views, placed, 4, 0, 0};
  const MassPlan plan = make_mass_plan({{&task, 1}, params, 1});
  ASSERT_EQ(plan.rows, 4u);
  const float mass[4] = {0.5f, 0.1f, 0.2f, 0.4f}, weight = 2.0f, below = 0.3f;
  const attn::MassLane lanes[] = {{nullptr, &below}, {&weight, nullptr}, {}};
  std::vector<float> sums(3 * 6, NAN);
  const uint32_t position = 4;
  sum_up(plan, plan.tasks, mass, views, &position, {0, sums.data(), lanes, 6});
  const std::vector<float> want = {1, 0,    1,    1,    0,    0,  //
                                   0, 1.0f, 0.2f, 0.4f, 0.8f, 0, 0, 0.5f, 0.1f, 0.2f, 0.4f, 0};
  EXPECT_EQ(sums, want);
}

}  // namespace
}  // namespace tierkv::cuda
