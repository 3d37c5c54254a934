// The kernel that says what rows received, and its scalar twin, on the processor (simt_machine.h) against double precision.
//
// ctest: threads
#include <gtest/gtest.h>

#include <string>

#include "cuda/mass/mass_twin_testing.h"
#include "cuda/plan/mass_plan.h"
#include "cuda/plan/planned_testing.h"

// From here on nothing of the standard library: the kernels' language has names that it uses too.
#define TIERKV_SIMT
#include "cuda/mass/mass_kernel.cuh"

namespace tierkv::cuda {
namespace {

using simt::Machine;
using testing::Scene;
using testing::SceneShape;

// What a launch is made of: of every task the views behind the first `skipped`.
struct Weighed {
  Weighed(const Scene& scene, size_t skipped, uint32_t multiprocessors) {
    testing::plan_of(scene, 3, false, planned);
    tasks = planned.tasks;
    for (PlanTask& task : tasks) {
      const size_t from = skipped < task.views.size() ? skipped : task.views.size();
      task.views = task.views.subspan(from), task.placed = task.placed.subspan(from);
    }
    plan = make_mass_plan({tasks, scene.shape().params, multiprocessors});
    std::vector<double> out;
    scene.reference(out, sums);
    lse.assign(sums.begin(), sums.end());
    launch.launch = testing::launch_of(planned.input, planned.plan, scene.queries().data(), scene.sinks());
    launch.launch.views = plan.views.data(), launch.launch.masks = plan.masks.data();
    launch.launch.segments = plan.segments.data(), launch.launch.ctas = static_cast<uint32_t>(plan.segments.size());
    launch.launch.chunk_rows = plan.chunk_rows, launch.launch.lse = lse.data();
  }
  // What double precision says of the rows that the launch writes.
  std::vector<double> wanted(const Scene& scene) const {
    std::vector<double> out;
    for (size_t t = 0; t < tasks.size(); ++t) {
      const std::vector<double> all = scene.mass(t, sums);
      size_t row = 0;
      for (size_t v = 0; v < scene.views(t).size() - tasks[t].views.size(); ++v) row += scene.views(t)[v].rows;
      for (size_t v = 0; v < tasks[t].views.size(); row += tasks[t].views[v++].rows) {
        const ViewDesc& desc = plan.views[plan.tasks[t].first_view + v];
        out.insert(out.end(), all.data() + row + desc.begin, all.data() + row + desc.end);
      }
    }
    return out;
  }
  testing::Planned planned;
  std::vector<PlanTask> tasks;
  MassPlan plan;
  std::vector<double> sums;
  std::vector<float> lse;
  MassLaunch launch;
};

void compare(const std::vector<double>& want, const std::vector<float>& mass, double relative) {
  ASSERT_EQ(want.size(), mass.size());
  for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(mass[i], want[i], relative * want[i] + 1e-7) << i;
}

// The seed says from which end threads begin. Returns the rows that a warp took at a time.
uint32_t check(const SceneShape& shape, uint32_t seed, uint32_t multiprocessors, size_t skipped = 0) {
  const Scene scene(shape, seed);
  EXPECT_TRUE(scene.status().ok()) << scene.status().message();
  Weighed weighed(scene, skipped, multiprocessors);
  const std::vector<double> want = weighed.wanted(scene);
  EXPECT_EQ(want.size(), weighed.plan.rows);
  const MassKernel* const row = mass_kernel_for(weighed.launch.launch);
  static Machine machine;
  const Machine::Order order = seed % 2 ? Machine::Order::first_to_last : Machine::Order::last_to_first;
  std::vector<float> mass(weighed.plan.rows, NAN), twin(weighed.plan.rows, NAN);
  weighed.launch.mass = mass.data();
  machine.run(weighed.launch.launch.ctas, row->threads, row->shared_bytes, order, [&] { row->kernel(weighed.launch); });
  compare(want, mass, 4e-3);
  weighed.launch.mass = twin.data();
  testing::weigh_on_host(weighed.launch);
  compare(want, twin, 1e-3);
  return weighed.plan.chunk_rows;
}

TEST(MassKernel, EveryCodecInOddPlaces) {
  testing::for_each_codec([](const SceneShape& shape) { check(shape, 7, 3); });
}

TEST(MassKernel, RowsThatAQuerySees) {
  testing::for_random_scenes({32, 64, 96, 128, 256}, 16,
                             [](const SceneShape& shape, uint32_t seed, uint32_t ctas) { check(shape, seed, ctas, seed % 3); });
}

TEST(MassKernel, GroupsAndHeads) {
  for (const uint32_t dim : {64u, 128u, 256u}) {
    for (uint32_t group = 1; group <= kMostGroup; ++group) {
      SCOPED_TRACE(std::to_string(dim) + " " + std::to_string(group));
      SceneShape shape;
      shape.head_dim = dim, shape.group = group, shape.kv_heads = 1;
      shape.codecs = {group % 2 ? "kivi4/kivi2" : "rot3"};
      shape.lengths = {170};
      shape.hot = 10 + group, shape.sinks = 4;
      check(shape, group, 2);
    }
  }
}

// The more there is, the more rows a warp takes of a view.
TEST(MassKernel, LittleAndMuch) {
  SceneShape shape;
  shape.kv_heads = 1;
  shape.codecs = {"klt1.25+top4", "even4", "kivi2"};
  shape.lengths = {1600, 300, 1};
  shape.dead = true, shape.sink_logits = true;
  EXPECT_EQ(check(shape, 3, 100), 16u);
  EXPECT_EQ(check(shape, 4, 3), 32u);
  EXPECT_EQ(check(shape, 5, 1), 256u);
}

// A row whose attention failed, or that saw nothing, gave nothing.
TEST(MassKernel, RowsWithoutASumHaveNoShare) {
  SceneShape shape;
  shape.codecs = {"kivi2"};
  shape.lengths = {200};
  const Scene scene(shape, 1);
  Weighed weighed(scene, 0, 4);
  for (uint32_t g = 0; g < shape.group; ++g) weighed.lse[g] = -INFINITY;  // of the first task
  weighed.lse[shape.group] = -INFINITY;                                   // one head of the second
  std::vector<float> mass(weighed.plan.rows, NAN), twin(weighed.plan.rows, NAN);
  const MassKernel* const row = mass_kernel_for(weighed.launch.launch);
  Machine machine;
  weighed.launch.mass = mass.data();
  machine.run(weighed.launch.launch.ctas, row->threads, row->shared_bytes, Machine::Order::first_to_last,
              [&] { row->kernel(weighed.launch); });
  weighed.launch.mass = twin.data();
  testing::weigh_on_host(weighed.launch);
  double total = 0.0;
  for (size_t i = 0; i < mass.size(); ++i) {
    EXPECT_NEAR(mass[i], twin[i], 4e-3 * twin[i] + 1e-7);
    if (i < weighed.plan.tasks[1].first_row) {
      EXPECT_EQ(mass[i], 0.0f);
    }
    total += mass[i];
  }
  EXPECT_NEAR(total, shape.group - 1.0, 1e-2);
}

}  // namespace
}  // namespace tierkv::cuda
