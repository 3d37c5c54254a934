// The kernels of attention of many queries, on the processor (prompt_kernel_testing.h), and double precision over the rows that
// blocks decode to.
//
// ctest: threads
#include <gtest/gtest.h>

#include <atomic>
#include <list>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <thread>

#include "attn/cpu_backend.h"

#define TIERKV_SIMT
#include "cuda/device_attention.h"
#include "cuda/prompt/prompt_check_testing.h"
#include "cuda/twin_machine_testing.h"

namespace tierkv::cuda {
namespace {

using testing::PromptShape;
using testing::TwinMachine;

#if defined(TIERKV_FINDS_RACES) || defined(__SANITIZE_ADDRESS__)
constexpr uint32_t kNth = 4;  // of everything: it takes several times as long
#else
constexpr uint32_t kNth = 1;
#endif

// Fewer multiprocessors, longer runs of key tiles.
void check(const PromptShape& shape, uint32_t seed, uint32_t multiprocessors = 7) {
  const auto device = std::make_shared<DeviceAttention>(std::make_unique<TwinMachine>(MachineFacts{multiprocessors, true}), 0);
  for (const bool hopper : {false, true}) {
    SCOPED_TRACE(hopper ? "9.0" : "8.0");
    testing::prompts_as_hopper() = hopper;
    if (hopper && shape.scene.head_dim > 128) continue;
    double worst = 0.0;
    testing::check_prompt(*device, shape, seed, 3, worst);
  }
}

TEST(PromptKernels, ReadEveryCodec) {
  const std::vector<std::string> names = testing::readable_codecs();
  for (size_t i = 0; i < names.size(); i += kNth) {
    SCOPED_TRACE(names[i]);
    PromptShape shape;
    shape.scene.head_dim = std::vector<uint32_t>{128, 64, 256}[i % 3], shape.scene.group = 2, shape.scene.kv_heads = 1;
    shape.scene.codecs = {names[i]};
    shape.scene.lengths = {128 + 40}, shape.scene.sinks = 4, shape.tokens = {20};
    check(shape, 11);
  }
}

TEST(PromptKernels, UnpackWholeBlocksATileAtATime) {
  for (const char* const name : {"klt1.875", "klt1.25+top4", "kivi2", "kivi4+top3", "rot2", "rot2+top4", "mid4"}) {
    SCOPED_TRACE(name);
    PromptShape shape;
    shape.scene.head_dim = 128, shape.scene.block = 128, shape.scene.kv_heads = 1;
    shape.scene.codecs = {name};
    shape.scene.lengths = {128 * 7 + 40}, shape.tokens = {30};
    check(shape, 5, 1);
  }
}

// Values of tiles are in one frame, whoever wrote them.
TEST(PromptKernels, ValuesOfBothFramesMeet) {
  for (const std::vector<std::string>& codecs :
       {std::vector<std::string>{"klt1.25+top4", "kivi2", "mid4+top4"}, {"kivi2+top4", "mid4", "kivi4"}}) {
    SCOPED_TRACE(codecs[0]);
    PromptShape shape;
    shape.scene.head_dim = 128, shape.scene.block = 128, shape.scene.kv_heads = 1, shape.scene.sinks = 4;
    shape.scene.codecs = codecs;
    shape.scene.lengths = {128 * 6 + 60}, shape.scene.hot = 50, shape.tokens = {30};
    check(shape, 7, 1);
  }
}

// Some rise by more than halves could hold by an older maximum, some by more than floats could. All rows are halves: rounded,
// scores would be off by too much.
TEST(PromptKernels, SumsFollowScoresThatRise) {
  for (const uint32_t dim : {64u, 128u}) {
    for (const float sharpness : {2.0f, 3.0f, 4.0f, 6.0f, 12.0f}) {
      PromptShape shape;
      shape.scene.head_dim = dim, shape.scene.codecs = {"fp16"}, shape.scene.sharpness = sharpness, shape.scene.kv_heads = 1;
      shape.scene.lengths = {900}, shape.tokens = {40}, shape.type = DType::f16;
      check(shape, 8, 1);
    }
  }
}

TEST(PromptKernels, AnySizeOfQueriesIsServed) {
  for (const float size : {1e-20f, 1e-6f, 1e6f, 1e20f}) {
    SCOPED_TRACE(size);
    PromptShape shape;
    shape.scene.codecs = {"kivi4"}, shape.scene.lengths = {300}, shape.tokens = {17}, shape.size = size;
    check(shape, 3);
  }
}

// As many at once as a lane wants where they lie so, one by one elsewhere.
TEST(PromptKernels, QueriesMayLieAnywhere) {
  for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
    for (const uint32_t dim : {64u, 80u, 128u, 256u}) {
      for (const uint32_t gap : {1u, 2u, 8u}) {
        SCOPED_TRACE(std::to_string(dim) + " channels, " + std::to_string(gap) + " between");
        PromptShape shape;
        shape.scene.head_dim = dim, shape.scene.group = 3, shape.scene.kv_heads = 2, shape.scene.codecs = {"kivi4"};
        shape.scene.lengths = {60}, shape.tokens = {17}, shape.type = type, shape.gap = gap;
        check(shape, 9);
      }
    }
  }
}

TEST(PromptKernels, RandomShapesAndRaggedBatches) {
  const std::vector<std::string> names = testing::readable_codecs();
  for (uint32_t seed = 1; seed <= 20; seed += kNth / 2 + 1) {
    SCOPED_TRACE(seed);
    check(testing::random_prompt(seed, names, true), seed);
  }
}

}  // namespace
}  // namespace tierkv::cuda
