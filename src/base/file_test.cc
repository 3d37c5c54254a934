#include "base/file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

namespace tierkv {
namespace {

namespace fs = std::filesystem;

class File : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "tierkv_file_XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    dir_ = name;
  }
  void TearDown() override { fs::remove_all(dir_); }
  std::string at(const char* name) const { return (dir_ / name).string(); }
  size_t entries() const { return static_cast<size_t>(std::distance(fs::directory_iterator(dir_), fs::directory_iterator())); }
  fs::path dir_;
};

TEST_F(File, WhatIsWrittenIsRead) {
  std::string text(100000, 'x');
  text[500] = '\0';
  ASSERT_TRUE(write_file_atomic(at("a"), text).ok());
  EXPECT_EQ(read_text_file(at("a"), 1 << 20).value(), text);
  EXPECT_EQ(read_file(at("a"), text.size()).value().size(), text.size());
  ASSERT_TRUE(write_file_atomic(at("a"), "").ok());
  EXPECT_EQ(read_text_file(at("a"), 0).value(), "");
}

TEST_F(File, LeavesNothingBesideTheFile) {
  ASSERT_TRUE(write_file_atomic(at("a"), "one").ok());
  ASSERT_TRUE(write_file_atomic(at("a"), "two").ok());
  EXPECT_EQ(entries(), 1u);
}

TEST_F(File, AFailedReplaceLeavesTheOldFileAndNoTemporary) {
  fs::create_directory(dir_ / "d");
  const Status status = write_file_atomic(at("d"), "text");  // a directory cannot be replaced by a file
  EXPECT_EQ(status.code(), StatusCode::io_error);
  EXPECT_NE(status.message().find(at("d")), std::string::npos);
  EXPECT_TRUE(fs::is_directory(dir_ / "d"));
  EXPECT_EQ(entries(), 1u);
}

TEST_F(File, AMissingDirectoryIsNamed) {
  const Status status = write_file_atomic(at("no/such/file"), "text");
  EXPECT_EQ(status.code(), StatusCode::not_found);
  EXPECT_NE(status.message().find("no/such/file"), std::string::npos);
}

TEST_F(File, KeepsPermissionsAndFollowsLinks) {
  ASSERT_TRUE(write_file_atomic(at("a"), "one").ok());
  ASSERT_EQ(::chmod(at("a").c_str(), 0640), 0);
  fs::create_symlink(dir_ / "a", dir_ / "link");
  ASSERT_TRUE(write_file_atomic(at("link"), "two").ok());
  EXPECT_TRUE(fs::is_symlink(dir_ / "link"));
  EXPECT_EQ(read_text_file(at("a"), 100).value(), "two");
  struct stat info {};
  ASSERT_EQ(::stat(at("a").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0640u);
}

TEST_F(File, MissingTooLargeAndDirectoriesAreRefused) {
  EXPECT_EQ(read_file(at("none"), 10).status().code(), StatusCode::not_found);
  ASSERT_TRUE(write_file_atomic(at("a"), "12345678901").ok());
  const auto large = read_file(at("a"), 10);
  EXPECT_EQ(large.status().code(), StatusCode::out_of_range);
  EXPECT_NE(large.status().message().find("10 bytes"), std::string::npos);
  EXPECT_EQ(read_file(dir_.string(), 10).status().code(), StatusCode::io_error);
}

TEST_F(File, ReadsFilesThatTellNoSize) {
  const auto text = read_text_file("/proc/self/status", 1 << 20);  // st_size is 0
  ASSERT_TRUE(text.ok());
  EXPECT_GT(text.value().size(), 100u);
  EXPECT_EQ(read_text_file("/proc/self/status", 10).status().code(), StatusCode::out_of_range);
}

TEST_F(File, ConcurrentWritersLeaveOneWholeText) {
  std::vector<std::thread> threads;
  for (char c : {'a', 'b', 'c'})
    threads.emplace_back([&, c] {
      for (int i = 0; i < 5; ++i) EXPECT_TRUE(write_file_atomic(at("f"), std::string(5000, c)).ok());
    });
  for (auto& t : threads) t.join();
  const std::string text = read_text_file(at("f"), 1 << 20).value();
  ASSERT_EQ(text.size(), 5000u);
  EXPECT_EQ(text, std::string(5000, text[0]));
  EXPECT_EQ(entries(), 1u);
}

TEST(ReadFilePart, GivesWhatThereIs) {
  const std::string path = ::testing::TempDir() + "tierkv_part";
  ASSERT_TRUE(write_file_atomic(path, std::string_view("abcdefgh")).ok());
  const auto part = [&](uint64_t offset, uint64_t size) {
    const auto bytes = read_file_part(path, offset, size).value();
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  EXPECT_EQ(part(2, 3), "cde");
  EXPECT_EQ(part(0, 8), "abcdefgh");
  EXPECT_EQ(part(6, 100), "gh");
  EXPECT_EQ(part(8, 1), "");
  EXPECT_EQ(part(~uint64_t{0}, 5), "");
  EXPECT_EQ(read_file_part(path + "-absent", 0, 1).status().code(), StatusCode::not_found);
}

}  // namespace
}  // namespace tierkv
