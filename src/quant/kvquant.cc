#include "quant/kvquant.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "base/f16.h"
#include "base/status_macros.h"
#include "calib/calibration.h"
#include "quant/checks.h"
#include "quant/lanes.h"
#include "quant/meta.h"
#include "quant/scratch.h"
#include "quant/vec.h"

namespace tierkv::quant {

namespace {

using calib::KvquantTensor;

constexpr float kTooLarge = 65520.0f;          // rounds to infinity as fp16
constexpr uint32_t kNoPosition = 0xFFFFFFFFu;  // of a row nobody will read: evicted, or padding
constexpr uint32_t kPositionMask =
    (1u << 21) - 1u;  // what a Turner knows; turning by less comes to the same as long as it is undone

float dot(const float* a, const float* b, uint32_t n) {
  Float4 sum[4] = {};
  for (uint32_t c = 0; c < n; c += 16) {
    for (uint32_t v = 0; v < 4; ++v) sum[v] += load4<Float4>(a + c + 4 * v) * load4<Float4>(b + c + 4 * v);
  }
  return sum4((sum[0] + sum[2]) + (sum[1] + sum[3]));
}

class KvquantCodec final : public Codec {
 public:
  KvquantCodec(const CodecSpec& spec, Side side, const BlockShape& shape, const calib::HeadTables& tables,
               std::shared_ptr<const calib::KvquantTables> known)
      : Codec(spec, side, shape, Frame::plain),
        calibration_(tables.calibration),
        known_(std::move(known)),
        turner_(calibration_->turner(tables.layer)),
        book_(known_->codebook(tables.layer, side == Side::key ? KvquantTensor::keys : KvquantTensor::values, spec.bits)),
        lanes_(shape.tokens, shape.head_dim, spec.bits),
        outliers_(calib::kvquant_outliers(shape.tokens, shape.head_dim)) {
    const uint32_t levels = 1u << spec.bits;
    if (side == Side::key) {
      const calib::KvquantHead& head = known_->head(tables.layer, tables.head);
      key_weight_ = head.weight.data();
      for (uint32_t c = 0; c < shape.head_dim; ++c) {
        const double middle = 0.5 * (static_cast<double>(head.low[c]) + head.high[c]),
                     half = 0.5 * (static_cast<double>(head.high[c]) - head.low[c]);
        for (uint32_t i = 0; i < levels; ++i) key_levels_.push_back(static_cast<float>(middle + half * book_.levels[i]));
        for (uint32_t i = 0; i + 1 < levels; ++i) key_edges_.push_back(static_cast<float>(middle + half * book_.edges[i]));
      }
    } else {
      meta_.kind = (spec.flags & CodecSpec::scale8) != 0   ? MetaKind::log8_pair
                   : (spec.flags & CodecSpec::scale4) != 0 ? MetaKind::log4_pair
                                                           : MetaKind::f16_pair;
      meta_.entries = shape.tokens;
      meta_.levels = 3;  // a range: its lower end and how far its middle and its upper end are
    }
    bytes_ = sparse_at() + static_cast<size_t>(outliers_) * 2 * sizeof(uint16_t);
  }

  Status encode(const float* rows, const BlockContext& ctx, std::span<std::byte> out) const override {
    TIERKV_RETURN_IF_ERROR(check_size(out.size(), bytes()));
    TIERKV_RETURN_IF_ERROR(check_finite(rows, shape()));
    const size_t values = static_cast<size_t>(shape().tokens) * shape().head_dim;
    BlockScratch& scratch = block_scratch();
    float* x = at_least(scratch.transposed, values);
    std::memcpy(x, rows, values * sizeof(float));
    if (side() == Side::key) turn(x, ctx, 0, shape().tokens, -1);
    for (size_t i = 0; i < values; ++i) {
      if (std::fabs(x[i]) < kTooLarge) continue;
      return error(StatusCode::invalid_argument, "row ", i / shape().head_dim, ", channel ", i % shape().head_dim, " is ", x[i],
                   " before RoPE; it must be below ", kTooLarge, " in magnitude");
    }
    uint16_t* codes = at_least(scratch.codes, values);
    std::vector<uint32_t> sparse;
    std::byte* meta = at_least(scratch.meta, meta_size());
    if (side() == Side::key) {
      encode_keys(x, ctx, codes, sparse);
    } else {
      TIERKV_RETURN_IF_ERROR(encode_values(x, codes, sparse, meta));
    }
    lanes_.pack(codes, shape().head_dim, 1, out.data());
    if (meta_size() != 0) std::memcpy(out.data() + lanes_.bytes(), meta, meta_size());
    store_outliers(x, sparse, out.data() + sparse_at());
    return Status();
  }

