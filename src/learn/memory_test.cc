// Memory that runs out while a model is learnt: nothing breaks, and less is learnt.
#include <gtest/gtest.h>

#include "base/failing_memory.h"
#include "base/folder_testing.h"
#include "learn/testing.h"

namespace tierkv::learn {
namespace {

using testing::FailingMemory;

TEST(LearnerMemory, EveryRefusalIsSurvived) {
  auto synthetic = small_model();
  const Text text(synthetic, 0, 160);
  const LearnModel model = learn_model(synthetic);
  LearnSettings settings = small_settings();
  settings.sample_tokens = 100;
  TestFolder folder;
  const std::string path = folder.file("sums");
  for (long nth = 1;; nth += 1 + nth / 16) {
    LearnModel own = model;
    FailingMemory::arm(nth, FailingMemory::Mode::once);
    auto made = Learner::create(std::move(own), settings);
    if (made.ok()) {
      text.feed(**made, 0, 0, 80);
      (*made)->forget(0);
      const auto solved = (*made)->solve("x");  // its status is not copied while memory may be refused
      const Status saved = (*made)->save_sums(path);
      const bool refused = FailingMemory::disarm();
      EXPECT_TRUE(saved.ok() || saved.code() == StatusCode::resource_exhausted || saved.code() == StatusCode::io_error)
          << nth << ": " << saved.message();
      EXPECT_NE(solved.status().code(), StatusCode::internal);
      if (!refused) {
        EXPECT_TRUE(saved.ok()) << saved.message();
        EXPECT_GT(nth, 50);
        break;
      }
      continue;
    }
    EXPECT_TRUE(FailingMemory::disarm());
    EXPECT_EQ(made.status().code(), StatusCode::resource_exhausted) << nth;
  }
}

}  // namespace
}  // namespace tierkv::learn
