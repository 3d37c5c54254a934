#include "deep/chunk.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/checksum.h"
#include "base/f16.h"
#include "base/per_thread.h"

namespace tierkv::deep {
namespace {

constexpr float kWorse =
    1.25f;  // than the mean or zeros alone, in squared error of any head's keys or values of a block: the guard steps in
constexpr double kClearlyLess = 0.6;  // energy left after prediction, of all there was: then coding without it is not even tried
constexpr float kMostLevel = static_cast<float>(1 << 29);

// What the decoder has of the two layers before, and the buffers of a block.
class Loop {
 public:
  explicit Loop(uint32_t dim) : centred(kCodingBlock * static_cast<size_t>(dim)) {
    for (auto& s : sources_) s.resize(kCodingBlock * static_cast<size_t>(dim));
  }
  std::vector<float> centred;  // the rows rebuilt

  void predict(const Transform& t, uint32_t tokens, float* out) const {
    const int16_t* near_to_far[2] = {sources_[0].data(), sources_[1].data()};
    t.predict(near_to_far, tokens, out);
  }
  // The layer is done: later ones see it, and the check does.
  void advance(const Transform& t, uint32_t tokens) {
    std::swap(sources_[0], sources_[1]);
    t.as_source(centred.data(), tokens, sources_[0].data());
    check_ =
        check_ * 0x9E3779B97F4A7C15ull + checksum(std::as_bytes(std::span(centred).first(static_cast<size_t>(tokens) * t.dim())));
  }
  uint32_t check() const { return static_cast<uint32_t>(check_ >> 32); }

 private:
  std::vector<int16_t> sources_[2];
  uint64_t check_ = 0;
};

void put_finer(RangeEncoder& out, Models& models, uint32_t finer) {
  for (uint32_t i = 0; i < kRaw; ++i) {
    out.put(models.finer[i], finer > i);
    if (finer == i) return;
  }
}

uint32_t get_finer(RangeDecoder& in, Models& models) {
  uint32_t finer = 0;
  while (finer < kRaw && in.get(models.finer[finer])) ++finer;
  return finer;
}

float clamp_half(float x) { return std::min(kMaxF16, std::max(-kMaxF16, x)); }

// --- encoding

class ChunkEncoder {
 public:
  ChunkEncoder(const Shared& shared, const Models& models, const ReadRows& read)
      : shared_(shared), models_(models), read_(read), dim_(shared.model->tables->dim()), loop_(dim_) {
    for (auto* buffer : {&rows_, &given_, &prediction_, &rest_, &components_, &error_})
      buffer->resize(kCodingBlock * static_cast<size_t>(dim_));
    for (LevelBlock& b : blocks_) {
      b.dim = dim_;
      b.levels.resize(kCodingBlock * static_cast<size_t>(dim_));
    }
  }

  void block(uint32_t first, uint32_t count, const uint8_t* classes, size_t stride) {
    for (size_t i = 0; i < shared_.transforms.size(); ++i) {
      const std::span<const uint8_t> now(classes + i * stride + first, count);
      const std::span<const uint8_t> before =
          i ? std::span<const uint8_t>(classes + (i - 1) * stride + first, count) : std::span<const uint8_t>();
      layer(i, first, count, now, before);
    }
  }

  ChunkResult finish() {
    result_.bytes = out_.finish();
    result_.check = loop_.check();
    return std::move(result_);
  }

