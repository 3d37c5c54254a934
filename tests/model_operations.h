// model_operations.h — what the random machine does, one operation a function; included by model_based_test.cc alone.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "base/f16.h"
#include "model_machine.h"

namespace tierkv::testing {

inline size_t element_bytes(DType type) { return type == DType::f32 ? 4 : 2; }

inline void store_element(DType type, std::byte* at, float x) {
  if (type == DType::f32) {
    std::memcpy(at, &x, 4);
  } else {
    const uint16_t half = type == DType::f16 ? f32_to_f16(x) : f32_to_bf16(x);
    std::memcpy(at, &half, 2);
  }
}

inline float as_stored(DType type, float x) {
  if (type == DType::f16) return f16_to_f32(f32_to_f16(x));
  if (type == DType::bf16) return bf16_to_f32(f32_to_bf16(x));
  return x;
}

struct Machine::Rows {
  std::vector<std::byte> storage;
  RowsView view;
  std::vector<float> values;  // what the view says, [tokens][heads][head_dim]
  std::vector<float> token(uint32_t t) const {
    const size_t n = static_cast<size_t>(view.heads) * view.head_dim;
    return {values.begin() + static_cast<ptrdiff_t>(t * n), values.begin() + static_cast<ptrdiff_t>((t + 1) * n)};
  }
};

inline Machine::Machine(const MachineSetup& setup, uint64_t seed) : setup_(setup), seed_(seed), rng_(seed) {
  config_.num_layers = 2;
  config_.num_kv_heads = 2;
  config_.num_heads = 4;
  config_.head_dim = 32;
  if (const Status status = apply_inline(setup.settings, config_); !status.ok()) {
    fail(status.to_string());
    return;
  }
  if (setup.more) setup.more(config_);
  auto created = AdaptiveKVCache::create(config_);
  if (!created.ok()) {
    fail(created.status().to_string());
    return;
  }
  cache_ = std::move(created).value();
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
      {"verify", &Machine::verify, 2},     {"bad call", &Machine::bad_call, 6},
  };
  uint32_t total = 0;
  for (const Choice& c : choices) total += c.weight;
  for (operation_ = 0; operation_ < operations && problem_.empty(); ++operation_) {
    uint32_t dice = below(total);
    const Choice* choice = choices;
    while (dice >= choice->weight) dice -= (choice++)->weight;
    doing_ = choice->name;
    if (model_.empty()) doing_ = "add", add();
    else (this->*choice->run)();
    ++done_[doing_];
    if (!problem_.empty()) break;
  }
  return problem_.empty();
}

inline SeqId Machine::any_sequence() {
  auto it = model_.begin();
  std::advance(it, below(static_cast<uint32_t>(model_.size())));
  return it->first;
}

inline const tiers::HeadStream& Machine::stream(SeqId id, uint32_t layer, uint32_t head) const {
  return impl_of(*cache_).sequences.at(id)->heads(layer)[head];
}

inline Machine::Rows Machine::make_rows(uint32_t tokens, uint32_t heads, DType type, float size) {
  const uint32_t d = config_.head_dim;
  Rows rows;
  rows.view = RowsView::dense(nullptr, type, tokens, heads, d);
  ptrdiff_t first = 0;
  size_t elements = static_cast<size_t>(tokens) * heads * d;
  switch (below(4)) {
    case 0: break;  // dense
    case 1:         // gaps after every head and every token
      rows.view.head_stride = d + 3;
      rows.view.token_stride = static_cast<ptrdiff_t>(heads) * (d + 3) + 5;
      elements = static_cast<size_t>(tokens) * static_cast<size_t>(rows.view.token_stride);
      break;
    case 2:  // [head][token][channel]
      rows.view.head_stride = static_cast<ptrdiff_t>(tokens) * d;
      rows.view.token_stride = d;
      break;
    case 3:  // newest first
      rows.view.token_stride = -rows.view.token_stride;
      first = static_cast<ptrdiff_t>(tokens - 1) * heads * d;
      break;
  }
  const size_t width = element_bytes(type);
  rows.storage.assign(std::max<size_t>(elements, 1) * width, std::byte{0xFF});  // NaN where no row is
  for (uint32_t t = 0; t < tokens; ++t) {
    for (uint32_t h = 0; h < heads; ++h) {
      const ptrdiff_t at =
          first + static_cast<ptrdiff_t>(t) * rows.view.token_stride + static_cast<ptrdiff_t>(h) * rows.view.head_stride;
      for (uint32_t c = 0; c < d; ++c) {
        const float x = real(size);
        store_element(type, rows.storage.data() + (static_cast<size_t>(at) + c) * width, x);
        rows.values.push_back(as_stored(type, x));
      }
    }
  }
  rows.view.data = rows.storage.data() + static_cast<size_t>(first) * width;
  return rows;
}

