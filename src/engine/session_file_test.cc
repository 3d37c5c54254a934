#include "engine/session_file.h"

#include <fstream>

#include "engine/files.h"
#include "engine/testing.h"

namespace tierkv::engine {
namespace {

SessionFile example() {
  SessionFile file;
  file.model = "a model";
  file.fingerprint = "0123456789abcdef";
  file.kv = "balanced";
  file.tokens = {1, 2, 3};
  file.pending = {4};
  file.messages = {{"user", "hello"}, {"assistant", "h\u00e9"}};
  file.snapshot = {std::byte{7}, std::byte{8}, std::byte{9}};
  return file;
}

void write_bytes(const std::string& path, const std::string& bytes) {
  write_file(path, [&](const Sink& sink) { sink(bytes.data(), bytes.size()); });
}

// Without waiting for the disk, as write_file() does.
void damage(const std::string& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

TEST(SessionFile, ComesBackAsItWas) {
  const TestFolder folder;
  const std::string path = folder.file("s.tkv");
  const uint64_t bytes = write_session(path, example());
  EXPECT_EQ(bytes, std::filesystem::file_size(path));
  EXPECT_TRUE(is_session_file(path));
  const SessionFile file = read_session(path);
  EXPECT_EQ(file.model, "a model");
  EXPECT_EQ(file.fingerprint, "0123456789abcdef");
  EXPECT_EQ(file.kv, "balanced");
  EXPECT_EQ(file.tokens, example().tokens);
  EXPECT_EQ(file.pending, example().pending);
  ASSERT_EQ(file.messages.size(), 2u);
  EXPECT_EQ(file.messages[1].content, "h\u00e9");
  EXPECT_EQ(file.snapshot, example().snapshot);
}

TEST(SessionFile, EveryShorterFileIsRefused) {
  const TestFolder folder;
  const std::string path = folder.file("s.tkv");
  write_session(path, example());
  const std::string whole = read_file(path);
  for (size_t length = 0; length < whole.size(); length += 5) {
    damage(path, whole.substr(0, length));
    EXPECT_EQ(kind_thrown([&] { (void)read_session(path); }), ErrorKind::bad_input) << length;
  }
}

TEST(SessionFile, FlippedBitsOfHeaderAndDescriptionAreFound) {
  const TestFolder folder;
  const std::string path = folder.file("s.tkv");
  const SessionFile file = example();
  write_session(path, file);
  const std::string whole = read_file(path);
  for (size_t at = 0; at < whole.size() - file.snapshot.size(); at += at < 32 ? 1 : 7) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 4);
    damage(path, damaged);
    EXPECT_EQ(kind_thrown([&] { (void)read_session(path); }), ErrorKind::bad_input) << at;
  }
}

TEST(Files, AFailedWriteLeavesTheOldFileAndNothingElse) {
  const TestFolder folder;
  const std::string path = folder.file("f");
  write_bytes(path, "old");
  EXPECT_THROW(write_file(path,
                          [](const Sink& sink) {
                            sink("new", 3);
                            throw std::runtime_error("half way");
                          }),
               std::runtime_error);
  EXPECT_EQ(read_file(path), "old");
  EXPECT_EQ(folder.count(), 1u);
  write_bytes(path, "new");
  EXPECT_EQ(read_file(path), "new");
  EXPECT_EQ(folder.count(), 1u);
}

TEST(Files, WhatCannotBeReadOrWrittenIsNamed) {
  const TestFolder folder;
  std::string sentence;
  EXPECT_EQ(kind_thrown([&] { (void)read_file(folder.file("nowhere")); }, &sentence), ErrorKind::bad_input);
  EXPECT_NE(sentence.find("nowhere"), std::string::npos);
  EXPECT_EQ(kind_thrown([&] { write_bytes(folder.file("no/such"), "x"); }, &sentence), ErrorKind::bad_input);
  EXPECT_NE(sentence.find("no/such"), std::string::npos);
}

}  // namespace
}  // namespace tierkv::engine
