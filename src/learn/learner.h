// learner.h — what is learned of a model from the rows that go by. This one counts tokens and makes no tables: solve() refuses.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "calib/calibration.h"
#include "tierkv/cache.h"

namespace tierkv::learn {

struct LearnModel {
  calib::ModelId id;
  std::vector<calib::Rope> ropes;
  std::vector<uint32_t> windows;
  std::vector<std::vector<float>> grams;
};
struct LearnSettings {
  uint32_t block = 128, sinks = 4, distance = 512;
  uint64_t tokens = 8192;
  uint32_t query_stride = 16;
  uint32_t sample_tokens = 1536;
};

class Learner {
 public:
  static Result<std::unique_ptr<Learner>> create(LearnModel model, const LearnSettings& settings);
  void add_rows(uint64_t seq, uint32_t layer, uint32_t position, const RowsView& keys, const RowsView& values) noexcept;
  bool wants_query(uint32_t layer, uint32_t position) const noexcept;
  void add_queries(uint64_t seq, uint32_t layer, uint32_t position, const RowsView& queries, const float* out, const float* lse,
                   float scale, float softcap, const Executor& run) noexcept;
  void set_residual(uint32_t layer, double mean_square) noexcept;
  void forget(uint64_t seq) noexcept;
  uint64_t tokens() const noexcept { return tokens_; }
  bool ready() const noexcept { return tokens_ >= settings_.tokens; }
  size_t bytes() const noexcept { return 0; }
  Result<std::shared_ptr<calib::Calibration>> solve(const std::string& text_name,
                                                    const std::function<bool()>& cancelled = {}) const;
  Status save_sums(const std::string& path) const;
  Status load_sums(const std::string& path);

 private:
  LearnSettings settings_;
  std::atomic<uint64_t> tokens_{0};
};

}  // namespace tierkv::learn