// --- operations

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

inline void Machine::append() {
  const SeqId id = any_sequence();
  const uint32_t layer = any_layer();
  ReferenceLayer& ref = model_.at(id).layers[layer];
  const uint32_t dice = below(20);
  uint32_t tokens = dice < 9 ? 1 : dice < 17 ? 1 + below(12) : dice < 19 ? 1 + below(60) : 1 + below(200);
  if (ref.length + tokens > setup_.max_length && !evicting()) {
    truncate();
    return;
  }
  if (evicting() && ref.length > 4 * setup_.max_length) return remove();
  const DType type = static_cast<DType>(below(3));
  const Rows keys = make_rows(tokens, config_.num_kv_heads, type, 1.0f);
  const Rows values = make_rows(tokens, config_.num_kv_heads, static_cast<DType>(below(3)), 1.0f);
  const uint32_t before = ref.length;
  const auto old_live = ref.live;
  const uint64_t digest = may_run_out() ? digest_of(*cache_) : 0;
  const Status status = cache_->append(id, layer, keys.view, values.view);
  if (!status.ok()) {
    const bool full = config_.max_seq_len && !evicting() && before + tokens > config_.max_seq_len;
    if (!(full || may_run_out()) || status.code() != StatusCode::resource_exhausted) return fail(status.to_string());
    if (evicting()) {
      // Making room comes before knowing that it will be enough: old tokens may be gone, but nothing of the call came in.
      if (cache_->length(id, layer).value() != before) return fail("a refused append changed the length");
      for (uint32_t h = 0; h < config_.num_kv_heads; ++h) {
        const auto now = cache_->positions(id, layer, h).value();
        if (!std::includes(old_live[h].begin(), old_live[h].end(), now.begin(), now.end()))
          return fail("a refused append left rows behind");
      }
      for (uint32_t l = 0; l < config_.num_layers; ++l) {
        for (uint32_t h = 0; h < config_.num_kv_heads; ++h) model_.at(id).layers[l].live[h] = cache_->positions(id, l, h).value();
      }
      model_.at(id).plain = false;
    } else if (may_run_out() && digest != digest_of(*cache_)) {
      return fail("a refused append changed the cache: ", status.to_string());
    }
    if (const uint32_t window = config_.layer(layer).window) {
      const uint32_t reach = window - 1 + config_.window_slack;
      if (before > reach) promised_.at(id)[layer] = std::max(promised_.at(id)[layer], before - reach);
      for (uint32_t h = 0; h < config_.num_kv_heads; ++h) ref.live[h] = cache_->positions(id, layer, h).value();
      if (ref.live[0].empty() ? before != 0 : ref.live[0][0] > promised_.at(id)[layer])
        return fail("a refused append lost rows of the window");
    }
    if (one_in(2)) remove();
    return;
  }
  for (uint32_t t = 0; t < tokens; ++t) ref.append(keys.token(t), values.token(t));
  check_live_after_append(id, layer, before, old_live);
  if (!problem_.empty()) return;
  check_layer(id, layer);
  if (one_in(4)) check_rows(id, layer, below(config_.num_kv_heads), 24);
}