 private:
  void layer(size_t i, uint32_t first, uint32_t count, std::span<const uint8_t> classes, std::span<const uint8_t> before) {
    const Transform& t = shared_.transforms[i];
    const size_t n = static_cast<size_t>(count) * dim_;
    gather(shared_, t, first, count, read_, rows_.data());
    for (size_t k = 0; k < n; ++k) {
      result_.finite &= std::isfinite(rows_[k]);
      if (!result_.finite) rows_[k] = 0.0f;
      given_[k] = rows_[k] - t.layer().mean[k % dim_];
    }
    const double energy = t.metric_energy(given_.data(), count);
    plain_may_win_ = true;
    if (t.layer().sources) {
      loop_.predict(t, count, prediction_.data());
      for (size_t k = 0; k < n; ++k) rest_[k] = given_[k] - prediction_[k];
      plain_may_win_ = t.metric_energy(rest_.data(), count) > kClearlyLess * energy;
    }
    put_classes(out_, models_, classes, before);

    uint32_t finer = 0;
    int basis = 0;
    for (; finer < kRaw; ++finer) {
      basis = choose(t, models_.layers[i], count, classes, finer);
      if (basis < 0) {
        finer = kRaw;  // levels past counting
        break;
      }
      rebuild(t, basis, count, finer);
      if (good(n)) break;
    }
    put_finer(out_, models_, finer);
    if (finer == kRaw) {
      raw(t, n);
    } else {
      if (t.layer().sources) out_.put(models_.layers[i].predicted, basis == calib::kDeepPlain);
      put_levels(out_, models_.layers[i].components[basis], blocks_[basis]);
      land(t, basis, finer);
    }
    ++(finer == kRaw ? result_.raw : basis == calib::kDeepPredicted ? result_.predicted : result_.plain);
    result_.finer += finer > 0 && finer < kRaw;
    for (size_t k = 0; k < n; ++k) error_[k] = given_[k] - loop_.centred[k];
    result_.lost += t.metric_energy(error_.data(), count);
    result_.energy += energy;
    loop_.advance(t, count);
  }

  // Levels of both bases, and which is the shorter; -1: neither can be counted.
  int choose(const Transform& t, const Models::Layer& models, uint32_t count, std::span<const uint8_t> classes, uint32_t finer) {
    uint64_t cost[2] = {~uint64_t{0}, ~uint64_t{0}};
    for (int b = 0; b < 2; ++b) {
      if (b == calib::kDeepPredicted ? !t.layer().sources : !plain_may_win_) continue;
      t.analyse(b, b == calib::kDeepPredicted ? rest_.data() : given_.data(), count,
                b == calib::kDeepPredicted ? components_.data() : error_.data());
      LevelBlock& block = blocks_[b];
      block.tokens = count;
      std::copy(classes.begin(), classes.end(), block.classes);
      if (quantize(b == calib::kDeepPredicted ? components_.data() : error_.data(), finer, block))
        cost[b] = price_levels(models.components[b], block);
    }
    if (cost[0] == ~uint64_t{0} && cost[1] == ~uint64_t{0}) return -1;
    const int best = cost[1] <= cost[0];
    if (best == calib::kDeepPlain) components_.swap(error_);
    return best;
  }

  bool quantize(const float* components, uint32_t finer, LevelBlock& block) const {
    block.alive = 0;
    float inverse[kCodingBlock];
    for (uint32_t t = 0; t < block.tokens; ++t) inverse[t] = 1.0f / class_step(shared_.step, block.classes[t], finer);
    for (uint32_t j = 0; j < dim_; ++j) {
      int32_t* levels = block.levels.data() + static_cast<size_t>(j) * kCodingBlock;
      bool any = false;
      for (uint32_t t = 0; t < block.tokens; ++t) {
        const float u = components[static_cast<size_t>(t) * dim_ + j] * inverse[t];
        const float magnitude = std::fabs(u) + (1.0f - kDeadZone);
        if (!(magnitude < kMostLevel)) return false;
        const int32_t level = static_cast<int32_t>(magnitude);
        levels[t] = u < 0.0f ? -level : level;
        any |= level != 0;
      }
      if (any) block.alive = j + 1;
    }
    return true;
  }

  void rebuild(const Transform& t, int basis, uint32_t count, uint32_t finer) {
    const size_t n = static_cast<size_t>(count) * dim_;
    if (basis == calib::kDeepPredicted) {
      std::copy_n(prediction_.begin(), n, loop_.centred.begin());
    } else {
      std::fill_n(loop_.centred.begin(), n, 0.0f);
    }
    t.add_levels(basis, blocks_[basis], shared_.step, shared_.log_step, finer, shared_.centroids, loop_.centred.data());
  }

