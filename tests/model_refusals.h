// model_refusals.h — calls that must be refused, and bytes that come back or are refused; included by the tests that run it.
#pragma once

#include <cmath>

#include "model_machine.h"
#include "model_rows.h"

namespace tierkv::testing {

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
  if (!bytes.ok()) {
    // Blocks of two calibrations: a snapshot holds one.
    if (!setup_.calibrated || bytes.status().code() != StatusCode::unsupported) fail(bytes.status().to_string());
    return;
  }
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
    const StatusCode code = copy.status().code();
    const bool allowed = (may_run_out() && code == StatusCode::resource_exhausted) ||
                         (setup_.calibrated && code == StatusCode::failed_precondition);  // blocks of the calibration before
    if (!allowed) return fail(copy.status().to_string());
    return;
  }
  if (sequence_digest(*cache_, id) != sequence_digest(*cache_, *copy)) return fail("a thawed sequence differs from the frozen one");
  model_.emplace(*copy, model_.at(id));
  promised_[*copy] = promised_.at(id);
  for (uint32_t l = 0; l < config_.num_layers; ++l) check_layer(*copy, l);
}

}  // namespace tierkv::testing
