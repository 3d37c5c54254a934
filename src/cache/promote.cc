// promote.cc — the cold file, and blocks that come back from it for as long as they matter.
#include "base/guarded.h"
#include "base/status_macros.h"
#include "cache/impl.h"
#include "cache/pressure.h"

namespace tierkv {

using tiers::HeadStream;
using tiers::Sequence;

namespace {

Status no_cold_file() {
  return error(StatusCode::failed_precondition, "this cache has no cold file: set `cold` to a file or a folder");
}

uint32_t end_of(uint32_t first, uint32_t count) {
  return count > tiers::kDeadPosition - first ? tiers::kDeadPosition : first + count;
}

template <class Body>
void each_stream(Sequence& sequence, Body&& body) {
  for (uint32_t l = 0; l < sequence.num_layers(); ++l) {
    for (HeadStream& s : sequence.heads(l)) body(s);
  }
}

}  // namespace

Status AdaptiveKVCache::Impl::open_cold() {
  TIERKV_ASSIGN_OR_RETURN(spill, config::parse_spill_mode(config.cold.spill));
  if (config.cold.off()) return {};
  TIERKV_ASSIGN_OR_RETURN(const quant::CodecPair pair, quant::parse_codec_pair(config.cold.codec));
  TIERKV_ASSIGN_OR_RETURN(const quant::CodecPair raw, quant::parse_codec_pair(env.hot_bf16 ? "bf16" : "fp16"));
  TIERKV_ASSIGN_OR_RETURN(env.cold_codec, codecs.get(pair, config.archive_block));
  TIERKV_ASSIGN_OR_RETURN(env.cold_raw, codecs.get(raw, config.archive_block));
  TIERKV_ASSIGN_OR_RETURN(auto medium, store::open_cold_medium(config.cold.path));
  cold = std::make_unique<store::ColdFile>(std::move(medium), *arena, config.cold.budget);
  return {};
}

Status AdaptiveKVCache::promote(SeqId seq, uint32_t first, uint32_t count, PromotionReport* report) {
  if (report) *report = {};
  if (!impl_->cold) return no_cold_file();
  const uint32_t end = end_of(first, count);
  return cache::with_pressure(*impl_, seq, [&](uint64_t& needed) {
    return guarded("promote tokens", [&]() -> Status {
      TIERKV_ASSIGN_OR_RETURN(auto sequence, impl_->find(seq));
      std::lock_guard lock(sequence->mutex);
      TIERKV_RETURN_IF_ERROR(impl_->check_awake(seq, *sequence));
      each_stream(*sequence, [&](HeadStream& s) { needed += tiers::promotion_bytes(impl_->env, s, first, end); });
      const Arena& arena = *impl_->arena;
      if (arena.limit() && arena.mapped() - arena.free_bytes() + needed > arena.limit()) {
        return error(StatusCode::resource_exhausted, "to promote these tokens takes ", needed,
                     " bytes; of byte_budget = ", arena.limit(), " ", arena.mapped() - arena.free_bytes(), " are in use");
      }
      tiers::Promotion promotion(impl_->env);
      Status status;
      each_stream(*sequence, [&](HeadStream& s) {
        if (status.ok()) status = promotion.add(s, first, end);
      });
      TIERKV_RETURN_IF_ERROR(status);
      if (report) *report = {promotion.blocks(), promotion.rows(), promotion.without_copy()};
      promotion.commit();
      return {};
    });
  });
}

Status AdaptiveKVCache::demote(SeqId seq, uint32_t first, uint32_t count) try {
  TIERKV_ASSIGN_OR_RETURN(auto sequence, impl_->find(seq));
  std::lock_guard lock(sequence->mutex);
  TIERKV_RETURN_IF_ERROR(impl_->check_awake(seq, *sequence));
  const uint32_t end = end_of(first, count);
  each_stream(*sequence, [&](HeadStream& s) { (void)tiers::drop_promoted(impl_->env, s, first, end); });
  return {};
}
TIERKV_NO_MEMORY("demote tokens")

ColdStats AdaptiveKVCache::cold_usage() const {
  if (!impl_->cold) return {};
  ColdStats stats = impl_->cold->stats();
  stats.loaded = impl_->spill_counts.read;
  stats.left_out = impl_->spill_counts.left_out;
  stats.left_out_mass = impl_->spill_counts.left_out_mass;
  return stats;
}

}  // namespace tierkv
