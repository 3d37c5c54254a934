// model_checks.h — what the random machine compares, and the calls that must be refused; included by model_based_test.cc alone.
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
  std::vector<double> expected, weights, sum(rows.size(), 0.0);
  for (uint32_t q = 0; q < count; ++q) {
    for (uint32_t g = 0; g < group; ++g) {
      const uint32_t h = head * group + g;
      const size_t at = (static_cast<size_t>(q) * heads + h) * d;
      o.sink_logit = options.sink_logits ? options.sink_logits + h : nullptr;
      reference_attention(rows, {queries.data() + at, d}, first + q, o, expected, &weights);
      const double error = relative_error({out.data() + at, d}, expected, 0.1);
      if (!(error < attention_tolerance()))
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
  const double slack = attention_tolerance() * (1.0 + count * group);
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

// Every call here is wrong in one way. Each must say so with the right code and change nothing.
inline void Machine::bad_call() {
  const SeqId id = any_sequence();
  const uint32_t layer = any_layer();
  const uint32_t length = model_.at(id).layers[layer].length;
  const uint32_t kv = config_.num_kv_heads, d = config_.head_dim;
  const uint64_t digest = digest_of(*cache_);
  Rows keys = make_rows(1 + below(40), kv, DType::f32, 1.0f);
  Rows queries = make_rows(1, config_.num_heads, DType::f32, 1.0f);
  std::vector<float> out(static_cast<size_t>(config_.num_heads) * d * 4, 0.0f), row(static_cast<size_t>(kv) * d, 0.0f);
  const SeqId unknown = id + 1000000;
  const auto poison = [&](Rows& rows) {
    static constexpr float bad[] = {NAN, INFINITY, -INFINITY};
    const ptrdiff_t at = static_cast<ptrdiff_t>(below(rows.view.tokens)) * rows.view.token_stride +
                         static_cast<ptrdiff_t>(below(rows.view.heads)) * rows.view.head_stride + below(d);
    const_cast<float*>(static_cast<const float*>(rows.view.data))[at] = bad[below(3)];
  };
  Status got;
  StatusCode want = StatusCode::invalid_argument;
  AttentionOptions options;
  const uint32_t kind = below(22);
  const uint32_t beyond = length + below(5);
  switch (kind) {
    case 0: want = StatusCode::not_found, got = cache_->append(unknown, layer, keys.view, keys.view); break;
    case 1: want = StatusCode::not_found, got = cache_->attention(unknown, layer, queries.view, out.data()); break;
    case 2: want = StatusCode::not_found, got = cache_->truncate(unknown, 0); break;
    case 3: want = StatusCode::not_found, got = cache_->fork(unknown).status(); break;
    case 4: want = StatusCode::not_found, got = cache_->verify(unknown); break;
    case 5: poison(keys), got = cache_->append(id, layer, keys.view, make_rows(keys.view.tokens, kv, DType::f16, 1.0f).view); break;
    case 6:
      poison(keys), got = cache_->append(id, layer, make_rows(keys.view.tokens, kv, DType::bf16, 1.0f).view, keys.view);
      break;
    case 7: keys.view.heads = kv + 1, got = cache_->append(id, layer, keys.view, keys.view); break;
    case 8: keys.view.head_dim = d - 16, got = cache_->append(id, layer, keys.view, keys.view); break;
    case 9: got = cache_->append(id, layer, keys.view, make_rows(keys.view.tokens + 1, kv, DType::f32, 1.0f).view); break;
    case 10: want = StatusCode::out_of_range, got = cache_->append(id, config_.num_layers, keys.view, keys.view); break;
    case 11: keys.view.data = nullptr, got = cache_->append(id, layer, keys.view, keys.view); break;
    case 12: keys.view.type = static_cast<DType>(9), got = cache_->append(id, layer, keys.view, keys.view); break;
    case 13: want = StatusCode::out_of_range, got = cache_->get(id, layer, std::span(&beyond, 1), row.data(), row.data()); break;
    case 14: poison(queries), got = cache_->attention(id, layer, queries.view, out.data()); break;
    case 15: options.scale = NAN, got = cache_->attention(id, layer, queries.view, out.data(), options); break;
    case 16: options.softcap = -1.0f, got = cache_->attention(id, layer, queries.view, out.data(), options); break;
    case 17: got = cache_->attention(id, layer, queries.view, nullptr); break;
    case 18: {
      want = StatusCode::out_of_range;
      options.first_position = one_in(2) ? INT64_MAX : int64_t{0xFFFFFFFF};
      got = cache_->attention(id, layer, queries.view, out.data(), options);
      break;
    }
    case 19: want = StatusCode::out_of_range, got = cache_->truncate(id, model_.at(id).longest() + 1 + below(9)); break;
    case 20: {
      std::vector<float> logits(config_.num_heads, one_in(2) ? NAN : -INFINITY);
      options.sink_logits = logits.data();
      options.first_position = 0;
      got = cache_->attention(id, layer, queries.view, out.data(), options);
      break;
    }
    case 21: got = cache_->adapt_thresholds({one_in(2) ? NAN : -1.0}); break;
  }
  if (got.code() != want) return fail("bad call ", kind, " gave ", got.to_string(), ", expected ", status_code_name(want));
  if (got.message().empty()) return fail("bad call ", kind, " says nothing");
  if (digest != digest_of(*cache_)) return fail("bad call ", kind, " changed the cache");
}

// A frozen sequence comes back to the bit, and damaged bytes are refused and change nothing.
inline void Machine::freeze() {
  const SeqId id = any_sequence();
  auto bytes = cache_->freeze(id);
  if (!bytes.ok()) return fail(bytes.status().to_string());
  if (one_in(3)) {
    const uint64_t digest = digest_of(*cache_);
    auto damaged = *bytes;
    if (one_in(2)) damaged.resize(below(static_cast<uint32_t>(damaged.size())));
    else damaged[below(static_cast<uint32_t>(damaged.size()))] ^= static_cast<std::byte>(1u << below(8));
    if (cache_->unfreeze(damaged).ok()) return fail("damaged bytes were taken");
    if (digest != digest_of(*cache_)) return fail("damaged bytes changed the cache");
  }
  if (model_.size() >= 6) return;
  auto copy = cache_->unfreeze(*bytes);
  if (!copy.ok()) {
    if (!may_run_out() || copy.status().code() != StatusCode::resource_exhausted) return fail(copy.status().to_string());
    return;
  }
  if (sequence_digest(*cache_, id) != sequence_digest(*cache_, *copy)) return fail("a thawed sequence differs from the frozen one");
  model_.emplace(*copy, model_.at(id));
  promised_[*copy] = promised_.at(id);
  for (uint32_t l = 0; l < config_.num_layers; ++l) check_layer(*copy, l);
}

}  // namespace tierkv::testing
