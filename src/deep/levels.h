// levels.h — the integers of a coding block (archive.h) and how they become bits: models that start from what the calibration
// expects and learn.
//
// A level is round(component/step) with a dead zone: |component| < 0.6 steps is zero, then one level a step. Read back, a level is
// the middle of what lands on it (Centroids), not of its interval.
// Order:    component by component, largest spread first, up to the last one that is not all zero; within it token by token.
// Context:  how busy a token has been so far in this block, against the others: tokens are loud or quiet as a whole.
// Threads:  none of it is shared.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "calib/deep.h"
#include "deep/range_coder.h"

namespace tierkv::deep {

inline constexpr uint32_t kCodingBlock = 64;  // tokens of a coding block
inline constexpr float kDeadZone = 0.6f;
// Classes of tokens by weight, in octaves of it: a step is divided by the root. A few tokens are read a thousand times more than
// the others, and those that are read little now may be the ones that are asked for later: finer by far, coarser by little.
inline constexpr uint32_t kClasses = 8;
inline constexpr int32_t kClassWeight[kClasses] = {-2, -1, 0, 1, 2, 4, 7, 10};
inline constexpr uint32_t kMiddle = 2;
inline constexpr uint32_t kActivities = 6;
inline constexpr uint32_t kMostFiner = 6;         // times a block may halve its step
inline constexpr uint32_t kRaw = kMostFiner + 1;  // as FP16 rows, after all

// The step of a class, of a block that halved it `finer` times.
float class_step(float step, uint32_t token_class, uint32_t finer);

// Where levels are read back: |level| - kDeadZone' + offset/128, by how the component's spread compares with the step and by level
// 1, 2, more.
struct Centroids {
  static constexpr uint32_t kRatios = 8, kLevels = 3;
  uint8_t offset[kRatios][kLevels];

  static Centroids expected();
  // `ratio`: log2 of spread over step in 1/256.
  static uint32_t ratio_index(int32_t ratio);
  float value(int32_t level, uint32_t ratio) const;
};

struct ComponentModel {
  Bit any;                // something in this block is not zero
  Bit zero[kActivities];  // this one is not (a one)
  LevelModel level[2];    // quiet and busy tokens
};

// Everything that learns in a chunk. Made once for a step and copied for every chunk.
struct Models {
  struct Layer {
    Bit predicted;
    std::vector<ComponentModel> components[2];  // by basis
  };
  std::vector<Layer> layers;
  Bit finer[kRaw];
  Bit token_class[kClasses + 1][kClasses];  // by the class in the layer before; a tree of three bits

  Models(const calib::DeepTables& tables, int32_t log_step);
};

// One coding block of one layer: levels[component·kCodingBlock + token].
struct LevelBlock {
  uint32_t tokens = 0;
  uint32_t dim = 0;
  uint32_t alive = 0;  // components in use
  std::vector<int32_t> levels;
  uint8_t classes[kCodingBlock] = {};
};

void put_levels(RangeEncoder& out, std::vector<ComponentModel>& models, const LevelBlock& block);
void get_levels(RangeDecoder& in, std::vector<ComponentModel>& models, LevelBlock& block);
// What put_levels() would write, in 1/256 bits, if nothing were learnt on the way.
uint64_t price_levels(const std::vector<ComponentModel>& models, const LevelBlock& block);

void put_classes(RangeEncoder& out, Models& models, std::span<const uint8_t> classes, std::span<const uint8_t> before);
void get_classes(RangeDecoder& in, Models& models, std::span<uint8_t> classes, std::span<const uint8_t> before);

}  // namespace tierkv::deep
