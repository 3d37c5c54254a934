#include "quant/klt.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <mutex>

#include "base/f16.h"
#include "base/status_macros.h"
#include "calib/calibration.h"
#include "quant/checks.h"
#include "quant/frame.h"
#include "quant/isa.h"
#include "quant/lanes.h"
#include "quant/layout.h"
#include "quant/rot.h"
#include "quant/row_sums.h"
#include "quant/scratch.h"
#include "quant/turned_queries.h"

namespace tierkv::quant {
namespace {

constexpr uint32_t kNoPosition = 0xFFFFFFFFu;  // of a row that is not in use

constexpr float kLeastSpread = 1e-4f;  // of the largest: what no key ever had is no reason to divide by nothing
constexpr double kLeftOver = 0.2;      // of the squared error may lie in components that better rows leave out

using calib::kKltBits;
using calib::kKltWidths;

class KltCodec final : public Codec {
 public:
  KltCodec(const CodecSpec& spec, const BlockShape& shape, const calib::HeadTables& tables, const calib::KltHead& head,
           const calib::KltWords& words)
      : Codec(spec, Side::key, shape, Frame::block),
        calibration_(tables.calibration),
        turner_(tables.calibration->turner(tables.layer)) {
    tolerance_ = 2e-3;
    for (int w = 0; w < kKltWidths; ++w) words_.words[w] = words.words[w];
    bytes_ = static_cast<size_t>(words.total()) * shape.tokens * sizeof(uint32_t);
    build(head);
  }

  Status encode(const float* rows, const BlockContext& ctx, std::span<std::byte> out) const override {
    return encode(rows, ctx, out, nullptr);
  }

  Status encode_with_errors(const float* rows, const BlockContext& ctx, std::span<std::byte> out, float* errors) const override {
    return encode(rows, ctx, out, errors);
  }

  void decode(std::span<const std::byte> in, const BlockContext& ctx, uint32_t first, uint32_t count, float* out) const override {
    const uint32_t d = shape().head_dim;
    const float* parts = widened_rows();
    for (uint32_t i = 0; i < count; ++i) {
      float* row = out + static_cast<size_t>(i) * d;
      std::copy(mean_.begin(), mean_.end(), row);
      for_each_code([&](uint32_t j, uint32_t bits, size_t word, uint32_t shift) {
        const float level = static_cast<float>(code_at(in, first + i, bits, word, shift)) - middle_[j];
        const float* part = parts + static_cast<size_t>(j) * d;
        for (uint32_t c = 0; c < d; ++c) row[c] += level * part[c];
      });
    }
    turner_.turn(out, count, ctx.first_position, out);
  }

  void scores(std::span<const std::byte> in, const BlockContext& ctx, const float* queries, uint32_t count, uint32_t rows,
              float* out, size_t stride, Workspace& ws) const override {
    if (!ws.prepared) prepare(ctx, queries, count, ws);
    ws.prepared = false;
    const float* factors = at_least_aligned(ws.b, static_cast<size_t>(count) * known_);
    const float* base = ws.c.data();
    if (const Kernels* kernels = active_kernels()) return fast_scores(*kernels, in, count, rows, factors, base, out, stride, ws);

    for (uint32_t t = 0; t < rows; ++t) {
      for (uint32_t i = 0; i < count; ++i) out[i * stride + t] = base[i];
      for_each_code([&](uint32_t j, uint32_t bits, size_t word, uint32_t shift) {
        const float level = static_cast<float>(code_at(in, t, bits, word, shift)) - middle_[j];
        for (uint32_t i = 0; i < count; ++i) out[i * stride + t] += level * factors[static_cast<size_t>(i) * known_ + j];
      });
    }
  }

  void accumulate(std::span<const std::byte> in, const BlockContext& ctx, const float* weights, size_t stride, uint32_t count,
                  uint32_t rows, float* acc, Workspace& ws) const override {
    const uint32_t d = shape().head_dim;
    float* decoded = at_least(ws.a, static_cast<size_t>(rows) * d);
    decode(in, ctx, 0, rows, decoded);
    add_weighted(decoded, rows, d, weights, stride, count, acc);
  }

