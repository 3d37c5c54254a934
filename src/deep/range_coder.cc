#include "deep/range_coder.h"

#include <algorithm>
#include <array>
#include <bit>

namespace tierkv::deep {
namespace {

constexpr uint64_t kRenew = uint64_t{1} << 32;

// log2 of x in 1..2, from a series that needs no library: prices are the same everywhere, though nothing depends on it.
constexpr double log2_of(double x) {
  const double y = (x - 1.0) / (x + 1.0);
  double sum = 0.0, power = y;
  for (int n = 1; n < 40; n += 2) {
    sum += power / n;
    power *= y * y;
  }
  return 2.0 * sum / 0.6931471805599453;
}

// Price of an event of probability (i + ½)/4096, in 1/256 bits.
constexpr auto make_prices() {
  std::array<uint16_t, 4096> prices{};
  for (uint32_t i = 0; i < 4096; ++i) {
    double p = (i + 0.5) / 4096.0;
    double bits = 0.0;
    while (p < 1.0) {
      p *= 2.0;
      bits += 1.0;
    }
    prices[i] = static_cast<uint16_t>(256.0 * (bits - log2_of(p)) + 0.5);
  }
  return prices;
}
constexpr auto kPrices = make_prices();

}  // namespace

void RangeEncoder::carry() {
  for (size_t i = out_.size(); i > 0; --i) {
    out_[i - 1] = static_cast<std::byte>(static_cast<uint8_t>(out_[i - 1]) + 1u);
    if (out_[i - 1] != std::byte{0}) return;
  }
}

void RangeEncoder::put_known(uint32_t zero, bool bit) {
  const uint64_t bound = (range_ >> 16) * zero;
  if (bit) {
    const uint64_t before = low_;
    low_ += bound;
    if (low_ < before) carry();
    range_ -= bound;
  } else {
    range_ = bound;
  }
  if (range_ >= kRenew) return;
  for (int shift = 56; shift >= 32; shift -= 8) out_.push_back(static_cast<std::byte>(low_ >> shift));
  low_ <<= 32;
  range_ <<= 32;
}

void RangeEncoder::put_plain(uint32_t value, uint32_t count) {
  while (count-- > 0) put_known(32768, (value >> count) & 1u);
}

std::vector<std::byte> RangeEncoder::finish() {
  // The value within the range that ends in the most zeros; a decoder reads zeros past the end.
  for (int zeros = 63; zeros >= 0; --zeros) {
    const uint64_t mask = (uint64_t{1} << zeros) - 1;
    uint64_t value = low_ + mask;
    const bool wraps = value < low_;
    value &= ~mask;
    if (value - low_ >= range_) continue;  // modulo 2^64, as the range is
    if (wraps) carry();
    low_ = value;
    break;
  }
  for (int shift = 56; shift >= 0 && low_ != 0; shift -= 8) {
    out_.push_back(static_cast<std::byte>(low_ >> shift));
    low_ &= (uint64_t{1} << shift) - 1;
  }
  return std::move(out_);
}

RangeDecoder::RangeDecoder(std::span<const std::byte> bytes) : bytes_(bytes) {
  refill();
  range_ = ~uint64_t{0};
  const uint64_t high = code_;
  refill();
  range_ = ~uint64_t{0};
  code_ = (high << 32) | (code_ & 0xFFFFFFFFu);
}

void RangeDecoder::refill() {
  for (int i = 0; i < 4; ++i) {
    code_ <<= 8;
    if (at_ < bytes_.size()) {
      code_ |= static_cast<uint64_t>(bytes_[at_++]);
    } else {
      ++past_;
    }
  }
  range_ <<= 32;
}

uint32_t RangeDecoder::get_plain(uint32_t count) {
  uint32_t value = 0;
  while (count-- > 0) value = value << 1 | static_cast<uint32_t>(get_known(32768));
  return value;
}

void put_level(RangeEncoder& out, LevelModel& model, int32_t level) {
  const uint32_t magnitude = static_cast<uint32_t>(level < 0 ? -static_cast<int64_t>(level) : level);
  const uint32_t bits = static_cast<uint32_t>(std::bit_width(magnitude));
  for (uint32_t n = 1; n < LevelModel::kMostBits; ++n) {
    out.put(model.longer[std::min(n, LevelModel::kLengths) - 1], bits > n);
    if (bits == n) break;
  }
  if (bits > 1) out.put(model.first[std::min(bits - 2, LevelModel::kMantissas - 1)], (magnitude >> (bits - 2)) & 1u);
  if (bits > 2) out.put(model.second[std::min(bits - 3, LevelModel::kMantissas - 1)], (magnitude >> (bits - 3)) & 1u);
  if (bits > 3) out.put_plain(magnitude & ((1u << (bits - 3)) - 1), bits - 3);
  out.put_plain(level < 0, 1);
}

int32_t get_level(RangeDecoder& in, LevelModel& model) {
  uint32_t bits = 1;
  while (bits < LevelModel::kMostBits && in.get(model.longer[std::min(bits, LevelModel::kLengths) - 1])) ++bits;
  uint32_t magnitude = 1;
  if (bits > 1)
    magnitude = magnitude << 1 | static_cast<uint32_t>(in.get(model.first[std::min(bits - 2, LevelModel::kMantissas - 1)]));
  if (bits > 2)
    magnitude = magnitude << 1 | static_cast<uint32_t>(in.get(model.second[std::min(bits - 3, LevelModel::kMantissas - 1)]));
  if (bits > 3) magnitude = magnitude << (bits - 3) | in.get_plain(bits - 3);
  return in.get_plain(1) ? -static_cast<int32_t>(magnitude) : static_cast<int32_t>(magnitude);
}

uint32_t price(const Bit& model, bool bit) { return kPrices[(bit ? 65536u - model.zero() : model.zero()) >> 4]; }

uint32_t price_level(const LevelModel& model, int32_t level) {
  const uint32_t magnitude = static_cast<uint32_t>(level < 0 ? -static_cast<int64_t>(level) : level);
  const uint32_t bits = static_cast<uint32_t>(std::bit_width(magnitude));
  uint32_t sum = 256;  // the sign
  for (uint32_t n = 1; n < std::min(bits + 1, LevelModel::kMostBits); ++n) {
    sum += price(model.longer[std::min(n, LevelModel::kLengths) - 1], bits > n);
  }
  if (bits > 1) sum += price(model.first[std::min(bits - 2, LevelModel::kMantissas - 1)], (magnitude >> (bits - 2)) & 1u);
  if (bits > 2) sum += price(model.second[std::min(bits - 3, LevelModel::kMantissas - 1)], (magnitude >> (bits - 3)) & 1u);
  if (bits > 3) sum += 256 * (bits - 3);
  return sum;
}

}  // namespace tierkv::deep
