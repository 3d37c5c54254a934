// What libllama's own cache keeps in memory while a host serves a context.
#include "llama/pages.h"

#include <cstring>

#include "llama/test_model.h"

namespace tierkv::llama {
namespace {

// Two tensors in one buffer, with bytes between them that belong to somebody else.
TEST(CellPages, ReleasesATensorAndNothingBesideIt) {
  constexpr int64_t kRow = 256, kCells = 512;
  ggml_init_params init{};
  init.mem_size = 4u << 20;
  ggml_context* context = ggml_init(init);
  ggml_tensor* keys = ggml_new_tensor_2d(context, GGML_TYPE_F16, kRow, kCells);
  ggml_tensor* between = ggml_new_tensor_1d(context, GGML_TYPE_F16, 100);
  ggml_tensor* values = ggml_new_tensor_2d(context, GGML_TYPE_F16, kRow, kCells);
  for (ggml_tensor* t : {keys, between, values}) std::memset(t->data, 0x5A, ggml_nbytes(t));
  auto byte = [](const ggml_tensor* t, size_t at) { return static_cast<const unsigned char*>(t->data)[at]; };

  CellPages pages(1);
  pages.served(0, keys, values, 1);
  EXPECT_GE(pages.resident_bytes(), ggml_nbytes(keys) + ggml_nbytes(values) - 2 * 4096);
  pages.flush();
  EXPECT_LE(pages.resident_bytes(), 2 * (CellPages::kKept + 2 * 4096));
  for (const ggml_tensor* t : {keys, values}) {
    EXPECT_EQ(byte(t, 0), 0x5A);
    EXPECT_EQ(byte(t, CellPages::kKept - 1), 0x5A);
    EXPECT_EQ(byte(t, ggml_nbytes(t) / 2), 0);
  }
  for (size_t i = 0; i < ggml_nbytes(between); ++i) ASSERT_EQ(byte(between, i), 0x5A);

  // Few rows touch nothing that was released; many are released again.
  std::memset(keys->data, 0x5A, ggml_nbytes(keys));
  pages.served(0, keys, values, CellPages::kKept / (kRow * 2));
  pages.flush();
  EXPECT_EQ(byte(keys, ggml_nbytes(keys) / 2), 0x5A);
  pages.served(0, keys, values, CellPages::kKept / (kRow * 2) + 1);
  pages.flush();
  EXPECT_EQ(byte(keys, ggml_nbytes(keys) / 2), 0);
  ggml_free(context);
}

// The tensors of gpt-oss are 64 KiB each; past its first call a host has little of them in memory, on both paths and any batch.
TEST(CellPages, AHostLeavesAFewPagesOfLibllamasCache) {
  const ModelPtr model = load_tiny("gpt-oss");
  ASSERT_NE(model, nullptr);
  for (const bool patch : {false, true}) {
    HostOptions options;
    options.allow_patch = patch;
    Hosted hosted;
    ASSERT_TRUE(hosted.open(model.get(), fp16_config(), test_params(256), options).ok());
    EXPECT_EQ(hosted.host->micro_batch_bytes(), 0u);
    for (const size_t count : {1u, 256u, 1u, 70u}) {
      std::vector<llama_token> tokens = some_tokens(count, 3);
      ASSERT_TRUE(hosted.host->decode(hosted.context.get(), llama_batch_get_one(tokens.data(), static_cast<int32_t>(count))).ok());
      EXPECT_GT(hosted.host->micro_batch_bytes(), 0u);
      EXPECT_LE(hosted.host->micro_batch_bytes(), 2 * hosted.shape.layers * (CellPages::kKept + 4096)) << count << " tokens";
    }
  }
}

}  // namespace
}  // namespace tierkv::llama
