// What the processor does for one decoding call on a device, beside the device's own time: a whole attention() over eight
// sequences, or one, with everything that the device's backend does but the device, whose memory is the processor's and whose
// launch does nothing.
//
// 8 KV heads of 128 channels with 32 query heads, one layer, sequences that are forks of one and 16 tokens apart, so that their old
// blocks are shared and new ones come at different times. "anew": nothing is settled from one call to the next. "mass": every call
// also says what all rows receive. "there": rows, queries and results of 16 bits are in the device's memory, and a step is one
// call; then how often the device is asked for something is told too.
#include <time.h>

#include <algorithm>
#include <memory>
#include <numeric>

#include "base/status_macros.h"
#include "bench/caches.h"
#include "bench/data.h"
#include "bench/harness.h"
#include "calib/synthetic_statistics.h"
#include "cuda/device_attention.h"
#include "cuda/twin_machine_testing.h"
#include "solve/testing.h"

namespace tierkv::bench {
namespace {

constexpr uint32_t kHeads = 32, kKvHeads = 8, kDim = 128, kMultiprocessors = 132;

// The thread's own time: nothing here waits or runs on others, and what else the machine does is not our affair.
double now_us() {
  timespec at{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &at);
  return static_cast<double>(at.tv_sec) * 1e6 + static_cast<double>(at.tv_nsec) / 1e3;
}

// The backend, with a clock around it.
class Timed final : public attn::Backend {
 public:
  explicit Timed(bool remembers) : remembers_(remembers) {
    auto machine = std::make_unique<cuda::testing::TwinMachine>(cuda::MachineFacts{kMultiprocessors, true});
    machine->attends = false;
    machine_ = machine.get();
    inner_ = std::make_unique<cuda::DeviceAttention>(std::move(machine), 0);
  }
  bool remembers() const override { return remembers_; }
  Status accepts(const RowsView& rows, const char* what) const override { return inner_->accepts(rows, what); }
  void encode(std::span<attn::EncodeWork> blocks, const Executor& run) const override { inner_->encode(blocks, run); }
  void decode(std::span<const attn::DecodeWork> blocks, const Executor& run) const override { inner_->decode(blocks, run); }
  Result<std::shared_ptr<const attn::Arrival>> take(std::span<attn::TakeWork> works, bool attended) const override {
    return inner_->take(works, attended);
  }
  void settle() const noexcept override { inner_->settle(); }
  Result<std::shared_ptr<const void>> bring(std::span<RowsView> rows) const override { return inner_->bring(rows); }
  void attend(std::span<attn::AttendWork> works, const Executor& run) const override {
    const uint64_t before = machine_->sent;
    const double begin = now_us();
    inner_->attend(works, run);
    us = now_us() - begin;
    sent = machine_->sent - before;
  }
  const cuda::DeviceAttention& inner() const { return *inner_; }
  const cuda::testing::TwinMachine& machine() const { return *machine_; }

  mutable double us = 0;      // of the last call
  mutable uint64_t sent = 0;  // bytes

