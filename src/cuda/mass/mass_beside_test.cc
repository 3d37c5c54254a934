// Mass that the processor adds up beside a device's attention, against what it is when the processor does both.
#include "cuda/mass/mass_beside.h"

#include <gtest/gtest.h>

#include "attn/cpu_backend.h"
#include "cuda/plan/asked_testing.h"

namespace tierkv::cuda {
namespace {

using testing::Asked;
using testing::kAlone;
using testing::Scene;
using testing::SceneShape;

TEST(MassBeside, IsWhatTheProcessorAddsUp) {
  const float weight = 0.5f, below = 1e-3f;
  const attn::MassLane lanes[] = {{}, {&weight, nullptr}, {nullptr, &below}};
  for (uint32_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE(seed);
    SceneShape shape;
    shape.codecs = {"klt1.25+top4", "even4"};
    shape.lengths = {900};
    shape.hot = 70, shape.sinks = 4;
    shape.sink_logits = seed % 2 == 0;
    shape.params.window = seed % 3 == 0 ? 200 : 0;
    shape.params.softcap = seed % 4 == 0 ? 20.0f : 0.0f;
    const Scene scene(shape, seed);
    ASSERT_TRUE(scene.status().ok()) << scene.status().message();
    const std::span<const attn::MassLane> asked(lanes, seed % 2 ? 0 : 3);
    Asked both(scene, 3, asked), beside(scene, 3, asked);
    attn::cpu_backend().attend({&both.work, 1}, kAlone);
    ASSERT_TRUE(both.work.status.ok());
    ASSERT_TRUE(add_mass_beside(beside.work, both.lse.data(), kAlone).ok());
    double all = 0.0;
    for (uint32_t h = 0; h < shape.kv_heads; ++h) {
      ASSERT_EQ(both.sums[h].size(), beside.sums[h].size());
      for (size_t i = 0; i < both.sums[h].size(); ++i) {
        EXPECT_NEAR(beside.sums[h][i], both.sums[h][i], 1e-4) << h << " " << i;
        all += both.sums[h][i];
      }
    }
    EXPECT_GT(all, 0.1);
  }
}

TEST(MassBeside, TheHeadOfAStepThatAsksAboutMostCounts) {
  SceneShape shape;
  shape.codecs = {"kivi2"};
  shape.lengths = {3000};
  const Scene scene(shape, 1);
  std::vector<attn::AttendWork> works = {Asked(scene, 3, {}).work, Asked(scene, 20, {}).work, {}};
  const size_t few = most_rows_asked({&works[0], 1}), many = most_rows_asked(works);
  EXPECT_EQ(few, works[0].mass[0].rows);
  EXPECT_EQ(many, works[1].mass[1].rows);
  EXPECT_GT(many, few);
  works[1].queries.tokens = 17;  // a prompt
  EXPECT_EQ(most_rows_asked(works), few);
  works[0].params.weigh_only = true;
  EXPECT_EQ(most_rows_asked(works), 0u);
}

}  // namespace
}  // namespace tierkv::cuda
