// Blocks whose bytes only the device has, on a device (tests/device_medium_test.cc does more of it on a twin).
#include <gtest/gtest.h>

#include "cuda/backend.h"
#include "cuda/brief_testing.h"
#include "steps_testing.h"

namespace tierkv::cuda {
namespace {

TEST(CudaMedium, BlocksThatLeaveHostMemoryComeBackBitForBit) {
  for (const char* spec : testing::some({"hot=32,warm=0,archive=kivi2,sinks=4", "hot=32,warm=64,archive=rot4/mid2,sinks=4",
                                         "hot=16,warm=all,warm_codec=fp16,warm_block=128,archive_block=128,sinks=0"},
                                        2)) {
    SCOPED_TRACE(spec);
    auto made = make_backend({0, 0, false});
    ASSERT_TRUE(made.ok()) << made.status().message();
    testing::Steps steps(spec, *made, 3);
    many_steps(steps, testing::count(20, 20, 5), 2e-2);
    if (::testing::Test::HasFatalFailure()) return;
    const Usage usage = (*made)->usage();
    EXPECT_GT(usage.only_blocks, 0u);
    EXPECT_EQ(steps.device_cache().memory_usage().device_bytes, usage.only_bytes);
    for (int home = 0; home < 2; ++home) {
      for (const SeqId id : steps.sequences()) {
        const auto here = steps.host_cache().freeze(id), there = steps.device_cache().freeze(id);
        ASSERT_TRUE(here.ok() && there.ok()) << there.status().message();
        EXPECT_TRUE(*here == *there);
        EXPECT_TRUE(steps.device_cache().verify(id).ok());
      }
      ASSERT_TRUE(home == 1 || steps.device_cache().attend_here().ok());
    }
    EXPECT_EQ((*made)->usage().only_blocks, 0u);
    steps.compare(1e-6);
  }
}

}  // namespace
}  // namespace tierkv::cuda
