// layout.h — the bytes of one side of a block, described for a reader that does not run the codec's own code: a device.
//
// A Codec that can be read this way fills a SideLayout (Codec::layout()); the others say no, and whoever asked reads them through
// the codec. What the fields mean is what the codecs' headers say; this is the same in one plain struct that can be copied to
// another memory, its pointers exchanged. quant/layout_test.cc decodes every codec through it and compares with decode().
//
// rows16:   16-bit floats, row after row.
// packed:   lanes.h codes, one scale and offset a group (meta.h); optionally a mean a channel (centered.h), or a mean and a factor
//           a channel (even.h). row = mean + factor·F(offset + scale·level), F the way back from `hadamard`.
// words:    klt.h: key = R(s0)·(mean + sum over components of (code - middle)·row).
#pragma once

#include <cstdint>

#include "quant/meta.h"

namespace tierkv::quant {

enum class LayoutKind : uint8_t { rows16 = 0, packed = 1, words = 2 };

inline constexpr uint32_t kMostPlanes = 4;
inline constexpr uint32_t kMostLevels = 16;
inline constexpr uint32_t kTurnDigits = 3, kTurnBase = 128;  // of calib::Turner's tables

struct LayoutPlane {
  uint32_t bits = 0;    // 8, 4, 2 or 1; 0: no such plane
  uint32_t shift = 0;   // of its bits in a code
  uint32_t chunks = 0;  // words of a lane
  uint32_t offset = 0;  // of its first byte
};

struct SideLayout {
  LayoutKind kind = LayoutKind::rows16;
  uint8_t bf16 = 0;
  uint8_t hadamard = 0;    // rows are in the Hadamard frame (frame.h)
  uint8_t by_channel = 0;  // a scale belongs to a channel over a run of tokens; else to a token over a run of channels
  MetaKind meta = MetaKind::f16_pair;
  uint8_t even = 0;        // the channels' words at mean_at carry factors (even.h); the frame lies inside of them
  uint8_t has_levels = 0;  // codes are indices into `levels`
  uint8_t bits = 0;        // of a code; 0 for rows16 and words
  uint32_t tokens = 0, head_dim = 0;
  uint32_t bytes = 0;              // of the side
  uint32_t group = 0, groups = 0;  // values that share a scale, and how many groups lie along that axis
  LayoutPlane planes[kMostPlanes];
  uint32_t meta_at = 0;  // offset of the metadata
  uint32_t mean_at = 0;  // offset of the channels' means; 0: none
  float zero = 0.0f;     // for metadata without a minimum
  float levels[kMostLevels] = {};

  // words
  uint32_t words[3] = {};            // of 2-, 4- and 8-bit components; widest first in a tile
  uint32_t components = 0;           // in use
  uint32_t pairs = 0;                // of channels that turn together
  const uint16_t* rows = nullptr;    // fp16 [components][head_dim]
  const float* mean = nullptr;       // [head_dim]
  const float* turns = nullptr;      // [digit][value][cosines of the pairs, sines of the pairs]
  const uint16_t* turned = nullptr;  // [pairs][2]: the channels of each

  bool operator==(const SideLayout&) const = default;
};

// What a writer of the same bytes has to know beside (Codec::coding()). It does what the codec does, sum by sum, and gets the same
// bits.
struct SideCoding {
  SideLayout layout;
  uint8_t values = 0;  // lanes are channels; else tokens
  FitKind fit = FitKind::range;
  Rounding rounding = Rounding::cover;
  uint8_t keep_fit_codes = 0;  // codes are taken with the fit's own step
  float centre = 0.0f;         // FitKind::midrise: midrise_centre()

  // words
  uint32_t padded = 0;              // components to whole vectors
  const float* analysis = nullptr;  // [head_dim][padded]: components in units of their steps
  const float* shift = nullptr;     // [padded]: what a code is beside

  bool operator==(const SideCoding&) const = default;
};

// Where queries look (Codec::directions()), for a writer whose codes keep their errors out of there (BlockContext::guide).
struct GuideTables {
  uint32_t count = 0, head_dim = 0, pairs = 0;
  float floor = 0.0f;
  const float* rows = nullptr;   // [count][head_dim], of position 0
  const float* turns = nullptr;  // as SideLayout has them
  const uint16_t* turned = nullptr;

  bool operator==(const GuideTables&) const = default;
};

}  // namespace tierkv::quant
