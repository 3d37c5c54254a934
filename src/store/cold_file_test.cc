// The cold file: copies written behind, read back bit for bit or not at all, on disks that are full, slow, cut, damaged or gone.
#include "store/cold_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>

#include "base/folder_testing.h"
#include "base/status_macros.h"
#include "store/block_store.h"
#include "store/packed_group.h"

namespace tierkv::store {
namespace {

int tag = 0;
const quant::CodecEntry& codec = reinterpret_cast<const quant::CodecEntry&>(tag);  // the file never looks into one
constexpr PayloadSizes kSizes{100, 60};

std::vector<std::byte> image_of(uint32_t seed, const PayloadSizes& sizes = kSizes) {
  std::mt19937 rng(seed);
  std::vector<std::byte> out(sizes.total());
  for (size_t i = 0; i < sizes.keys; ++i) out[i] = static_cast<std::byte>(rng());
  for (size_t i = 0; i < sizes.values; ++i) out[sizes.value_offset() + i] = static_cast<std::byte>(rng());
  return out;
}

ColdCopy* add(ColdFile& file, uint32_t seed, const PayloadSizes& sizes = kSizes) {
  const auto image = image_of(seed, sizes);
  return file.add(codec, sizes, payload_checksum(sizes, image), image);
}

std::unique_ptr<ColdMedium> medium_at(const std::string& path) {
  auto medium = open_cold_medium(path);
  EXPECT_TRUE(medium.ok()) << medium.status().to_string();
  return medium.ok() ? std::move(medium).value() : nullptr;
}

::testing::AssertionResult holds(ColdFile& file, ColdCopy* copy, uint32_t seed, const PayloadSizes& sizes = kSizes) {
  std::vector<std::byte> out(sizes.total());
  if (const Status status = file.read(*copy, out); !status.ok()) return ::testing::AssertionFailure() << status.to_string();
  if (out != image_of(seed, sizes)) return ::testing::AssertionFailure() << "other bytes";
  return ::testing::AssertionSuccess();
}

class ColdFileTest : public ::testing::Test {
 protected:
  ~ColdFileTest() override { EXPECT_EQ(arena.allocated(MemoryTag::bookkeeping), 0u); }
  TestFolder folder;
  Arena arena;
};

TEST_F(ColdFileTest, CopiesComeBackBitForBitFromQueueAndFile) {
  ColdFile file(medium_at(folder.path()), arena, 0);
  std::vector<ColdCopy*> copies;
  for (uint32_t i = 0; i < 500; ++i) copies.push_back(add(file, i));
  for (uint32_t i = 0; i < 500; ++i) ASSERT_TRUE(holds(file, copies[i], i));  // some wait still, some are written
  file.drain();
  EXPECT_EQ(file.stats().written, 500u);
  EXPECT_EQ(file.stats().queue_bytes, 0u);
  EXPECT_EQ(file.stats().copies, 500u);
  for (uint32_t i = 0; i < 500; ++i) ASSERT_TRUE(holds(file, copies[i], i));
  for (ColdCopy* copy : copies) file.release(copy);
  file.drain();
  EXPECT_EQ(file.stats().used_bytes, 0u);
  EXPECT_EQ(file.stats().file_bytes, ColdFile::kHeaderBytes);
}

TEST_F(ColdFileTest, FreedPlacesAreUsedAgainAndAnEmptyFileShrinks) {
  const std::string path = folder.file("cold");
  ColdFile file(medium_at(path), arena, 0);
  const PayloadSizes large{4000, 4000};
  std::vector<ColdCopy*> copies;
  for (uint32_t i = 0; i < 40; ++i) copies.push_back(add(file, i, i % 2 ? large : kSizes));
  file.drain();
  const uint64_t full = file.stats().file_bytes;
  for (uint32_t i = 0; i < 40; i += 3) file.release(copies[i]), copies[i] = add(file, 100 + i, i % 2 ? large : kSizes);
  EXPECT_EQ(file.stats().file_bytes, full);
  for (uint32_t i = 0; i < 40; ++i) ASSERT_TRUE(holds(file, copies[i], i % 3 ? i : 100 + i, i % 2 ? large : kSizes)) << i;
  file.drain();
  EXPECT_GT(std::filesystem::file_size(path), 20 * large.total());
  for (ColdCopy* copy : copies) file.release(copy);
  file.drain();
  ColdCopy* again = add(file, 7);  // after it shrank, or right on the way there: either is in order
  ASSERT_TRUE(holds(file, again, 7));
  file.drain();
  ASSERT_TRUE(holds(file, again, 7));
  EXPECT_LE(std::filesystem::file_size(path), ColdFile::kHeaderBytes + Arena::rounded(kSizes.total()));
  file.release(again);
}

TEST_F(ColdFileTest, TheLastReferenceFreesACopy) {
  ColdFile file(medium_at(folder.path()), arena, 0);
  ColdCopy* copy = add(file, 1);
  file.retain(copy);
  file.release(copy);
  EXPECT_TRUE(holds(file, copy, 1));
  file.release(copy);
  EXPECT_EQ(file.stats().copies, 0u);
}

TEST_F(ColdFileTest, KeepsItsLimit) {
  ColdFile file(medium_at(folder.path()), arena, ColdFile::kHeaderBytes + 3 * Arena::rounded(kSizes.total()));
  std::vector<ColdCopy*> copies;
  for (uint32_t i = 0; i < 3; ++i) copies.push_back(add(file, i));
  EXPECT_EQ(add(file, 3), nullptr);
  EXPECT_EQ(file.stats().skipped, 1u);
  file.release(copies.back());
  copies.back() = add(file, 4);
  ASSERT_NE(copies.back(), nullptr);
  for (ColdCopy* copy : copies) file.release(copy);
}

// --- files

TEST_F(ColdFileTest, AFolderShowsNoFileAndANamedOneGoesAtTheEnd) {
  {
    ColdFile file(medium_at(folder.path()), arena, 0);
    EXPECT_EQ(folder.count(), 0u);
  }
  {
    ColdFile file(medium_at(folder.file("cold")), arena, 0);
    EXPECT_EQ(folder.count(), 1u);
    const auto mode = std::filesystem::status(folder.file("cold")).permissions();
    EXPECT_EQ(mode, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  }
  EXPECT_EQ(folder.count(), 0u);
}

TEST_F(ColdFileTest, RefusesWhatIsNotItsOwn) {
  const std::string path = folder.file("letter.txt");
  std::ofstream(path) << "Dear Sir or Madam, this is not a cold file.";
  EXPECT_EQ(open_cold_medium(path).status().code(), StatusCode::invalid_argument);
  EXPECT_EQ(std::filesystem::file_size(path), 43u) << "and leaves it alone";
  EXPECT_EQ(open_cold_medium("/dev/full").status().code(), StatusCode::invalid_argument);
  EXPECT_EQ(open_cold_medium(folder.file("no/such")).status().code(), StatusCode::not_found);
  ColdFile file(medium_at(folder.file("cold")), arena, 0);
  EXPECT_EQ(open_cold_medium(folder.file("cold")).status().code(), StatusCode::failed_precondition) << "in use";
}

TEST_F(ColdFileTest, AKilledProcessLeavesNothingInTheWay) {
  const std::string path = folder.file("cold");
  const pid_t child = ::fork();
  if (child == 0) {
    Arena own;
    ColdFile file(medium_at(path), own, 0);
    for (uint32_t i = 0;; ++i) (void)add(file, i, {40000, 40000});  // until it is killed, in the middle of a write
  }
  ASSERT_GT(child, 0);
  const auto written = [&] { return std::filesystem::exists(path) ? std::filesystem::file_size(path) : 0; };
  for (int i = 0; i < 20000 && written() < 1000000; ++i) ::usleep(1000);
  ::kill(child, SIGKILL);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_GT(std::filesystem::file_size(path), 0u);
  ColdFile file(medium_at(path), arena, 0);
  EXPECT_EQ(std::filesystem::file_size(path), ColdFile::kHeaderBytes);
  ColdCopy* copy = add(file, 5);
  file.drain();
  EXPECT_TRUE(holds(file, copy, 5));
  file.release(copy);
}

TEST_F(ColdFileTest, ADeletedFileGoesOnServing) {
  const std::string path = folder.file("cold");
  ColdFile file(medium_at(path), arena, 0);
  ColdCopy* copy = add(file, 1);
  file.drain();
  std::filesystem::remove(path);
  std::ofstream(path) << "somebody else's";
  ColdCopy* more = add(file, 2);
  file.drain();
  EXPECT_TRUE(holds(file, copy, 1));
  EXPECT_TRUE(holds(file, more, 2));
  file.release(copy);
  file.release(more);
}

TEST_F(ColdFileTest, ACutFileLosesCopiesAndSaysSo) {
  const std::string path = folder.file("cold");
  ColdFile file(medium_at(path), arena, 0);
  ColdCopy* first = add(file, 1);
  ColdCopy* second = add(file, 2);
  file.drain();
  std::filesystem::resize_file(path, ColdFile::kHeaderBytes + Arena::rounded(kSizes.total()) + 30);
  std::vector<std::byte> out(kSizes.total());
  EXPECT_TRUE(holds(file, first, 1));
  EXPECT_EQ(file.read(*second, out).code(), StatusCode::data_loss);
  EXPECT_FALSE(ColdFile::usable(second));
  EXPECT_EQ(file.read(*second, out).code(), StatusCode::data_loss);
  EXPECT_EQ(file.stats().damaged, 1u);
  EXPECT_FALSE(file.stats().problem.empty());
  file.release(first);
  file.release(second);
  EXPECT_EQ(file.stats().copies, 0u);
}

TEST_F(ColdFileTest, NoDamagedByteIsEverHandedOut) {
  const std::string path = folder.file("cold");
  for (uint32_t at = 0; at < kSizes.total(); at += 7) {
    if (at >= kSizes.keys && at < kSizes.value_offset()) continue;  // padding counts for nothing
    ColdFile file(medium_at(path), arena, 0);
    ColdCopy* copy = add(file, at);
    file.drain();
    const int fd = ::open(path.c_str(), O_RDWR);
    const std::byte flipped = image_of(at)[at] ^ std::byte{16};
    ASSERT_EQ(::pwrite(fd, &flipped, 1, static_cast<off_t>(ColdFile::kHeaderBytes + at)), 1);
    ::close(fd);
    std::vector<std::byte> out(kSizes.total());
    ASSERT_EQ(file.read(*copy, out).code(), StatusCode::data_loss) << "byte " << at;
    file.release(copy);
  }
}

TEST_F(ColdFileTest, AFullDiskCostsCopiesAndNothingElse) {
  const std::string path = folder.file("cold");
  const auto previous = ::signal(SIGXFSZ, SIG_IGN);
  rlimit old = {};
  ::getrlimit(RLIMIT_FSIZE, &old);
  {
    ColdFile file(medium_at(path), arena, 0);
    ColdCopy* before = add(file, 1);
    file.drain();
    rlimit small = old;
    small.rlim_cur = ColdFile::kHeaderBytes + Arena::rounded(kSizes.total()) + 50;
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
    ColdCopy* during = add(file, 2);
    file.drain();
    ::setrlimit(RLIMIT_FSIZE, &old);
    EXPECT_EQ(file.stats().failed, 1u);
    EXPECT_NE(file.stats().problem.find("cold"), std::string::npos) << file.stats().problem;
    EXPECT_FALSE(ColdFile::usable(during));
    EXPECT_TRUE(holds(file, before, 1));
    ColdCopy* after = add(file, 3);  // the place of the one that failed
    file.drain();
    EXPECT_TRUE(holds(file, after, 3));
    for (ColdCopy* copy : {before, during, after}) file.release(copy);
  }
  ::signal(SIGXFSZ, previous);
}

// A disk whose writes wait for permission.
class SlowMedium final : public ColdMedium {
 public:
  Status write(uint64_t offset, std::span<const std::byte> bytes) override {
    std::unique_lock lock(mutex);
    ++writes;
    changed.notify_all();
    changed.wait(lock, [&] { return open; });
    for (size_t i = 0; i < bytes.size(); ++i) disk[offset + i] = bytes[i];
    return {};
  }
  Status read(uint64_t offset, std::span<std::byte> bytes) override {
    std::lock_guard lock(mutex);
    if (gone) return error(StatusCode::io_error, "the disk is gone");
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = disk[offset + i];
    return {};
  }
  void shrink(uint64_t) noexcept override {}
  void let_go() {
    std::lock_guard lock(mutex);
    open = true;
    changed.notify_all();
  }
  void wait_for_write() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return writes != 0; });
  }

