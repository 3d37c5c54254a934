#include "deep/levels.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

namespace tierkv::deep {
namespace {

// Expectations start from a Laplace distribution of the calibrated spread. Everything that encoder and decoder must agree on is
// computed by the compiler from sums and products, so that no library's rounding matters.
constexpr double exp_of(double x) {
  if (x < -40.0) return 0.0;
  int halvings = 0;
  while (x < -0.5) x *= 0.5, ++halvings;
  double term = 1.0, sum = 1.0;
  for (int n = 1; n < 24; ++n) {
    term *= x / n;
    sum += term;
  }
  while (halvings-- > 0) sum *= sum;
  return sum;
}

constexpr double kRoot2 = 1.4142135623730951;
constexpr double kQuarter = 1.189207115002721;         // the fourth root of two
constexpr int32_t kLeastRatio = -24, kMostRatio = 56;  // quarters of an octave

// exp(-√2·(m - 0.4)/r): how many levels reach m, r the spread in steps.
constexpr double reach(double m, double r) { return exp_of(-kRoot2 * (m - 0.4) / r); }

constexpr uint32_t probability(double p) { return static_cast<uint32_t>(std::clamp(65536.0 * p + 0.5, 1.0, 65535.0)); }

struct Expected {
  uint32_t any = 0, zero[kActivities] = {}, longer[2][LevelModel::kLengths] = {}, first[2][LevelModel::kMantissas] = {},
           second[2][LevelModel::kMantissas] = {};
};

constexpr double kLoudness[kActivities] = {0.5, 0.7, 0.9, 1.1, 1.4, 2.0};

constexpr Expected expect(double r) {
  Expected e;
  double quiet = 1.0;
  for (uint32_t i = 0; i < kCodingBlock; ++i) quiet *= 1.0 - reach(1.0, r);
  e.any = probability(quiet);
  for (uint32_t a = 0; a < kActivities; ++a) e.zero[a] = probability(1.0 - reach(1.0, r * kLoudness[a]));
  for (int busy = 0; busy < 2; ++busy) {
    const double s = busy ? 1.25 * r : 0.8 * r;
    double m = 1.0;
    for (uint32_t n = 0; n < LevelModel::kLengths; ++n) {
      // Given at least m = 2^n, at least 2m; the exponent is a difference, so nothing underflows.
      e.longer[busy][n] = probability(1.0 - exp_of(-kRoot2 * m / s));
      m *= 2.0;
    }
    m = 2.0;
    for (uint32_t n = 0; n < LevelModel::kMantissas; ++n) {
      const double half = exp_of(-kRoot2 * 0.5 * m / s);  // of those in the first half, per one there
      e.first[busy][n] = probability(1.0 / (1.0 + half));
      const double quarter = exp_of(-kRoot2 * 0.5 * m / s);  // magnitudes of one bit more, a quarter of them
      e.second[busy][n] = probability(1.0 / (1.0 + quarter));
      m *= 2.0;
    }
  }
  return e;
}

constexpr auto make_expected() {
  std::array<Expected, kMostRatio - kLeastRatio + 1> all{};
  double r = 1.0;
  for (int i = 0; i > kLeastRatio; --i) r /= kQuarter;
  for (int32_t i = kLeastRatio; i <= kMostRatio; ++i) {
    all[static_cast<size_t>(i - kLeastRatio)] = expect(r);
    r *= kQuarter;
  }
  return all;
}

ComponentModel expecting(const Expected& e) {
  constexpr uint32_t kTrust = 10;
  ComponentModel m;
  m.any = Bit::expecting(e.any, kTrust / 2);
  for (uint32_t a = 0; a < kActivities; ++a) m.zero[a] = Bit::expecting(e.zero[a], kTrust);
  for (int busy = 0; busy < 2; ++busy) {
    for (uint32_t n = 0; n < LevelModel::kLengths; ++n) m.level[busy].longer[n] = Bit::expecting(e.longer[busy][n], kTrust);
    for (uint32_t n = 0; n < LevelModel::kMantissas; ++n) {
      m.level[busy].first[n] = Bit::expecting(e.first[busy][n], 2 * kTrust);
      m.level[busy].second[n] = Bit::expecting(e.second[busy][n], 2 * kTrust);
    }
  }
  return m;
}

const std::vector<ComponentModel>& expected_models() {
  static const std::vector<ComponentModel> models = [] {
    static constexpr auto kExpected = make_expected();
    std::vector<ComponentModel> out;
    for (const Expected& e : kExpected) out.push_back(expecting(e));
    return out;
  }();
  return models;
}

constexpr float kClassStep[kClasses] = {2.0f, 1.414213562f, 1.0f,           0.7071067812f,
                                        0.5f, 0.25f,        0.08838834765f, 0.03125f};  // 2^(-weight/2)

// By how busy a token is, in 1/16 of the mean.
constexpr auto make_index() {
  std::array<uint8_t, 64> index{};
  for (uint32_t i = 0; i < 64; ++i) index[i] = i < 7 ? 0 : i < 11 ? 1 : i < 15 ? 2 : i < 20 ? 3 : i < 28 ? 4 : 5;
  return index;
}
constexpr auto kIndex = make_index();

// How busy tokens are: a running mean of their levels, 1/16 of a level.
class Activity {
 public:
  explicit Activity(const LevelBlock& block) : tokens_(block.tokens) {
    for (uint32_t t = 0; t < tokens_; ++t) {
      // Before anything is known: finer steps make larger levels.
      of_[t] = kStart[block.classes[t]];
      sum_ += of_[t];
    }
  }
  // Before each component.
  void settle() { inverse_ = (tokens_ << 20) / std::max(sum_, 1u); }
  uint32_t index(uint32_t t) const {
    const uint32_t relative = static_cast<uint32_t>((static_cast<uint64_t>(of_[t]) * inverse_) >> 16);  // 1/16 of the mean
    return kIndex[std::min(relative, 63u)];
  }
  void add(uint32_t t, int32_t level) {
    const uint32_t magnitude = static_cast<uint32_t>(level < 0 ? -static_cast<int64_t>(level) : level);
    const uint32_t now = of_[t] - (of_[t] >> 4) + std::min(magnitude, 16u) * 16;
    sum_ += now - of_[t];
    of_[t] = now;
  }

