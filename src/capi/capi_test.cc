// The header from C++, errors per thread, and exceptions that stop at the wall. The rest of the C API is tested by a C program, tests/c_api_test.c.
#include "tierkv/c.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <thread>

#include "capi/guard.h"

namespace tierkv::capi {
namespace {

TEST(Guard, NoExceptionGetsPast) {
  EXPECT_EQ(guarded([]() -> Status { throw std::bad_alloc(); }), TIERKV_RESOURCE_EXHAUSTED);
  EXPECT_STREQ(tierkv_last_error(), "the system refused memory");
  EXPECT_EQ(guarded([]() -> Status { throw std::runtime_error("boom"); }), TIERKV_INTERNAL);
  EXPECT_STREQ(tierkv_last_error(), "boom");
  EXPECT_EQ(guarded([]() -> Status { throw 7; }), TIERKV_INTERNAL);
  EXPECT_EQ(guarded([]() -> Status { return {}; }), TIERKV_OK);
  EXPECT_STREQ(tierkv_last_error(), "");
}

TEST(Guard, LongMessagesAreCutNotOverrun) {
  const std::string longest(5000, 'x');
  EXPECT_EQ(guarded([&]() -> Status { return Status(StatusCode::data_loss, longest); }), TIERKV_DATA_LOSS);
  const std::string kept = tierkv_last_error();
  EXPECT_EQ(kept.size(), 1023u);
  EXPECT_EQ(kept.substr(1020), "...");
}

TEST(LastError, BelongsToItsThread) {
  EXPECT_EQ(tierkv_flush(nullptr), TIERKV_INVALID_ARGUMENT);
  const std::string here = tierkv_last_error();
  EXPECT_NE(here, "");
  std::thread([] {
    EXPECT_STREQ(tierkv_last_error(), "");
    EXPECT_EQ(tierkv_truncate(nullptr, 1, 1), TIERKV_INVALID_ARGUMENT);
  }).join();
  EXPECT_EQ(tierkv_last_error(), here);
  EXPECT_NE(tierkv_preset_name(0), nullptr);
  EXPECT_EQ(tierkv_last_error(), here) << "names leave the last error alone";
}

TEST(Create, AbsurdShapesAreRefusedNotThrown) {
  tierkv_config* config = nullptr;
  ASSERT_EQ(tierkv_config_create(&config), TIERKV_OK);
  ASSERT_EQ(tierkv_config_set_model(config, "x", 0xFFFFFFFFu, 0xFFFFFFFFu, 0xFFFFFFFFu, 256), TIERKV_OK);
  tierkv_cache* cache = nullptr;
  EXPECT_EQ(tierkv_cache_create(config, &cache), TIERKV_INVALID_ARGUMENT);
  EXPECT_EQ(cache, nullptr);
  tierkv_config_destroy(config);
}

}  // namespace
}  // namespace tierkv::capi