  std::mutex mutex;
  std::condition_variable changed;
  std::map<uint64_t, std::byte> disk;
  bool open = false, gone = false;
  int writes = 0;
};

TEST_F(ColdFileTest, ASlowDiskNeverMakesAnybodyWait) {
  auto made = std::make_unique<SlowMedium>();
  SlowMedium& disk = *made;
  ColdFile file(std::move(made), arena, 0, 4 * kSizes.total());
  std::vector<ColdCopy*> copies;
  for (uint32_t i = 0; i < 4; ++i) copies.push_back(add(file, i));
  EXPECT_EQ(add(file, 9), nullptr) << "the queue is full";
  EXPECT_EQ(file.stats().skipped, 1u);
  disk.wait_for_write();
  for (uint32_t i = 0; i < 4; ++i) EXPECT_TRUE(holds(file, copies[i], i));
  file.release(copies[0]);  // while it is being written
  file.release(copies[2]);  // while it waits
  disk.let_go();
  file.drain();
  EXPECT_TRUE(holds(file, copies[1], 1));
  EXPECT_TRUE(holds(file, copies[3], 3));
  EXPECT_EQ(file.stats().copies, 2u);
  {
    std::lock_guard lock(disk.mutex);
    disk.gone = true;
  }
  std::vector<std::byte> out(kSizes.total());
  EXPECT_EQ(file.read(*copies[1], out).code(), StatusCode::io_error);
  EXPECT_TRUE(ColdFile::usable(copies[1])) << "the disk may come back";
  file.release(copies[1]);
  file.release(copies[3]);
}

