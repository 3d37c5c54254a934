// Solvers on a system that refuses threads: the same tables, to the bit, and no abort.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <thread>

#include "base/checksum.h"
#include "deep/testing.h"

namespace {

std::atomic<int> threads_left{1 << 30};  // that the system still gives
std::atomic<int> refused{0};

}  // namespace

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*), void* argument) noexcept {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto create = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  if (threads_left.fetch_sub(1) > 0) return create(thread, attributes, start, argument);
  ++refused;
  return EAGAIN;
}

namespace tierkv::solve {
namespace {

template <class Tables>
uint64_t bits_of(const Result<Tables>& tables) {
  if (!tables.ok()) return 0;
  ByteWriter out;
  tables->write(out);
  return checksum(out.bytes());
}

template <class Solve>
void expect_same_bits(const Solve& solve) {
  threads_left = 1 << 30;
  const uint64_t with_threads = bits_of(solve());
  ASSERT_NE(with_threads, 0u);
  for (const int given : {0, 1}) {
    threads_left = given;
    refused = 0;
    EXPECT_EQ(bits_of(solve()), with_threads) << given << " threads given";
    if (given == 0 && std::thread::hardware_concurrency() > 1) {
      EXPECT_GT(refused, 0) << "it asked for no thread: the test tests nothing";
    }
  }
  threads_left = 1 << 30;
}

TEST(SolverThreads, TablesOfKeysNeedNone) {
  const calib::Statistics& s = deep::testing::model().statistics();
  expect_same_bits([&] { return solve_klt(s, nullptr); });
}

TEST(SolverThreads, TablesOfTheDeepArchiveNeedNone) {
  const calib::Statistics& s = deep::testing::model().statistics();
  expect_same_bits([&] { return solve_deep(s, nullptr); });
}

TEST(SolverThreads, ProgressIsReportedByTheCaller) {
  const auto caller = std::this_thread::get_id();
  double last = 0.0;
  const auto tables = solve_deep(deep::testing::model().statistics(), [&](double done) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    last = done;
  });
  ASSERT_TRUE(tables.ok());
  EXPECT_EQ(last, 1.0);
}

}  // namespace
}  // namespace tierkv::solve