  uint32_t directions(uint32_t position, float* rows, float& floor) const override {
    const uint32_t d = shape().head_dim, count = static_cast<uint32_t>(weights_.size());
    for (uint32_t j = 0; j < count; ++j) {
      for (uint32_t c = 0; c < d; ++c)
        rows[static_cast<size_t>(j) * d + c] = weights_[j] * f16_to_f32(analysis_[static_cast<size_t>(c) * known_ + j]);
    }
    turner_.turn(rows, count, position, rows);
    floor = floor_;
    return count;
  }

  bool guide_tables(GuideTables& out) const override {
    out = GuideTables();
    out.count = static_cast<uint32_t>(weights_.size());
    out.head_dim = shape().head_dim;
    out.pairs = static_cast<uint32_t>(turner_.rope().size());
    out.floor = floor_;
    out.rows = device_looks();
    out.turns = turner_.tables();
    out.turned = turner_.channels();
    return out.count != 0;
  }

  uint32_t error_channels() const override { return known_; }

  // Attention turns queries instead, so there is one way, the exact one.
  void from_error_frame(const BlockContext& ctx, float* rows, uint32_t count, bool, float* out) const override {
    const uint32_t d = shape().head_dim, n = known_;
    from_frame(Frame::hadamard, rows, count, n);
    std::fill_n(out, static_cast<size_t>(count) * d, 0.0f);
    for (uint32_t i = 0; i < count; ++i) {
      for (uint32_t j = 0; j < n; ++j) rows[static_cast<size_t>(i) * n + j] *= unit_[j];
    }
    add_weighted(widened_rows(), n, d, rows, n, count, out);
    turner_.turn(out, count, ctx.first_position, out);
  }

  ErrorQueries error_queries(const BlockContext& ctx, const float* queries, uint32_t count, Workspace& ws) const override {
    prepare(ctx, queries, count, ws);
    ws.prepared = true;
    return {at_least_aligned(ws.b, static_cast<size_t>(count) * known_), into_errors_.data()};
  }

  size_t table_bytes() const override {
    return sizeof *this +
           (mean_.size() + step_.size() + shift_.size() + middle_.size() + weights_.size() + unit_.size() + into_errors_.size() +
            pair_units_.size()) *
               sizeof(float) +
           (analysis_.size() + rows_.size()) * sizeof(uint16_t);
  }

  bool layout(SideLayout& out) const override {
    out = SideLayout();
    out.kind = LayoutKind::words;
    out.tokens = shape().tokens, out.head_dim = shape().head_dim;
    out.bytes = static_cast<uint32_t>(bytes());
    for (int w = 0; w < kKltWidths; ++w) out.words[w] = words_.words[w];
    out.components = components_;
    out.rows = device_rows();
    out.mean = mean_.data();
    out.pairs = static_cast<uint32_t>(turner_.rope().size());
    out.turns = turner_.tables();
    out.turned = turner_.channels();
    return true;
  }

  bool coding(SideCoding& out) const override {
    out = SideCoding();
    if (!layout(out.layout)) return false;
    out.padded = padded_;
    out.analysis = device_analysis();
    out.shift = shift_.data();
    return true;
  }

  // Every pattern of bits is a code; the tables are what was checked, when they were loaded.
  Status validate(std::span<const std::byte> in) const override { return check_size(in.size(), bytes()); }

 private:
  // errors: as encode_with_errors() has them, or null.
  Status encode(const float* rows, const BlockContext& ctx, std::span<std::byte> out, float* errors) const {
    TIERKV_RETURN_IF_ERROR(check_size(out.size(), bytes()));
    TIERKV_RETURN_IF_ERROR(check_finite(rows, shape()));
    const uint32_t d = shape().head_dim, tokens = shape().tokens;
    if (ctx.positions) TIERKV_RETURN_IF_ERROR(check_span(ctx));
    float* turned = at_least(block_scratch().rotated, static_cast<size_t>(tokens) * d);
    turner_.turn(rows, tokens, -static_cast<int64_t>(ctx.first_position), turned);
    float* levels = at_least(block_scratch().tile, static_cast<size_t>(tokens) * known_);
    project(turned, tokens, levels);
    std::fill(out.begin(), out.end(), std::byte{0});
    for (uint32_t t = 0; t < tokens; ++t) {
      float* level = levels + static_cast<size_t>(t) * known_;
      std::byte* lane = out.data() + static_cast<size_t>(t / kTileLanes) * tile_bytes() + t % kTileLanes * sizeof(uint32_t);
      for_each_code([&](uint32_t j, uint32_t bits, size_t word, uint32_t shift) {
        const float most = static_cast<float>((1u << bits) - 1u);
        const float below = std::floor(level[j]);  // not a number where rows near the end of float cancel: code 0
        const auto code = below > 0.0f ? static_cast<uint32_t>(std::min(below, most)) : 0u;
        level[j] -= static_cast<float>(code) + 0.5f;
        uint32_t packed;
        std::memcpy(&packed, lane + word * kTileLanes * sizeof packed, sizeof packed);
        packed |= code << shift;
        std::memcpy(lane + word * kTileLanes * sizeof packed, &packed, sizeof packed);
      });
    }
    if (errors) put_errors(levels, errors);
    return Status();
  }

