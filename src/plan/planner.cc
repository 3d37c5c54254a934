#include "plan/planner.h"

#include <algorithm>

#include "base/status_macros.h"
#include "config/schema.h"
#include "quant/warm_auto.h"

namespace tierkv::plan {

using quant::CodecPair;

namespace {

Status check_calibration(const calib::Calibration& calibration, const CacheConfig& config) {
  calib::ModelId here;
  here.layers = config.num_layers;
  here.heads = config.query_heads();
  here.kv_heads = config.num_kv_heads;
  here.head_dim = config.head_dim;
  return calibration.check_model(here);
}

CodecPair raw_rows(const CacheConfig& config) {
  const quant::CodecSpec raw{static_cast<uint16_t>(config.hot_type == "bf16" ? 2 : 1), 0, 0, 0, 0};  // registry rows bf16 and fp16
  return {raw, raw};
}

LayerShape shape_of(const LayerConfig& tiers, uint32_t slack) {
  LayerShape shape;
  shape.window = tiers.window;
  shape.slack = tiers.window ? slack : 0;
  shape.sinks = tiers.window ? 0 : tiers.sinks;  // a windowed layer's queries cannot see the first tokens anyway
  shape.ring = tiers.window && tiers.hot >= tiers.window;
  return shape;
}

// Keys and values move together and keep their distance: "rot3/rot2" at one bit more is "rot4/rot3".
CodecPair at_bits(const CodecPair& configured, uint32_t key_bits) {
  const int more = static_cast<int>(key_bits) - quant::whole_bits(configured.key);
  if (more == 0) return configured;
  return {quant::with_bits(configured.key, quant::whole_bits(configured.key) + more),
          quant::with_bits(configured.value, quant::whole_bits(configured.value) + more)};
}

Status check_thresholds(uint32_t layer, const LayerThresholds& wanted) {
  const auto fits = [](uint32_t tokens) { return tokens <= config::kMaxTokens || tokens == kAll; };
  if (fits(wanted.hot) && fits(wanted.warm) && wanted.archive_bits <= kMostArchiveBits) return {};
  return error(StatusCode::invalid_argument, "layer ", layer, ": ", wanted.hot, " hot and ", wanted.warm, " warm tokens, ",
               wanted.archive_bits, " bits; at most ", config::kMaxTokens, " tokens each and ", kMostArchiveBits, " bits");
}

}  // namespace

Planner::Planner(const CacheConfig& config, quant::CodecSet& codecs)
    : config_(config), codecs_(codecs), raw_(raw_rows(config)), plans_(std::make_shared<Plans>()), quality_(config.quality_target) {
  chosen_ = std::make_unique<std::atomic<uint8_t>[]>(config.num_layers);
  for (uint32_t l = 0; l < config.num_layers; ++l) shapes_.push_back(shape_of(config.layer(l), config.window_slack));
}

Result<std::unique_ptr<Planner>> Planner::create(const CacheConfig& config, quant::CodecSet& codecs, CalibrationPtr calibration,
                                                 uint32_t hot_rows) {
  if (calibration) TIERKV_RETURN_IF_ERROR(check_calibration(*calibration, config));
  std::unique_ptr<Planner> planner(new Planner(config, codecs));
  TIERKV_ASSIGN_OR_RETURN(planner->hot_codec_, codecs.get(planner->raw_, hot_rows));
  TIERKV_RETURN_IF_ERROR(planner->replan(std::move(calibration), planner->quality_, [&](Next& next) -> Status {
    next.plans.layers_.resize(config.num_layers);
    next.plans.waiting_ = &planner->waiting_;
    next.plans.chosen_ = planner->chosen_.get();
    for (uint32_t l = 0; l < config.num_layers; ++l) TIERKV_RETURN_IF_ERROR(planner->plan_layer(l, next));
    return {};
  }));
  return planner;
}

Status Planner::plan_layer(uint32_t layer, Next& next) const {
  const LayerConfig tiers = config_.layer(layer);
  LayerPlan& p = next.plans.layers_[layer].plan;
  static_cast<LayerShape&>(p) = shapes_[layer];
  p.hot = tiers.hot;
  p.warm = tiers.warm;
  if (p.warm) TIERKV_RETURN_IF_ERROR(plan_warm(layer, next));
  if (p.warm != kAll) TIERKV_RETURN_IF_ERROR(plan_archive(layer, next));
  if (p.warm) TIERKV_RETURN_IF_ERROR(plan_guide(layer, next));
  if (p.sinks) {
    TIERKV_ASSIGN_OR_RETURN(p.sink_codec, next.codecs.get(raw_, p.sinks));
  }
  TIERKV_ASSIGN_OR_RETURN(p.raw_warm, next.codecs.get(raw_, config_.warm_block));
  TIERKV_ASSIGN_OR_RETURN(p.raw_archive, next.codecs.get(raw_, config_.archive_block));
  return {};
}

Status Planner::plan_warm(uint32_t layer, Next& next) const {
  const std::string name = config_.layer(layer).warm_codec;
  const bool calibrated = next.codecs.calibration() && next.codecs.calibration()->has_klt();
  TIERKV_ASSIGN_OR_RETURN(CodecPair pair, quant::parse_codec_pair(quant::resolve_warm(name, calibrated)));
  auto step = codecs_of(layer, pair, config_.warm_block, next);
  if (name == "auto" && step.status().code() == StatusCode::failed_precondition) {  // no tables for this layer
    TIERKV_ASSIGN_OR_RETURN(pair, quant::parse_codec_pair(quant::kWarmWithoutTables));
    step = codecs_of(layer, pair, config_.warm_block, next);
  }
  if (!step.ok()) return step.status();
  next.plans.layers_[layer].plan.warm_codec = step->codec;
  next.plans.layers_[layer].plan.warm_heads = step->heads;
  return {};
}

// What the configuration names as a layer's archive, "auto" and "adaptive" resolved with the calibration there is.
Status Planner::plan_archive(uint32_t layer, Next& next) const {
  const std::string name = config_.layer(layer).archive_codec;
  if (name == quant::kAdaptive) return plan_by_length(layer, next);
  const bool calibrated = next.codecs.calibration() && next.codecs.calibration()->has_klt();
  Plans::Layer& out = next.plans.layers_[layer];
  TIERKV_ASSIGN_OR_RETURN(out.configured, quant::parse_codec_pair(quant::resolve_auto(name, calibrated)));
  TIERKV_ASSIGN_OR_RETURN(const Plans::Step step, codecs_of(layer, out.configured, config_.archive_block, next));
  out.archive.assign(1, step);
  TIERKV_RETURN_IF_ERROR(plan_choices(layer, next));
  out.may_wait = !calibrated && quant::resolve_auto(name, true) != quant::resolve_auto(name, false) && out.plan.warm != 0;
  return {};
}

// What the rows of a layer choose from, where nothing else says what its archive needs.
Status Planner::plan_choices(uint32_t layer, Next& next) const {
  Plans::Layer& out = next.plans.layers_[layer];
  out.choices = {};
  if (out.plan.ring || config_.layer(layer).archive_codec != "auto" || quant::needs_tables(out.configured)) return {};
  HeadCodecs choices;
  for (const std::string_view name : quant::fallback_choices()) {
    TIERKV_ASSIGN_OR_RETURN(const CodecPair pair, quant::parse_codec_pair(name));
    TIERKV_ASSIGN_OR_RETURN(const CodecEntry* const entry, next.codecs.get(pair, config_.archive_block));
    choices.push_back(entry);
  }
  const size_t count = choices.size();
  out.choices = {keep_list(std::move(choices), next), count};
  return {};
}

uint32_t Planner::choose(uint32_t layer, uint32_t choice) noexcept {
  uint8_t before = 0;
  const bool first = chosen_[layer].compare_exchange_strong(before, static_cast<uint8_t>(choice + 1), std::memory_order_relaxed);
  return first ? choice : before - 1u;
}

// Tables that say where queries look: the archive's own where it has some, so that they are in memory once.
Status Planner::plan_guide(uint32_t layer, Next& next) const {
  Plans::Layer& out = next.plans.layers_[layer];
  out.plan.guide_heads = nullptr;
  const bool calibrated = next.codecs.calibration() && next.codecs.calibration()->has_klt();
  if (!calibrated || !quant::takes_guide(out.plan.warm_codec->pair.key)) return {};
  if (!out.archive.empty() && quant::needs_tables(out.configured)) {
    out.plan.guide_heads = out.archive[0].heads;
    return {};
  }
  TIERKV_ASSIGN_OR_RETURN(const CodecPair pair, quant::parse_codec_pair(quant::resolve_auto("auto", true)));
  const auto step = codecs_of(layer, pair, config_.archive_block, next);
  if (step.status().code() == StatusCode::failed_precondition) return {};  // nothing is known of this layer
  if (!step.ok()) return step.status();
  out.plan.guide_heads = step->heads;
  return {};
}

Status Planner::plan_by_length(uint32_t layer, Next& next) const {
  Plans::Layer& out = next.plans.layers_[layer];
  out.archive.clear();
  for (const quant::AdaptiveStep& wanted : quant::adaptive_steps()) {
    TIERKV_ASSIGN_OR_RETURN(CodecPair pair, quant::parse_codec_pair(wanted.codec));
    auto step = codecs_of(layer, pair, config_.archive_block, next);
    if (step.status().code() == StatusCode::failed_precondition) {  // no calibration, or one without these tables
      TIERKV_ASSIGN_OR_RETURN(pair, quant::parse_codec_pair(wanted.plain));
      step = codecs_of(layer, pair, config_.archive_block, next);
    }
    if (!step.ok()) return step.status();
    step->below = wanted.below;
    if (out.archive.empty()) out.configured = pair;
    out.archive.push_back(*step);
  }
  return {};
}

Result<Plans::Step> Planner::codecs_of(uint32_t layer, const CodecPair& pair, uint32_t tokens, Next& next) const {
  Plans::Step step;
  if (!quant::needs_tables(pair)) {
    TIERKV_ASSIGN_OR_RETURN(step.codec, next.codecs.get(pair, tokens));
    return step;
  }
  HeadCodecs heads;
  for (uint32_t h = 0; h < config_.num_kv_heads; ++h) {
    auto entry = next.codecs.get(pair, tokens, layer, h);
    if (entry.status().code() == StatusCode::failed_precondition && next.codecs.calibration() && shapes_[layer].window != 0) {
      // A windowed layer whose keys never are far from their queries: calibration has nothing to say about it.
      if (quant::whole_bits(pair.key) < 4) entry = next.codecs.uncalibrated(tokens);
      else entry = next.codecs.get(quant::parse_codec_pair(quant::kWarmWithoutTables).value(), tokens);
    }
    if (!entry.ok()) return entry.status();
    heads.push_back(*entry);
  }
  step.codec = heads[0];
  step.heads = keep_list(std::move(heads), next);
  return step;
}

const CodecEntry* const* Planner::keep_list(HeadCodecs heads, Next& next) const {
  for (const std::list<HeadCodecs>* lists : {&lists_, static_cast<const std::list<HeadCodecs>*>(&next.lists)}) {
    const auto known = std::find(lists->begin(), lists->end(), heads);
    if (known != lists->end()) return known->data();
  }
  return next.lists.emplace_back(std::move(heads)).data();
}

Status Planner::move_layer(uint32_t layer, const LayerThresholds& wanted, Next& next) const {
  Plans::Layer& l = next.plans.layers_[layer];
  if (!l.plan.ring) l.plan.hot = wanted.hot;
  if (l.plan.warm != 0 && l.plan.warm != kAll && wanted.warm != 0 && wanted.warm != kAll) l.plan.warm = wanted.warm;
  if (l.archive.empty() || l.by_length() || wanted.archive_bits == 0 || l.configured.key.bits == 0) return {};
  const int bits = quant::whole_bits(l.archive[0].codec->pair.key);
  if (!l.choices.empty() && wanted.archive_bits == static_cast<uint32_t>(bits)) return {};  // as thresholds() has it
  l.choices = {};
  TIERKV_ASSIGN_OR_RETURN(l.archive[0], codecs_of(layer, at_bits(l.configured, wanted.archive_bits), config_.archive_block, next));
  return {};
}

// REQUIRES: writer_ held, or nobody else knows the planner yet.
template <class Change>
Status Planner::replan(CalibrationPtr calibration, QualityTracker quality, Change&& change) {
  for (;;) {
    Next next{*plans_, quant::CodecDraft(codecs_, calibration), {}};
    TIERKV_RETURN_IF_ERROR(change(next));
    std::shared_ptr<const Plans> plans = std::make_shared<const Plans>(std::move(next.plans));
    if (!next.codecs.commit()) continue;  // a snapshot that is read just now made one of the codecs: plan with that one
    lists_.splice(lists_.end(), next.lists);
    std::lock_guard lock(leaf_);  // nothing fails from here on
    plans_.swap(plans);
    std::swap(quality_, quality);
    return {};
  }
}

std::shared_ptr<const Plans> Planner::now() const {
  std::lock_guard lock(leaf_);
  return plans_;
}

QualityMetrics Planner::quality_metrics() const {
  std::lock_guard lock(leaf_);
  return quality_.metrics();
}

Status Planner::set_calibration(CalibrationPtr calibration) {
  if (!calibration) return error(StatusCode::invalid_argument, "set_calibration() needs a calibration");
  TIERKV_RETURN_IF_ERROR(check_calibration(*calibration, config_));
  std::lock_guard lock(writer_);
  return replan(std::move(calibration), quality_, [&](Next& next) -> Status {
    for (uint32_t l = 0; l < config_.num_layers; ++l) {
      if (next.plans.layers_[l].plan.warm_codec) TIERKV_RETURN_IF_ERROR(plan_warm(l, next));
      if (!next.plans.layers_[l].archive.empty()) TIERKV_RETURN_IF_ERROR(plan_archive(l, next));
      if (next.plans.layers_[l].plan.warm_codec) TIERKV_RETURN_IF_ERROR(plan_guide(l, next));
    }
    return {};
  });
}

// REQUIRES: writer_ held.
Status Planner::apply_thresholds(std::span<const LayerThresholds> wanted, QualityTracker quality) {
  return replan(codecs_.calibration(), std::move(quality), [&](Next& next) -> Status {
    for (uint32_t l = 0; l < config_.num_layers; ++l) TIERKV_RETURN_IF_ERROR(move_layer(l, wanted[l], next));
    return {};
  });
}

Status Planner::set_thresholds(std::span<const LayerThresholds> wanted) {
  if (wanted.size() != config_.num_layers) {
    return error(StatusCode::invalid_argument, "thresholds for ", wanted.size(), " layers, this cache has ", config_.num_layers);
  }
  for (uint32_t l = 0; l < wanted.size(); ++l) TIERKV_RETURN_IF_ERROR(check_thresholds(l, wanted[l]));
  std::lock_guard lock(writer_);
  QualityTracker quality = quality_;
  quality.restart_window();
  return apply_thresholds(wanted, std::move(quality));
}

Status Planner::add_score(double score) {
  std::lock_guard lock(writer_);
  QualityTracker quality = quality_;
  std::vector<LayerThresholds> wanted = plans_->thresholds();
  TIERKV_ASSIGN_OR_RETURN(const bool moved, quality.add(score, wanted));
  if (moved) return apply_thresholds(wanted, std::move(quality));
  std::lock_guard leaf(leaf_);
  std::swap(quality_, quality);
  return {};
}

}  // namespace tierkv::plan