  void decode(std::span<const std::byte> in, const BlockContext& ctx, uint32_t first, uint32_t count, float* out) const override {
    const uint32_t d = shape().head_dim;
    const Ranges ranges = load_ranges(in);
    for (uint32_t t = first; t < first + count;) {
      const uint32_t rows = std::min(kTileLanes - t % kTileLanes, first + count - t);
      decode_rows(in, ctx, ranges, t, rows, out + static_cast<size_t>(t - first) * d);
      t += rows;
    }
  }

  void scores(std::span<const std::byte> in, const BlockContext& ctx, const float* queries, uint32_t count, uint32_t rows,
              float* out, size_t stride, Workspace& ws) const override {
    const uint32_t d = shape().head_dim;
    for_each_tile(in, ctx, rows, ws, [&](uint32_t t, const float* row) {
      for (uint32_t i = 0; i < count; ++i) out[i * stride + t] = dot(queries + static_cast<size_t>(i) * d, row, d);
    });
  }

  void accumulate(std::span<const std::byte> in, const BlockContext& ctx, const float* weights, size_t stride, uint32_t count,
                  uint32_t rows, float* acc, Workspace& ws) const override {
    const uint32_t d = shape().head_dim;
    for_each_tile(in, ctx, rows, ws, [&](uint32_t t, const float* row) {
      for (uint32_t i = 0; i < count; ++i) {
        const float w = weights[i * stride + t];
        float* a = acc + static_cast<size_t>(i) * d;
        for (uint32_t c = 0; c < d; ++c) a[c] += w * row[c];
      }
    });
  }

  size_t table_bytes() const override { return (key_levels_.size() + key_edges_.size()) * sizeof(float); }

  Status validate(std::span<const std::byte> in) const override {
    TIERKV_RETURN_IF_ERROR(check_size(in.size(), bytes()));
    if (meta_.entries != 0) TIERKV_RETURN_IF_ERROR(validate_meta(meta_, in.data() + lanes_.bytes()));
    const uint32_t values = shape().tokens * shape().head_dim;
    for (uint32_t i = 0, next = 0; i < outliers_; ++i) {
      const uint32_t index = load_u16(in, sparse_at() + i * sizeof(uint16_t));
      if (index < next || index >= values) {
        return error(StatusCode::data_loss, "outlier ", i, " is value ", index, " of the block; allowed: ascending, below ",
                     values);
      }
      next = index + 1;
      const float x = outlier(in, i);
      if (!std::isfinite(x)) return error(StatusCode::data_loss, "outlier ", i, " is ", x);
    }
    return Status();
  }

 private:
  struct Ranges {
    const float* half = nullptr;
    const float* low = nullptr;
  };

  size_t meta_size() const { return meta_.entries != 0 ? meta_bytes(meta_) : 0; }
  size_t sparse_at() const { return lanes_.bytes() + meta_size(); }

  static uint16_t load_u16(std::span<const std::byte> in, size_t at) {
    uint16_t v;
    std::memcpy(&v, in.data() + at, sizeof v);
    return v;
  }
  float outlier(std::span<const std::byte> in, uint32_t i) const {
    return f16_to_f32(load_u16(in, sparse_at() + (static_cast<size_t>(outliers_) + i) * sizeof(uint16_t)));
  }

  static uint32_t position(const BlockContext& ctx, uint32_t row) {
    return ctx.positions ? ctx.positions[row] : ctx.first_position + row;
  }

  // Rows first.. of the block, forward or back.
  void turn(float* rows, const BlockContext& ctx, uint32_t first, uint32_t count, int64_t direction) const {
    if (turner_.rope().empty()) return;
    for (uint32_t i = 0; i < count; ++i) {
      float* row = rows + static_cast<size_t>(i) * shape().head_dim;
      turner_.turn(row, 1, direction * static_cast<int64_t>(position(ctx, first + i) & kPositionMask), row);
    }
  }

