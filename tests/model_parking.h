// model_parking.h — the random machine parks sequences and wakes them, saves and loads deep snapshots, and changes the calibration
// under way; included by the tests that run it.
//
// A deep archive loses more than any tier, so what its rows must be is what the cache decodes from then on: attention is held
// against those (check_head_attention). Which tokens there are, sinks and hot rows stay exact.
#pragma once

#include <algorithm>

#include "model_machine.h"
#include "model_rows.h"
#include "model_tables.h"

namespace tierkv::testing {

inline DeepOptions Machine::any_deep_options() {
  DeepOptions options;
  if (one_in(2)) {
    if (one_in(2)) options.ratio = 4.0 + below(30);
    else options.quality = 0.5 + 0.01 * below(45);
  }
  if (one_in(3)) options.keep_recent = below(200);
  if (one_in(6)) options.first_position = below(100);
  return options;
}

inline void Machine::park() {
  const SeqId id = any_sequence();
  // Parked between tokens, and with something to pack: so most of the time layers are made even first.
  const uint32_t target = std::max(model_.at(id).longest(), 120 + below(160));
  if (setup_.calibrated && !evicting() && !one_in(8)) {
    for (uint32_t l = 0; l < config_.num_layers; ++l) {
      if (!problem_.empty() || !model_.count(id)) return;
      if (const uint32_t length = model_.at(id).layers[l].length; length < target) grow(id, l, target - length);
    }
  }
  if (!problem_.empty() || !model_.count(id)) return;
  const ReferenceSequence& ref = model_.at(id);
  const uint64_t digest = digest_of(*cache_);
  DeepReport report;
  const Status status = cache_->park(id, any_deep_options(), &report);
  if (!status.ok()) {
    const bool allowed =
        status.code() == StatusCode::failed_precondition || (may_run_out() && status.code() == StatusCode::resource_exhausted);
    if (!allowed || status.message().empty()) return fail(status.to_string());
    if (cache_->is_parked(id).value()) return fail("refused to park, and parked: ", status.to_string());
    if (digest != digest_of(*cache_)) return fail("a refused park changed the cache: ", status.to_string());
    return;
  }
  if (!setup_.calibrated || !tables_) return fail("parked without tables");
  if (ref.shortest() != ref.longest()) return fail("parked in the middle of a token");
  if (report.tokens == 0 || report.bytes == 0) return fail("parked nothing");
  ++done_["parked"];
  parked_.insert(id);
  model_.at(id).packed_once = true;
  check_parked(id);
}

// A parked sequence says how long it is, is in order, and refuses whatever reads or changes its tokens.
inline void Machine::check_parked(SeqId id) {
  const ReferenceSequence& ref = model_.at(id);
  if (!cache_->is_parked(id).value()) return fail("is_parked() says no");
  if (cache_->length(id).value() != ref.shortest()) return fail("a parked sequence has another length");
  if (const Status status = cache_->verify(id); !status.ok()) return fail(status.to_string());
  const MemoryStats m = cache_->memory_usage(id).value();
  if (m.parked_bytes == 0 || m.parked_tokens == 0) return fail("a parked sequence reports no packed bytes");
  const uint32_t layer = any_layer(), kv = config_.num_kv_heads, d = config_.head_dim;
  const uint64_t digest = digest_of(*cache_);
  const Rows rows = make_rows(1, kv, DType::f32, 1.0f), query = make_rows(1, config_.num_heads, DType::f32, 1.0f);
  std::vector<float> out(static_cast<size_t>(config_.num_heads) * d);
  const uint32_t position = below(ref.layers[layer].length);
  Status got;
  switch (below(5)) {
    case 0: got = cache_->append(id, layer, rows.view, rows.view); break;
    case 1: got = cache_->attention(id, layer, query.view, out.data()); break;
    case 2: got = cache_->get(id, layer, std::span(&position, 1), out.data(), out.data()); break;
    case 3: got = cache_->truncate(id, position); break;
    case 4: got = cache_->positions(id, layer, below(kv)).status(); break;
  }
  if (got.code() != StatusCode::failed_precondition) return fail("a call on a parked sequence gave ", got.to_string());
  if (digest != digest_of(*cache_)) return fail("a refused call on a parked sequence changed the cache");
  if (one_in(3)) fork_parked(id);
}

// Shares what is packed. Parking one again packs what else is due, if anything is.
inline void Machine::fork_parked(SeqId id) {
  if (model_.size() >= 6) return;
  const uint64_t digest = digest_of(*cache_);
  const auto copy = cache_->fork(id);
  if (!copy.ok()) {
    if (!may_run_out() || copy.status().code() != StatusCode::resource_exhausted) return fail(copy.status().to_string());
    if (digest != digest_of(*cache_)) fail("a refused fork of a parked sequence changed the cache");
    return;
  }
  model_.emplace(*copy, model_.at(id));
  promised_[*copy] = promised_.at(id);
  parked_.insert(*copy);
  ++done_["forked parked"];
  if (!cache_->is_parked(*copy).value()) return fail("the fork of a parked sequence is not parked");
  const Status again = cache_->park(*copy, any_deep_options());
  const bool allowed = again.ok() || again.code() == StatusCode::failed_precondition ||
                       (may_run_out() && again.code() == StatusCode::resource_exhausted);
  if (!allowed) fail("parking again gave ", again.to_string());
}

inline void Machine::wake() {
  if (parked_.empty()) {
    if (const Status status = cache_->wake(any_sequence()); status.code() != StatusCode::failed_precondition)
      fail("waking one that is awake gave ", status.to_string());
    return;
  }
  auto it = parked_.begin();
  std::advance(it, below(static_cast<uint32_t>(parked_.size())));
  const SeqId id = *it;
  const uint64_t digest = digest_of(*cache_);
  if (const Status status = cache_->wake(id); !status.ok()) {
    if (!may_run_out() || status.code() != StatusCode::resource_exhausted) return fail(status.to_string());
    if (digest != digest_of(*cache_)) return fail("a refused wake changed the cache");
    check_parked(id);
    if (all_parked()) remove();  // makes room
    return;
  }
  ++done_["woken"];
  parked_.erase(id);
  model_.at(id).plain = false;
  for (uint32_t l = 0; l < config_.num_layers; ++l) {
    check_layer(id, l);
    for (uint32_t h = 0; h < config_.num_kv_heads; ++h) check_rows(id, l, h, 12);
  }
  if (!problem_.empty()) return;
  if (const Status status = cache_->verify(id); !status.ok()) fail(status.to_string());
}

// To bytes with a deep archive in them, from a sequence that is awake or parked, and back as a new sequence.
inline void Machine::deep_freeze() {
  const bool from_parked = !parked_.empty() && (all_parked() || one_in(2));
  const SeqId id = from_parked ? *parked_.begin() : any_sequence();
  const uint64_t digest = digest_of(*cache_);
  DeepReport report;
  auto bytes = from_parked ? cache_->freeze(id) : cache_->freeze(id, any_deep_options(), &report);
  if (digest != digest_of(*cache_)) return fail("freezing changed the cache");
  if (!bytes.ok()) {
    // unsupported: blocks of two calibrations.
    const StatusCode code = bytes.status().code();
    // failed_precondition: no tables, or packed in several parts, which a snapshot has no place for.
    const bool allowed = code == StatusCode::unsupported || ((!tables_ || from_parked) && code == StatusCode::failed_precondition);
    if (!allowed) fail(bytes.status().to_string());
    return;
  }
  if (one_in(3)) {
    auto damaged = *bytes;
    damaged[below(static_cast<uint32_t>(damaged.size()))] ^= static_cast<std::byte>(1u << below(8));
    if (cache_->unfreeze(damaged).ok()) return fail("damaged bytes were taken");
    if (digest != digest_of(*cache_)) return fail("damaged bytes changed the cache");
  }
  if (model_.size() >= 6) return;
  auto copy = cache_->unfreeze(*bytes);
  if (!copy.ok()) {
    // failed_precondition: made with the calibration that was there before.
    const StatusCode code = copy.status().code();
    const bool allowed = code == StatusCode::failed_precondition || (may_run_out() && code == StatusCode::resource_exhausted);
    if (!allowed) return fail(copy.status().to_string());
    if (digest != digest_of(*cache_)) return fail("a refused unfreeze changed the cache");
    return;
  }
  ++done_["deep snapshot"];
  if (cache_->is_parked(*copy).value()) return fail("loaded, and parked");
  model_.emplace(*copy, model_.at(id));
  model_.at(*copy).plain = false;
  model_.at(*copy).packed_once = true;
  promised_[*copy] = promised_.at(id);
  for (uint32_t l = 0; l < config_.num_layers; ++l) {
    check_layer(*copy, l);
    for (uint32_t h = 0; h < config_.num_kv_heads; ++h) check_rows(*copy, l, h, 8);
  }
}

// Another calibration of the same model: blocks there are keep theirs, and so do parked sequences.
inline void Machine::calibrate() {
  if (!setup_.calibrated) return;
  const uint64_t digest = digest_of_tokens(*cache_);
  const uint32_t which = 1 + below(2);
  const CalibrationPtr tables = machine_tables(config_, which);
  if (!tables) return fail("there are no tables");
  if (const Status status = cache_->set_calibration(tables); !status.ok()) return fail(status.to_string());
  if (cache_->calibration() != tables) return fail("calibration() is another");
  if (digest != digest_of_tokens(*cache_)) return fail("a calibration changed tokens that were there");
  done_["calibrated"] += which != tables_;
  tables_ = which;
}

// The figures of a cache with tables and packed bytes: everything is in the total, once, and tables beside it.
inline void Machine::check_parts(const MemoryStats& m) {
  uint64_t sum = m.bookkeeping_bytes + m.parked_bytes + m.free_bytes;
  for (const TierMemory& tier : m.tier) sum += tier.bytes();
  if (sum != m.total_bytes) fail("the parts sum to ", sum, ", the total is ", m.total_bytes);
  if (m.resident_bytes() < m.total_bytes + m.table_bytes) fail("tables of ", m.table_bytes, " bytes are in no sum");
}

}  // namespace tierkv::testing