TEST_F(ColdFileTest, ManyThreadsAddReadAndRelease) {
  ColdFile file(medium_at(folder.path()), arena, 0, 64 << 10);
  std::atomic<uint32_t> wrong = 0;
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 rng(t);
      std::vector<std::pair<ColdCopy*, uint32_t>> mine;
      for (uint32_t i = 0; i < 2000; ++i) {
        const uint32_t seed = t * 10000 + i;
        if (ColdCopy* copy = add(file, seed)) mine.push_back({copy, seed});
        if (mine.empty()) continue;
        const size_t at = rng() % mine.size();
        wrong += !holds(file, mine[at].first, mine[at].second);
        if (rng() % 2) file.release(mine[at].first), mine[at] = mine.back(), mine.pop_back();
      }
      for (const auto& [copy, seed] : mine) file.release(copy);
    });
  }
  for (std::thread& thread : threads) thread.join();
  file.drain();  // what was released while it was being written goes when it is
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(file.stats().copies, 0u);
  EXPECT_EQ(file.stats().damaged, 0u);
}

// --- with the block store

PayloadSizes sizes_of(const quant::CodecEntry&) { return kSizes; }

TEST_F(ColdFileTest, ACopyGoesWithItsBlockThroughPackingAndForks) {
  ColdFile file(medium_at(folder.path()), arena, 0);
  {
    BlockStore store(arena, sizes_of, &file);
    Payload payload = store.allocate(codec, Tier::archive, Arena::Use::normal);
    BlockHandle block = store.seal(std::move(payload), 0, codec, Tier::archive, nullptr, Arena::Use::normal);
    EXPECT_EQ(store.copy(block), nullptr);
    store.attach(block, add(file, 11));
    store.retain(block);
    BlockHandle fork = block;
    BlockHandle* mine[] = {&block};
    const std::vector<std::byte> archive(40, std::byte{1});
    ASSERT_TRUE(store.pack(mine, std::make_unique<PackedGroup>(), archive));
    ASSERT_FALSE(block.resident());
    ASSERT_TRUE(fork.resident());
    EXPECT_EQ(store.copy(block), store.copy(fork));
    store.release(block);
    const auto restored = store.restore(fork);
    ASSERT_TRUE(restored.ok()) << restored.status().to_string();
    EXPECT_TRUE(store.intact(*restored));
    const BlockBytes bytes = store.bytes(*restored);
    EXPECT_TRUE(std::equal(bytes.keys.begin(), bytes.keys.end(), image_of(11).begin()));
    store.release(*restored);
    EXPECT_EQ(file.stats().copies, 1u);
    store.release(fork);
  }
  file.drain();  // it may still be on its way to the file
  EXPECT_EQ(file.stats().copies, 0u);
}

}  // namespace
}  // namespace tierkv::store
