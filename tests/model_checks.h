// model_checks.h — what the random machine compares; included by the tests that run it.
#pragma once

#include <algorithm>
#include <cmath>
#include <set>

#include "attention_tolerance.h"
#include "model_machine.h"
#include "model_operations.h"

namespace tierkv::testing {

inline void Machine::check_layer(SeqId id, uint32_t layer) {
  if (!problem_.empty()) return;
  const ReferenceLayer& ref = model_.at(id).layers[layer];
  const uint32_t length = cache_->length(id, layer).value();
  if (length != ref.length) return fail("length of layer ", layer, " is ", length, ", expected ", ref.length);
  if (cache_->length(id).value() != model_.at(id).shortest()) return fail("length(seq) is not the shortest layer's");
  const LayerConfig tiers = config_.layer(layer);
  for (uint32_t h = 0; h < config_.num_kv_heads; ++h) {
    const tiers::HeadStream& s = stream(id, layer, h);
    const auto now = cache_->positions(id, layer, h).value();
    if (now != ref.live[h])
      return fail("layer ", layer, ", head ", h, " holds ", now.size(), " tokens, expected ", ref.live[h].size());
    // Tiers stay in order: sinks, archive, warm, tail.
    int last = -1;
    for (const tiers::BlockRef& block : s.blocks) {
      const int rank = block.block.tier() == Tier::sink ? 0 : block.block.tier() == Tier::archive ? 1 : 2;
      if (rank < last) return fail("blocks out of order in layer ", layer, ", head ", h);
      last = rank;
      if (block.live == 0 || block.live > block.rows || block.rows > block.tokens()) return fail("a block's counts are wrong");
    }
    const bool grows = tiers.hot == kAll || (tiers.window && tiers.hot >= tiers.window);
    if (!grows && !setup_.adapts && !may_run_out()) {
      const uint32_t block = tiers.warm ? config_.warm_block : config_.archive_block;
      if (s.tail.rows() >= tiers.hot + block + tiers.sinks) return fail("the tail holds ", s.tail.rows(), " rows: blocks are due");
      if (model_.at(id).plain && s.tail.rows() < std::min(ref.length, tiers.hot))
        return fail("only ", s.tail.rows(), " rows are hot");
    }
  }
}

// Rows are what was appended: to the bit in 16-bit tiers, within the codec's bound elsewhere.
inline void Machine::check_rows(SeqId id, uint32_t layer, uint32_t head, uint32_t most) {
  if (!problem_.empty()) return;
  const ReferenceLayer& ref = model_.at(id).layers[layer];
  const auto& live = ref.live[head];
  const uint32_t d = config_.head_dim;
  const tiers::HeadStream& s = stream(id, layer, head);
  const bool bf16 = config_.hot_type == "bf16";
  std::vector<float> row[2] = {std::vector<float>(d), std::vector<float>(d)};
  for (uint32_t i = 0; i < std::min<size_t>(most, live.size()); ++i) {
    const uint32_t p = live.size() <= most ? live[i] : live[below(static_cast<uint32_t>(live.size()))];
    if (!tiers::read_row(impl_of(*cache_).env, s, p, row[0].data(), row[1].data()))
      return fail("position ", p, " is listed but not there");
    bool exact = setup_.row_tolerance == 0.0;
    for (uint32_t r = 0; r < s.tail.rows() && !exact; ++r) exact = s.tail.position(r) == p;
    if (!s.blocks.empty() && s.blocks[0].block.tier() == Tier::sink) exact |= p < s.blocks[0].rows;
    // With 16 bits in the warm tier and in the copies, what is promoted is what came in.
    for (const tiers::BlockRef& ref : s.blocks) {
      if (!setup_.cold || !ref.promoted() || model_.at(id).packed_once || ref.block.codec() != impl_of(*cache_).env.cold_raw)
        continue;
      for (uint32_t r = 0; r < ref.rows && !exact; ++r) exact = ref.position(r) == p && setup_.warm_is_exact();
    }
    for (int side = 0; side < 2; ++side) {
      const float* original = (side ? ref.values[p] : ref.keys[p]).data() + static_cast<size_t>(head) * d;
      for (uint32_t c = 0; c < d; ++c) {
        const float best = bf16 ? bf16_to_f32(f32_to_bf16(original[c])) : f16_to_f32(f32_to_f16(original[c]));
        const double error = std::fabs(static_cast<double>(row[side][c]) - best);
        if (error <= (exact ? 0.0 : setup_.row_tolerance)) continue;
        return fail(side ? "value" : "key", " at position ", p, ", channel ", c, " of layer ", layer, ", head ", head, " is ",
                    row[side][c], ", appended was ", original[c], exact ? " (a 16-bit tier: exact)" : "");
      }
    }
  }
}

inline ReferenceHead Machine::rows_of(SeqId id, uint32_t layer, uint32_t head) const {
  ReferenceHead rows;
  const uint32_t d = config_.head_dim;
  for (const uint32_t p : model_.at(id).layers[layer].live[head]) {
    ReferenceRow row{p, std::vector<float>(d), std::vector<float>(d)};
    if (tiers::read_row(impl_of(*cache_).env, stream(id, layer, head), p, row.key.data(), row.value.data()))
      rows.push_back(std::move(row));
  }
  return rows;
}

inline void Machine::check_head_attention(SeqId id, uint32_t layer, uint32_t head, const std::vector<float>& queries,
                                          uint32_t count, const std::vector<float>& out, const AttentionOptions& options,
                                          const MassReport* mass) {
  const uint32_t d = config_.head_dim, heads = config_.num_heads, group = heads / config_.num_kv_heads;
  const uint32_t length = model_.at(id).layers[layer].length;
  const ReferenceHead rows = rows_of(id, layer, head);
  if (rows.size() != model_.at(id).layers[layer].live[head].size()) return fail("some live rows cannot be read");
  ReferenceOptions o;
  o.causal = options.causal;
  o.scale = options.scale > 0.0f ? options.scale : 1.0 / std::sqrt(static_cast<double>(d));
  o.softcap = options.softcap;
  o.window = config_.layer(layer).window;
  const uint32_t first = options.first_position < 0 ? length - count : static_cast<uint32_t>(options.first_position);
  const double tolerance = std::max(attention_tolerance(), count > setup_.few_queries ? setup_.many_tolerance : 0.0);
  std::vector<double> expected, weights, sum(rows.size(), 0.0);
  for (uint32_t q = 0; q < count; ++q) {
    for (uint32_t g = 0; g < group; ++g) {
      const uint32_t h = head * group + g;
      const size_t at = (static_cast<size_t>(q) * heads + h) * d;
      o.sink_logit = options.sink_logits ? options.sink_logits + h : nullptr;
      reference_attention(rows, {queries.data() + at, d}, first + q, o, expected, &weights);
      const double error = relative_error({out.data() + at, d}, expected, 0.1);
      if (!(error < tolerance))
        return fail("query ", q, " of ", count, " at ", first + q, ", query head ", h, ": error ", error, " over ", rows.size(),
                    " rows");
      for (size_t i = 0; i < rows.size(); ++i) sum[i] += weights[i];
    }
  }
  if (!mass) return;
  double total = 0.0, blocks = 0.0, tokens = 0.0;
  for (const double w : sum) total += w;
  uint32_t listed = 0;
  for (const BlockMass& block : mass->blocks) {
    if (block.kv_head != head) continue;
    blocks += block.mass;
    listed += block.rows;
  }
  const double slack = std::max(tolerance, 0x1p-11) * (1.0 + count * group);  // weights are kept in two bytes
  if (std::fabs(blocks - total) > slack) return fail("blocks report a mass of ", blocks, ", expected ", total);
  if (listed < rows.size()) return fail("the mass report lists ", listed, " rows of ", rows.size());
  if (!mass->want_tokens) {
    if (!mass->tokens.empty()) return fail("token masses that nobody wanted");
    return;
  }
  if (mass->tokens.size() != static_cast<size_t>(config_.num_kv_heads) * length) return fail(mass->tokens.size(), " token masses");
  std::vector<double> by_position(length, 0.0);
  for (size_t i = 0; i < rows.size(); ++i) by_position[rows[i].position] = sum[i];
  for (uint32_t p = 0; p < length; ++p) {
    const double got = mass->tokens[static_cast<size_t>(head) * length + p];
    tokens += got;
    if (std::fabs(got - by_position[p]) > slack) return fail("position ", p, " got a mass of ", got, ", expected ", by_position[p]);
  }
  if (std::fabs(tokens - total) > slack) return fail("tokens report a mass of ", tokens, ", expected ", total);
}

}  // namespace tierkv::testing
