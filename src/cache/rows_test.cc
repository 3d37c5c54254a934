#include "cache/rows.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "base/f16.h"

namespace tierkv::cache {
namespace {

constexpr uint32_t kTokens = 3, kHeads = 2, kDim = 48;
constexpr size_t kAt = (1 * kHeads + 1) * kDim + 17;  // token 1, head 1, channel 17

// Rows of ones in `type` with `x` at kAt.
struct Rows {
  std::vector<float> f32 = std::vector<float>(kTokens * kHeads * kDim, 1.0f);
  std::vector<uint16_t> half;
  RowsView view;

  Rows(DType type, float x) {
    f32[kAt] = x;
    for (float v : f32) half.push_back(type == DType::bf16 ? f32_to_bf16(v) : f32_to_f16(v));
    const void* data = type == DType::f32 ? static_cast<const void*>(f32.data()) : half.data();
    view = RowsView::dense(data, type, kTokens, kHeads, kDim);
  }
};

const DType kTypes[] = {DType::f32, DType::f16, DType::bf16};

TEST(Rows, NonFiniteElementsOfEveryTypeAreNamed) {
  for (DType type : kTypes) {
    for (bool bf16 : {false, true}) {
      for (float x : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                      -std::numeric_limits<float>::infinity()}) {
        const Status status = check_finite(Rows(type, x).view, "keys", bf16);
        ASSERT_EQ(status.code(), StatusCode::invalid_argument) << static_cast<int>(type) << " " << x;
        EXPECT_NE(status.message().find("keys: token 1, head 1, channel 17 is "), std::string::npos) << status.message();
      }
    }
  }
}

TEST(Rows, EverythingUpToTheRangeOfTheTailPasses) {
  for (DType type : kTypes) {
    for (bool bf16 : {false, true}) {
      for (float x : {0.0f, -0.0f, 1e-8f, -65504.0f, 65280.0f}) {  // 65504 rounds to 65536 as bfloat16, past fp16
        const bool fits = !(type == DType::bf16 && !bf16 && x == -65504.0f);
        EXPECT_EQ(check_finite(Rows(type, x).view, "keys", bf16).ok(), fits) << static_cast<int>(type) << " " << bf16 << " " << x;
      }
    }
  }
}

TEST(Rows, WhatOnlyBfloat16CanHoldIsRefusedByAnFp16Tail) {
  for (DType type : {DType::f32, DType::bf16}) {
    EXPECT_FALSE(check_finite(Rows(type, 1e6f).view, "values", false).ok());
    EXPECT_TRUE(check_finite(Rows(type, 1e6f).view, "values", true).ok());
  }
}

}  // namespace
}  // namespace tierkv::cache
