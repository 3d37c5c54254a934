#include "quant/codec_set.h"

#include <algorithm>

#include "base/status_macros.h"
#include "quant/warm_auto.h"

namespace tierkv::quant {
namespace {

bool is_entry(const CodecEntry& entry, const CodecPair& pair, uint32_t tokens, uint32_t layer, uint32_t head,
              const CalibrationPtr& calibration) {
  if (!(entry.pair == pair) || entry.tokens != tokens) return false;
  return !needs_tables(pair) || (entry.layer == layer && entry.head == head && entry.calibration == calibration);
}

}  // namespace

const CodecEntry* CodecSet::find(const CodecPair& pair, uint32_t tokens, uint32_t layer, uint32_t head,
                                 const CalibrationPtr& calibration) const {
  for (const CodecEntry& entry : entries_) {
    if (is_entry(entry, pair, tokens, layer, head, calibration)) return &entry;
  }
  return nullptr;
}

Result<CodecEntry> CodecSet::make(const CodecPair& pair, uint32_t tokens, uint32_t layer, uint32_t head,
                                  const CalibrationPtr& calibration) {
  const BlockShape shape{tokens, head_dim_};
  CodecEntry entry;
  entry.pair = pair;
  entry.tokens = tokens;
  if (needs_tables(pair)) {
    entry.calibration = calibration;
    entry.layer = layer;
    entry.head = head;
    // Rows of a warm tier are not to lose more than the tier does.
    if (whole_bits(pair.key) >= 4) {
      TIERKV_ASSIGN_OR_RETURN(const CodecPair fine, parse_codec_pair(kWarmWithoutTables));
      TIERKV_ASSIGN_OR_RETURN(entry.fallback, get(fine, tokens));
    } else {
      TIERKV_ASSIGN_OR_RETURN(entry.fallback, uncalibrated(tokens));
    }
  }
  const calib::HeadTables tables{calibration, layer, head};
  const calib::HeadTables* given = calibration ? &tables : nullptr;
  TIERKV_ASSIGN_OR_RETURN(entry.key, make_codec(pair.key, Side::key, shape, given));
  TIERKV_ASSIGN_OR_RETURN(entry.value, make_codec(pair.value, Side::value, shape, given));
  return entry;
}

Result<const CodecEntry*> CodecSet::get(const CodecPair& pair, uint32_t tokens, uint32_t layer, uint32_t head) {
  CalibrationPtr tables;
  {
    std::lock_guard lock(mutex_);
    tables = calibration_;
    if (const CodecEntry* known = find(pair, tokens, layer, head, tables)) return known;
  }
  std::list<CodecEntry> made;
  TIERKV_ASSIGN_OR_RETURN(CodecEntry entry, make(pair, tokens, layer, head, tables));
  made.push_back(std::move(entry));
  std::lock_guard lock(mutex_);
  if (const CodecEntry* known = find(pair, tokens, layer, head, tables)) return known;
  entries_.splice(entries_.end(), made);
  return &entries_.back();
}

Result<const CodecEntry*> CodecSet::uncalibrated(uint32_t tokens) {
  TIERKV_ASSIGN_OR_RETURN(const CodecPair plain, parse_codec_pair("auto"));
  return get(plain, tokens);
}

void CodecSet::set_calibration(CalibrationPtr calibration) {
  std::lock_guard lock(mutex_);
  calibration_.swap(calibration);  // the old one goes after the lock
}

CalibrationPtr CodecSet::calibration() const {
  std::lock_guard lock(mutex_);
  return calibration_;
}

std::shared_ptr<const void> CodecSet::hold_tables() const {
  const CalibrationPtr tables = calibration();
  return tables ? tables->hold() : nullptr;
}

const calib::Calibration* CodecSet::earlier_calibration(const CalibrationPtr& next, size_t index) const {
  std::lock_guard lock(mutex_);
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
    if (!entry->calibration || entry->calibration == next) continue;
    const auto same = [&](const CodecEntry& other) { return other.calibration == entry->calibration; };
    if (std::any_of(entries_.begin(), entry, same)) continue;
    if (index-- == 0) return entry->calibration.get();
  }
  return nullptr;
}

size_t CodecSet::table_bytes() const {
  const CalibrationPtr next = calibration();
  size_t total = next ? next->bytes() : 0;
  {
    std::lock_guard lock(mutex_);
    for (const CodecEntry& entry : entries_) total += entry.key->table_bytes() + entry.value->table_bytes();
  }
  // A calibration has a lock of its own, and this one is a leaf: they are asked one by one. Entries stay, and so do theirs.
  for (size_t i = 0;; ++i) {
    const calib::Calibration* other = earlier_calibration(next, i);
    if (!other) break;
    total += other->bytes();
  }
  return total;
}

CodecDraft::CodecDraft(CodecSet& set, CalibrationPtr calibration)
    : set_(set), calibration_(std::move(calibration)), tables_(calibration_ ? calibration_->hold() : nullptr) {}

Result<const CodecEntry*> CodecDraft::get(const CodecPair& pair, uint32_t tokens, uint32_t layer, uint32_t head) {
  if (!needs_tables(pair)) return set_.get(pair, tokens, layer, head);
  {
    std::lock_guard lock(set_.mutex_);
    if (const CodecEntry* known = set_.find(pair, tokens, layer, head, calibration_)) return known;
  }
  for (const CodecEntry& entry : entries_) {
    if (is_entry(entry, pair, tokens, layer, head, calibration_)) return &entry;
  }
  TIERKV_ASSIGN_OR_RETURN(CodecEntry entry, set_.make(pair, tokens, layer, head, calibration_));
  entries_.push_back(std::move(entry));
  return &entries_.back();
}

bool CodecDraft::commit() {
  CalibrationPtr before = calibration_;  // the set's old one goes after the lock
  std::lock_guard lock(set_.mutex_);
  for (const CodecEntry& entry : entries_) {
    if (set_.find(entry.pair, entry.tokens, entry.layer, entry.head, calibration_)) return false;
  }
  set_.entries_.splice(set_.entries_.end(), entries_);
  set_.calibration_.swap(before);
  return true;
}

}  // namespace tierkv::quant
