// Attention of many queries on a device against double precision over the decoded rows. Run by `make test-cuda`; needs a device.
// TIERKV_CUDA_BRIEF: less of it (brief_testing.h).
#include <gtest/gtest.h>

#include "cuda/backend.h"
#include "cuda/prompt/prompt_check_testing.h"

namespace tierkv::cuda {
namespace {

using testing::PromptShape;

std::shared_ptr<DeviceBackend> backend() {
  auto made = make_backend({0, 0});
  EXPECT_TRUE(made.ok()) << made.status().message();
  return made.ok() ? *made : nullptr;
}

double worst = 0.0;

void check(const DeviceBackend& device, const PromptShape& shape, uint32_t seed, uint32_t every) {
  testing::check_prompt(device, shape, seed, every, worst);
}

TEST(CudaPrompt, EveryCodecAndShape) {
  const auto device = backend();
  ASSERT_TRUE(device);
  int cases = 0;
  double all = 0.0;
  for (const std::string& name : testing::readable_codecs()) {
    worst = 0.0;
    for (const uint32_t dim : {64u, 128u, 256u}) {
      for (const uint32_t group : {1u, 4u, 7u, 16u}) {
        if (testing::brief() && ++cases % (testing::brief() == 2 ? 41 : 17)) continue;
        SCOPED_TRACE(name + " head_dim " + std::to_string(dim) + " group " + std::to_string(group));
        PromptShape shape;
        shape.scene.head_dim = dim, shape.scene.group = group, shape.scene.kv_heads = group > 4 ? 1 : 2;
        shape.scene.codecs = {name};
        shape.scene.lengths = {128 * 5 + 50}, shape.scene.sinks = 4;
        shape.tokens = {group == 1 ? 140u : 45u};
        check(*device, shape, 11, 9);
      }
    }
    std::printf("%-20s %.2e\n", name.c_str(), worst);
    all = std::max(all, worst);
  }
  std::printf("prompts: largest error of all codecs and shapes: %.2e\n", all);
}

TEST(CudaPrompt, RandomShapesAndRaggedBatches) {
  const auto device = backend();
  ASSERT_TRUE(device);
  const std::vector<std::string> names = testing::readable_codecs();
  worst = 0.0;
  for (uint32_t seed = 1; seed <= testing::count(150, 6, 4); ++seed) {
    SCOPED_TRACE(seed);
    check(*device, testing::random_prompt(seed, names, testing::brief()), seed, 13);
    if (::testing::Test::HasFatalFailure()) return;
  }
  std::printf("prompts: largest error of the random ones: %.2e\n", worst);
}

TEST(CudaPrompt, AnySizeOfQueriesIsServed) {
  const auto device = backend();
  ASSERT_TRUE(device);
  for (const float size : {1e-20f, 1e-6f, 1e6f, 1e20f}) {
    SCOPED_TRACE(size);
    PromptShape shape;
    shape.scene.codecs = {"kivi4"}, shape.scene.lengths = {300}, shape.tokens = {17}, shape.size = size;
    check(*device, shape, 3, 5);
  }
}

// Sums over many tiles, in several rounds.
TEST(CudaPrompt, LongPasts) {
  if (testing::brief()) GTEST_SKIP() << "too much for a sanitizer";
  const auto device = backend();
  ASSERT_TRUE(device);
  for (const uint32_t dim : {64u, 128u, 256u}) {
    SCOPED_TRACE(dim);
    worst = 0.0;
    PromptShape shape;
    shape.scene.head_dim = dim, shape.scene.kv_heads = 2;
    shape.scene.codecs = {"kivi4", "rot4"}, shape.scene.lengths = {60000}, shape.tokens = {64};
    check(*device, shape, 8, 30);
    std::printf("prompts: 60,000 tokens of head_dim %u: error %.2e\n", dim, worst);
  }
}

}  // namespace
}  // namespace tierkv::cuda
