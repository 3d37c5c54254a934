// Files: a save is the old file or the new one, whatever happens; errors say what the system said and leave nothing behind.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "base/file.h"
#include "base/folder_testing.h"
#include "snapshot/testing.h"
#include "tierkv/snapshot.h"

namespace tierkv::snapshot {
namespace {

using namespace tierkv::snapshot::testing;

class SnapshotFile : public ::testing::Test {
 protected:
  SnapshotFile() {
    cache_ = make_cache(small_config("compact"));
    std::mt19937 rng(1);
    small_ = cache_->add_sequence().value();
    large_ = cache_->add_sequence().value();
    append(*cache_, small_, rng, 50);
    append(*cache_, large_, rng, 3000);
  }

  Bytes content() const { return read_file(path_, 1 << 30).value(); }
  size_t files() const { return own_.count(); }

  const TestFolder own_;
  const std::filesystem::path folder_ = own_.path(), path_ = folder_ / "sequence.tkv";
  std::unique_ptr<AdaptiveKVCache> cache_;
  SeqId small_ = 0, large_ = 0;
};

TEST_F(SnapshotFile, SaveAndLoadAreFreezeAndUnfreeze) {
  for (const SeqId seq : {large_, small_}) {
    ASSERT_TRUE(cache_->save(seq, path_).ok());
    EXPECT_EQ(content(), frozen(*cache_, seq));
    EXPECT_EQ(files(), 1u);
    const auto loaded = cache_->load(path_);
    ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
    EXPECT_EQ(frozen(*cache_, *loaded), frozen(*cache_, seq));
    EXPECT_TRUE(same_bits(live(*cache_, *loaded, 8, 20), live(*cache_, seq, 8, 20)));
    const auto info = inspect_snapshot(path_.string());
    ASSERT_TRUE(info.ok()) << info.status().to_string();
    EXPECT_EQ(info->file_bytes, content().size());
  }
}

TEST_F(SnapshotFile, LoadingNamesTheFileAndTheProblem) {
  EXPECT_EQ(cache_->load(folder_ / "missing.tkv").status().code(), StatusCode::not_found);
  EXPECT_EQ(cache_->load(folder_).status().code(), StatusCode::io_error);
  ASSERT_TRUE(write_file_atomic(path_, "not a snapshot").ok());
  const auto result = cache_->load(path_);
  EXPECT_EQ(result.status().code(), StatusCode::data_loss);
  EXPECT_NE(result.status().message().find("sequence.tkv"), std::string::npos) << result.status().message();
  EXPECT_EQ(cache_->save(99, path_).code(), StatusCode::not_found);
}

TEST_F(SnapshotFile, ASaveThatFailsLeavesTheOldFileAndNothingElse) {
  ASSERT_TRUE(cache_->save(small_, path_).ok());
  const Bytes old = content();
  // A full disk, as the process sees it: writes past the limit fail.
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const rlimit limit{old.size() / 2, old.size() / 2};
    ::signal(SIGXFSZ, SIG_IGN);
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) ::_exit(2);
    const Status status = cache_->save(large_, path_);
    ::_exit(status.code() == StatusCode::io_error && status.message().find("sequence.tkv") != std::string::npos ? 0 : 1);
  }
  int how = 0;
  ASSERT_EQ(::waitpid(child, &how, 0), child);
  EXPECT_TRUE(WIFEXITED(how) && WEXITSTATUS(how) == 0) << how;
  EXPECT_EQ(content(), old);
  EXPECT_EQ(files(), 1u);

  EXPECT_EQ(cache_->save(large_, path_ / "below_a_file.tkv").code(), StatusCode::io_error);
  EXPECT_EQ(cache_->save(large_, folder_).code(), StatusCode::io_error);
  EXPECT_FALSE(cache_->save(large_, folder_ / "no_such_folder" / "x.tkv").ok());
  EXPECT_EQ(content(), old);
  EXPECT_EQ(files(), 1u);
}

TEST_F(SnapshotFile, AKilledSaveLeavesTheOldFileOrTheNewOne) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 rng(seed);
  const Bytes small = frozen(*cache_, small_), large = frozen(*cache_, large_);
  ASSERT_TRUE(cache_->save(small_, path_).ok());
  for (int round = 0; round < 25; ++round) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      for (;;) {
        if (!cache_->save(large_, path_).ok() || !cache_->save(small_, path_).ok()) ::_exit(1);
      }
    }
    ::usleep(500 + rng() % 12000);
    ::kill(child, SIGKILL);
    int how = 0;
    ASSERT_EQ(::waitpid(child, &how, 0), child);
    ASSERT_TRUE(WIFSIGNALED(how)) << "a save failed";
    const Bytes now = content();
    ASSERT_TRUE(now == small || now == large) << "round " << round << ": " << now.size() << " bytes";
    ASSERT_TRUE(inspect_snapshot(path_.string()).ok());
  }
}

}  // namespace
}  // namespace tierkv::snapshot