  // The rows' components, in units of their steps from the bottom of the code range; those without bits in units of their spreads.
  void project(const float* turned, uint32_t count, float* levels) const {
    const uint32_t d = shape().head_dim, n = known_;
    const float* analysis = widened_analysis();
    if (const Kernels* kernels = active_kernels())
      return kernels->project_rows(turned, count, d, analysis, n, shift_.data(), levels);
    for (uint32_t i = 0; i < count; ++i) {
      float* sums = levels + static_cast<size_t>(i) * n;
      std::copy(shift_.begin(), shift_.end(), sums);
      for (uint32_t c = 0; c < d; ++c) {
        const float x = turned[static_cast<size_t>(i) * d + c];
        for (uint32_t j = 0; j < n; ++j) sums[j] += x * analysis[static_cast<size_t>(c) * n + j];
      }
    }
  }

  // From steps that codes are off. An error of one spread of a component is as large as the component.
  void put_errors(const float* off, float* errors) const {
    const uint32_t n = known_, tokens = shape().tokens;
    for (uint32_t t = 0; t < tokens; ++t) {
      for (uint32_t j = 0; j < n; ++j) errors[static_cast<size_t>(t) * n + j] = off[static_cast<size_t>(t) * n + j] / unit_[j];
    }
    to_frame(Frame::hadamard, errors, tokens, n);
  }

  size_t tile_bytes() const {
    return static_cast<size_t>(words_.words[0] + words_.words[1] + words_.words[2]) * kTileLanes * sizeof(uint32_t);
  }

  Status check_span(const BlockContext& ctx) const {
    for (uint32_t t = 0; t < shape().tokens; ++t) {
      const uint32_t at = ctx.positions[t];
      if (at == kNoPosition || at - ctx.first_position < 2 * shape().tokens) continue;
      return error(StatusCode::invalid_argument, "a key at position ", at, " is too far from the block's first, ",
                   ctx.first_position, ", for its frame");
    }
    return {};
  }

  // f(component, bits, word, shift) for every component, in the order they are packed: widest first.
  template <class F>
  void for_each_code(const F& f) const {
    uint32_t j = 0;
    size_t word = 0;
    for (int w = kKltWidths - 1; w >= 0; --w) {
      const uint32_t bits = kKltBits[w];
      for (uint32_t n = 0; n < words_.words[w]; ++n, ++word) {
        for (uint32_t k = 0; k < 32 / bits; ++k, ++j) f(j, bits, word, k % 4 * 8 + k / 4 * bits);
      }
    }
  }

  uint32_t code_at(std::span<const std::byte> in, uint32_t token, uint32_t bits, size_t word, uint32_t shift) const {
    uint32_t packed;
    std::memcpy(&packed, in.data() + token / kTileLanes * tile_bytes() + (word * kTileLanes + token % kTileLanes) * sizeof packed,
                sizeof packed);
    return packed >> shift & ((1u << bits) - 1u);
  }

  // Tables as floats are made for every block, a hundredth of what its 128 tokens take, because a cache has a basis for every head.
  static float* widened(const std::vector<uint16_t>& halves) {
    float* out = at_least(block_scratch().basis, halves.size());
    if (const Kernels* kernels = active_kernels()) {
      kernels->widen(halves.data(), /*bf16=*/false, static_cast<uint32_t>(halves.size()), out);
    } else {
      for (size_t i = 0; i < halves.size(); ++i) out[i] = f16_to_f32(halves[i]);
    }
    return out;
  }

