#include "serve/keeper.h"

#include <algorithm>

namespace tierkv::serve {
namespace {

constexpr uint32_t kLeastGain = 64;  // tokens that a chain must spare

// The part of a configuration that decides bytes, in words.
std::string configuration_text(CacheConfig config, uint32_t piece) {
  config.threads = 1;
  config.byte_budget = 0;
  config.max_seq_len = 0;
  config.calibrate.clear();
  config.calibration.clear();
  config.deep = {};
  config.quality_target = CacheConfig().quality_target;
  return "tierkv runs 1\n" + to_json(config) + "\npiece " + std::to_string(piece) + "\n";
}

}  // namespace

Keeper::Keeper(engine::TieredContext& context, uint32_t piece, const StoreOptions& options, std::function<void()> loaded)
    : context_(context),
      configuration_(configuration_text(context.cache().config(), piece)),
      store_(options, context.cache(), std::move(loaded)) {
  const CacheConfig& config = context_.cache().config();
  for (uint32_t i = 0; i < config.num_layers; ++i) {
    const LayerConfig layer = config.layer(i);
    if (layer.window != 0 || layer.hot == kAll) runs_alone_ = false;
    else recent_ = std::max(recent_, layer.hot + (layer.warm == kAll ? 0 : layer.warm));
  }
}

std::optional<ChunkKey> Keeper::root() const {
  AdaptiveKVCache& cache = context_.cache();
  const LearningPhase phase = cache.learning().phase;
  if (phase == LearningPhase::gathering || phase == LearningPhase::solving) return std::nullopt;
  std::string text = configuration_;
  if (const CalibrationPtr calibration = cache.calibration()) text += "calibration " + describe(*calibration).id + "\n";
  for (const LayerThresholds& layer : cache.thresholds()) {
    text += std::to_string(layer.hot) + " " + std::to_string(layer.warm) + " " + std::to_string(layer.archive_bits) + "\n";
  }
  return root_key(text);
}

LoadingPtr Keeper::look(std::span<const llama_token> tokens, uint32_t known) {
  if (tokens.size() < kLeast || known + kLeastGain > tokens.size()) return nullptr;
  const auto root = this->root();
  if (!root) return nullptr;
  const uint32_t before = tokens.size() > recent_ ? static_cast<uint32_t>(tokens.size()) - recent_ : 0;
  StoredPrefix found = store_.find(*root, tokens, before, runs_alone_);
  if (found.tokens < known + kLeastGain) return nullptr;
  return store_.load(std::move(found), tokens);
}

Result<SeqId> Keeper::wake(const Loading& loading) {
  auto id = context_.cache().unfreeze_runs(loading.runs);
  if (!id.ok() && id.status().code() != StatusCode::resource_exhausted) store_.reject(loading);
  return id;
}

StoredChain Keeper::chain_of(const Loading& loading) const {
  StoredChain chain;
  chain.root = root();
  for (const StoredPrefix::Part& part : loading.prefix.parts) {
    if (part.name.kind == ChunkKind::rest) chain.rest = part.name.key;
    else chain.runs.push_back({part.name.key, part.first + part.name.tokens});
  }
  return chain;
}

bool Keeper::put(StoredChain& chain, std::span<const llama_token> tokens, SeqId sequence, uint32_t end, ChunkKind kind) {
  const uint32_t first = chain.end();
  const auto part = tokens.subspan(first, end - first);
  const ChunkKey parent = chain.runs.empty() ? *chain.root : chain.runs.back().key;
  const ChunkName name{child_key(parent, kind, part), parent, end - first, kind};
  if (!store_.has(name.key)) {
    if (!store_.has_room()) return false;
    auto run = context_.cache().freeze_run(sequence, first, end);
    if (!run.ok()) {
      chain.due = false;  // evicted tokens, two calibrations, no memory: it stays where it is
      return false;
    }
    std::optional<ChunkKey> replaces;
    if (kind == ChunkKind::rest) replaces = chain.rest;
    store_.put({name, first, Tokens(part.begin(), part.end()), std::move(run).value(), replaces});
  }
  if (kind == ChunkKind::run) chain.runs.push_back({name.key, end});
  else chain.rest = name.key;
  return true;
}

bool Keeper::store_next(StoredChain& chain, std::span<const llama_token> tokens, SeqId sequence, bool with_rest) {
  if (!chain.due) return false;
  const auto length = static_cast<uint32_t>(tokens.size());
  if (length < kLeast || !chain.root || chain.root != root()) {
    chain.due = false;
    return false;
  }
  const auto ends = context_.cache().run_ends(sequence);
  if (!ends.ok()) {
    chain.due = false;
    return false;
  }
  // What was never written, or had to go, is written again.
  const auto gone = std::find_if(chain.runs.begin(), chain.runs.end(), [this](const auto& link) { return !store_.has(link.key); });
  chain.runs.erase(gone, chain.runs.end());
  // A cut, or waking from the deep archive, may have moved where blocks end.
  while (chain.end() != 0 && !std::binary_search(ends->begin(), ends->end(), chain.end())) chain.runs.pop_back();
  const uint32_t first = chain.end();
  const auto last = std::upper_bound(ends->begin(), ends->end(), first + kRun + kSlack);
  const bool full = !ends->empty() && ends->back() >= first + kRun && last != ends->begin() && *std::prev(last) > first;
  if (full) return put(chain, tokens, sequence, *std::prev(last), ChunkKind::run);
  if (with_rest && !put(chain, tokens, sequence, length, ChunkKind::rest)) return false;
  chain.due = false;
  return with_rest;
}

}  // namespace tierkv::serve
