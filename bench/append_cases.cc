// Appending one token to 32 layers that hold T tokens, against concatenate-and-copy.
//
// The peer is what an engine does that concatenates: every step it allocates keys and values of T+1 rows, [heads][T+1][dim] in the
// same FP16, copies the T rows there are, adds the new one and frees the old buffers. Ours is the mean over all T appends of a
// sequence, from nothing to T, growth included. `ratio` compares it with the peer's step at T tokens; `ratio_decode` with the mean
// of the peer's steps over the same decode, about half of that. Both sides run in memory that the process already has; `first_ns`
// is ours in fresh memory.
#include <time.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "base/f16.h"
#include "base/status_macros.h"
#include "bench/data.h"
#include "bench/harness.h"
#include "tierkv/cache.h"

namespace tierkv::bench {
namespace {

constexpr uint32_t kHeads = 8, kDim = 128, kRow = kHeads * kDim;
constexpr uint32_t kDistinct = 251;  // token t of every layer carries source row t % kDistinct

// This thread's processor time, page faults included: both sides work on one thread, and a busy machine must not decide the ratio.
double thread_ns() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return 1e9 * static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec);
}

struct Source {
  std::vector<uint16_t> keys, values;

  Source() : keys(kDistinct * kRow), values(keys.size()) {
    Random random(71);
    for (auto* rows : {&keys, &values}) {
      for (uint16_t& x : *rows) x = f32_to_f16(static_cast<float>(random.normal()));
    }
  }
  const uint16_t* key(uint32_t t) const { return keys.data() + static_cast<size_t>(t % kDistinct) * kRow; }
  const uint16_t* value(uint32_t t) const { return values.data() + static_cast<size_t>(t % kDistinct) * kRow; }
};

// One side of one layer, grown by concatenation.
class Concatenated {
 public:
  void append(const uint16_t* row) {
    auto grown = std::make_unique_for_overwrite<uint16_t[]>(static_cast<size_t>(length_ + 1) * kRow);
    for (uint32_t h = 0; h < kHeads; ++h) {
      uint16_t* to = grown.get() + static_cast<size_t>(h) * (length_ + 1) * kDim;
      if (length_ > 0) std::memcpy(to, head(h), static_cast<size_t>(length_) * kDim * 2);
      std::memcpy(to + static_cast<size_t>(length_) * kDim, row + h * kDim, kDim * 2);
    }
    rows_ = std::move(grown);
    ++length_;
  }
  // The state after `length` appends, without their cost.
  void fill(uint32_t length, const std::function<const uint16_t*(uint32_t)>& row) {
    rows_ = std::make_unique_for_overwrite<uint16_t[]>(static_cast<size_t>(length) * kRow);
    length_ = length;
    for (uint32_t h = 0; h < kHeads; ++h) {
      for (uint32_t t = 0; t < length; ++t) {
        std::memcpy(rows_.get() + (static_cast<size_t>(h) * length + t) * kDim, row(t) + h * kDim, kDim * 2);
      }
    }
  }
  const uint16_t* head(uint32_t h) const { return rows_.get() + static_cast<size_t>(h) * length_ * kDim; }
  uint32_t length() const { return length_; }

 private:
  std::unique_ptr<uint16_t[]> rows_;
  uint32_t length_ = 0;
};

bool same_rows(const uint16_t* rows, uint32_t count, uint32_t head, const std::function<const uint16_t*(uint32_t)>& source) {
  for (uint32_t t = 0; t < count; ++t) {
    if (std::memcmp(rows + static_cast<size_t>(t) * kDim, source(t) + head * kDim, kDim * 2) != 0) return false;
  }
  return true;
}

// Nanoseconds of one step over all layers when `length` tokens are there.
Result<double> time_concatenation(const Source& source, uint32_t length, uint32_t layers) {
  constexpr uint32_t kSteps = 8, kWarmUp = 2;  // the first steps after fill() still fault pages in
  const auto key = [&](uint32_t t) { return source.key(t); };
  const auto value = [&](uint32_t t) { return source.value(t); };
  std::vector<Concatenated> keys(layers), values(layers);
  for (uint32_t l = 0; l < layers; ++l) {
    keys[l].fill(length - kSteps, key);
    values[l].fill(length - kSteps, value);
  }
  double start = 0;
  for (uint32_t t = length - kSteps; t < length; ++t) {
    if (t == length - kSteps + kWarmUp) start = thread_ns();
    for (uint32_t l = 0; l < layers; ++l) {
      keys[l].append(source.key(t));
      values[l].append(source.value(t));
    }
  }
  const double ns = (thread_ns() - start) / (kSteps - kWarmUp);
  for (uint32_t l = 0; l < layers; ++l) {
    for (uint32_t h = 0; h < kHeads; ++h) {
      if (!same_rows(keys[l].head(h), length, h, key) || !same_rows(values[l].head(h), length, h, value)) {
        return error(StatusCode::internal, "concatenation lost rows of layer ", l);
      }
    }
  }
  return ns;
}

