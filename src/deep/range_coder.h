// range_coder.h — bits in fewer bytes: an adaptive binary range coder, and integers of any size as such bits.
//
// A Bit is a probability that learns: it starts from what is expected and moves by 1/n of every surprise, n growing to 2^10, so
// that it settles on what the data are. Encoder and decoder do the same integer arithmetic in the same order: whatever one wrote
// the other reads, on any machine.
//
// Layout:   64-bit range, renewed by 32 bits at a time, most significant byte first; zeros among the last eight bytes are left out.
// Integers: zero or not; then how many bits the magnitude has, one by one, and those bits, the first two of them learnt; then
//           the sign. Nothing is ever clipped: |level| < 2^30.
// Errors:   a decoder reads zeros past its end and remembers when they are more than were left out (overrun()). Its work is bounded
//           by what it is asked for, whatever the bytes.
// Threads:  none of it is shared.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tierkv::deep {

inline constexpr uint32_t kLeastProbability = 16;  // of either outcome, in 1/65536

// The probability of a zero in 2^-22, finer than the coder needs because slow learning takes small steps, and how much it has seen.
struct Bit {
  uint32_t zero22 : 22 = 1u << 21;
  uint32_t seen : 10 = 0;

  // `zero` in 1/65536; `trust`: as if it had been learnt from so many bits.
  static Bit expecting(uint32_t zero, uint32_t trust);
  uint32_t zero() const { return zero22 >> 6; }
  void learn(bool bit);
};

class RangeEncoder {
 public:
  void put(Bit& model, bool bit) {
    put_known(model.zero(), bit);
    model.learn(bit);
  }
  // `count` bits of `value`, each as likely as not.
  void put_plain(uint32_t value, uint32_t count);
  // Everything so far, whole. Call once.
  std::vector<std::byte> finish();
  size_t bytes() const { return out_.size(); }

 private:
  void put_known(uint32_t zero, bool bit);
  void carry();

  uint64_t low_ = 0;
  uint64_t range_ = ~uint64_t{0};
  std::vector<std::byte> out_;
};

class RangeDecoder {
 public:
  explicit RangeDecoder(std::span<const std::byte> bytes);

  bool get(Bit& model) {
    const bool bit = get_known(model.zero());
    model.learn(bit);
    return bit;
  }
  uint32_t get_plain(uint32_t count);
  // More was asked for than was ever written: what was read means nothing.
  bool overrun() const { return past_ > 8; }

 private:
  bool get_known(uint32_t zero) {
    const uint64_t bound = (range_ >> 16) * zero;
    const bool bit = code_ >= bound;
    if (bit) {
      code_ -= bound;
      range_ -= bound;
    } else {
      range_ = bound;
    }
    if (range_ < (uint64_t{1} << 32)) refill();
    return bit;
  }
  void refill();

  std::span<const std::byte> bytes_;
  size_t at_ = 0, past_ = 0;
  uint64_t code_ = 0;
  uint64_t range_ = ~uint64_t{0};
};

// The models of one kind of integer, but for whether it is zero, which the caller knows most about.
struct LevelModel {
  static constexpr uint32_t kLengths = 12, kMantissas = 5;
  static constexpr uint32_t kMostBits = 30;
  Bit longer[kLengths];    // the magnitude has more bits than 1, 2, …
  Bit first[kMantissas];   // the bit after the leading one, of magnitudes of 2, 3, … bits
  Bit second[kMantissas];  // and the one after that, of magnitudes of 3, 4, … bits
};

// REQUIRES: 0 < |level| < 2^30.
void put_level(RangeEncoder& out, LevelModel& model, int32_t level);
// Never zero.
int32_t get_level(RangeDecoder& in, LevelModel& model);

// What a bit costs at this moment, in 1/256 bits.
uint32_t price(const Bit& model, bool bit);
uint32_t price_level(const LevelModel& model, int32_t level);

// 65536 / (n + 2), rounded.
struct LearningRates {
  uint16_t of[1024];
  constexpr LearningRates() : of() {
    for (uint32_t n = 0; n < 1024; ++n) of[n] = static_cast<uint16_t>((65536 + (n + 2) / 2) / (n + 2));
  }
};
inline constexpr LearningRates kLearningRates;

inline Bit Bit::expecting(uint32_t zero, uint32_t trust) {
  const uint32_t most = 65536 - kLeastProbability;
  const uint32_t bounded = zero < kLeastProbability ? kLeastProbability : zero > most ? most : zero;
  Bit bit;
  bit.zero22 = (bounded << 6) & 0x3FFFFFu;
  bit.seen = trust & 1023u;
  return bit;
}

inline void Bit::learn(bool bit) {
  constexpr int64_t kLow = int64_t{kLeastProbability} << 6, kHigh = (int64_t{1} << 22) - kLow;
  const int64_t step = ((bit ? kLow : kHigh) - static_cast<int64_t>(zero22)) * kLearningRates.of[seen];
  zero22 = static_cast<uint32_t>(static_cast<int64_t>(zero22) + step / 65536) & 0x3FFFFFu;  // towards zero: never past the end
  if (seen != 1023) seen = (seen + 1u) & 1023u;
}

}  // namespace tierkv::deep
