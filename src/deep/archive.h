// archive.h — the deep archive: keys and values of a run of tokens, all layers together, at 16 to 50 times less than FP16, for
// disk, network and idle sequences. Decoded before use.
//
// Coding:   coding blocks (64 tokens; not the store's blocks), layer by layer. A layer's vector (calib/deep.h) is predicted from
//           what the decoder has of the layers before it, or not, whichever is shorter (one flag a block and layer); what is left
//           becomes levels of one step for all components, layers and heads (levels.h), finer for tokens that matter more. The
//           encoder rebuilds what the decoder will see as it goes.
// Guard:    a block and layer whose rebuilt rows are further from the true ones than the calibration's mean is gets half the step,
//           up to six times, and FP16 rows after that: nothing ever blows up, whatever the rows.
// Layout:   header (kMagic, version, calibration's id, shape, positions, step, centroids), chunk table (bytes, check of the rebuilt
//           rows), chunks, XXH3-64 of everything before. Chunks of 512 tokens start from the same models, so they are coded side by
//           side.
// Bits:     the check of rebuilt rows is compared while decoding: a machine that computes otherwise refuses instead of drifting.
// Memory:   encoding and decoding hold a block of all layers per thread, and the tables as floats.
// Threads:  pure functions; callbacks are called from several threads at once, for different tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "calib/calibration.h"
#include "calib/deep.h"
#include "tierkv/status.h"

namespace tierkv {
class ThreadPool;
}

namespace tierkv::deep {

// Rows of `count` tokens from the run's token `first` on: [count][kv_heads][head_dim], keys as the cache has them (after RoPE).
// `layer` is the model's.
using ReadRows = std::function<void(uint32_t layer, uint32_t first, uint32_t count, float* keys, float* values)>;
using WriteRows = std::function<void(uint32_t layer, uint32_t first, uint32_t count, const float* keys, const float* values)>;

struct EncodeOptions {
  double ratio = 0.0;    // FP16 bytes of the run over bytes written; or
  double quality = 0.0;  // share of the energy, in the calibration's metric, that must survive, e.g. 0.97. One of the two is set.
  uint32_t threads = 1;
  uint32_t chunk = 512;  // tokens, a multiple of 64
  // How much later queries looked at tokens, [coded layer][token], any unit; empty: estimated from the keys and values themselves.
  std::span<const float> weights;
  // How far steps follow the weights: a step is divided by weight^(power/2); 0: all tokens alike (docs/use/quality.md: its worth).
  double weight_power = 0.6;
};

struct EncodeReport {
  uint64_t bytes = 0;
  double ratio = 0.0;
  double quality = 0.0;  // measured
  double step = 0.0;
  uint64_t predicted = 0, plain = 0, finer = 0, raw = 0;  // blocks of layers; finer and raw: where the guard stepped in
  uint32_t passes = 0;                                    // over all tokens
};

struct ArchiveInfo {
  uint32_t version = 0;
  uint64_t calibration = 0;  // its id
  uint32_t layers = 0;       // coded
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;
  uint32_t first_position = 0;
  uint32_t tokens = 0;
  uint32_t chunk = 0;
  uint64_t bytes = 0;
};

// REQUIRES: `tables` belong to the model whose ropes `turner` gives by layer; `id` names the calibration they came from.
struct ModelTables {
  const calib::DeepTables* tables = nullptr;
  std::function<const calib::Turner&(uint32_t layer)> turner;
  uint64_t id = 0;
};

// invalid_argument: no tokens, no target or two, rows that are not finite. resource_exhausted: no step reaches the ratio.
[[nodiscard]] Result<std::vector<std::byte>> encode(const ModelTables& model, uint32_t first_position, uint32_t tokens,
                                                    const ReadRows& read, const EncodeOptions& options,
                                                    EncodeReport* report = nullptr);

// Checks everything that can be checked without tables. data_loss, unsupported (a newer version).
[[nodiscard]] Result<ArchiveInfo> inspect(std::span<const std::byte> bytes);

// An archive that is read piece by piece: who cannot hold all its rows takes a few chunks at a time, in any order.
// The bytes and the model's tables outlive it. open() and decode() fail as below.
class Decoder {
 public:
  [[nodiscard]] static Result<Decoder> open(std::span<const std::byte> bytes, const ModelTables& model, ThreadPool& pool);
  Decoder(Decoder&&) noexcept;
  ~Decoder();

  const ArchiveInfo& info() const;
  uint32_t chunks() const;  // of info().chunk tokens, the last one shorter
  [[nodiscard]] Status decode(uint32_t first_chunk, uint32_t count, ThreadPool& pool, const WriteRows& write) const;

 private:
  struct State;
  explicit Decoder(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// All of it. failed_precondition: encoded with another calibration. data_loss: damaged; some rows may have been written by then.
[[nodiscard]] Status decode(std::span<const std::byte> bytes, const ModelTables& model, uint32_t threads, const WriteRows& write);

}  // namespace tierkv::deep