  // No head's keys or values are further off than their mean, or nothing at all, would be.
  bool good(size_t n) const {
    const uint32_t d = shared_.model->tables->head_dim;
    for (uint32_t part = 0; part < dim_ / d; ++part) {
      double error = 0.0, from_mean = 0.0, whole = 0.0;
      for (size_t row = 0; row < n; row += dim_) {
        float e = 0.0f, g = 0.0f, r = 0.0f;
        for (size_t k = row + part * d; k < row + (part + 1) * d; ++k) {
          const float off = given_[k] - loop_.centred[k];
          e += off * off;
          g += given_[k] * given_[k];
          r += rows_[k] * rows_[k];
        }
        error += static_cast<double>(e);
        from_mean += static_cast<double>(g);
        whole += static_cast<double>(r);
      }
      if (!(error <= static_cast<double>(kWorse) * std::min(from_mean, whole) + 1e-20)) return false;
    }
    return true;
  }

  void raw(const Transform& t, size_t n) {
    for (size_t k = 0; k < n; ++k) {
      const uint16_t half = f32_to_f16(clamp_half(rows_[k]));
      out_.put_plain(half, 16);
      loop_.centred[k] = f16_to_f32(half) - t.layer().mean[k % dim_];
    }
  }

  void land(const Transform& t, int basis, uint32_t finer) {
    const LevelBlock& block = blocks_[basis];
    const int16_t* spread = t.layer().basis[basis].spread.data();
    for (uint32_t k = 0; k < block.tokens; ++k) {
      const float inverse = 1.0f / class_step(shared_.step, block.classes[k], finer);
      const int32_t offset = 128 * kClassWeight[block.classes[k]] + 256 * static_cast<int32_t>(finer) - shared_.log_step;
      for (uint32_t j = 0; j < block.alive; ++j) {
        const int32_t level = std::abs(block.levels[static_cast<size_t>(j) * kCodingBlock + k]);
        if (level == 0) continue;
        const uint32_t ratio = Centroids::ratio_index(spread[j] + offset), which = static_cast<uint32_t>(std::min(level, 3)) - 1;
        result_.landing.sum[ratio][which] +=
            std::fabs(components_[static_cast<size_t>(k) * dim_ + j] * inverse) + (1.0f - kDeadZone) - static_cast<float>(level);
        ++result_.landing.count[ratio][which];
      }
    }
  }

