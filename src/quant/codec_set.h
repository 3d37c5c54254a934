// codec_set.h — the codec objects a cache uses, made once per (keys, values, block tokens) and never moved.
//
// Threads: get() may be called from anywhere; entries are immutable and live as long as the set. The set's lock is a leaf: codecs
//          are made, and tables read from a file, without it. Of two threads that make the same codec one throws its own away.
#pragma once

#include <list>
#include <memory>
#include <mutex>

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
  // The i-th different one, beside `next`, that some entry was made from; or null.
  const calib::Calibration* earlier_calibration(const CalibrationPtr& next, size_t index) const;
  friend class CodecDraft;
  // REQUIRES: mutex_ held.
  const CodecEntry* find(const quant::CodecPair& pair, uint32_t tokens, uint32_t layer, uint32_t head,
                         const CalibrationPtr& calibration) const;
  Result<CodecEntry> make(const quant::CodecPair& pair, uint32_t tokens, uint32_t layer, uint32_t head,
                          const CalibrationPtr& calibration);

  const uint32_t head_dim_;
  mutable std::mutex mutex_;
  CalibrationPtr calibration_;
  std::list<CodecEntry> entries_;  // a list: drafts hand their entries over without moving them
};

// Codecs for tables that the set may never get: whoever changes the calibration or many codecs at once makes them here first, and
// what fails half way leaves no trace in the set.
//
// Threads: one thread's own. REQUIRES: the set outlives it.
class CodecDraft {
 public:
  // `calibration` may be null, or the set's own. While the draft lives its tables are read once and stay in memory.
  CodecDraft(CodecSet& set, CalibrationPtr calibration);
  const CalibrationPtr& calibration() const { return calibration_; }
  // As CodecSet::get(). Entries with tables are the draft's until commit(); others are the set's at once, since they cost nothing.
  Result<const CodecEntry*> get(const quant::CodecPair& pair, uint32_t tokens, uint32_t layer, uint32_t head);
  Result<const CodecEntry*> get(const quant::CodecPair& pair, uint32_t tokens) { return get(pair, tokens, 0, 0); }
  Result<const CodecEntry*> uncalibrated(uint32_t tokens) { return set_.uncalibrated(tokens); }
  // The entries and the calibration become the set's, which needs no memory. False: another thread has made one of the entries
  // meanwhile, nothing was changed; a new draft will find it.
  [[nodiscard]] bool commit();

 private:
  CodecSet& set_;
  CalibrationPtr calibration_;
  std::shared_ptr<const void> tables_;
  std::list<CodecEntry> entries_;
};

}  // namespace tierkv::quant
