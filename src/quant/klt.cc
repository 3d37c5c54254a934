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
#include "quant/klt_basis.h"
#include "quant/lanes.h"
#include "quant/layout.h"
#include "quant/rot.h"
#include "quant/row_sums.h"
#include "quant/scratch.h"
#include "quant/turned_queries.h"

namespace tierkv::quant {
namespace {

constexpr uint32_t kNoPosition = 0xFFFFFFFFu;  // of a row that is not in use

using calib::kKltBits;
using calib::kKltWidths;

class KltCodec final : public Codec {
 public:
  KltCodec(const CodecSpec& spec, const BlockShape& shape, const calib::HeadTables& tables, const calib::KltHead& head,
           const calib::KltWords& words)
      : Codec(spec, Side::key, shape, Frame::block),
        basis_(head, words, shape.head_dim, spec.top != 0),
        calibration_(tables.calibration),
        turner_(tables.calibration->turner(tables.layer)) {
    tolerance_ = 2e-3;
    bytes_ = static_cast<size_t>(words.total()) * shape.tokens * sizeof(uint32_t);
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
      std::copy(basis_.mean.begin(), basis_.mean.end(), row);
      basis_.for_each_code([&](uint32_t j, uint32_t bits, size_t word, uint32_t shift) {
        const float level = static_cast<float>(code_at(in, first + i, bits, word, shift)) - basis_.middle[j];
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
    const float* factors = at_least_aligned(ws.b, static_cast<size_t>(count) * basis_.known);
    const float* base = ws.c.data();
    if (const Kernels* kernels = active_kernels()) return fast_scores(*kernels, in, count, rows, factors, base, out, stride, ws);

    for (uint32_t t = 0; t < rows; ++t) {
      for (uint32_t i = 0; i < count; ++i) out[i * stride + t] = base[i];
      basis_.for_each_code([&](uint32_t j, uint32_t bits, size_t word, uint32_t shift) {
        const float level = static_cast<float>(code_at(in, t, bits, word, shift)) - basis_.middle[j];
        for (uint32_t i = 0; i < count; ++i) out[i * stride + t] += level * factors[static_cast<size_t>(i) * basis_.known + j];
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
    const uint32_t d = shape().head_dim, count = static_cast<uint32_t>(basis_.weights.size());
    for (uint32_t j = 0; j < count; ++j) {
      for (uint32_t c = 0; c < d; ++c)
        rows[static_cast<size_t>(j) * d + c] =
            basis_.weights[j] * f16_to_f32(basis_.analysis[static_cast<size_t>(c) * basis_.known + j]);
    }
    turner_.turn(rows, count, position, rows);
    floor = basis_.floor;
    return count;
  }

  bool guide_tables(GuideTables& out) const override {
    out = GuideTables();
    out.count = static_cast<uint32_t>(basis_.weights.size());
    out.head_dim = shape().head_dim;
    out.pairs = static_cast<uint32_t>(turner_.rope().size());
    out.floor = basis_.floor;
    out.rows = device_looks();
    out.turns = turner_.tables();
    out.turned = turner_.channels();
    return out.count != 0;
  }

  uint32_t error_channels() const override { return basis_.known; }

  // Attention turns queries instead, so there is one way, the exact one.
  void from_error_frame(const BlockContext& ctx, float* rows, uint32_t count, bool, float* out) const override {
    const uint32_t d = shape().head_dim, n = basis_.known;
    from_frame(Frame::hadamard, rows, count, n);
    std::fill_n(out, static_cast<size_t>(count) * d, 0.0f);
    for (uint32_t i = 0; i < count; ++i) {
      for (uint32_t j = 0; j < n; ++j) rows[static_cast<size_t>(i) * n + j] *= basis_.unit[j];
    }
    add_weighted(widened_rows(), n, d, rows, n, count, out);
    turner_.turn(out, count, ctx.first_position, out);
  }

  ErrorQueries error_queries(const BlockContext& ctx, const float* queries, uint32_t count, Workspace& ws) const override {
    prepare(ctx, queries, count, ws);
    ws.prepared = true;
    return {at_least_aligned(ws.b, static_cast<size_t>(count) * basis_.known), basis_.into_errors.data()};
  }

  size_t table_bytes() const override { return sizeof *this + basis_.bytes(); }

  bool layout(SideLayout& out) const override {
    out = SideLayout();
    out.kind = LayoutKind::words;
    out.tokens = shape().tokens, out.head_dim = shape().head_dim;
    out.bytes = static_cast<uint32_t>(bytes());
    for (int w = 0; w < kKltWidths; ++w) out.words[w] = basis_.words.words[w];
    out.components = basis_.components;
    out.rows = basis_.device_rows();
    out.mean = basis_.mean.data();
    out.pairs = static_cast<uint32_t>(turner_.rope().size());
    out.turns = turner_.tables();
    out.turned = turner_.channels();
    return true;
  }

  bool coding(SideCoding& out) const override {
    out = SideCoding();
    if (!layout(out.layout)) return false;
    out.padded = basis_.padded;
    out.analysis = basis_.device_analysis();
    out.shift = basis_.shift.data();
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
    float* levels = at_least(block_scratch().tile, static_cast<size_t>(tokens) * basis_.known);
    project(turned, tokens, levels);
    std::fill(out.begin(), out.end(), std::byte{0});
    for (uint32_t t = 0; t < tokens; ++t) {
      float* level = levels + static_cast<size_t>(t) * basis_.known;
      std::byte* lane = out.data() + static_cast<size_t>(t / kTileLanes) * tile_bytes() + t % kTileLanes * sizeof(uint32_t);
      basis_.for_each_code([&](uint32_t j, uint32_t bits, size_t word, uint32_t shift) {
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
    const uint32_t d = shape().head_dim, n = basis_.known;
    const float* analysis = widened_analysis();
    if (const Kernels* kernels = active_kernels())
      return kernels->project_rows(turned, count, d, analysis, n, basis_.shift.data(), levels);
    for (uint32_t i = 0; i < count; ++i) {
      float* sums = levels + static_cast<size_t>(i) * n;
      std::copy(basis_.shift.begin(), basis_.shift.end(), sums);
      for (uint32_t c = 0; c < d; ++c) {
        const float x = turned[static_cast<size_t>(i) * d + c];
        for (uint32_t j = 0; j < n; ++j) sums[j] += x * analysis[static_cast<size_t>(c) * n + j];
      }
    }
  }

  // From steps that codes are off. An error of one spread of a component is as large as the component.
  void put_errors(const float* off, float* errors) const {
    const uint32_t n = basis_.known, tokens = shape().tokens;
    for (uint32_t t = 0; t < tokens; ++t) {
      for (uint32_t j = 0; j < n; ++j)
        errors[static_cast<size_t>(t) * n + j] = off[static_cast<size_t>(t) * n + j] / basis_.unit[j];
    }
    to_frame(Frame::hadamard, errors, tokens, n);
  }

  size_t tile_bytes() const {
    return static_cast<size_t>(basis_.words.words[0] + basis_.words.words[1] + basis_.words.words[2]) * kTileLanes *
           sizeof(uint32_t);
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
    float* out = at_least(block_scratch().tile, static_cast<size_t>(basis_.known) * d);
    const float* wide = widened(basis_.rows);
    for (uint32_t c = 0; c < d; ++c) {
      for (uint32_t j = 0; j < basis_.known; ++j)
        out[static_cast<size_t>(j) * d + c] = wide[static_cast<size_t>(c) * basis_.known + j];
    }
    return out;
  }

  // directions() of position 0 as a device reads them, made when one asks: it copies them, so table_bytes() leaves them out.
  const float* device_looks() const {
    std::call_once(device_looks_made_, [this] {
      float floor = 0.0f;
      device_looks_.resize(basis_.weights.size() * shape().head_dim);
      directions(0, device_looks_.data(), floor);
    });
    return device_looks_.data();
  }

  // In units of the steps.
  const float* widened_analysis() const {
    float* out = widened(basis_.analysis);
    for (size_t i = 0; i < basis_.analysis.size(); i += basis_.known) {
      for (uint32_t j = 0; j < basis_.padded; ++j) out[i + j] /= basis_.step[j];
    }
    return out;
  }

  // What scores() of a block needs of its queries: turned to the block, their products with all components in ws.b, with the mean
  // in ws.c.
  void prepare(const BlockContext& ctx, const float* queries, uint32_t count, Workspace& ws) const {
    const uint32_t d = shape().head_dim;
    if (ws.queries_id != 0 && ws.coarse) measure_queries(queries, count, ws);
    const float* turned = turn_to_block(turner_, shape(), queries, count, ctx.first_position, ws);
    float* factors = at_least_aligned(ws.b, static_cast<size_t>(count) * basis_.known);
    float* base = at_least(ws.c, count);
    for (uint32_t i = 0; i < count; ++i) base[i] = product(turned + static_cast<size_t>(i) * d, basis_.mean.data(), d);
    products(turned, count, factors, ws);
  }

  // out[i*known + j]: a turned query times a step of component j. Channel by channel, no sum runs across a register; and all at
  // once, since a few components for themselves would wait for each sum.
  void products(const float* turned, uint32_t count, float* out, Workspace& ws) const {
    const uint32_t d = shape().head_dim, n = basis_.known;
    if (n == 0) return;
    const Kernels* kernels = active_kernels();
    if (kernels && kernels->fast_pairs && ws.coarse && ws.queries_id != 0) {
      const int32_t* pairs = pairs_for(*kernels, ws);
      return kernels->multiply_pairs(pairs, basis_.pair_units.data(), n, turned, ws.lengths.scales.data(), d, count, out);
    }
    if (kernels && ws.queries_id != 0) return kernels->multiply(floats_for(*kernels, ws), n, turned, d, count, out);
    std::fill_n(out, static_cast<size_t>(count) * n, 0.0f);
    if (kernels) return kernels->half_accumulate(basis_.rows.data(), /*bf16=*/false, n, turned, d, count, d, out, Ahead());
    for (uint32_t i = 0; i < count; ++i) {
      for (uint32_t j = 0; j < n; ++j) {
        double sum = 0.0;
        for (uint32_t c = 0; c < d; ++c)
          sum +=
              static_cast<double>(turned[static_cast<size_t>(i) * d + c]) * f16_to_f32(basis_.rows[static_cast<size_t>(c) * n + j]);
        out[static_cast<size_t>(i) * n + j] = static_cast<float>(sum);
      }
    }
  }

  // basis_.rows as floats, widened once for all blocks of the head that the thread looks at in a row: it takes as long as the
  // products with them.
  const float* floats_for(const Kernels& kernels, Workspace& ws) const {
    float* table = at_least_aligned(ws.widened.table, basis_.rows.size());
    if (ws.widened.of != 2 * number_) {
      kernels.widen(basis_.rows.data(), /*bf16=*/false, static_cast<uint32_t>(basis_.rows.size()), table);
      ws.widened.of = 2 * number_;
    }
    return table;
  }

  // The same as 16-bit integers, for long contexts: what rounding adds to a score grows with the lengths of query and key.
  const int32_t* pairs_for(const Kernels& kernels, Workspace& ws) const {
    int32_t* pairs = at_least_aligned(ws.widened.pairs, basis_.rows.size() / 2);
    if (ws.widened.of != 2 * number_ + 1) {
      float* scales = at_least(ws.widened.scales, basis_.known);
      for (uint32_t j = 0; j < basis_.known; ++j) scales[j] = basis_.pair_units[j] > 0.0f ? 1.0f / basis_.pair_units[j] : 0.0f;
      kernels.pair_rows(basis_.rows.data(), shape().head_dim, basis_.known, scales, pairs);
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

  void fast_scores(const Kernels& kernels, std::span<const std::byte> in, uint32_t count, uint32_t rows, const float* factors,
                   const float* base, float* out, size_t stride, Workspace& ws) const {
    if (basis_.components == 0) {
      for (uint32_t i = 0; i < count; ++i) std::fill_n(out + i * stride, rows, base[i]);
      return;
    }
    int8_t* bytes = at_least(ws.bytes, 2 * static_cast<size_t>(count) * basis_.padded);
    kernels.scores_by_word(basis_.words, in.data(), factors, basis_.known, basis_.middle.data(), base, count, basis_.padded, rows,
                           out, stride, bytes, ws.ahead);
  }

  static uint64_t next_number() {
    static std::atomic<uint64_t> last{0};
    return ++last;
  }

  const KltBasis basis_;
  const uint64_t number_ = next_number();  // of this codec alone
  std::shared_ptr<const calib::Calibration> calibration_;
  const calib::Turner& turner_;
  mutable std::vector<float> device_looks_;
  mutable std::once_flag device_looks_made_;
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
