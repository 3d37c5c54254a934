// codec_set.h — the codec objects a cache uses, made once per (keys, values, block tokens) and never moved.
//
// Threads: get() may be called from anywhere; entries are immutable and live as long as the set.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "calib/calibration.h"
#include "quant/registry.h"

namespace tierkv::quant {

struct CodecEntry {
  quant::CodecPair pair;
  uint32_t tokens = 0;  // rows of a block
  std::unique_ptr<quant::Codec> key;
  std::unique_ptr<quant::Codec> value;
  // Codecs with calibrated tables belong to one KV head.
  CalibrationPtr calibration;
  uint32_t layer = 0, head = 0;
  const CodecEntry* fallback = nullptr;  // for rows the calibrated codec refuses
};

class CodecSet {
 public:
  explicit CodecSet(uint32_t head_dim) : head_dim_(head_dim) {}
  // failed_precondition: the codecs need a calibration and there is none.
  Result<const CodecEntry*> get(const quant::CodecPair& pair, uint32_t tokens, uint32_t layer, uint32_t head);
  // For codecs that are the same for every head.
  Result<const CodecEntry*> get(const quant::CodecPair& pair, uint32_t tokens) { return get(pair, tokens, 0, 0); }
  // What takes rows and heads that a calibration has nothing to say about: the best codec there is without one.
  Result<const CodecEntry*> uncalibrated(uint32_t tokens);
  // From here on entries are made with these tables; those there are keep theirs.
  void set_calibration(CalibrationPtr calibration);
  CalibrationPtr calibration() const;
  // While the result lives, the calibration's tables are read once and stay in memory: for making the codecs of many heads. May be
  // null.
  std::shared_ptr<const void> hold_tables() const;
  // Of every entry, and of the calibrations they and the next ones are made from. Allocates nothing.
  size_t table_bytes() const;

 private:
  Result<const CodecEntry*> find_or_make(const quant::CodecPair& pair, uint32_t tokens, uint32_t layer, uint32_t head,
                                         const CodecEntry* fallback);

  const uint32_t head_dim_;
  mutable std::mutex mutex_;
  CalibrationPtr calibration_;
  std::vector<CalibrationPtr> earlier_;  // that some entry was made from
  std::deque<CodecEntry> entries_;
};

}  // namespace tierkv::quant