  // A step of every component, row by row: floats [known][d].
  const float* widened_rows() const {
    const uint32_t d = shape().head_dim;
    float* out = at_least(block_scratch().tile, static_cast<size_t>(known_) * d);
    const float* wide = widened(rows_);
    for (uint32_t c = 0; c < d; ++c) {
      for (uint32_t j = 0; j < known_; ++j) out[static_cast<size_t>(j) * d + c] = wide[static_cast<size_t>(c) * known_ + j];
    }
    return out;
  }

  // The same of those that have bits as a device reads them, fp16 [padded][d], made when one asks: it copies them
  // into its own memory, so table_bytes() leaves them out.
  const uint16_t* device_rows() const {
    std::call_once(device_rows_made_, [this] {
      const uint32_t d = shape().head_dim;
      device_rows_.resize(static_cast<size_t>(d) * padded_);
      for (uint32_t c = 0; c < d; ++c) {
        for (uint32_t j = 0; j < padded_; ++j)
          device_rows_[static_cast<size_t>(j) * d + c] = rows_[static_cast<size_t>(c) * known_ + j];
      }
    });
    return device_rows_.data();
  }

  // widened_analysis() of the components that have bits, likewise.
  const float* device_analysis() const {
    std::call_once(device_analysis_made_, [this] {
      const uint32_t d = shape().head_dim;
      device_analysis_.resize(static_cast<size_t>(d) * padded_);
      for (uint32_t c = 0; c < d; ++c) {
        for (uint32_t j = 0; j < padded_; ++j)
          device_analysis_[static_cast<size_t>(c) * padded_ + j] =
              f16_to_f32(analysis_[static_cast<size_t>(c) * known_ + j]) / step_[j];
      }
    });
    return device_analysis_.data();
  }

  // And directions() of position 0.
  const float* device_looks() const {
    std::call_once(device_looks_made_, [this] {
      float floor = 0.0f;
      device_looks_.resize(weights_.size() * shape().head_dim);
      directions(0, device_looks_.data(), floor);
    });
    return device_looks_.data();
  }

  // In units of the steps.
  const float* widened_analysis() const {
    float* out = widened(analysis_);
    for (size_t i = 0; i < analysis_.size(); i += known_) {
      for (uint32_t j = 0; j < padded_; ++j) out[i + j] /= step_[j];
    }
    return out;
  }

  void build(const calib::KltHead& head) {
    const uint32_t d = shape().head_dim;
    components_ = 0;
    for (int w = 0; w < kKltWidths; ++w) components_ += words_.words[w] * (32 / kKltBits[w]);
    padded_ = (components_ + 15) / 16 * 16;
    known_ = spec().top != 0 ? components_of_errors(head) : padded_;
    mean_ = head.mean;
    middle_.assign(padded_, 0.0f);
    shift_.assign(known_, 0.0f);
    step_.assign(known_, 1.0f);
    analysis_.assign(static_cast<size_t>(d) * known_, 0);
    rows_.assign(static_cast<size_t>(d) * known_, 0);
    for_each_code([&](uint32_t j, uint32_t bits, size_t, uint32_t) {
      const int w = bits == 2 ? 0 : bits == 4 ? 1 : 2;
      const float step = head.step[w][j];
      const float half_range = static_cast<float>(1u << (bits - 1));
      step_[j] = step;
      middle_[j] = half_range - 0.5f;
      double offset = half_range;
      for (uint32_t c = 0; c < d; ++c) {
        const uint16_t half = head.analysis[static_cast<size_t>(j) * d + c];
        analysis_[static_cast<size_t>(c) * known_ + j] = half;
        offset -= static_cast<double>(f16_to_f32(half) / step) * mean_[c];
        rows_[static_cast<size_t>(c) * known_ + j] = f32_to_f16(f16_to_f32(head.synthesis[static_cast<size_t>(j) * d + c]) * step);
      }
      shift_[j] = static_cast<float>(offset);
    });
    weigh_directions(head);
    if (spec().top != 0) build_errors(head);
    measure_columns();
  }