  const Shared& shared_;
  Models models_;
  const ReadRows& read_;
  uint32_t dim_;
  Loop loop_;
  std::vector<float> rows_, given_, prediction_, rest_, components_, error_;
  bool plain_may_win_ = true;
  LevelBlock blocks_[2];
  RangeEncoder out_;
  ChunkResult result_;
};

// Scratch of scatter() and gather(), one a thread.
struct Scattered {
  std::vector<float> keys, values;
};
struct Gathered {
  std::vector<float> keys, values;
};

// Rows as the cache wants them.
void scatter(const Shared& shared, const Transform& t, uint32_t first, uint32_t count, const float* centred,
             const WriteRows& write) {
  auto& [keys, values] = per_thread<Scattered>();
  const calib::DeepTables& tables = *shared.model->tables;
  const size_t width = static_cast<size_t>(tables.kv_heads) * tables.head_dim;
  keys.resize(count * width);
  values.resize(count * width);
  const calib::Turner& turner = shared.model->turner(t.layer().layer);
  for (uint32_t k = 0; k < count; ++k) {
    const float* from = centred + k * 2 * width;
    for (size_t c = 0; c < width; ++c) {
      keys[k * width + c] = from[c] + t.layer().mean[c];
      values[k * width + c] = clamp_half(from[width + c] + t.layer().mean[width + c]);
    }
    float* row = keys.data() + k * width;
    turner.turn(row, tables.kv_heads, static_cast<int64_t>(shared.first_position) + first + k, row);
    for (size_t c = 0; c < width; ++c) row[c] = clamp_half(row[c]);
  }
  write(t.layer().layer, first, count, keys.data(), values.data());
}

}  // namespace

void Landing::add(const Landing& other) {
  for (uint32_t r = 0; r < Centroids::kRatios; ++r) {
    for (uint32_t l = 0; l < Centroids::kLevels; ++l) {
      sum[r][l] += other.sum[r][l];
      count[r][l] += other.count[r][l];
    }
  }
}

Centroids Landing::centroids(const Centroids& otherwise) const {
  Centroids out = otherwise;
  for (uint32_t r = 0; r < Centroids::kRatios; ++r) {
    for (uint32_t l = 0; l < Centroids::kLevels; ++l) {
      if (count[r][l] < 64) continue;
      const double mean = sum[r][l] / static_cast<double>(count[r][l]);
      out.offset[r][l] = static_cast<uint8_t>(std::clamp(std::round(128.0 * mean), 0.0, 127.0));
    }
  }
  return out;
}

void gather(const Shared& shared, const Transform& transform, uint32_t first, uint32_t count, const ReadRows& read, float* rows) {
  auto& [keys, values] = per_thread<Gathered>();
  const calib::DeepTables& tables = *shared.model->tables;
  const size_t width = static_cast<size_t>(tables.kv_heads) * tables.head_dim;
  keys.resize(count * width);
  values.resize(count * width);
  const uint32_t layer = transform.layer().layer;
  read(layer, first, count, keys.data(), values.data());
  const calib::Turner& turner = shared.model->turner(layer);
  for (uint32_t k = 0; k < count; ++k) {
    turner.turn(keys.data() + k * width, tables.kv_heads, -(static_cast<int64_t>(shared.first_position) + first + k),
                rows + k * 2 * width);
    std::copy_n(values.data() + k * width, width, rows + k * 2 * width + width);
  }
}

ChunkResult encode_chunk(const Shared& shared, const Models& models, uint32_t first, uint32_t count, const ReadRows& read,
                         const uint8_t* classes, size_t stride) {
  ChunkEncoder encoder(shared, models, read);
  for (uint32_t at = 0; at < count; at += kCodingBlock)
    encoder.block(first + at, std::min(kCodingBlock, count - at), classes, stride);
  return encoder.finish();
}

bool decode_chunk(const Shared& shared, const Models& fresh, uint32_t first, uint32_t count, std::span<const std::byte> bytes,
                  uint32_t check, const WriteRows& write) {
  const uint32_t dim = shared.model->tables->dim();
  Models models = fresh;
  Loop loop(dim);
  LevelBlock block;
  block.dim = dim;
  block.levels.resize(kCodingBlock * static_cast<size_t>(dim));
  std::vector<uint8_t> before;
  RangeDecoder in(bytes);
  for (uint32_t at = 0; at < count; at += kCodingBlock) {
    const uint32_t tokens = std::min(kCodingBlock, count - at);
    const size_t n = static_cast<size_t>(tokens) * dim;
    before.clear();
    block.tokens = tokens;
    for (size_t i = 0; i < shared.transforms.size(); ++i) {
      const Transform& t = shared.transforms[i];
      get_classes(in, models, std::span(block.classes, tokens), before);
      before.assign(block.classes, block.classes + tokens);
      const uint32_t finer = get_finer(in, models);
      if (finer == kRaw) {
        for (size_t k = 0; k < n; ++k) {
          const uint16_t half = static_cast<uint16_t>(in.get_plain(16));
          loop.centred[k] = ((half & 0x7C00u) == 0x7C00u ? 0.0f : f16_to_f32(half)) - t.layer().mean[k % dim];
        }
      } else {
        const bool plain = !t.layer().sources || in.get(models.layers[i].predicted);
        const int basis = plain ? calib::kDeepPlain : calib::kDeepPredicted;
        get_levels(in, models.layers[i].components[basis], block);
        if (plain) {
          std::fill_n(loop.centred.begin(), n, 0.0f);
        } else {
          loop.predict(t, tokens, loop.centred.data());
        }
        t.add_levels(basis, block, shared.step, shared.log_step, finer, shared.centroids, loop.centred.data());
      }
      if (in.overrun()) return false;
      loop.advance(t, tokens);
      if (write) scatter(shared, t, first + at, tokens, loop.centred.data(), write);
    }
  }
  return loop.check() == check;
}

}  // namespace tierkv::deep
