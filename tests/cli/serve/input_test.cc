// What strangers send: JSON, keys, names of files.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "serve/access.h"
#include "serve/api_error.h"
#include "serve/json_input.h"
#include "serve/slot_files.h"

namespace tierkv::serve {
namespace {

using nlohmann::json;

// The field that a call blames, or "none".
std::string blamed(const std::function<void()>& call) {
  try {
    call();
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status(), 400);
    return error.param();
  }
  return "none";
}

bool refused(const std::string& body) {
  try {
    (void)parse_object(body);
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status(), 400) << body.substr(0, 80);
    return true;
  }
  return false;
}

TEST(JsonInput, TakesObjectsAndNothingElse) {
  EXPECT_FALSE(refused(R"({"a": [1, {"b": "}]"}]})"));
  for (const char* body : {"", "{", "[]", "1", "null", "{\"a\": 1e999}", "{\"a\": \"\xff\"}", "{\"a\":1}x", "\xef\xbb\xbf"}) {
    EXPECT_TRUE(refused(body)) << body;
  }
}

TEST(JsonInput, DeepNestingIsRefusedBeforeItIsBuilt) {
  const auto nested = [](size_t depth) { return R"({"a":)" + std::string(depth, '[') + std::string(depth, ']') + "}"; };
  EXPECT_FALSE(refused(nested(kMostNesting - 1)));
  EXPECT_TRUE(refused(nested(kMostNesting)));
  EXPECT_TRUE(refused(nested(5000000)));
  EXPECT_FALSE(refused(R"({"a": ")" + std::string(1000, '[') + R"(\"["})"));  // in a text they are letters
}

TEST(JsonInput, FieldsHaveTypesAndRanges) {
  const json object = json::parse(R"({"n": 2, "x": 0.5, "t": "text", "f": true, "null": null, "list": ["a", "b"], "huge": 1e300})");
  const Fields fields(object);
  EXPECT_EQ(fields.whole("n", 0, 10), 2);
  EXPECT_EQ(fields.number("x", 0, 1), 0.5);
  EXPECT_EQ(fields.text("t"), "text");
  EXPECT_TRUE(fields.flag("f", false));
  EXPECT_FALSE(fields.whole("null", 0, 1).has_value());
  EXPECT_EQ(fields.texts("list", 2), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(fields.texts("t", 2), std::vector<std::string>{"text"});
  EXPECT_EQ(blamed([&] { (void)fields.whole("x", 0, 10); }), "x");
  EXPECT_EQ(blamed([&] { (void)fields.whole("huge", 0, 10); }), "huge");
  EXPECT_EQ(blamed([&] { (void)fields.number("t", 0, 10); }), "t");
  EXPECT_EQ(blamed([&] { (void)fields.text("n"); }), "n");
  EXPECT_EQ(blamed([&] { (void)fields.flag("n", false); }), "n");
  EXPECT_EQ(blamed([&] { (void)fields.texts("list", 1); }), "list");
}

TEST(JsonInput, WhatIsNotSupportedMayBeSaidAsNothing) {
  const json object = json::parse(R"({"a": [], "b": false, "c": 0, "d": "", "e": null, "f": {}, "g": [1], "h": true})");
  const Fields fields(object);
  for (const char* name : {"a", "b", "c", "d", "e", "f", "missing"}) {
    EXPECT_EQ(blamed([&] { fields.not_supported(name); }), "none") << name;
  }
  EXPECT_EQ(blamed([&] { fields.not_supported("g"); }), "g");
  EXPECT_EQ(blamed([&] { fields.not_supported("h"); }), "h");
}

TEST(JsonInput, BytesThatAreNoTextGoOutAsSomethingElse) {
  EXPECT_TRUE(json::accept(to_text({{"text", std::string("a\xff\x80")}})));
}

TEST(Access, OnlyWholeKeysAreKnown) {
  const std::vector<std::string> keys = {"sesame", "other"};
  EXPECT_TRUE(is_known_key("sesame", keys));
  EXPECT_TRUE(is_known_key("other", keys));
  for (const char* key : {"", "sesam", "sesame1", "Sesame", "sesameother"}) EXPECT_FALSE(is_known_key(key, keys)) << key;
  EXPECT_FALSE(is_known_key("", {}));
  EXPECT_EQ(bearer_key("Bearer abc"), "abc");
  EXPECT_EQ(bearer_key("Basic abc"), "");
}

TEST(Access, APageOfAnotherOriginIsForeign) {
  EXPECT_FALSE(is_foreign_origin("", "localhost:8080"));
  EXPECT_FALSE(is_foreign_origin("http://localhost:8080", "localhost:8080"));
  EXPECT_TRUE(is_foreign_origin("http://localhost:9090", "localhost:8080"));
  EXPECT_TRUE(is_foreign_origin("https://example.com", "localhost:8080"));
  EXPECT_TRUE(is_foreign_origin("null", "localhost:8080"));
}

TEST(Access, OriginsAreSchemesAndHosts) {
  for (const char* text : {"*", "https://example.com", "http://localhost:3000", "app://x"}) EXPECT_TRUE(is_origin(text)) << text;
  for (const char* text :
       {"", "example.com", "https://", "://x", "https://a/b", "https://a b", "https://a\r\nX: y", "https://*.a", "ht\ntp://a"})
    EXPECT_FALSE(is_origin(text)) << text;
}

TEST(Access, HostsHaveNamesAndPorts) {
  EXPECT_EQ(host_name("localhost:8080"), "localhost");
  EXPECT_EQ(host_name("localhost"), "localhost");
  EXPECT_EQ(host_name("[::1]:8080"), "::1");
  EXPECT_TRUE(is_local_name("127.0.0.1") && is_local_name("::1") && is_local_name("localhost"));
  EXPECT_FALSE(is_local_name("localhost.example.com") || is_local_name(""));
}

TEST(SlotFiles, NamesStayInTheirFolder) {
  for (const char* name : {"a", "chat-1.tkv", "A_b.9"}) EXPECT_TRUE(is_plain_name(name)) << name;
  for (const char* name : {"", ".", "..", "../a", "a/b", "/a", ".a", "a b", "a\\b", "~", "a\n"})
    EXPECT_FALSE(is_plain_name(name)) << name;
  EXPECT_FALSE(is_plain_name(std::string("a\0b", 3)));
  EXPECT_FALSE(is_plain_name(std::string(129, 'a')));
}

}  // namespace
}  // namespace tierkv::serve
