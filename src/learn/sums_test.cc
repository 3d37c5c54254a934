// Tests of the file in which short texts add up.
#include "learn/sums.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <limits>
#include <thread>

#include "base/checksum.h"
#include "base/file.h"
#include "base/folder_testing.h"

namespace tierkv::learn {
namespace {

constexpr uint32_t kDim = 32;

SumsFrame small_frame() { return {{"small", 9, 2, 2, 1, kDim}, 128, 4, 512, {false, true}}; }

Sums some_sums(double factor) {
  Sums sums;
  sums.tokens = static_cast<uint64_t>(100 * factor);
  sums.variety = 7;
  sums.layers = {LayerSums(), empty_layer(1, 2, kDim)};
  HeadSums& head = sums.layers[1].heads[0];
  head.keys = sums.tokens;
  for (size_t i = 0; i < head.square.size(); ++i) head.square[i] = factor * static_cast<double>(i);
  head.metric[kHeldOut][3] = static_cast<float>(factor);
  head.value[kFit][1] = head.size = factor;
  sums.layers[1].queries[kFit] = 5;
  return sums;
}

TEST(Sums, TwoTextsAreTheSumOfBoth) {
  TestFolder folder;
  const std::string path = folder.file("s");
  EXPECT_EQ(load_sums(path, small_frame()).status().code(), StatusCode::not_found);
  ASSERT_TRUE(save_sums(path, small_frame(), some_sums(1.0)).ok());
  ASSERT_TRUE(save_sums(path, small_frame(), some_sums(3.0)).ok());
  const auto both = load_sums(path, small_frame());
  ASSERT_TRUE(both.ok()) << both.status().message();
  const HeadSums& head = both->layers[1].heads[0];
  EXPECT_EQ(both->tokens, 400u);
  EXPECT_EQ(head.keys, 400u);
  EXPECT_EQ(head.square[10], 40.0);
  EXPECT_EQ(head.metric[kHeldOut][3], 4.0f);
  EXPECT_EQ(head.value[kFit][1], 4.0);
  EXPECT_EQ(head.size, 4.0);
  EXPECT_EQ(both->layers[1].queries[kFit], 10u);
  EXPECT_EQ(folder.count(), 1u);
}

TEST(Sums, WritersAtOnceLoseNothing) {
  TestFolder folder;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 5; ++k) EXPECT_TRUE(save_sums(folder.file("s"), small_frame(), some_sums(1.0)).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(load_sums(folder.file("s"), small_frame())->tokens, 2000u);
}

// Without waiting for the disk.
void write(const std::string& path, std::span<const std::byte> bytes) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

TEST(Sums, EveryFlippedByteAndEveryCutIsRefused) {
  TestFolder folder;
  const std::string path = folder.file("s");
  ASSERT_TRUE(save_sums(path, small_frame(), some_sums(1.0)).ok());
  const std::vector<std::byte> good = read_file(path, 1 << 20).value();
  const std::string broken = folder.file("broken");
  for (size_t i = 0; i < good.size(); ++i) {
    std::vector<std::byte> bytes = good;
    bytes[i] ^= std::byte{1};
    write(broken, bytes);
    EXPECT_FALSE(load_sums(broken, small_frame()).ok()) << "byte " << i;
  }
  for (size_t size = 0; size < good.size(); size += 97) {
    write(broken, std::span(good).first(size));
    EXPECT_EQ(load_sums(broken, small_frame()).status().code(), StatusCode::data_loss) << size;
  }
  // What is damaged is learnt anew.
  ASSERT_TRUE(save_sums(broken, small_frame(), some_sums(2.0)).ok());
  EXPECT_EQ(load_sums(broken, small_frame())->tokens, 200u);
}

TEST(Sums, ForeignOnesAreRefused) {
  TestFolder folder;
  const std::string path = folder.file("s");
  ASSERT_TRUE(save_sums(path, small_frame(), some_sums(1.0)).ok());
  SumsFrame other = small_frame();
  other.model.fingerprint = 10;
  EXPECT_EQ(load_sums(path, other).status().code(), StatusCode::invalid_argument);
  other = small_frame();
  other.block = 64;
  EXPECT_EQ(load_sums(path, other).status().code(), StatusCode::invalid_argument);
  other = small_frame();
  other.learnt = {true, true};
  EXPECT_EQ(load_sums(path, other).status().code(), StatusCode::invalid_argument);
}

TEST(Sums, ANewerVersionIsLeftAlone) {
  TestFolder folder;
  const std::string path = folder.file("s");
  ASSERT_TRUE(save_sums(path, small_frame(), some_sums(1.0)).ok());
  std::vector<std::byte> bytes = read_file(path, 1 << 20).value();
  bytes[8] = std::byte{2};
  const uint64_t sum = checksum(std::span(bytes).first(bytes.size() - sizeof(uint64_t)));
  std::memcpy(bytes.data() + bytes.size() - sizeof sum, &sum, sizeof sum);
  ASSERT_TRUE(write_file_atomic(path, std::span<const std::byte>(bytes)).ok());
  EXPECT_EQ(load_sums(path, small_frame()).status().code(), StatusCode::unsupported);
  EXPECT_EQ(save_sums(path, small_frame(), some_sums(1.0)).code(), StatusCode::unsupported);
  EXPECT_EQ(read_file(path, 1 << 20).value(), bytes);
}

TEST(Sums, WhatIsNotFiniteIsNotKept) {
  TestFolder folder;
  Sums sums = some_sums(1.0);
  sums.layers[1].heads[0].metric[kFit][0] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(save_sums(folder.file("s"), small_frame(), sums).code(), StatusCode::invalid_argument);
  EXPECT_EQ(folder.count(), 0u);
}

}  // namespace
}  // namespace tierkv::learn
