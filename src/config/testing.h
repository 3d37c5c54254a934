// testing.h — what the tests of configurations share: a model's shape, and refusals as text.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "tierkv/config.h"

namespace tierkv::config::testing {

inline CacheConfig model() {
  CacheConfig c;
  c.num_layers = 4, c.num_heads = 9, c.num_kv_heads = 3, c.head_dim = 64;
  return c;
}

// The message of a refusal; also checks that nothing changed.
template <class Apply>
std::string refusal(Apply apply, const CacheConfig& base = {}) {
  CacheConfig c = base;
  const Status status = apply(c);
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_EQ(c, base) << "a refused text changed the configuration";
  return status.message();
}
inline std::string toml_refusal(const std::string& text, const CacheConfig& base = {}) {
  return refusal([&](CacheConfig& c) { return apply_toml(text, c, "my.toml"); }, base);
}
inline std::string json_refusal(const std::string& text, const CacheConfig& base = {}) {
  return refusal([&](CacheConfig& c) { return apply_json(text, c, "my.json"); }, base);
}
inline std::string inline_refusal(const std::string& text, const CacheConfig& base = {}) {
  return refusal([&](CacheConfig& c) { return apply_inline(text, c); }, base);
}
#define EXPECT_HAS(text, part) EXPECT_NE((text).find(part), std::string::npos) << "message: " << (text)
#define EXPECT_STARTS(text, part) EXPECT_EQ((text).rfind(part, 0), 0u) << "message: " << (text)

}  // namespace tierkv::config::testing
