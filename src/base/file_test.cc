#include "base/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <thread>

#include "base/folder_testing.h"
#include "tierkv/file.h"

namespace tierkv {
namespace {

namespace fs = std::filesystem;

class File : public testing::Test {
 protected:
  std::string at(const char* name) const { return (dir_ / name).string(); }
  size_t entries() const { return folder_.count(); }
  const TestFolder folder_;
  const fs::path dir_ = folder_.path();
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

TEST_F(File, ALinkToNothingYetGetsItsFile) {
  fs::create_directory(dir_ / "d");
  fs::create_symlink("d/new", dir_ / "link");
  fs::create_symlink("link", dir_ / "link2");
  ASSERT_TRUE(write_file_atomic(at("link2"), "text").ok());
  EXPECT_TRUE(fs::is_symlink(dir_ / "link") && fs::is_symlink(dir_ / "link2"));
  EXPECT_EQ(read_text_file(at("d/new"), 100).value(), "text");
  fs::create_symlink("circle", dir_ / "circle");
  EXPECT_EQ(write_file_atomic(at("circle"), "text").code(), StatusCode::io_error);
}

TEST_F(File, WhatIsNoFileStaysWhatItIs) {
  ASSERT_EQ(::mkfifo(at("fifo").c_str(), 0600), 0);
  const int listener = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, at("socket").c_str(), sizeof address.sun_path - 1);
  ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  std::vector<std::string> names = {"fifo", "socket"};
  if (::mknod(at("null").c_str(), S_IFCHR | 0600, makedev(1, 3)) == 0) names.push_back("null");
  for (const std::string& name : names) {
    fs::create_symlink(name, dir_ / (name + "_link"));
    struct stat before {
    }, after{};
    ASSERT_EQ(::lstat(at(name.c_str()).c_str(), &before), 0);
    for (const std::string& path : {name, name + "_link"}) {
      const Status status = write_file_atomic(at(path.c_str()), "text");
      EXPECT_EQ(status.code(), StatusCode::io_error) << path;
      EXPECT_NE(status.message().find("not a regular file"), std::string::npos) << status.message();
      EXPECT_EQ(read_file(at(path.c_str()), 100).status().code(), StatusCode::io_error) << path;  // and does not wait
      EXPECT_EQ(read_file_part(at(path.c_str()), 0, 100).status().code(), StatusCode::io_error) << path;
    }
    ASSERT_EQ(::lstat(at(name.c_str()).c_str(), &after), 0);
    EXPECT_EQ(before.st_mode, after.st_mode);
    EXPECT_EQ(before.st_ino, after.st_ino);
  }
  ::close(listener);
  EXPECT_EQ(entries(), 2 * names.size());
}

TEST_F(File, DevicesThatNeverEndAreRefusedOrBounded) {
  EXPECT_EQ(read_file("/dev/zero", 1 << 20).status().code(), StatusCode::io_error);
  EXPECT_EQ(read_text_file("/dev/zero", 1 << 20).status().code(), StatusCode::out_of_range);
}

TEST_F(File, KeepsTheOwner) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give files away";
  ASSERT_TRUE(write_file_atomic(at("a"), "one").ok());
  ASSERT_EQ(::chown(at("a").c_str(), 12345, 23456), 0);
  ASSERT_EQ(::chmod(at("a").c_str(), 04750), 0);
  ASSERT_TRUE(write_file_atomic(at("a"), "two").ok());
  struct stat info {};
  ASSERT_EQ(::stat(at("a").c_str(), &info), 0);
  EXPECT_EQ(info.st_uid, 12345u);
  EXPECT_EQ(info.st_gid, 23456u);
  EXPECT_EQ(info.st_mode & 07777, 04750u);
}

TEST_F(File, AWriterThatGivesUpLeavesNothing) {
  ASSERT_TRUE(write_file_atomic(at("a"), "old").ok());
  const Status refused = replace_file(at("a"), [](const ByteSink& sink) -> Status {
    const Status written = sink(std::as_bytes(std::span("half of it")));
    return written.ok() ? Status(StatusCode::data_loss, "mine") : written;
  });
  EXPECT_EQ(refused.message(), "mine");
  const auto throwing = [](const ByteSink&) -> Status { throw std::runtime_error("no"); };
  EXPECT_THROW((void)replace_file(at("a"), throwing).ok(), std::runtime_error);
  EXPECT_EQ(read_text_file(at("a"), 100).value(), "old");
  EXPECT_EQ(entries(), 1u);
}

TEST_F(File, LeftoversOfTheDeadAreRemovedByTheNextWriterAndThoseOfTheLivingStay) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    (void)replace_file(at("a"), [](const ByteSink& sink) {
      (void)sink(std::as_bytes(std::span("half of it"))).ok();
      ::raise(SIGKILL);
      return Status();
    }).ok();
    ::_exit(1);
  }
  int how = 0;
  ASSERT_EQ(::waitpid(child, &how, 0), child);
  ASSERT_TRUE(WIFSIGNALED(how));
  EXPECT_EQ(entries(), 1u) << "the dead writer's";
  ASSERT_TRUE(write_file_atomic(at("b"), "text").ok());
  EXPECT_EQ(entries(), 2u) << "b's writer leaves a's alone";

  const auto inside = [&](const ByteSink& sink) {
    EXPECT_EQ(entries(), 2u) << "b and mine";
    EXPECT_TRUE(write_file_atomic(at("a"), "another").ok());
    EXPECT_EQ(entries(), 3u) << "a, b and mine, which is still being written";
    return sink(std::as_bytes(std::span("whole", 5)));
  };
  ASSERT_TRUE(replace_file(at("a"), inside).ok());
  EXPECT_EQ(entries(), 2u);
  EXPECT_EQ(read_text_file(at("a"), 100).value(), "whole");

  for (const char* name : {"a.tmp.0123456789abcdef", "a.tmp.0123456789abcdeg", "a.tmp.12.3", "xa.tmp.0123456789abcdef"}) {
    std::ofstream(at(name)) << "x";
  }
  ASSERT_TRUE(write_file_atomic(at("a"), "more").ok());
  EXPECT_FALSE(fs::exists(dir_ / "a.tmp.0123456789abcdef"));
  EXPECT_EQ(entries(), 5u) << "other names are other people's";
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
  const TestFolder folder;
  const std::string path = folder.file("part");
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