 private:
  static constexpr uint32_t kStart[kClasses] = {128, 181, 256, 362, 512, 1024, 2048, 4096};
  uint32_t tokens_;
  uint32_t of_[kCodingBlock] = {};
  uint32_t sum_ = 0, inverse_ = 0;
};

struct Putting {
  RangeEncoder& out;
  bool bit(Bit& model, bool value) {
    out.put(model, value);
    return value;
  }
  int32_t level(LevelModel& model, int32_t value) {
    put_level(out, model, value);
    return value;
  }
};

struct Getting {
  RangeDecoder& in;
  bool bit(Bit& model, bool) { return in.get(model); }
  int32_t level(LevelModel& model, int32_t) { return get_level(in, model); }
};

struct Pricing {
  uint64_t sum = 0;
  bool bit(const Bit& model, bool value) {
    sum += price(model, value);
    return value;
  }
  int32_t level(const LevelModel& model, int32_t value) {
    sum += price_level(model, value);
    return value;
  }
};

// One walk for writing, reading and pricing, so that they cannot differ. A reader's levels are zero before.
template <class Way, class ModelList, class Block>
void walk(Way& way, ModelList& models, Block& block) {
  Activity activity(block);
  for (uint32_t j = 0; j < block.alive; ++j) {
    auto* levels = block.levels.data() + static_cast<size_t>(j) * kCodingBlock;
    auto& model = models[j];
    bool any = false;
    for (uint32_t t = 0; t < block.tokens; ++t) any |= levels[t] != 0;
    any = way.bit(model.any, any);
    if (!any) {
      for (uint32_t t = 0; t < block.tokens; ++t) activity.add(t, 0);
      continue;
    }
    activity.settle();
    for (uint32_t t = 0; t < block.tokens; ++t) {
      const uint32_t busy = activity.index(t);
      const int32_t given = levels[t];
      int32_t level = 0;
      if (way.bit(model.zero[busy], given != 0)) level = way.level(model.level[busy >= kActivities / 2], given);
      if constexpr (!std::is_const_v<std::remove_pointer_t<decltype(levels)>>) levels[t] = level;
      activity.add(t, level);
    }
  }
}

uint32_t count_bits(uint32_t dim) { return static_cast<uint32_t>(std::bit_width(dim)); }

}  // namespace

float class_step(float step, uint32_t token_class, uint32_t finer) {
  return step * kClassStep[token_class] * (1.0f / static_cast<float>(1u << finer));
}

Centroids Centroids::expected() {
  Centroids out;
  double r = 1.0 / 16.0 * kRoot2;  // the middle of the first octave
  for (uint32_t i = 0; i < kRatios; ++i) {
    const double rate = kRoot2 / r;
    const double mean =
        1.0 / rate -
        std::exp(-rate) / (1.0 - std::exp(-rate));  // of what is above the edge; only ever written, so any rounding does
    for (uint32_t l = 0; l < kLevels; ++l) out.offset[i][l] = static_cast<uint8_t>(std::clamp(128.0 * mean, 0.0, 127.0));
    r *= 2.0;
  }
  return out;
}

uint32_t Centroids::ratio_index(int32_t ratio) {
  return static_cast<uint32_t>(std::clamp((ratio + 4 * 256) >> 8, 0, static_cast<int32_t>(kRatios) - 1));
}

float Centroids::value(int32_t level, uint32_t ratio) const {
  if (level == 0) return 0.0f;
  const int32_t magnitude = level < 0 ? -level : level;
  const float at = static_cast<float>(magnitude) - (1.0f - kDeadZone) +
                   static_cast<float>(offset[ratio][std::min(magnitude, 3) - 1]) * (1.0f / 128.0f);
  return level < 0 ? -at : at;
}

Models::Models(const calib::DeepTables& tables, int32_t log_step) {
  const std::vector<ComponentModel>& expected = expected_models();
  for (const calib::DeepLayer& layer : tables.coded) {
    Layer& out = layers.emplace_back();
    out.predicted = Bit::expecting(8192, 4);
    for (int b = 0; b < 2; ++b) {
      for (const int16_t spread : layer.basis[b].spread) {
        const int32_t quarters = (spread - log_step + 32) >> 6;
        out.components[b].push_back(expected[static_cast<size_t>(std::clamp(quarters, kLeastRatio, kMostRatio) - kLeastRatio)]);
      }
    }
  }
  for (Bit& b : finer) b = Bit::expecting(64000, 20);
}

void put_levels(RangeEncoder& out, std::vector<ComponentModel>& models, const LevelBlock& block) {
  out.put_plain(block.alive, count_bits(block.dim));
  Putting way{out};
  walk(way, models, block);
}

void get_levels(RangeDecoder& in, std::vector<ComponentModel>& models, LevelBlock& block) {
  block.alive = std::min(in.get_plain(count_bits(block.dim)), block.dim);
  std::fill(block.levels.begin(), block.levels.end(), 0);
  Getting way{in};
  walk(way, models, block);
}

uint64_t price_levels(const std::vector<ComponentModel>& models, const LevelBlock& block) {
  Pricing way;
  walk(way, models, block);
  return way.sum + 256 * count_bits(block.dim);
}

void put_classes(RangeEncoder& out, Models& models, std::span<const uint8_t> classes, std::span<const uint8_t> before) {
  for (size_t t = 0; t < classes.size(); ++t) {
    Bit* tree = models.token_class[before.empty() ? kClasses : before[t]];
    uint32_t node = 1;
    for (int bit = 2; bit >= 0; --bit) {
      const bool value = (classes[t] >> bit) & 1u;
      out.put(tree[node], value);
      node = node << 1 | static_cast<uint32_t>(value);
    }
  }
}

void get_classes(RangeDecoder& in, Models& models, std::span<uint8_t> classes, std::span<const uint8_t> before) {
  for (size_t t = 0; t < classes.size(); ++t) {
    Bit* tree = models.token_class[before.empty() ? kClasses : before[t]];
    uint32_t node = 1;
    for (int bit = 0; bit < 3; ++bit) node = node << 1 | static_cast<uint32_t>(in.get(tree[node]));
    classes[t] = static_cast<uint8_t>(node & 7u);
  }
}

}  // namespace tierkv::deep