  void measure_columns() {
    const uint32_t d = shape().head_dim;
    std::vector<float> column(d);
    for (uint32_t j = 0; j < known_; ++j) {
      for (uint32_t c = 0; c < d; ++c) column[c] = f16_to_f32(rows_[static_cast<size_t>(c) * known_ + j]);
      const float scale = scale_to_pairs(column.data(), d);
      pair_units_.push_back(scale > 0.0f ? 1.0f / scale : 0.0f);
    }
  }

  // The metric of keys' errors is the sum over components of variance · row · row'. The first ones stand for themselves, the others
  // for a weight that is the same in every direction.
  void weigh_directions(const calib::KltHead& head) {
    const uint32_t d = shape().head_dim, own = std::min(components_, kMostDirections);
    weights_.resize(own);
    double others = 0.0;
    for (uint32_t j = 0; j < d; ++j) {
      double length = 0.0;
      for (uint32_t c = 0; c < d; ++c) {
        const double x = f16_to_f32(head.analysis[static_cast<size_t>(j) * d + c]);
        length += x * x;
      }
      if (j >= own) others += head.variance[j] * length;
      else weights_[j] = std::sqrt(head.variance[j]);
    }
    floor_ = static_cast<float>(others / d);
  }

  // So many components have all but kLeftOver of the squared error that the tables measured: those that have bits, and the widest
  // of those that have none. The others spread so little that coding them would be bits and time for little. Blocks are laid out by
  // this: it cannot change.
  uint32_t components_of_errors(const calib::KltHead& head) const {
    const uint32_t d = shape().head_dim;
    double all = 0.0;
    for_each_code([&](uint32_t j, uint32_t bits, size_t, uint32_t) {
      all += head.distortion[bits == 2 ? 0 : bits == 4 ? 1 : 2][j];
    });
    for (uint32_t j = components_; j < d; ++j) all += head.variance[j];
    uint32_t n = d;
    double left = 0.0;
    while (n > std::max(padded_, 16u)) {
      for (uint32_t j = n - 16; j < n; ++j) left += head.variance[j];
      if (left > kLeftOver * all) break;
      n -= 16;
    }
    return n;
  }

  // What errors need beyond that: the components that have no bits, and what an even error is of each, in units of their steps.
  // Spreads are in units of the largest.
  void build_errors(const calib::KltHead& head) {
    const uint32_t d = shape().head_dim;
    for (uint32_t j = components_; j < known_; ++j) {
      double offset = 0.0;
      for (uint32_t c = 0; c < d; ++c) {
        const uint16_t half = head.analysis[static_cast<size_t>(j) * d + c];
        analysis_[static_cast<size_t>(c) * known_ + j] = half;
        offset -= static_cast<double>(f16_to_f32(half)) * mean_[c];
        rows_[static_cast<size_t>(c) * known_ + j] = head.synthesis[static_cast<size_t>(j) * d + c];
      }
      shift_[j] = static_cast<float>(offset);
    }
    const float largest = *std::max_element(head.variance.begin(), head.variance.end());
    for (uint32_t j = 0; j < known_; ++j) {
      const float spread = largest > 0.0f ? std::max(kLeastSpread, std::sqrt(head.variance[j] / largest)) : 1.0f;
      unit_.push_back(1.0f / (spread * step_[j]));
    }
    into_errors_ = hadamard_factors(unit_);
  }

  // What scores() of a block needs of its queries: turned to the block, their products with all components in ws.b, with the mean
  // in ws.c.
  void prepare(const BlockContext& ctx, const float* queries, uint32_t count, Workspace& ws) const {
    const uint32_t d = shape().head_dim;
    if (ws.queries_id != 0 && ws.coarse) measure_queries(queries, count, ws);
    const float* turned = turn_to_block(turner_, shape(), queries, count, ctx.first_position, ws);
    float* factors = at_least_aligned(ws.b, static_cast<size_t>(count) * known_);
    float* base = at_least(ws.c, count);
    for (uint32_t i = 0; i < count; ++i) base[i] = product(turned + static_cast<size_t>(i) * d, mean_.data(), d);
    products(turned, count, factors, ws);
  }

