// klt.h — keys in a calibrated basis: which directions of a head matter, how far keys spread along them, and who gets which bits.
//
// Frame:    k_rel = R(-s0) k, s0 the first position of the block: a basis fitted there holds at every position.
// Basis:    with M the metric of errors (PairSums::key_block), C the covariance of k_rel, S = (M + ridge)^½ and U the eigenvectors
//           of S C S: component c = ((k_rel - mean)·S U). An error in c is an error of the residual stream, the same in every
//           direction. Components are stored divided by their standard deviation and sorted by it, largest first.
// Grid:     mid-rise, code = clamp(round(c/step - ½), -n/2, n/2-1), value (code + ½)·step; steps static, one for every width a
//           component may get, chosen on the sample to minimise the mean fourth power of the error (tails matter).
// Widths:   0, 2, 4 or 8 bits, in 32-bit words of one width per token (16, 8 or 4 components). allocate() gives every head the
//           words that lower the sum of measured distortions over all layers the most.
// Values:   stay rotated with a step per token (quant/rot.h, `mid`). How many bits they get is a choice like the others: 2, and 3
//           or 4 for heads whose output reaches the residual stream. An error there is in the same units.
// Threads:  immutable once made.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "calib/statistics.h"
#include "tierkv/status.h"

namespace tierkv::calib {

inline constexpr int kKltWidths = 3;
inline constexpr uint32_t kKltBits[kKltWidths] = {2, 4, 8};

struct KltHead {
  std::vector<float> mean;              // [d], of k_rel
  std::vector<uint16_t> analysis;       // fp16 [d components][d]: row j · (k_rel - mean) = component j over its standard deviation
  std::vector<uint16_t> synthesis;      // fp16 [d components][d]: k_rel = mean + sum over j of component j · row j
  std::vector<float> step[kKltWidths];  // [d], of components over their standard deviation
  std::vector<float> distortion[kKltWidths];  // [d], measured, in units that compare across heads and layers
  std::vector<float> variance;                // [d], the distortion of no bits at all
  std::vector<float> value_distortion;        // of values at 2, 3 and 4 bits
};

// How many words of each width a head has: its first 4·words[2] components have 8 bits, the next 8·words[1] 4, the next 16·words[0]
// 2.
struct KltWords {
  uint16_t words[kKltWidths] = {0, 0, 0};
  uint32_t total() const { return 0u + words[0] + words[1] + words[2]; }
  uint32_t components(uint32_t width) const { return words[width] * (32u / kKltBits[width]); }
  bool operator==(const KltWords&) const = default;
};

struct KltChoice {
  KltWords keys;
  uint8_t value_bits = 2;
};

struct KltTables {
  uint32_t layers = 0, kv_heads = 0, head_dim = 0;
  std::vector<KltHead> heads;  // [layer][kv head]

  const KltHead& head(uint32_t layer, uint32_t h) const { return heads[static_cast<size_t>(layer) * kv_heads + h]; }
  // Widths for all heads, [layer][kv head]: `bits` is the mean per key value, of which values may take what goes beyond their 2
  // bits when `joint`. Never more than asked, and less by a few words at most; but a bit of the values counts as head_dim/32 words,
  // rounded down, so a head_dim that is no multiple of 32 takes a little more. Blocks are laid out by this: it cannot change.
  std::vector<KltChoice> allocate(double bits, bool joint) const;
  // Multiplies the distortions of each layer's keys and values, which is all that allocate() looks at. REQUIRES: one weight per
  // layer, above 0.
  void weigh(std::span<const double> keys, std::span<const double> values);

  void write(ByteWriter& out) const;
  static Result<KltTables> read(ByteReader& in, const ModelId& model);
};

}  // namespace tierkv::calib