  void encode_keys(const float* x, const BlockContext& ctx, uint16_t* codes, std::vector<uint32_t>& sparse) const {
    const uint32_t d = shape().head_dim, tokens = shape().tokens, levels = 1u << spec().bits;
    std::vector<float> loss(static_cast<size_t>(tokens) * d);
    for (uint32_t t = 0; t < tokens; ++t) {
      const bool read = position(ctx, t) != kNoPosition;
      for (uint32_t c = 0; c < d; ++c) {
        const size_t i = static_cast<size_t>(t) * d + c;
        const float* edges = key_edges_.data() + static_cast<size_t>(c) * (levels - 1);
        uint32_t code = 0;
        for (uint32_t k = 0; k + 1 < levels; ++k) code += x[i] >= edges[k] ? 1u : 0u;
        codes[i] = static_cast<uint16_t>(code);
        const float e = x[i] - key_levels_[static_cast<size_t>(c) * levels + code];
        loss[i] = read ? e * e * key_weight_[c] : -1.0f;
      }
    }
    sparse.resize(loss.size());
    std::iota(sparse.begin(), sparse.end(), 0u);
    std::nth_element(sparse.begin(), sparse.begin() + outliers_ - 1, sparse.end(),
                     [&](uint32_t a, uint32_t b) { return loss[a] > loss[b] || (loss[a] == loss[b] && a < b); });
    sparse.resize(outliers_);
    std::sort(sparse.begin(), sparse.end());
  }

  Status encode_values(const float* x, uint16_t* codes, std::vector<uint32_t>& sparse, std::byte* meta) const {
    const uint32_t d = shape().head_dim, tokens = shape().tokens;
    std::vector<uint8_t> taken(static_cast<size_t>(tokens) * d, 0);
    calib::pick_value_outliers(x, tokens, d, outliers_, taken.data());
    BlockScratch& scratch = block_scratch();
    GroupFit* fits = at_least(scratch.fits, tokens);
    for (uint32_t t = 0; t < tokens; ++t) {
      float low = std::numeric_limits<float>::infinity(), high = -low;
      for (size_t i = static_cast<size_t>(t) * d; i < static_cast<size_t>(t + 1) * d; ++i) {
        if (taken[i]) {
          sparse.push_back(static_cast<uint32_t>(i));
          continue;
        }
        low = std::min(low, x[i]);
        high = std::max(high, x[i]);
      }
      fits[t] = {};
      fits[t].lo = low;
      fits[t].hi = high;
    }
    TIERKV_RETURN_IF_ERROR(encode_meta(meta_, {fits, tokens}, meta));
    float* grids = at_least(scratch.grids, 2 * static_cast<size_t>(tokens));
    decode_meta(meta_, meta, grids, grids + tokens);
    for (uint32_t t = 0; t < tokens; ++t) {
      const float half = grids[t], middle = grids[tokens + t] + half, inverse = half > 1e-30f ? 1.0f / half : 0.0f;
      for (size_t i = static_cast<size_t>(t) * d; i < static_cast<size_t>(t + 1) * d; ++i) {
        codes[i] = static_cast<uint16_t>(book_.code((x[i] - middle) * inverse));
      }
    }
    return Status();
  }

  void store_outliers(const float* x, const std::vector<uint32_t>& sparse, std::byte* out) const {
    for (uint32_t i = 0; i < outliers_; ++i) {
      const uint16_t index = static_cast<uint16_t>(sparse[i]), value = f32_to_f16(x[sparse[i]]);
      std::memcpy(out + i * sizeof index, &index, sizeof index);
      std::memcpy(out + (static_cast<size_t>(outliers_) + i) * sizeof value, &value, sizeof value);
    }
  }

  Ranges load_ranges(std::span<const std::byte> in) const {
    if (meta_.entries == 0) return {};
    float* grids = at_least(block_scratch().grids, 2 * static_cast<size_t>(meta_.entries));
    decode_meta(meta_, in.data() + lanes_.bytes(), grids, grids + meta_.entries);
    return {grids, grids + meta_.entries};
  }

