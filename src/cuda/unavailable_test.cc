// What a build or a machine without CUDA answers, and that the cache goes on.
#include <gtest/gtest.h>

#include <vector>

#include "tierkv/cuda.h"

namespace tierkv::cuda {
namespace {

TEST(CudaUnavailable, AttachSaysWhyAndTheCacheGoesOn) {
  CacheConfig config;
  config.num_layers = config.num_kv_heads = 1;
  config.head_dim = 64;
  auto cache = AdaptiveKVCache::create(config);
  ASSERT_TRUE(cache.ok());
  const auto attached = attach(**cache);
  if (attached.ok()) GTEST_SKIP() << "there is a device";
  EXPECT_TRUE(attached.status().code() == StatusCode::unsupported || attached.status().code() == StatusCode::failed_precondition);
  EXPECT_EQ(attached.status().code(), available().code());
  EXPECT_NE(attached.status().message().find("CUDA"), std::string::npos);
  const SeqId seq = *(*cache)->add_sequence();
  const std::vector<float> row(64, 0.5f);
  std::vector<float> out(64, -1.0f);
  const RowsView view = RowsView::f32(row.data(), 1, 1, 64);
  ASSERT_TRUE((*cache)->append(seq, 0, view, view).ok());
  ASSERT_TRUE((*cache)->attention(seq, 0, view, out.data()).ok());
  EXPECT_FLOAT_EQ(out[0], 0.5f);
  EXPECT_TRUE(detach(**cache).ok());
  EXPECT_TRUE((*cache)->attention(seq, 0, view, out.data()).ok());
}

}  // namespace
}  // namespace tierkv::cuda
