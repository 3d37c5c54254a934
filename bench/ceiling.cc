#include "bench/ceiling.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>

#include "base/status_macros.h"
#include "bench/data.h"

namespace tierkv::bench {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr uint32_t kPieces = 8;  // a thread's share, so that one which the system holds up does not hold up the other

typedef uint64_t Wide __attribute__((vector_size(64)));

// Four streams a quarter of the piece apart.
[[gnu::always_inline]] inline uint64_t read_streams(const uint64_t* words, size_t count) {
  const Wide* p = reinterpret_cast<const Wide*>(words);
  const size_t quarter = count * sizeof(uint64_t) / sizeof(Wide) / 4;
  Wide a{}, b{}, c{}, d{};
  for (size_t i = 0; i < quarter; ++i) {
    a ^= p[i];
    b ^= p[i + quarter];
    c ^= p[i + 2 * quarter];
    d ^= p[i + 3 * quarter];
  }
  a ^= b ^ c ^ d;
  uint64_t sum = 0;
  for (int i = 0; i < 8; ++i) sum ^= a[i];
  return sum;
}

uint64_t read_plain(const uint64_t* words, size_t count) { return read_streams(words, count); }

#if defined(__x86_64__)
[[gnu::target("avx2")]] uint64_t read_avx2(const uint64_t* words, size_t count) { return read_streams(words, count); }
[[gnu::target("avx512f")]] uint64_t read_avx512(const uint64_t* words, size_t count) { return read_streams(words, count); }
#endif

using Read = uint64_t (*)(const uint64_t*, size_t);

Read widest() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return read_avx512;
  if (__builtin_cpu_supports("avx2")) return read_avx2;
#endif
  return read_plain;
}

}  // namespace

void ReadCeiling::Free::operator()(void* memory) const { std::free(memory); }

ReadCeiling::ReadCeiling(size_t bytes, uint32_t threads) : bytes_(0), pool_(threads) {
  const size_t unit = kHugePage * kPieces * threads;
  bytes_ = std::max<size_t>(1, bytes / unit) * unit;
  buffer_.reset(static_cast<uint64_t*>(std::aligned_alloc(kHugePage, bytes_)));
  if (!buffer_) return;
  (void)madvise(buffer_.get(), bytes_, MADV_HUGEPAGE);
  Random random(91);
  for (size_t i = 0; i < bytes_ / sizeof(uint64_t); ++i) expected_ ^= buffer_.get()[i] = random.next();
}

Status ReadCeiling::read() {
  if (!buffer_) return error(StatusCode::resource_exhausted, "no memory for a buffer of ", bytes_, " bytes");
  static const Read read_piece = widest();
  const uint32_t pieces = kPieces * pool_.threads();
  const size_t words = bytes_ / sizeof(uint64_t) / pieces;
  std::atomic<uint64_t> sum{0};
  pool_.run(pieces, [&](uint32_t i) { sum ^= read_piece(buffer_.get() + i * words, words); });
  return sum == expected_ ? Status() : error(StatusCode::internal, "the buffer read back wrong");
}

size_t cold_bytes() {
  const long last = sysconf(_SC_LEVEL3_CACHE_SIZE);
  return std::clamp<size_t>(last > 0 ? 3 * static_cast<size_t>(last) : 0, size_t{64} << 20, size_t{512} << 20);
}

}  // namespace tierkv::bench