  // out[i*known + j]: a turned query times a step of component j. Channel by channel, no sum runs across a register; and all at
  // once, since a few components for themselves would wait for each sum.
  void products(const float* turned, uint32_t count, float* out, Workspace& ws) const {
    const uint32_t d = shape().head_dim, n = known_;
    if (n == 0) return;
    const Kernels* kernels = active_kernels();
    if (kernels && kernels->fast_pairs && ws.coarse && ws.queries_id != 0) {
      const int32_t* pairs = pairs_for(*kernels, ws);
      return kernels->multiply_pairs(pairs, pair_units_.data(), n, turned, ws.lengths.scales.data(), d, count, out);
    }
    if (kernels && ws.queries_id != 0) return kernels->multiply(floats_for(*kernels, ws), n, turned, d, count, out);
    std::fill_n(out, static_cast<size_t>(count) * n, 0.0f);
    if (kernels) return kernels->half_accumulate(rows_.data(), /*bf16=*/false, n, turned, d, count, d, out, Ahead());
    for (uint32_t i = 0; i < count; ++i) {
      for (uint32_t j = 0; j < n; ++j) {
        double sum = 0.0;
        for (uint32_t c = 0; c < d; ++c)
          sum += static_cast<double>(turned[static_cast<size_t>(i) * d + c]) * f16_to_f32(rows_[static_cast<size_t>(c) * n + j]);
        out[static_cast<size_t>(i) * n + j] = static_cast<float>(sum);
      }
    }
  }

  // rows_ as floats, widened once for all blocks of the head that the thread looks at in a row: it takes as long as the products
  // with them.
  const float* floats_for(const Kernels& kernels, Workspace& ws) const {
    float* table = at_least_aligned(ws.widened.table, rows_.size());
    if (ws.widened.of != 2 * number_) {
      kernels.widen(rows_.data(), /*bf16=*/false, static_cast<uint32_t>(rows_.size()), table);
      ws.widened.of = 2 * number_;
    }
    return table;
  }

  // The same as 16-bit integers, for long contexts: what rounding adds to a score grows with the lengths of query and key.
  const int32_t* pairs_for(const Kernels& kernels, Workspace& ws) const {
    int32_t* pairs = at_least_aligned(ws.widened.pairs, rows_.size() / 2);
    if (ws.widened.of != 2 * number_ + 1) {
      float* scales = at_least(ws.widened.scales, known_);
      for (uint32_t j = 0; j < known_; ++j) scales[j] = pair_units_[j] > 0.0f ? 1.0f / pair_units_[j] : 0.0f;
      kernels.pair_rows(rows_.data(), shape().head_dim, known_, scales, pairs);
      ws.widened.of = 2 * number_ + 1;
    }
    return pairs;
  }

  // What brings queries to such integers, once for all blocks.
  void measure_queries(const float* queries, uint32_t count, Workspace& ws) const {
    auto& lengths = ws.lengths;
    if (lengths.id == ws.queries_id && lengths.of == queries && lengths.count == count) return;
    const uint32_t d = shape().head_dim;
    float* scales = at_least(lengths.scales, count);
    for (uint32_t i = 0; i < count; ++i) scales[i] = scale_to_pairs(queries + static_cast<size_t>(i) * d, d);
    lengths.id = ws.queries_id, lengths.of = queries, lengths.count = count;
  }

  // Brings n floats to kPairLength; 0 where there is nothing to bring.
  static float scale_to_pairs(const float* x, uint32_t n) {
    double squares = 0.0;
    for (uint32_t c = 0; c < n; ++c) squares += static_cast<double>(x[c]) * x[c];
    const double scale = kPairLength / std::sqrt(squares);
    return scale < 1e30 ? static_cast<float>(scale) : 0.0f;
  }

  void fast_scores(const Kernels& kernels, std::span<const std::byte> in, uint32_t count, uint32_t rows, const float* factors,
                   const float* base, float* out, size_t stride, Workspace& ws) const {
    if (components_ == 0) {
      for (uint32_t i = 0; i < count; ++i) std::fill_n(out + i * stride, rows, base[i]);
      return;
    }
    int8_t* bytes = at_least(ws.bytes, 2 * static_cast<size_t>(count) * padded_);
    kernels.scores_by_word(words_, in.data(), factors, known_, middle_.data(), base, count, padded_, rows, out, stride, bytes,
                           ws.ahead);
  }

