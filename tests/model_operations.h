// model_operations.h — what the random machine does, one operation a function; included by the tests that run it.
#pragma once

#include <algorithm>
#include <cmath>

#include "model_append.h"
#include "model_cold.h"
#include "model_machine.h"
#include "model_rows.h"
#include "model_tables.h"

namespace tierkv::testing {

inline Machine::Machine(const MachineSetup& setup, uint64_t seed) : setup_(setup), seed_(seed), rng_(seed) {
  config_.num_layers = 2;
  config_.num_kv_heads = 2;
  config_.num_heads = 4;
  config_.head_dim = 32;
  if (setup.cold) config_.cold.path = folder_.file("cold");
  if (const Status status = apply_inline(setup.settings, config_); !status.ok()) {
    fail(status.to_string());
    return;
  }
  if (setup.more) setup.more(config_);
  // A cache whose configuration names no codec with tables gets them when sequences are there already.
  CalibrationPtr tables;
  const bool named = setup.settings.find("klt") != std::string::npos || setup.settings.find("kvquant") != std::string::npos;
  if (setup.calibrated && named) tables_ = 1, tables = machine_tables(config_, 1);
  auto created = AdaptiveKVCache::create(config_, tables);
  if (!created.ok()) {
    fail(created.status().to_string());
    return;
  }
  cache_ = std::move(created).value();
  if (setup.backend) cache_->attend_with(setup.backend());
}

inline std::string Machine::report() const {
  std::string json = to_json(config_);
  json.erase(std::remove(json.begin(), json.end(), '\n'), json.end());
  std::ostringstream out;
  out << setup_.name << ": " << problem_ << "\n  in operation " << operation_ << " (" << doing_ << "), seed " << seed_
      << "\n  settings: " << setup_.settings << "\n  config: " << json << "\n  done:";
  for (const auto& [what, count] : done_) out << ' ' << what << ' ' << count;
  out << "\n  again: TIERKV_SEED=" << seed_ << " TIERKV_MODEL_OPS=" << operation_ + 1
      << " tests_model_based_test --gtest_filter='*/" << setup_.name << "'";
  return out.str();
}

inline bool Machine::run(uint64_t operations) {
  struct Choice {
    const char* name;
    void (Machine::*run)();
    uint32_t weight;
  };
  static constexpr Choice choices[] = {
      {"append", &Machine::append, 34},    {"attention", &Machine::attend, 26}, {"get", &Machine::get_rows, 8},
      {"truncate", &Machine::truncate, 5}, {"fork", &Machine::fork, 3},         {"remove", &Machine::remove, 2},
      {"add", &Machine::add, 2},           {"evict", &Machine::evict, 3},       {"flush", &Machine::flush, 2},
      {"adapt", &Machine::adapt, 3},       {"freeze", &Machine::freeze, 1},     {"memory", &Machine::memory, 6},
      {"verify", &Machine::verify, 2},     {"bad call", &Machine::bad_call, 6}, {"park", &Machine::park, 4},
      {"wake", &Machine::wake, 4},         {"deep", &Machine::deep_freeze, 1},  {"calibrate", &Machine::calibrate, 1},
      {"promote", &Machine::promote, 4},   {"demote", &Machine::demote, 2},     {"damage", &Machine::damage_cold, 1},
  };
  uint32_t total = 0;
  for (const Choice& c : choices) total += c.weight;
  for (operation_ = 0; operation_ < operations && problem_.empty(); ++operation_) {
    uint32_t dice = below(total);
    const Choice* choice = choices;
    while (dice >= choice->weight) dice -= (choice++)->weight;
    doing_ = choice->name;
    if (model_.empty()) doing_ = "add", add();
    else if (all_parked()) doing_ = "wake", wake();
    else (this->*choice->run)();
    ++done_[doing_];
    if (!problem_.empty()) break;
  }
  return problem_.empty();
}

inline SeqId Machine::any_sequence() {
  std::vector<SeqId> awake;
  for (const auto& [id, sequence] : model_) {
    if (!parked_.count(id)) awake.push_back(id);
  }
  return awake[below(static_cast<uint32_t>(awake.size()))];
}

inline const tiers::HeadStream& Machine::stream(SeqId id, uint32_t layer, uint32_t head) const {
  tiers::Sequence& sequence = *impl_of(*cache_).sequences.at(id);
  const std::lock_guard landed(sequence.mutex);
  return sequence.heads(layer)[head];
}

inline void Machine::add() {
  if (model_.size() >= 5) return;
  auto added = cache_->add_sequence();
  if (!added.ok()) {
    if (may_run_out() && added.status().code() == StatusCode::resource_exhausted) {
      if (!model_.empty()) remove();
      return;
    }
    return fail(added.status().to_string());
  }
  if (model_.count(*added)) return fail("id ", *added, " given twice");
  model_.emplace(*added, ReferenceSequence(config_.num_layers, config_.num_kv_heads));
  promised_[*added].assign(config_.num_layers, 0);
}

inline void Machine::attend() {
  const SeqId id = any_sequence();
  const uint32_t layer = any_layer();
  const uint32_t length = model_.at(id).layers[layer].length;
  AttentionOptions options;
  uint32_t count = one_in(2) ? 1 : 1 + below(9);
  if (one_in(40)) count = 1 + below(70);
  options.causal = !one_in(4);
  options.observe = !one_in(5);
  if (one_in(3)) options.scale = 0.05f + std::fabs(real(1.0f));
  if (one_in(5)) options.softcap = 1.0f + std::fabs(real(30.0f));
  if (one_in(3)) options.first_position = below(length + 10);
  std::vector<float> sinks;
  for (uint32_t h = 0; h < config_.num_heads; ++h) sinks.push_back(real(4.0f));
  if (one_in(6)) options.sink_logits = sinks.data();
  MassReport mass;
  mass.want_tokens = one_in(2);
  if (one_in(3)) options.mass = &mass;

  const Rows queries = make_rows(count, config_.num_heads, static_cast<DType>(below(3)), one_in(5) ? 8.0f : 2.0f);
  std::vector<float> out(queries.values.size(), -7.0f);
  const bool here = !setup_.there || one_in(4);
  std::vector<float> before;
  if (config_.cold.promote != 0 && options.observe) {  // what is read is as it was before blocks come and go
    AttentionOptions still = options;
    still.observe = false, still.mass = nullptr;
    before = out;
    if (cache_->attention(id, layer, queries.view, before.data(), still).ok()) {
      check_head_attention(id, layer, below(config_.num_kv_heads), queries.values, count, before, still, nullptr);
    }
  }
  const uint64_t digest = here ? digest_of(*cache_) : 0;  // which waits for rows that are on their way
  const Status status = cache_->attention(id, layer, here ? queries.view : placed(queries.view), out.data(), options);
  if (options.first_position < 0 && count > length) {
    if (status.code() != StatusCode::out_of_range) return fail("queries before the start gave ", status.to_string());
    if (here && digest != digest_of(*cache_)) return fail("a refused attention changed the cache");
    return;
  }
  if (options.mass && status.code() == StatusCode::failed_precondition && config_.cold.spill != "off")
    return;  // of what is read alone
  if (!status.ok()) return fail(status.to_string());
  if (setup_.cold) {
    for (uint32_t h = 0; h < config_.num_kv_heads; ++h) {
      for (const tiers::BlockRef& ref : stream(id, layer, h).blocks) done_["over spilled blocks"] += ref.block.spilled();
    }
  }
  if (here && (!options.observe || !evicting()) && digest != digest_of(*cache_)) {
    const bool only_age = options.observe;  // `unobserved` is part of the digest
    if (!only_age) return fail("attention that observes nothing changed the cache");
  }
  if (!before.empty()) {
    if (out != before) return fail("attention that brings blocks back gave another result");
    return check_promoted(id, 0, 0, false);
  }
  check_head_attention(id, layer, below(config_.num_kv_heads), queries.values, count, out, options, options.mass);
  done_["over splits"] += length > 1024 && count * (config_.num_heads / config_.num_kv_heads) <= 16;
}

inline void Machine::get_rows() {
  const SeqId id = any_sequence();
  const uint32_t layer = any_layer();
  check_layer(id, layer);
  for (uint32_t h = 0; h < config_.num_kv_heads; ++h) check_rows(id, layer, h, 16);
  if (!problem_.empty()) return;
  const ReferenceLayer& ref = model_.at(id).layers[layer];
  std::vector<uint32_t> wanted;
  for (uint32_t i = 0; i < 6 && ref.length; ++i) wanted.push_back(below(ref.length));
  bool all_there = true;
  for (const uint32_t p : wanted) {
    for (const auto& live : ref.live) all_there &= std::binary_search(live.begin(), live.end(), p);
  }
  const uint32_t d = config_.head_dim;
  std::vector<float> keys(wanted.size() * config_.num_kv_heads * d, -7.0f), values(keys.size(), -7.0f);
  const Status status = cache_->get(id, layer, wanted, keys.data(), values.data());
  if (!all_there) {
    if (status.code() != StatusCode::not_found) return fail("get of an evicted position gave ", status.to_string());
    return;
  }
  if (!status.ok()) return fail(status.to_string());
  std::vector<float> key(d), value(d);
  for (size_t i = 0; i < wanted.size(); ++i) {
    for (uint32_t h = 0; h < config_.num_kv_heads; ++h) {
      if (!tiers::read_row(impl_of(*cache_).env, stream(id, layer, h), wanted[i], key.data(), value.data()))
        return fail("unreadable row");
      const size_t at = (i * config_.num_kv_heads + h) * d;
      if (!std::equal(key.begin(), key.end(), keys.begin() + static_cast<ptrdiff_t>(at)) ||
          !std::equal(value.begin(), value.end(), values.begin() + static_cast<ptrdiff_t>(at))) {
        return fail("get() and the stream disagree at position ", wanted[i], ", head ", h);
      }
    }
  }
}

inline void Machine::truncate() {
  const SeqId id = any_sequence();
  ReferenceSequence& ref = model_.at(id);
  const uint32_t longest = ref.longest();
  uint32_t to = below(longest + 1);
  if (one_in(2) || (setup_.grows_long && !one_in(8))) to = longest - std::min(longest, below(8));
  bool must_work = true;
  bool may_work = true;
  for (uint32_t l = 0; l < config_.num_layers; ++l) {
    const uint32_t window = config_.layer(l).window;
    const ReferenceLayer& layer = ref.layers[l];
    if (!window || to == 0 || to >= layer.length) continue;
    const uint32_t needed = to >= window ? to - window + 1 : 0;
    must_work &= promised_.at(id)[l] <= needed;
    for (const auto& live : layer.live) may_work &= !live.empty() && live[0] <= needed;
  }
  const uint64_t digest = digest_of(*cache_);
  const Status status = cache_->truncate(id, to);
  if (!status.ok()) {
    const bool allowed = (!must_work && status.code() == StatusCode::failed_precondition) ||
                         (may_run_out() && status.code() == StatusCode::resource_exhausted);
    if (!allowed) return fail("to ", to, " of ", longest, ": ", status.to_string());
    if (digest != digest_of(*cache_)) return fail("a refused truncate changed the cache");
    return;
  }
  if (!may_work) return fail("truncated to ", to, " though the window's rows are gone");
  if (to < longest) ref.plain = false;
  for (uint32_t l = 0; l < config_.num_layers; ++l) {
    ref.layers[l].truncate(to);
    promised_.at(id)[l] = std::min(promised_.at(id)[l], to);
    check_layer(id, l);
  }
}

inline void Machine::fork() {
  if (model_.size() >= 6) return remove();
  const SeqId id = any_sequence();
  auto copy = cache_->fork(id);
  if (!copy.ok()) {
    if (!may_run_out() || copy.status().code() != StatusCode::resource_exhausted) return fail(copy.status().to_string());
    return remove();
  }
  model_.emplace(*copy, model_.at(id));
  promised_[*copy] = promised_.at(id);
  for (uint32_t l = 0; l < config_.num_layers; ++l) check_layer(*copy, l);
}

inline void Machine::remove() {
  const SeqId id = parked_.empty() || (!all_parked() && one_in(2)) ? any_sequence() : *parked_.begin();
  parked_.erase(id);
  if (const Status status = cache_->remove(id); !status.ok()) return fail(status.to_string());
  model_.erase(id);
  promised_.erase(id);
  if (cache_->remove(id).code() != StatusCode::not_found) return fail("removed twice");
  std::vector<SeqId> expected;
  for (const auto& [left, sequence] : model_) expected.push_back(left);
  if (cache_->sequences() != expected) return fail("sequences() is wrong");
}

inline void Machine::evict() {
  const SeqId id = any_sequence();
  ReferenceSequence& ref = model_.at(id);
  const uint32_t tokens = below(ref.longest() + 4);
  const uint64_t digest = digest_of(*cache_);
  const Status status = cache_->evict(id, tokens);
  if (!evicting()) {
    if (status.code() != StatusCode::failed_precondition) return fail("without a policy: ", status.to_string());
    if (digest != digest_of(*cache_)) return fail("a refused evict changed the cache");
    return;
  }
  if (!status.ok() && !(may_run_out() && status.code() == StatusCode::resource_exhausted)) return fail(status.to_string());
  for (uint32_t l = 0; l < config_.num_layers; ++l) {
    const LayerConfig tiers = config_.layer(l);
    const uint32_t budget = std::max(impl_of(*cache_).policy->layer_budget(l, config_.num_layers, tokens), tiers.sinks + 1);
    for (uint32_t h = 0; h < config_.num_kv_heads; ++h) {
      auto& live = ref.layers[l].live[h];
      const auto now = cache_->positions(id, l, h).value();
      if (now == live && (live.size() <= budget || tiers.window || !status.ok())) continue;
      ref.plain = false;
      if (tiers.window) return fail("evicted from a windowed layer");
      if (live.size() <= budget && !may_run_out()) return fail("evicted without need");
      if (status.ok() && now.size() > budget) return fail("kept ", now.size(), " tokens of ", budget);
      if (!std::includes(live.begin(), live.end(), now.begin(), now.end())) return fail("holds what it should not");
      if (!live.empty() && (now.empty() || now.back() != live.back())) return fail("the newest live token went");
      const uint32_t sinks = std::min(tiers.sinks, ref.layers[l].length);
      for (uint32_t p = 0; p < sinks; ++p) {
        if (now[p] != p) return fail("sink ", p, " went");
      }
      live = now;
    }
    check_layer(id, l);
  }
}

inline void Machine::flush() {
  const Status status = cache_->flush();
  if (!status.ok() && !(may_run_out() && status.code() == StatusCode::resource_exhausted)) return fail(status.to_string());
  for (const auto& [id, ref] : model_) {
    for (uint32_t l = 0; l < config_.num_layers && !parked_.count(id); ++l) check_layer(id, l);
  }
}

inline void Machine::adapt() {
  if (!setup_.adapts) return;
  const float level = one_in(2) ? 0.5f : 1.0f;
  for (uint32_t i = 0; i < 20; ++i) {
    if (const Status status = cache_->adapt_thresholds({level}); !status.ok()) return fail(status.to_string());
  }
  for (auto& [id, ref] : model_) ref.plain = false;
  const auto thresholds = cache_->thresholds();
  if (thresholds.size() != config_.num_layers) return fail(thresholds.size(), " thresholds");
}

inline void Machine::memory() {
  if (impl_of(*cache_).cold) impl_of(*cache_).cold->drain();  // what nobody wants any more is freed behind us
  const MemoryStats all = cache_->memory_usage();
  if (setup_.calibrated) check_parts(all);
  else if (const std::string problem = books_problem(*cache_); !problem.empty()) return fail(problem);
  uint64_t live = 0;
  for (const auto& [id, ref] : model_) {
    uint64_t own = 0;
    for (const ReferenceLayer& layer : ref.layers) {
      for (const auto& head : layer.live) own += head.size();
    }
    live += own;
    const MemoryStats m = cache_->memory_usage(id).value();
    uint64_t tokens = m.parked_tokens, bytes = m.bookkeeping_bytes + m.parked_bytes;
    if ((m.parked_tokens != 0) != (parked_.count(id) != 0)) return fail("sequence ", id, " is not parked as it says");
    for (const TierMemory& tier : m.tier) tokens += tier.tokens, bytes += tier.bytes();
    if (tokens != own) return fail("sequence ", id, " reports ", tokens, " rows, has ", own);
    if (m.total_bytes != bytes) return fail("a sequence's total is not the sum of its parts");
    if (m.fp16_bytes != own * config_.head_dim * 4) return fail("fp16_bytes is wrong");
  }
  uint64_t tokens = all.parked_tokens;
  for (const TierMemory& tier : all.tier) tokens += tier.tokens;
  if (tokens != live) return fail("the cache reports ", tokens, " rows, has ", live);
}

inline void Machine::verify() {
  for (const auto& [id, ref] : model_) {
    if (const Status status = cache_->verify(id); !status.ok()) return fail(status.to_string());
  }
}

}  // namespace tierkv::testing
