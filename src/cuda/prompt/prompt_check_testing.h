// prompt_check_testing.h — the check of a prompt that tests of the scalar twin and tests on a device share.
#pragma once

#include <gtest/gtest.h>

#include "cuda/backend.h"
#include "cuda/prompt/prompt_scene_testing.h"

namespace tierkv::cuda::testing {

// Of a prompt's results on a device, relative, beside double precision over the decoded rows.
inline constexpr double kPromptTolerance = 1e-3;

// Attends to a scene: in one launch, nothing left to the processor, every `every`-th row within the tolerance. `worst` is raised to
// the largest error.
inline void check_prompt(const DeviceBackend& device, const PromptShape& shape, uint32_t seed, uint32_t every, double& worst) {
  PromptScene scene(shape, seed);
  ASSERT_TRUE(scene.status().ok()) << scene.status().message();
  std::vector<attn::AttendWork> works = scene.works();
  const Usage before = device.usage();
  device.attend(works, kAlone);
  for (const attn::AttendWork& work : works) ASSERT_TRUE(work.status.ok()) << work.status.message();
  EXPECT_EQ(device.usage().on_processor, before.on_processor);
  EXPECT_EQ(device.usage().launches, before.launches + 1);
  const double error = scene.error(every);
  worst = std::max(worst, error);
  EXPECT_LT(error, kPromptTolerance);
}

}  // namespace tierkv::cuda::testing
