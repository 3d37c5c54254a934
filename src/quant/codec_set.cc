#include "quant/codec_set.h"

#include <algorithm>

#include "base/status_macros.h"

namespace tierkv::quant {

Result<const CodecEntry*> CodecSet::get(const quant::CodecPair& pair, uint32_t tokens, uint32_t layer, uint32_t head) {
  const CodecEntry* fallback = nullptr;
  if (quant::needs_tables(pair)) {
    TIERKV_ASSIGN_OR_RETURN(fallback, uncalibrated(tokens));
  }
  std::lock_guard lock(mutex_);
  return find_or_make(pair, tokens, layer, head, fallback);
}

Result<const CodecEntry*> CodecSet::uncalibrated(uint32_t tokens) {
  TIERKV_ASSIGN_OR_RETURN(const quant::CodecPair plain, quant::parse_codec_pair("auto"));
  return get(plain, tokens);
}

// REQUIRES: mutex_ held.
Result<const CodecEntry*> CodecSet::find_or_make(const quant::CodecPair& pair, uint32_t tokens, uint32_t layer, uint32_t head,
                                                 const CodecEntry* fallback) {
  const bool own = quant::needs_tables(pair);
  for (const CodecEntry& entry : entries_) {
    if (!(entry.pair == pair) || entry.tokens != tokens) continue;
    if (!own || (entry.layer == layer && entry.head == head && entry.calibration == calibration_)) return &entry;
  }
  const quant::BlockShape shape{tokens, head_dim_};
  CodecEntry entry;
  entry.pair = pair;
  entry.tokens = tokens;
  if (own) {
    entry.calibration = calibration_;
    entry.layer = layer;
    entry.head = head;
    entry.fallback = fallback;
  }
  const calib::HeadTables tables{calibration_, layer, head};
  const calib::HeadTables* given = calibration_ ? &tables : nullptr;
  TIERKV_ASSIGN_OR_RETURN(entry.key, quant::make_codec(pair.key, quant::Side::key, shape, given));
  TIERKV_ASSIGN_OR_RETURN(entry.value, quant::make_codec(pair.value, quant::Side::value, shape, given));
  entries_.push_back(std::move(entry));
  return &entries_.back();
}

void CodecSet::set_calibration(CalibrationPtr calibration) {
  std::lock_guard lock(mutex_);
  if (calibration == calibration_) return;
  std::erase(earlier_, calibration);
  const auto uses = [&](const CodecEntry& entry) { return entry.calibration == calibration_; };
  if (calibration_ && std::any_of(entries_.begin(), entries_.end(), uses)) earlier_.push_back(calibration_);
  calibration_ = std::move(calibration);
}

CalibrationPtr CodecSet::calibration() const {
  std::lock_guard lock(mutex_);
  return calibration_;
}

std::shared_ptr<const void> CodecSet::hold_tables() const {
  const CalibrationPtr tables = calibration();
  return tables ? tables->hold() : nullptr;
}

size_t CodecSet::table_bytes() const {
  std::lock_guard lock(mutex_);
  size_t total = calibration_ ? calibration_->bytes() : 0;
  for (const CalibrationPtr& calibration : earlier_) total += calibration->bytes();
  for (const CodecEntry& entry : entries_) total += entry.key->table_bytes() + entry.value->table_bytes();
  return total;
}

}  // namespace tierkv::quant