 private:
  const bool remembers_;
  cuda::testing::TwinMachine* machine_;
  std::unique_ptr<cuda::DeviceAttention> inner_;
};

double median(std::vector<double> of) {
  std::sort(of.begin(), of.end());
  return of.empty() ? 0.0 : of[of.size() / 2];
}
double mean(const std::vector<double>& of) { return std::accumulate(of.begin(), of.end(), 0.0) / static_cast<double>(of.size()); }

struct Figures {
  std::vector<double> append, call, backend, sent, new_block, asked;
};

Status steps(AdaptiveKVCache& cache, std::vector<AttentionItem>& items, const std::shared_ptr<Timed>& backend, int count,
             Figures& out) {
  const std::vector<float> row = make_rows(Shape::gaussian, kKvHeads, kDim, 5);
  RowsView one = RowsView::f32(row.data(), 1, kKvHeads, kDim);
  one.place = items[0].queries.place;
  const bool there = one.place == MemoryPlace::device;
  std::vector<AppendItem> appends;
  for (const AttentionItem& item : items) appends.push_back({item.seq, one, one, {}});
  cache.attend_with(backend);
  for (int step = -1; step < count; ++step) {  // the first copies everything
    const double before = now_us();
    if (!there) TIERKV_RETURN_IF_ERROR(cache.append_many(0, appends));
    const double appended = now_us() - before;
    const uint64_t areas = backend->inner().counts().areas_made, asked = backend->machine().asked;
    AttentionOptions options;
    options.observe = false;
    const double begin = now_us();
    TIERKV_RETURN_IF_ERROR(there ? cache.step(0, appends, items, options) : cache.attention(0, items));
    const double end = now_us();
    if (step < 0) continue;
    out.asked.push_back(static_cast<double>(backend->machine().asked - asked));
    if (backend->inner().counts().areas_made != areas) out.new_block.push_back(end - begin);
    out.append.push_back(appended), out.call.push_back(end - begin), out.backend.push_back(backend->us);
    out.sent.push_back(static_cast<double>(backend->sent));
  }
  cache.attend_with(nullptr);
  if (backend->inner().usage().on_processor != 0) return error(StatusCode::internal, "the processor took a call");
  return {};
}

Status run(const std::string& name, const std::string& spec, uint32_t sequences, uint32_t tokens, const Settings& settings,
           const Emit& emit) {
  TIERKV_ASSIGN_OR_RETURN(const FilledCache filled, fill_cache(spec, settings.quick ? 2048 : tokens));
  AdaptiveKVCache& cache = *filled.cache;
  std::vector<float> out(static_cast<size_t>(sequences) * kHeads * kDim);
  const std::vector<float> rows = make_rows(Shape::gaussian, 16 * sequences * kKvHeads, kDim, 6);
  std::vector<AttentionItem> items;
  for (uint32_t s = 0; s < sequences; ++s) {
    TIERKV_ASSIGN_OR_RETURN(const SeqId seq, cache.fork(filled.seq));
    const RowsView more = RowsView::f32(rows.data(), 16 * s, kKvHeads, kDim);
    if (s != 0) TIERKV_RETURN_IF_ERROR(cache.append(seq, 0, more, more));
    items.push_back({seq, RowsView::f32(filled.queries.data(), 1, kHeads, kDim), out.data() + items.size() * kHeads * kDim});
  }
  std::vector<MassReport> reports(items.size());
  std::vector<AttentionItem> there = items;
  for (AttentionItem& item : there) item.queries.place = MemoryPlace::device, item.out_type = DType::bf16;
  for (const std::string kind : {"_anew", "", "_there", "_mass"}) {
    const auto backend = std::make_shared<Timed>(kind != "_anew");
    for (size_t s = 0; s < items.size() && kind == "_mass"; ++s) items[s].mass = &reports[s];
    Figures figures;
    const bool many = kind.empty() || kind == "_there";
    TIERKV_RETURN_IF_ERROR(steps(cache, kind == "_there" ? there : items, backend, settings.quick ? 3 : many ? 256 : 32, figures));
    const double cache_us = median(figures.call) - median(figures.backend);
    Row line(name + kind);
    line.number("call_us", median(figures.call)).number("mean_us", mean(figures.call));
    if (many) line.number("new_block_us", median(figures.new_block));
    if (kind == "_there") line.number("asked", median(figures.asked));
    line.number("append_us", median(figures.append)).number("mean_append_us", mean(figures.append));
    line.number("cache_us", cache_us).number("backend_us", median(figures.backend));
    line.number("sent_bytes", median(figures.sent)).number("mean_sent_bytes", mean(figures.sent));
    line.number("listed_views", static_cast<double>(backend->inner().counts().listed_views));
    emit(line);
  }
  return {};
}

// What sequences take on the device at most, decoding included, as bench/python/gpu.py has them: no two blocks are alike. Of a
// layer.
Status run_bytes(const std::string& name, uint32_t sequences, uint32_t tokens, const Settings& settings, const Emit& emit) {
  constexpr uint32_t kPiece = 1024, kSteps = 134;
  CacheConfig config;
  config.num_layers = 1, config.num_heads = kHeads, config.num_kv_heads = kKvHeads, config.head_dim = kDim;
  config.hot_type = "bf16", config.threads = 2;
  TIERKV_RETURN_IF_ERROR(apply_spec("balanced,archive=auto-cuda,calibrate=off", config));
  TIERKV_ASSIGN_OR_RETURN(const std::unique_ptr<AdaptiveKVCache> cache, AdaptiveKVCache::create(config));
  const uint32_t length = settings.quick ? 2048 : tokens;
  std::vector<AppendItem> rows;
  std::vector<AttentionItem> items;
  std::vector<float> noise = make_rows(Shape::gaussian, kPiece * kKvHeads, kDim, 3), out(size_t{sequences} * kHeads * kDim);
  for (uint32_t s = 0; s < sequences; ++s) {
    TIERKV_ASSIGN_OR_RETURN(const SeqId seq, cache->add_sequence());
    for (uint32_t first = 0; first < length; first += kPiece) {
      for (float& x : noise) x *= 1.0001f;
      const RowsView view = RowsView::f32(noise.data(), kPiece, kKvHeads, kDim);
      TIERKV_RETURN_IF_ERROR(cache->append(seq, 0, view, view));
    }
    RowsView row = RowsView::f32(noise.data(), 1, kKvHeads, kDim), query = RowsView::f32(noise.data(), 1, kHeads, kDim);
    row.place = query.place = MemoryPlace::device;
    rows.push_back({seq, row, row, {}});
    items.push_back({seq, query, out.data() + size_t{s} * kHeads * kDim});
  }
  const auto backend = std::make_shared<Timed>(true);
  cache->attend_with(backend);
  AttentionOptions options;
  options.observe = false;
  for (uint32_t step = 0; step < kSteps; ++step) {
    for (float& x : noise) x *= 1.001f;
    TIERKV_RETURN_IF_ERROR(cache->step(0, rows, items, options));
  }
  const cuda::Usage usage = backend->inner().usage();
  const double fp16 = 4.0 * kKvHeads * kDim * (length + kSteps) * sequences;
  Row line(name);
  line.number("fp16_over_peak", fp16 / static_cast<double>(usage.peak_bytes))
      .number("peak_bytes", static_cast<double>(usage.peak_bytes));
  line.number("device_bytes", static_cast<double>(usage.device_bytes))
      .number("block_bytes", static_cast<double>(usage.block_bytes));
  line.number("scratch_bytes", static_cast<double>(usage.scratch_bytes)).number("blocks", static_cast<double>(usage.blocks));
  emit(line);
  cache->attend_with(nullptr);
  return {};
}

// A model with tables, every head of every layer its own: steps go through all layers, one sequence of 2,048 tokens, 8 heads of 64
// channels.
Status run_layers(const std::string& name, uint32_t layers, const Settings& settings, const Emit& emit) {
  constexpr uint32_t kOwn = 8, kChannels = 64, kTokens = 2048;
  calib::SyntheticShape shape;
  shape.layers = settings.quick ? 2 : layers, shape.heads = shape.kv_heads = kOwn, shape.head_dim = kChannels;
  TIERKV_ASSIGN_OR_RETURN(const CalibrationPtr tables, solve::klt_calibration(calib::SyntheticModel(shape).statistics()));
  CacheConfig config;
  config.num_layers = shape.layers, config.num_heads = config.num_kv_heads = kOwn, config.head_dim = kChannels;
  TIERKV_RETURN_IF_ERROR(apply_spec("hot=64,warm=448,archive=auto,sinks=4", config));
  TIERKV_ASSIGN_OR_RETURN(const std::unique_ptr<AdaptiveKVCache> cache, AdaptiveKVCache::create(config, tables));
  const auto backend = std::make_shared<Timed>(true);
  TIERKV_ASSIGN_OR_RETURN(const SeqId seq, cache->add_sequence());
  const std::vector<float> rows = make_rows(Shape::gaussian, kTokens * kOwn, kChannels, 5);
  const RowsView view = RowsView::f32(rows.data(), kTokens, kOwn, kChannels),
                 query = RowsView::f32(rows.data(), 1, kOwn, kChannels);
  for (uint32_t l = 0; l < shape.layers; ++l) TIERKV_RETURN_IF_ERROR(cache->append(seq, l, view, view));
  cache->attend_with(backend);
  std::vector<float> out(size_t{kOwn} * kChannels);
  std::vector<double> call, sent;
  for (int step = -2; step < (settings.quick ? 3 : 200); ++step) {
    for (uint32_t l = 0; l < shape.layers; ++l) {
      const double begin = now_us();
      TIERKV_RETURN_IF_ERROR(cache->attention(seq, l, query, out.data()));
      if (step >= 0) call.push_back(now_us() - begin), sent.push_back(static_cast<double>(backend->sent));
    }
  }
  cache->attend_with(nullptr);
  if (backend->inner().usage().on_processor != 0) return error(StatusCode::internal, "the processor took a call");
  Row line(name);
  line.number("call_us", median(call)).number("mean_us", mean(call)).number("sent_bytes", median(sent));
  emit(line);
  return {};
}

}  // namespace

void add_device_host_cases(std::vector<Case>& cases) {
  for (const uint32_t layers : {4u, 32u}) {
    const std::string name = "cuda/klt/host_of_a_step/layers_" + std::to_string(layers);
    cases.push_back({name, [=](const Settings& settings, const Emit& emit) { return run_layers(name, layers, settings, emit); }});
  }
  for (const uint32_t sequences : {8u, 1u}) {
    const std::string name = "cuda/balanced/bytes/" + std::to_string(sequences) + "x32K";
    cases.push_back(
        {name, [=](const Settings& settings, const Emit& emit) { return run_bytes(name, sequences, 32768, settings, emit); }});
  }
  const std::pair<const char*, const char*> kCaches[] = {
      {"kivi2", "hot=128,warm=0,archive=kivi2,sinks=4"},
      {"tiers", "hot=64,warm=448,warm_codec=even4,archive=kivi2,sinks=4"},  // as `balanced` has them, without tables
  };
  for (const auto& [cache, spec] : kCaches) {
    for (const uint32_t tokens : {32768u, 131072u}) {
      for (const uint32_t sequences : {8u, 1u}) {
        const std::string size = std::to_string(sequences) + "x" + std::to_string(tokens / 1024) + "K";
        const std::string name = std::string("cuda/") + cache + "/host_of_a_step/" + size, text = spec;
        cases.push_back(
            {name, [=](const Settings& settings, const Emit& emit) { return run(name, text, sequences, tokens, settings, emit); }});
      }
    }
  }
}

}  // namespace tierkv::bench