// Which tokens are there now. Exact without eviction and windows; otherwise what is promised, and then as the cache says.
inline void Machine::check_live_after_append(SeqId id, uint32_t layer, uint32_t before,
                                             const std::vector<std::vector<uint32_t>>& old_live) {
  ReferenceLayer& ref = model_.at(id).layers[layer];
  const LayerConfig tiers = config_.layer(layer);
  const uint32_t tokens = ref.length - before;
  uint32_t& promised = promised_.at(id)[layer];
  const uint32_t reach = tiers.window ? tiers.window - 1 + config_.window_slack : 0;
  if (tiers.window && before > reach) promised = std::max(promised, before - reach);
  for (uint32_t h = 0; h < config_.num_kv_heads; ++h) {
    const auto now = cache_->positions(id, layer, h).value();
    if (tiers.window) {
      // A suffix without holes that reaches back to where the first new token's window (and the slack) begins.
      const uint32_t oldest = now.empty() ? ref.length : now[0];
      if (now.size() != ref.length - oldest || (!now.empty() && now.back() != ref.length - 1)) return fail("a hole in a window");
      if (oldest > promised) return fail("window lost position ", promised, "; oldest is ", oldest);
      const uint32_t rest = tiers.hot >= tiers.window ? 0 : tiers.hot + 2 * config_.archive_block + tiers.sinks;
      if (oldest + rest < promised) return fail("window keeps position ", oldest, " though ", promised, " would do");
      ref.live[h] = now;
      continue;
    }
    if (!evicting()) {
      if (now != ref.live[h]) return fail("head ", h, " holds ", now.size(), " tokens, expected ", ref.live[h].size());
      continue;
    }
    if (now == ref.live[h]) continue;
    model_.at(id).plain = false;
    const auto& impl = impl_of(*cache_);
    const uint32_t limit =
        config_.max_seq_len ? std::max(impl.policy->layer_budget(layer, config_.num_layers, config_.max_seq_len), tiers.sinks + 2)
                            : ~0u;
    if (now.size() > limit) return fail("head ", h, " holds ", now.size(), " tokens, its limit is ", limit);
    size_t longest = 0;
    for (const auto& head : old_live) longest = std::max(longest, head.size());
    if (!may_run_out() && longest + tokens <= limit) return fail("evicted without need");
    if (!std::includes(ref.live[h].begin(), ref.live[h].end(), now.begin(), now.end())) return fail("holds what it should not");
    if (now.empty() || now.back() != ref.length - 1) return fail("the newest token went");
    for (uint32_t p = 0; p < std::min(tiers.sinks, ref.length); ++p) {
      if (now[p] != p) return fail("sink ", p, " went");
    }
    ref.live[h] = now;
  }
  if (evicting()) {
    // relieve() takes from the sequence's other layers too.
    for (uint32_t l = 0; l < config_.num_layers && may_run_out(); ++l) {
      for (uint32_t h = 0; h < config_.num_kv_heads; ++h) {
        auto& live = model_.at(id).layers[l].live[h];
        const auto now = cache_->positions(id, l, h).value();
        if (!std::includes(live.begin(), live.end(), now.begin(), now.end())) return fail("layer ", l, " gained rows");
        live = now;
      }
    }
    model_.at(id).plain = false;
  }
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
  const uint64_t digest = digest_of(*cache_);
  const Status status = cache_->attention(id, layer, queries.view, out.data(), options);
  if (options.first_position < 0 && count > length) {
    if (status.code() != StatusCode::out_of_range) return fail("queries before the start gave ", status.to_string());
    if (digest != digest_of(*cache_)) return fail("a refused attention changed the cache");
    return;
  }
  if (!status.ok()) return fail(status.to_string());
  if ((!options.observe || !evicting()) && digest != digest_of(*cache_)) {
    const bool only_age = options.observe;  // `unobserved` is part of the digest
    if (!only_age) return fail("attention that observes nothing changed the cache");
  }
  check_head_attention(id, layer, below(config_.num_kv_heads), queries.values, count, out, options, options.mass);
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
  if (one_in(2)) to = longest - std::min(longest, below(8));
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
  const SeqId id = any_sequence();
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
    for (uint32_t l = 0; l < config_.num_layers; ++l) check_layer(id, l);
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
  if (const std::string problem = books_problem(*cache_); !problem.empty()) return fail(problem);
  const MemoryStats all = cache_->memory_usage();
  uint64_t live = 0;
  for (const auto& [id, ref] : model_) {
    uint64_t own = 0;
    for (const ReferenceLayer& layer : ref.layers) {
      for (const auto& head : layer.live) own += head.size();
    }
    live += own;
    const MemoryStats m = cache_->memory_usage(id).value();
    uint64_t tokens = 0, bytes = m.bookkeeping_bytes;
    for (const TierMemory& tier : m.tier) tokens += tier.tokens, bytes += tier.bytes();
    if (tokens != own) return fail("sequence ", id, " reports ", tokens, " rows, has ", own);
    if (m.total_bytes != bytes) return fail("a sequence's total is not the sum of its parts");
    if (m.fp16_bytes != own * config_.head_dim * 4) return fail("fp16_bytes is wrong");
  }
  uint64_t tokens = 0;
  for (const TierMemory& tier : all.tier) tokens += tier.tokens;
  if (tokens != live) return fail("the cache reports ", tokens, " rows, has ", live);
}

inline void Machine::verify() {
  for (const auto& [id, ref] : model_) {
    if (const Status status = cache_->verify(id); !status.ok()) return fail(status.to_string());
  }
}

}  // namespace tierkv::testing
