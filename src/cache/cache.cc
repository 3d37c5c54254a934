// cache.cc — AdaptiveKVCache: creation, sequences, and the calls that look at or shorten them.
#include <algorithm>

#include "base/guarded.h"
#include "base/mapped_memory.h"
#include "base/status_macros.h"
#include "cache/impl.h"
#include "cache/pressure.h"
#include "quant/key_box.h"
#include "store/packed_group.h"

namespace tierkv {

using plan::LayerPlan;
using tiers::HeadStream;
using tiers::Sequence;

namespace {

// Of each archive block, where decoding may leave some of them unread.
size_t summary_bytes(const AdaptiveKVCache::Impl& impl) {
  return impl.skip.kind == config::SkipMode::Kind::off ? 0 : quant::box_bytes(impl.config.head_dim);
}

// What relief work needs twice over, the lists of a block included.
size_t largest_block(const AdaptiveKVCache::Impl& impl) {
  const auto bytes = [&](const quant::CodecEntry& entry) {
    return Arena::rounded(tiers::payload_sizes(entry).total()) + Arena::rounded(summary_bytes(impl)) +
           store::BlockStore::kSlabBytes + entry.tokens * (sizeof(uint32_t) + impl.env.signals * sizeof(float)) + 256;
  };
  return impl.planner->now()->largest_block(bytes, impl.config.num_kv_heads);
}

// Whether a layer's archive keeps some rows better, with tables or without.
bool places_rows(const LayerConfig& layer) {
  const auto better = [&](bool calibrated) {
    const auto pair = quant::parse_codec_pair(quant::resolve_auto(layer.archive_codec, calibrated));
    return pair.ok() && (pair->key.top != 0 || pair->value.top != 0);
  };
  return layer.warm != kAll && (better(false) || better(true));
}

// Which statistics tokens have: what the policy asks for, and their mass where it says which rows are kept better.
void choose_signals(AdaptiveKVCache::Impl& impl) {
  uint32_t wanted = impl.policy ? impl.policy->signals() : 0;
  for (uint32_t l = 0; l < impl.config.num_layers; ++l) {
    impl.places.push_back(!impl.planner->shape(l).ring && places_rows(impl.config.layer(l)));
    if (impl.places[l]) wanted |= 1u << policy::kMassTotal;
  }
  for (int signal = 0; signal < policy::kNumSignals; ++signal) {
    if (wanted >> signal & 1u) impl.signal_slot[signal] = static_cast<int>(impl.env.signals++);
  }
  impl.only_totals = wanted == 1u << policy::kMassTotal;
  impl.env.mass = impl.signal_slot[policy::kMassTotal];
  impl.env.archive_stats = impl.policy != nullptr;
}

}  // namespace

AdaptiveKVCache::AdaptiveKVCache(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
AdaptiveKVCache::~AdaptiveKVCache() = default;
const CacheConfig& AdaptiveKVCache::config() const { return impl_->config; }

Result<std::unique_ptr<AdaptiveKVCache>> AdaptiveKVCache::create(const CacheConfig& config, CalibrationPtr calibration) try {
  TIERKV_RETURN_IF_ERROR(validate(config));
  if (!calibration && !config.calibration_file().empty()) {
    TIERKV_ASSIGN_OR_RETURN(calibration, load_calibration(config.calibration_file()));
  }
  auto impl = std::make_unique<Impl>(config);
  TIERKV_ASSIGN_OR_RETURN(impl->planner, plan::Planner::create(config, impl->codecs, std::move(calibration), attn::kMaxViewRows));
  if (impl->codecs.calibration()) return_heap_memory();  // a table's file was read whole, and is not needed again
  impl->env.head_dim = config.head_dim;
  impl->env.hot_bf16 = config.hot_type == "bf16";
  TIERKV_ASSIGN_OR_RETURN(impl->policy, policy::make_policy(config.eviction));
  TIERKV_ASSIGN_OR_RETURN(impl->skip, config::parse_skip_mode(config.skip));
  choose_signals(*impl);
  impl->query_power.begin(config, *impl->planner->now());
  const size_t block = impl->largest_block = largest_block(*impl);
  const size_t headroom = impl->policy ? 2 * block : 0;
  if (config.byte_budget && config.byte_budget < headroom + block) {
    return error(StatusCode::invalid_argument, "byte_budget = ", config.byte_budget,
                 " is too small for one block: this configuration needs at least ", headroom + block, " bytes");
  }
  impl->arena = std::make_unique<Arena>(config.byte_budget, headroom);
  impl->env.arena = impl->arena.get();
  TIERKV_RETURN_IF_ERROR(impl->open_cold());
  impl->store = std::make_unique<store::BlockStore>(*impl->arena, tiers::payload_sizes, impl->cold.get(), summary_bytes(*impl));
  impl->env.store = impl->store.get();
  impl->env.moves = &impl->moves;
  return std::unique_ptr<AdaptiveKVCache>(new AdaptiveKVCache(std::move(impl)));
}
TIERKV_NO_MEMORY("make a cache")

CalibrationPtr AdaptiveKVCache::calibration() const { return impl_->codecs.calibration(); }

std::string AdaptiveKVCache::archive_codec(uint32_t layer) const {
  return layer < impl_->config.num_layers ? impl_->planner->now()->archive_codec(layer) : std::string();
}

std::vector<LayerPlan> AdaptiveKVCache::Impl::plans_of(const Sequence& sequence) const {
  std::vector<uint32_t> lengths;
  for (uint32_t l = 0; l < sequence.num_layers(); ++l) lengths.push_back(sequence.layer(l).length);
  return planner->all(lengths);
}

Status AdaptiveKVCache::Impl::check_layer(uint32_t layer) const {
  if (layer < config.num_layers) return {};
  return error(StatusCode::out_of_range, "layer ", layer, " of a cache with ", config.num_layers, " layers");
}

// --- sequences

Result<std::shared_ptr<Sequence>> AdaptiveKVCache::Impl::find(SeqId seq) const {
  std::lock_guard lock(map_mutex);
  const auto it = sequences.find(seq);
  if (it == sequences.end()) return error(StatusCode::not_found, "no sequence ", seq);
  return it->second;
}

std::shared_ptr<Sequence> AdaptiveKVCache::Impl::sequence_after(SeqId& last) const noexcept {
  std::lock_guard lock(map_mutex);
  const auto it = sequences.upper_bound(last);
  if (it == sequences.end()) return nullptr;
  last = it->first;
  return it->second;
}

Status AdaptiveKVCache::Impl::check_whole(SeqId seq, const Sequence& sequence) const {
  const tiers::Spoiled& spoiled = sequence.spoiled();
  if (spoiled.code == StatusCode::ok) return {};
  const char* what = spoiled.code == StatusCode::invalid_argument ? " is not finite"
                     : spoiled.code == StatusCode::failed_precondition
                         ? " never came: its graph was advanced, and not launched once"
                         : " was lost when the device failed";
  return error(spoiled.code, "sequence ", seq, ": the row that was appended to layer ", spoiled.layer, " at position ",
               spoiled.position, what, "; truncate() the sequence to ", spoiled.position, " tokens or fewer, or remove it");
}

Status AdaptiveKVCache::Impl::check_awake(SeqId seq, const Sequence& sequence) const {
  TIERKV_RETURN_IF_ERROR(check_whole(seq, sequence));
  return check_unpacked(seq, sequence);
}

Status AdaptiveKVCache::Impl::check_unpacked(SeqId seq, const Sequence& sequence) const {
  if (sequence.packed.empty()) return {};
  return error(StatusCode::failed_precondition, "sequence ", seq, " is parked: positions ", sequence.packed.front()->first, "..",
               sequence.packed.back()->end - 1, " are in no tier until wake()");
}

Result<SeqId> AdaptiveKVCache::Impl::adopt(std::shared_ptr<Sequence> sequence) {
  if (!sequence) {
    return error(StatusCode::resource_exhausted, "no memory for another sequence: byte_budget of ", arena->limit(), " bytes, ",
                 arena->mapped(), " mapped");
  }
  std::lock_guard lock(map_mutex);
  sequences.emplace(next_id, std::move(sequence));
  return next_id++;
}

bool AdaptiveKVCache::Impl::make_others_room(SeqId seq, uint64_t needed, uint32_t attempt) {
  std::shared_ptr<const PressureHandler> handler;
  {
    std::lock_guard lock(pressure_mutex);
    handler = pressure;
  }
  if (!handler || config.byte_budget == 0) return false;
  const Arena::Books books = arena->books();
  return (*handler)({seq, needed, books.mapped - books.free_bytes, config.byte_budget, attempt});
}

Status AdaptiveKVCache::set_pressure_handler(PressureHandler handler) try {
  auto shared = handler ? std::make_shared<const PressureHandler>(std::move(handler)) : nullptr;
  std::lock_guard lock(impl_->pressure_mutex);
  impl_->pressure.swap(shared);
  return {};
}
TIERKV_NO_MEMORY("keep a pressure handler")

Result<SeqId> AdaptiveKVCache::add_sequence() try {
  const uint32_t layers = impl_->config.num_layers, heads = impl_->config.num_kv_heads;
  return cache::with_pressure(*impl_, 0, [&](uint64_t& needed) -> Result<SeqId> {
    needed = Sequence::record_bytes(layers, heads);
    auto sequence = Sequence::create(impl_->env, layers, heads);
    for (uint32_t l = 0; sequence && l < layers; ++l) {
      const bool ring = impl_->planner->shape(l).ring;
      for (HeadStream& s : sequence->heads(l)) s.tail.configure(impl_->env.head_dim, impl_->env.signals, ring);
    }
    return impl_->adopt(std::move(sequence));
  });
}
TIERKV_NO_MEMORY("add a sequence")

Result<SeqId> AdaptiveKVCache::fork(SeqId seq) try {
  return cache::with_pressure(*impl_, seq, [&](uint64_t& needed) -> Result<SeqId> {
    TIERKV_ASSIGN_OR_RETURN(auto source, impl_->find(seq));
    needed = source->record_bytes();
    std::shared_ptr<Sequence> copy;
    {
      std::lock_guard lock(source->mutex);
      TIERKV_RETURN_IF_ERROR(impl_->check_whole(seq, *source));
      copy = Sequence::fork(*source);
    }
    return impl_->adopt(std::move(copy));
  });
}
TIERKV_NO_MEMORY("fork a sequence")

Status AdaptiveKVCache::remove(SeqId seq) try {
  std::shared_ptr<Sequence> gone;
  {
    std::lock_guard lock(impl_->map_mutex);
    const auto it = impl_->sequences.find(seq);
    if (it == impl_->sequences.end()) return error(StatusCode::not_found, "no sequence ", seq);
    gone = std::move(it->second);
    impl_->sequences.erase(it);
  }
  impl_->learning.forget(seq);
  return {};  // freed here, or by the last call that still runs on it
}
TIERKV_NO_MEMORY("remove a sequence")

std::vector<SeqId> AdaptiveKVCache::sequences() const {
  std::lock_guard lock(impl_->map_mutex);
  std::vector<SeqId> ids;
  for (const auto& [id, sequence] : impl_->sequences) ids.push_back(id);
  return ids;
}

// --- looking

Result<uint32_t> AdaptiveKVCache::length(SeqId seq) const try {
  TIERKV_ASSIGN_OR_RETURN(auto sequence, impl_->find(seq));
  const auto lock = sequence->mutex.as_is();
  return sequence->length();
}
TIERKV_NO_MEMORY("look at a sequence")

Result<uint32_t> AdaptiveKVCache::length(SeqId seq, uint32_t layer) const try {
  TIERKV_RETURN_IF_ERROR(impl_->check_layer(layer));
  TIERKV_ASSIGN_OR_RETURN(auto sequence, impl_->find(seq));
  const auto lock = sequence->mutex.as_is();
  return sequence->layer(layer).length;
}
TIERKV_NO_MEMORY("look at a sequence")

bool AdaptiveKVCache::Impl::intact(tiers::BlockHandle block) const {
  std::vector<std::byte> loaded;
  if (block.elsewhere()) return store->load(block, loaded).ok();
  return block.packed() || store->intact(block);
}

static Status check_head(const CacheConfig& config, uint32_t kv_head) {
  if (kv_head < config.num_kv_heads) return {};
  return error(StatusCode::out_of_range, "KV head ", kv_head, " of a cache with ", config.num_kv_heads);
}

Result<std::vector<uint32_t>> AdaptiveKVCache::positions(SeqId seq, uint32_t layer, uint32_t kv_head) const try {
  TIERKV_RETURN_IF_ERROR(impl_->check_layer(layer));
  TIERKV_RETURN_IF_ERROR(check_head(impl_->config, kv_head));
  TIERKV_ASSIGN_OR_RETURN(auto sequence, impl_->find(seq));
  std::lock_guard lock(sequence->mutex);
  TIERKV_RETURN_IF_ERROR(impl_->check_awake(seq, *sequence));
  std::vector<uint32_t> out;
  tiers::live_positions(sequence->heads(layer)[kv_head], out);
  return out;
}
TIERKV_NO_MEMORY("list positions")

Result<HotView> AdaptiveKVCache::hot_view(SeqId seq, uint32_t layer, uint32_t kv_head) const try {
  TIERKV_RETURN_IF_ERROR(impl_->check_layer(layer));
  TIERKV_RETURN_IF_ERROR(check_head(impl_->config, kv_head));
  TIERKV_ASSIGN_OR_RETURN(auto sequence, impl_->find(seq));
  std::lock_guard lock(sequence->mutex);
  TIERKV_RETURN_IF_ERROR(impl_->check_awake(seq, *sequence));
  tiers::Tail::Run runs[2];
  sequence->heads(layer)[kv_head].tail.runs(runs);
  if (runs[1].rows || runs[0].positions) {
    return error(StatusCode::failed_precondition, "the hot rows of layer ", layer, " are not one run (",
                 runs[1].rows ? "a ring that wrapped" : "some were evicted", "); use get()");
  }
  return HotView{runs[0].keys, runs[0].values, runs[0].rows, impl_->config.head_dim, runs[0].first_position};
}
TIERKV_NO_MEMORY("look at a sequence")

Status AdaptiveKVCache::get(SeqId seq, uint32_t layer, std::span<const uint32_t> positions, float* keys, float* values) const try {
  TIERKV_RETURN_IF_ERROR(impl_->check_layer(layer));
  TIERKV_ASSIGN_OR_RETURN(auto sequence, impl_->find(seq));
  std::lock_guard lock(sequence->mutex);
  TIERKV_RETURN_IF_ERROR(impl_->check_awake(seq, *sequence));
  const uint32_t length = sequence->layer(layer).length;
  for (const uint32_t position : positions) {
    if (position >= length) return error(StatusCode::out_of_range, "position ", position, " of a layer with ", length, " tokens");
    for (const HeadStream& s : sequence->heads(layer)) {
      if (!tiers::read_row(impl_->env, s, position, nullptr, nullptr)) {
        return error(StatusCode::not_found, "position ", position, " is no longer in KV head ", s.head, " of layer ", layer,
                     ": it was evicted or left the window");
      }
    }
  }
  const size_t d = impl_->config.head_dim;
  size_t at = 0;
  for (const uint32_t position : positions) {
    for (const HeadStream& s : sequence->heads(layer)) {
      if (!tiers::read_row(impl_->env, s, position, keys ? keys + at : nullptr, values ? values + at : nullptr)) {
        return error(StatusCode::data_loss, "position ", position, " of layer ", layer,
                     " is in the cold file, or on a device, and cannot be read: ",
                     impl_->cold ? impl_->cold->stats().problem : std::string("the device does not give it back"));
      }
      at += d;
    }
  }
  return {};
}
TIERKV_NO_MEMORY("read rows")

Status AdaptiveKVCache::verify(SeqId seq) const try {
  TIERKV_ASSIGN_OR_RETURN(auto sequence, impl_->find(seq));
  std::lock_guard lock(sequence->mutex);
  for (uint32_t l = 0; l < sequence->num_layers(); ++l) {
    for (const HeadStream& s : sequence->heads(l)) {
      for (const tiers::BlockRef& ref : s.blocks) {
        if (impl_->intact(ref.block) && (!ref.promoted() || impl_->intact(ref.base))) continue;
        return error(StatusCode::data_loss, "sequence ", seq, ", layer ", l, ", KV head ", s.head, ": the ",
                     tier_name(ref.block.tier()), " block at position ", ref.first_position, " does not match its checksum");
      }
    }
  }
  for (const store::PackedGroup* group : sequence->packed) {
    if (!group->intact()) return error(StatusCode::data_loss, "sequence ", seq, ": its parked tokens do not match their checksum");
  }
  return {};
}
TIERKV_NO_MEMORY("verify a sequence")

// --- shortening

Status AdaptiveKVCache::truncate(SeqId seq, uint32_t length) try {
  TIERKV_ASSIGN_OR_RETURN(auto sequence, impl_->find(seq));
  std::lock_guard lock(sequence->mutex);
  TIERKV_RETURN_IF_ERROR(impl_->check_unpacked(seq, *sequence));
  uint32_t longest = 0;
  for (uint32_t l = 0; l < sequence->num_layers(); ++l) longest = std::max(longest, sequence->layer(l).length);
  if (length > longest)
    return error(StatusCode::out_of_range, "cannot truncate to ", length, ": the sequence has ", longest, " tokens");
  // Everything that can refuse comes first, so that all layers shorten or none does.
  for (uint32_t l = 0; l < sequence->num_layers(); ++l) {
    const uint32_t now = sequence->layer(l).length;
    const LayerPlan p = impl_->planner->layer(l, now);
    for (HeadStream& s : sequence->heads(l)) {
      const uint32_t needed = p.window && length >= p.window ? length - p.window + 1 : 0;
      if (p.window && length > 0 && length < now && tiers::oldest_position(s, now) > needed) {
        return error(StatusCode::failed_precondition, "layer ", l, " has a window of ", p.window, " and no longer holds position ",
                     needed, ", which a sequence of ", length, " tokens needs; raise window_slack (", impl_->config.window_slack,
                     ") to roll back further");
      }
      if (!tiers::prepare_truncate(impl_->env, s, p, length)) {
        return error(StatusCode::resource_exhausted, "no memory to put the sinks of layer ", l, " back");
      }
    }
  }
  for (uint32_t l = 0; l < sequence->num_layers(); ++l) {
    if (sequence->layer(l).length <= length) continue;
    const LayerPlan p = impl_->planner->layer(l, length);
    for (HeadStream& s : sequence->heads(l)) tiers::truncate(impl_->env, s, p, length);
    sequence->layer(l).unobserved -= std::min(sequence->layer(l).unobserved, sequence->layer(l).length - length);
    sequence->layer(l).length = length;
  }
  sequence->forget_spoiled(length);
  impl_->learning.forget(seq);  // other tokens may come to the same positions
  return {};
}
TIERKV_NO_MEMORY("truncate a sequence")

Status AdaptiveKVCache::flush() try {
  for (const SeqId id : sequences()) {
    auto found = impl_->find(id);
    if (!found.ok()) continue;  // removed meanwhile
    Sequence& sequence = **found;
    std::lock_guard lock(sequence.mutex);
    if (!sequence.packed.empty()) continue;  // nothing is due until it wakes
    for (uint32_t l = 0; l < sequence.num_layers(); ++l) {
      LayerPlan p = impl_->planner->layer(l, sequence.layer(l).length);
      impl_->choose_archive(sequence, l, p);
      if (!tiers::settle(impl_->env, sequence.heads(l), p, impl_->pool_executor)) {
        return error(StatusCode::resource_exhausted, "byte_budget leaves no room to settle layer ", l, " of sequence ", id);
      }
      for (HeadStream& s : sequence.heads(l)) {
        if (p.tail_bound()) s.tail.shrink(*impl_->arena, p.tail_bound());
      }
    }
  }
  impl_->arena->trim();
  if (impl_->cold) impl_->cold->drain();
  return {};
}
TIERKV_NO_MEMORY("flush")

}  // namespace tierkv