// The same averaged over all steps of a decode from nothing to `tokens`: the cost is linear in the length, so evenly spread lengths
// do.
Result<double> time_concatenated_decode(const Source& source, uint32_t tokens, uint32_t layers) {
  constexpr uint32_t kLengths = 16;
  double total = 0;
  for (uint32_t i = 0; i < kLengths; ++i) {
    TIERKV_ASSIGN_OR_RETURN(const double ns, time_concatenation(source, (2 * i + 1) * tokens / (2 * kLengths), layers));
    total += ns;
  }
  return total / kLengths;
}

CacheConfig all_hot(uint32_t layers) {
  CacheConfig config;
  config.num_layers = layers;
  config.num_kv_heads = kHeads;
  config.head_dim = kDim;
  config.tiers.hot = kAll;
  config.tiers.sinks = 0;
  config.byte_budget =
      uint64_t{4} << 30;  // with a budget the cache keeps memory it freed, so decodes after the first run in warm memory
  return config;
}

// Nanoseconds per step of one new sequence in `cache`, checked row by row and removed again.
Result<double> time_cache(AdaptiveKVCache& cache, const Source& source, uint32_t tokens, uint32_t layers) {
  TIERKV_ASSIGN_OR_RETURN(const SeqId seq, cache.add_sequence());
  const double start = thread_ns();
  for (uint32_t t = 0; t < tokens; ++t) {
    const RowsView keys = RowsView::dense(source.key(t), DType::f16, 1, kHeads, kDim);
    const RowsView values = RowsView::dense(source.value(t), DType::f16, 1, kHeads, kDim);
    for (uint32_t l = 0; l < layers; ++l) TIERKV_RETURN_IF_ERROR(cache.append(seq, l, keys, values));
  }
  const double ns = (thread_ns() - start) / tokens;
  for (uint32_t l = 0; l < layers; ++l) {
    for (uint32_t h = 0; h < kHeads; ++h) {
      TIERKV_ASSIGN_OR_RETURN(const HotView view, cache.hot_view(seq, l, h));
      if (view.rows != tokens || !same_rows(view.keys, tokens, h, [&](uint32_t t) { return source.key(t); }) ||
          !same_rows(view.values, tokens, h, [&](uint32_t t) { return source.value(t); })) {
        return error(StatusCode::internal, "the hot rows of layer ", l, ", head ", h, " are not those that were appended");
      }
    }
  }
  TIERKV_RETURN_IF_ERROR(cache.remove(seq));
  return ns;
}

Status run_append(const std::string& name, uint32_t tokens, double required, const Settings& settings, const Emit& emit) {
  const uint32_t layers = settings.quick ? 2 : 32;
  const Source source;
  TIERKV_ASSIGN_OR_RETURN(const std::unique_ptr<AdaptiveKVCache> cache, AdaptiveKVCache::create(all_hot(layers)));
  TIERKV_ASSIGN_OR_RETURN(const double first, time_cache(*cache, source, tokens, layers));
  std::vector<double> ours;
  for (int i = 0; i < (settings.quick ? 1 : 5); ++i) {
    TIERKV_ASSIGN_OR_RETURN(const double ns, time_cache(*cache, source, tokens, layers));
    ours.push_back(ns);
  }
  std::sort(ours.begin(), ours.end());
  TIERKV_ASSIGN_OR_RETURN(const double peer, time_concatenation(source, tokens, layers));
  TIERKV_ASSIGN_OR_RETURN(const double peer_decode, time_concatenated_decode(source, tokens, layers));
  Row row(name);
  const double median = ours[ours.size() / 2];
  row.timing({median, ours.front(), static_cast<int>(ours.size())})
      .number("first_ns", first)
      .number("layers", layers)
      .text("clock", "thread");
  row.number("gbps", layers * 2.0 * 2.0 * kRow / median).number("bits", 16).text("peer", "concatenate").number("peer_ns", peer);
  if (required > 0 && !settings.quick) row.at_least("ratio", peer / median, required);
  else row.number("ratio", peer / median);
  row.number("peer_decode_ns", peer_decode).number("ratio_decode", peer_decode / median);
  emit(row);
  return {};
}

}  // namespace

void add_append_cases(std::vector<Case>& cases) {
  struct Length {
    uint32_t tokens;
    double required;
  };
  for (const Length length : {Length{256, 20}, Length{1024, 0}, Length{4096, 700}}) {
    const std::string name = "cache/fp16/append/32layers_T" + std::to_string(length.tokens);
    cases.push_back({name, [=](const Settings& settings, const Emit& emit) -> Status {
                       if (settings.quick && length.tokens > 256) return {};
                       return run_append(name, length.tokens, length.required, settings, emit);
                     }});
  }
}

}  // namespace tierkv::bench
