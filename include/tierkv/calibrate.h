// calibrate.h — learns from a text what a model's keys and values look like, and writes the file that calibrated codecs need.
//
//   auto shape = tierkv::llama::inspect(model).value();
//   tierkv::llama::CalibrateOptions options;
//   options.model_file = "model.gguf";
//   auto report = tierkv::llama::calibrate(shape, {tokens}, "model.tkc", options);
//
// Forward passes only: the text runs through the model in windows, each a new sequence over an FP16 cache, while the attention is
// watched. Nothing of the text or of its keys and values is kept but a sample of tokens, and that only until the tables are
// computed. The same text, model and options give the same windows, samples and draws for any number of threads (probing: for the
// same number). Threads: one call at a time on a model.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tierkv/llama.h"
#include "tierkv/status.h"

namespace tierkv::llama {

inline constexpr uint64_t kLeastCalibrationTokens = 2048;
inline constexpr uint32_t kLeastDistinctTokens = 64;

// What calibrate() is doing, for those who wait.
struct CalibrateProgress {
  const char* phase = "";        // "reading", "solving", "probing"
  uint64_t done = 0, total = 1;  // tokens while reading, runs while probing
};

struct CalibrateOptions {
  uint64_t tokens = 32768;        // of all texts together; 0: everything
  uint32_t window = 4096;         // tokens of a sequence; less where the model's context is
  uint32_t block = 128;           // tokens of an archive block
  uint32_t sinks = 4;             // first tokens of a sequence that are never archived
  uint32_t distance = 512;        // from a query to what it finds in the archive
  uint32_t sample_tokens = 8192;  // whose keys and values are looked at one by one
  uint32_t query_stride = 4;      // every n-th query's attention is looked at
  bool deep = false;              // with tables for deep archives, which are large
  bool probe = false;             // weigh layers by what an error in them does to predictions, which takes two runs a layer
  uint32_t probe_tokens = 1024;   // whose predictions are looked at in each
  uint32_t threads = 0;           // 0: one for each core
  uint32_t micro_batch = 512;
  int32_t first_token = -1;  // that every window starts with; below 0: none
  std::string model_file;    // the GGUF, for the output projections; empty: done without
  std::string text_name;     // what the text is, in words: goes into the file
  std::function<void(const CalibrateProgress&)> progress;
  std::function<bool()> cancelled;  // asked often, from any thread; true stops with failed_precondition, and nothing is written
};

struct CalibrateReport {
  uint64_t fingerprint = 0;  // of the model
  std::string id;            // of the calibration, sixteen hexadecimal digits
  uint64_t tokens = 0, sampled = 0, windows = 0;
  uint64_t pairs = 0;  // of a query and a key that were looked at
  uint64_t bytes = 0;  // of the file
  // Layers whose residual stream or output projection was not found: their errors are weighed without it, less well.
  uint32_t without_residual = 0, without_projection = 0;
  double seconds = 0.0, watching_seconds = 0.0, solving_seconds = 0.0;  // in all; watching attention; computing the tables
  // The error of archives on text that the tables were not made from, with them (2.03 bits) and without (3.25 bits), in the same
  // units. No tokens: all of the text was read, and nothing is left to check on.
  uint64_t held_out_tokens = 0;
  double held_out_error = 0.0, held_out_without = 0.0;
  // Bits per key value that each layer gets when all have 1.5 on average.
  std::vector<double> key_bits;
  // With CalibrateOptions::probe: of each layer, how much more an error in its keys or values matters than the statistics say; 1 on
  // (geometric) average, and where there was nothing to probe. Without: empty.
  std::vector<double> key_weights, value_weights;
  // What they come from: the divergence of the predictions, in nats, and what of it the tables do not predict because any rounding
  // gives it.
  std::vector<double> key_divergence, value_divergence, floor_divergence;
  double probing_seconds = 0.0;
};

// Each text is tokens; windows are taken from them in turn, evenly spread over each. invalid_argument: a text too short (fewer than
// kLeastCalibrationTokens in all, or than a window among several), of fewer than kLeastDistinctTokens different tokens, options
// that do not fit, or statistics that are not finite. failed_precondition: stopped, or tables that do not help on text beside what
// was read; nothing is written.
Result<CalibrateReport> calibrate(const ModelShape& shape, const std::vector<std::vector<int32_t>>& texts, const std::string& path,
                                  const CalibrateOptions& options);

}  // namespace tierkv::llama
