// learner.h — learns a model from the rows and queries that go by: calibration without a second pass over a text.
//
//   auto learner = Learner::create(model, settings).value();
//   append:     learner->add_rows(seq, layer, position, keys, values);
//   attention:  if (learner->wants_query(layer, position)) learner->add_queries(seq, layer, ...);
//   ready():    auto tables = learner->solve("the first prompt");     on a thread of its own
//   the end:    learner->save_sums(path);                             when it was too little
//
// Memory:   at most a quarter of what the model's keys and values take as FP16 at 8,192 tokens, whatever goes by: the sample is
// made
//           smaller where sample_tokens would be more. Scratch of a call comes to it: about what one layer holds, for each thread.
// Layers:   those with a sliding window no longer than `distance` have no archive, and nothing is gathered of them.
// Finite:   rows that are not finite add nothing, and solve() and save_sums() then refuse.
// Threads:  any call on any thread. The order of calls for one layer of one sequence is the order of its tokens. The number of
//           threads changes nothing in the result; what two sequences do at the same time changes its last digits, and which tokens
//           are sampled.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "calib/calibration.h"
#include "calib/statistics.h"
#include "tierkv/cache.h"
#include "tierkv/status.h"

namespace tierkv::learn {

class LayerLearner;
struct LayerSums;
struct Sums;
struct SumsFrame;

// What a host knows of a model.
struct LearnModel {
  calib::ModelId id;
  std::vector<calib::Rope> ropes;         // of each layer
  std::vector<uint32_t> windows;          // sliding window of each layer, 0: none; empty: none anywhere
  std::vector<std::vector<float>> grams;  // of each layer: W_O'W_O of each query head [heads][dim][dim]; empty (or an empty layer):
                                          // the identity
};

// What is taken off thin statistics; docs/build/measurements.md, "Learning in passing", says what is known of it.
struct Shrinking {
  double covariance = 0.0;     // the covariance goes towards its diagonal by n/(n + keys), n = this times head_dim
  double metric = 0.3;         // the metric towards the identity by n/(n + queries), queries of all heads that share the KV head
  uint32_t normal_rows = 128;  // of a normal distribution that steps are fitted on beside the sample
};

struct LearnSettings {
  uint32_t block = 128, sinks = 4, distance = 512;  // as calib::Statistics
  uint64_t tokens = 8192;                           // to see before tables are solved
  uint32_t query_stride = 0;  // every n-th position's queries are looked at; 0: as the shape of the model asks
  uint32_t sample_tokens = 1536;
  Shrinking shrinking;
};

// What solve() found of its tables, in the units of calib::KltHead::distortion summed over all heads, on rows and queries that it
// did not learn from.
struct LearnCheck {
  double calibrated = 0.0;    // klt at 1.875 bits
  double uncalibrated = 0.0;  // what an archive is without tables
};

class Learner {
 public:
  // invalid_argument: a shape, ropes, windows or grams that do not fit each other; no layer with an archive. resource_exhausted.
  static Result<std::unique_ptr<Learner>> create(LearnModel model, const LearnSettings& settings);
  ~Learner();

  // Rows that were just appended. Never fails: without memory, and of rows in no host memory, it learns less.
  void add_rows(uint64_t seq, uint32_t layer, uint32_t position, const RowsView& keys, const RowsView& values) noexcept;
  // Worth asking attention for lse.
  bool wants_query(uint32_t layer, uint32_t position) const noexcept;
  // Queries of consecutive positions of a sequence, after attention; those that are not wanted are passed over. out:
  // [tokens][heads][dim]; lse: [tokens][heads], the log of the sum of e^score (sink logits included). `run` shares the work out.
  void add_queries(uint64_t seq, uint32_t layer, uint32_t position, const RowsView& queries, const float* out, const float* lse,
                   float scale, float softcap, const Executor& run) noexcept;
  // Mean |h|² before the layer, times the mean square of attention's output where a norm follows it (llama::OutputWeights::scale);
  // where nobody says: 1. What is above 0 and finite counts.
  void set_residual(uint32_t layer, double mean_square) noexcept;
  // The sequence is gone or was shortened or forked: its samples no longer pair with new queries. Their sums stay.
  void forget(uint64_t seq) noexcept;

  // Seen by every layer, earlier runs' included. The last one counts: a host may read a long prompt layer by layer, all of it in
  // the first one before the others see any.
  uint64_t tokens() const noexcept;
  bool ready() const noexcept;                     // enough to solve
  bool has_enough(uint32_t layer) const noexcept;  // the layer has seen as much as all of them have to
  size_t bytes() const noexcept;                   // held now

  // Solves and checks, on one thread, the caller's; add_*() may go on meanwhile. `cancelled` is asked often. failed_precondition:
  // cancelled, too little was seen, or tables would not help (the message says why, with both figures). invalid_argument: what was
  // seen is not finite or does not vary.
  Result<std::shared_ptr<calib::Calibration>> solve(const std::string& text_name, const std::function<bool()>& cancelled = {},
                                                    LearnCheck* check = nullptr) const;

  // Sums of text too short to solve with, kept over runs: only sums, never rows or text. A header with the model, a checksum;
  // damaged, foreign or newer files are refused, never used.
  // Adds to what lies there for the same model (another process may have written meanwhile) and replaces it atomically. Once, at
  // the end of a run: a second call after one that succeeded is failed_precondition.
  Status save_sums(const std::string& path) const;
  // Counts what lies there; solve() reads it again. not_found when there is none.
  Status load_sums(const std::string& path);

 private:
  Learner(LearnModel model, const LearnSettings& settings);
  void count_variety(const RowsView& values);
  SumsFrame frame() const;
  Status check_finite() const;
  Result<Sums> all_sums() const;

  calib::ModelId id_;
  std::vector<calib::Rope> ropes_;
  LearnSettings settings_;
  std::vector<std::unique_ptr<calib::Turner>> turners_;
  std::vector<std::unique_ptr<LayerLearner>> layers_;  // null: nothing of it is archived
  uint32_t first_learnt_ = 0, last_learnt_ = 0;
  std::unique_ptr<std::atomic<double>[]> residuals_;
  std::unique_ptr<std::atomic<uint64_t>[]> seen_;  // tokens, of each layer
  std::atomic<uint64_t> earlier_tokens_ = 0;

  mutable std::mutex mutex_;         // of what follows
  std::vector<uint16_t> different_;  // values of the first layer's first head, one of each token that was new
  std::atomic<uint32_t> variety_ = 0;
  uint32_t earlier_variety_ = 0;
  std::vector<std::string> earlier_;  // files of sums
  mutable bool saved_ = false;
};

}  // namespace tierkv::learn