  static uint64_t next_number() {
    static std::atomic<uint64_t> last{0};
    return ++last;
  }

  const uint64_t number_ = next_number();  // of this codec alone
  std::shared_ptr<const calib::Calibration> calibration_;
  const calib::Turner& turner_;
  WordCounts words_;
  uint32_t components_ = 0, padded_ = 0;  // in use; to whole vectors
  uint32_t known_ = 0;                    // in the tables below: padded_, or more where errors are coded too
  std::vector<float> mean_;               // [d]
  std::vector<float> weights_;            // of the first components: what directions() gives is these times rows of analysis_
  float floor_ = 0.0f;                    // of directions()
  std::vector<uint16_t> analysis_;        // fp16 [d][known]
  std::vector<float> step_;               // [known]: of the components; 1 for those that have no bits
  std::vector<float> shift_;              // [known]: what a code is beside (analysis / step) · key
  std::vector<float> middle_;             // [padded]: of the codes
  std::vector<uint16_t> rows_;            // fp16 [d][known]: a step of each component
  std::vector<float> pair_units_;         // [known]: what 1 is of each column of rows_ in 16-bit integers
  mutable std::vector<uint16_t> device_rows_;
  mutable std::vector<float> device_analysis_, device_looks_;
  mutable std::once_flag device_rows_made_, device_analysis_made_, device_looks_made_;
  // [known] where errors are coded too: what 1 of the error frame is, in steps; and on a query's way there.
  std::vector<float> unit_, into_errors_;
};

// A head's tables, and what keeps them in memory while a codec is made from them.
struct Found {
  std::shared_ptr<const calib::KltTables> tables;
  const calib::KltHead* head = nullptr;
  calib::KltChoice choice;
};

Result<Found> find_tables(const CodecSpec& spec, bool joint, const BlockShape& shape, const calib::HeadTables& tables) {
  const calib::Calibration& c = *tables.calibration;
  Found found;
  TIERKV_ASSIGN_OR_RETURN(found.tables, c.klt_tables());
  if (shape.head_dim != c.model.head_dim || tables.layer >= c.model.layers || tables.head >= c.model.kv_heads) {
    return error(StatusCode::invalid_argument, "the calibration is of ", c.model.layers, " layers, ", c.model.kv_heads,
                 " KV heads and head_dim ", c.model.head_dim, ", asked for layer ", tables.layer, ", KV head ", tables.head,
                 ", head_dim ", shape.head_dim);
  }
  if (shape.tokens % kTileLanes != 0)
    return error(StatusCode::invalid_argument, "klt needs blocks of a multiple of 16 tokens, not ", shape.tokens);
  found.head = &found.tables->head(tables.layer, tables.head);
  if (found.head->mean.empty()) {
    return error(StatusCode::failed_precondition, "layer ", tables.layer,
                 " has no basis: calibration saw no key far enough from its query there");
  }
  TIERKV_ASSIGN_OR_RETURN(found.choice, c.klt_choice(0.125 * spec.bits, joint, tables.layer, tables.head));
  return found;
}

constexpr uint16_t kMidId = 12;  // registry row of the values

}  // namespace

Result<std::unique_ptr<Codec>> make_klt(const CodecSpec& spec, Side side, const BlockShape& shape,
                                        const calib::HeadTables& tables) {
  TIERKV_ASSIGN_OR_RETURN(const Found found, find_tables(spec, /*joint=*/true, shape, tables));
  if (side == Side::value) return make_mid({kMidId, found.choice.value_bits, 0, 0, 0}, side, shape);
  return std::unique_ptr<Codec>(new KltCodec(spec, shape, tables, *found.head, found.choice.keys));
}

Result<std::unique_ptr<Codec>> make_kltk(const CodecSpec& spec, Side side, const BlockShape& shape,
                                         const calib::HeadTables& tables) {
  if (side != Side::key)
    return error(StatusCode::invalid_argument,
                 "kltk codes keys alone; name another codec for the values, for example kltk1.5/mid2");
  TIERKV_ASSIGN_OR_RETURN(const Found found, find_tables(spec, /*joint=*/false, shape, tables));
  return std::unique_ptr<Codec>(new KltCodec(spec, shape, tables, *found.head, found.choice.keys));
}

}  // namespace tierkv::quant