  // Rows t.. of one tile, outliers in place and keys turned forward.
  void decode_rows(std::span<const std::byte> in, const BlockContext& ctx, const Ranges& ranges, uint32_t first, uint32_t count,
                   float* out) const {
    const uint32_t d = shape().head_dim, levels = 1u << spec().bits, skip = first % kTileLanes;
    float* tile = at_least(block_scratch().tile, lanes_.tile_floats());
    lanes_.unpack_tile(in.data(), first / kTileLanes, 0, tile);
    for (uint32_t r = 0; r < count; ++r) {
      float* row = out + static_cast<size_t>(r) * d;
      const float* codes = tile + skip + r;
      if (side() == Side::key) {
        const float* at = key_levels_.data();
        for (uint32_t c = 0; c < d; ++c, at += levels)
          row[c] = at[static_cast<int32_t>(codes[static_cast<size_t>(c) * kTileLanes])];
      } else {
        const float half = ranges.half[first + r], middle = ranges.low[first + r] + half;
        float table[16];
        for (uint32_t i = 0; i < levels; ++i) table[i] = middle + half * book_.levels[i];
        for (uint32_t c = 0; c < d; ++c) row[c] = table[static_cast<int32_t>(codes[static_cast<size_t>(c) * kTileLanes])];
      }
    }
    for (uint32_t i = first_outlier(in, first * d); i < outliers_; ++i) {
      const uint32_t index = load_u16(in, sparse_at() + i * sizeof(uint16_t));
      if (index >= (first + count) * d) break;
      out[index - first * d] = outlier(in, i);
    }
    if (side() == Side::key) turn(out, ctx, first, count, 1);
  }

  // The first outlier at or after a value of the block.
  uint32_t first_outlier(std::span<const std::byte> in, uint32_t index) const {
    uint32_t low = 0, high = outliers_;
    while (low < high) {
      const uint32_t middle = (low + high) / 2;
      if (load_u16(in, sparse_at() + middle * sizeof(uint16_t)) < index) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  template <class Fn>
  void for_each_tile(std::span<const std::byte> in, const BlockContext& ctx, uint32_t rows, Workspace& ws, Fn&& fn) const {
    const uint32_t d = shape().head_dim;
    const Ranges ranges = load_ranges(in);
    float* decoded = at_least(ws.a, static_cast<size_t>(kTileLanes) * d);
    for (uint32_t first = 0; first < rows; first += kTileLanes) {
      const uint32_t count = std::min(kTileLanes, rows - first);
      decode_rows(in, ctx, ranges, first, count, decoded);
      for (uint32_t r = 0; r < count; ++r) fn(first + r, decoded + static_cast<size_t>(r) * d);
    }
  }

  std::shared_ptr<const calib::Calibration> calibration_;
  std::shared_ptr<const calib::KvquantTables> known_;
  const calib::Turner& turner_;
  const calib::KvquantCodebook& book_;
  Lanes lanes_;
  uint32_t outliers_;
  MetaFormat meta_;  // values; no entries for keys
  const float* key_weight_ = nullptr;
  std::vector<float> key_levels_;  // [channel][level], before RoPE
  std::vector<float> key_edges_;   // [channel][between two levels]
};

}  // namespace

Result<std::unique_ptr<Codec>> make_kvquant(const CodecSpec& spec, Side side, const BlockShape& shape,
                                            const calib::HeadTables& tables) {
  TIERKV_RETURN_IF_ERROR(check_packed_shape(shape));
  if (!tables.calibration) {
    return error(StatusCode::failed_precondition, "kvquant needs a calibration with KVQuant tables; `tierkv calibrate` makes one");
  }
  TIERKV_ASSIGN_OR_RETURN(auto known, tables.calibration->kvquant_tables());
  if (known->head_dim != shape.head_dim || tables.layer >= known->layers || tables.head >= known->kv_heads) {
    return error(StatusCode::invalid_argument, "the calibration has ", known->layers, " layers of ", known->kv_heads,
                 " KV heads of ", known->head_dim, "; layer ", tables.layer, ", head ", tables.head, " of ", shape.head_dim,
                 " is not among them");
  }
  if (spec.bits < calib::kKvquantMinBits || spec.bits > calib::kKvquantMaxBits) {
    return error(StatusCode::invalid_argument, "kvquant at ", static_cast<int>(spec.bits), " bits does not exist; allowed: 2..4");
  }
  return std::unique_ptr<Codec>(std::make_unique<KvquantCodec>(spec, side, shape, tables, std::move(known)));
}

}  // namespace tierkv::quant
