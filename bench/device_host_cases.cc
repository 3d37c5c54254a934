// What the processor does for one decoding call on a device, beside the device's own time: a whole attention() over eight
// sequences, with everything that the device's backend does but the device. Blocks have their real books and made-up addresses.
//
// 8 KV heads of 128 channels with 32 query heads, one layer, sequences that are forks of one, so that their blocks are shared.
// Parts are timed by the processor's clock inside one call; medians.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>

#include "attn/backend.h"
#include "attn/cpu_backend.h"
#include "attn/rows.h"
#include "base/status_macros.h"
#include "bench/caches.h"
#include "bench/data.h"
#include "bench/harness.h"
#include "cuda/places.h"
#include "cuda/plan.h"

namespace tierkv::bench {
namespace {

using attn::AttendWork;

constexpr uint32_t kHeads = 32, kKvHeads = 8, kDim = 128, kSequences = 8, kMultiprocessors = 132;

double now_us() { return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

size_t rounded(size_t bytes) { return (bytes + 127) / 128 * 128; }

// A backend up to the launch. What it would send lies in a buffer at the end.
class HostSide final : public attn::Backend {
 public:
  HostSide() : places_(0, [this](size_t bytes) -> Result<uint8_t*> { return reinterpret_cast<uint8_t*>(next_ += bytes); }) {}

  struct Parts {
    std::vector<double> place, plan, send, all;  // microseconds of each call
    size_t views = 0, descriptor_bytes = 0, hot_bytes = 0, segments = 0;
  };
  mutable Parts parts;

  Status accepts(const RowsView& rows, const char* what) const override { return attn::cpu_backend().accepts(rows, what); }
  Status encode(std::span<const attn::EncodeWork> blocks) const override { return attn::cpu_backend().encode(blocks); }
  void decode(std::span<const attn::DecodeWork> blocks) const override { attn::cpu_backend().decode(blocks); }

  void attend(std::span<AttendWork> works, const Executor&) const override {
    const double begin = now_us();
    places_.begin_call();
    std::vector<std::vector<cuda::Placed>> placed;
    hot_.clear();
    for (const AttendWork& work : works) {
      for (const auto& views : work.heads) place(views, placed.emplace_back());
    }
    const double after_place = now_us();
    std::vector<cuda::PlanTask> tasks;
    std::vector<float> queries;
    size_t list = 0;
    for (const AttendWork& work : works) {
      const size_t first = queries.size() / kDim;
      queries.resize(queries.size() + static_cast<size_t>(kHeads) * kDim);
      for (uint32_t h = 0; h < kHeads; ++h) attn::widen_row(work.queries, 0, h, queries.data() + (first + h) * kDim);
      for (uint32_t h = 0; h < work.heads.size(); ++h, ++list) {
        tasks.push_back({work.heads[h], placed[list], work.positions[0], static_cast<uint32_t>(first + h * 4), h * 4});
      }
    }
    const cuda::Plan plan = cuda::make_plan({codecs_, tasks, works[0].params, kHeads / kKvHeads, kMultiprocessors, true});
    const double after_plan = now_us();
    parcel_.clear();
    add(codecs_), add(plan.views), add(plan.masks), add(plan.segments), add(plan.tasks), add(plan.cta_begin);
    parts.descriptor_bytes = parcel_.size();
    add(queries);
    sent_.assign(parcel_.begin(), parcel_.end());
    const double end = now_us();
    parts.place.push_back(after_place - begin), parts.plan.push_back(after_plan - after_place);
    parts.send.push_back(end - after_plan), parts.all.push_back(end - begin);
    parts.views = plan.views.size(), parts.hot_bytes = hot_.size(), parts.segments = plan.segments.size();
    for (AttendWork& work : works) work.status = Status();
  }

 private:
  void place(std::span<const attn::BlockView> views, std::vector<cuda::Placed>& out) const {
    out.reserve(views.size());
    for (const attn::BlockView& view : views) {
      const auto [known, fresh] = known_.try_emplace({view.key_codec, view.value_codec}, static_cast<uint32_t>(codecs_.size()));
      if (fresh) cuda::readable(*view.key_codec, *view.value_codec, codecs_.emplace_back());
      if (view.sealed == 0) {
        const size_t at = hot_.size();
        hot_.resize(at + rounded(view.keys.size()) + rounded(view.values.size()));
        std::memcpy(hot_.data() + at, view.keys.data(), view.keys.size());
        std::memcpy(hot_.data() + at + rounded(view.keys.size()), view.values.data(), view.values.size());
        out.push_back({nullptr, nullptr, known->second});
        continue;
      }
      cuda::Places::Entry* there = places_.find(view.sealed, view.keys.size(), view.values.size());
      if (!there) there = *places_.add(view.sealed, view.keys.size(), view.values.size());
      out.push_back({there->keys, there->values, known->second});
    }
  }
  template <class T>
  void add(const std::vector<T>& from) const {
    const size_t at = rounded(parcel_.size());
    parcel_.resize(at + from.size() * sizeof(T));
    if (!from.empty()) std::memcpy(parcel_.data() + at, from.data(), from.size() * sizeof(T));
  }

  mutable uintptr_t next_ = uintptr_t{1} << 40;
  mutable cuda::Places places_;
  mutable std::map<std::pair<const quant::Codec*, const quant::Codec*>, uint32_t> known_;
  mutable std::vector<cuda::CodecDesc> codecs_;
  mutable std::vector<uint8_t> hot_, parcel_, sent_;
};

double median(std::vector<double> of) {
  std::sort(of.begin(), of.end());
  return of.empty() ? 0.0 : of[of.size() / 2];
}

Status run(const std::string& name, uint32_t tokens, const Settings& settings, const Emit& emit) {
  TIERKV_ASSIGN_OR_RETURN(const FilledCache filled,
                          fill_cache("hot=128,warm=0,archive=kivi2,sinks=4", settings.quick ? 2048 : tokens));
  AdaptiveKVCache& cache = *filled.cache;
  std::vector<SeqId> sequences = {filled.seq};
  while (sequences.size() < kSequences) {
    TIERKV_ASSIGN_OR_RETURN(sequences.emplace_back(), cache.fork(filled.seq));
  }
  const auto backend = std::make_shared<HostSide>();
  cache.attend_with(backend);
  std::vector<float> out(static_cast<size_t>(kSequences) * kHeads * kDim);
  std::vector<AttentionItem> items;
  for (const SeqId seq : sequences) {
    items.push_back({seq, RowsView::f32(filled.queries.data(), 1, kHeads, kDim), out.data() + items.size() * kHeads * kDim});
  }
  const std::vector<float> row = make_rows(Shape::gaussian, kKvHeads, kDim, 5);
  std::vector<double> whole;
  for (int step = 0; step < (settings.quick ? 3 : 40); ++step) {
    for (const SeqId seq : sequences) {
      TIERKV_RETURN_IF_ERROR(
          cache.append(seq, 0, RowsView::f32(row.data(), 1, kKvHeads, kDim), RowsView::f32(row.data(), 1, kKvHeads, kDim)));
    }
    const double begin = now_us();
    TIERKV_RETURN_IF_ERROR(cache.attention(0, items));
    whole.push_back(now_us() - begin);
  }
  cache.attend_with(nullptr);
  const HostSide::Parts& parts = backend->parts;
  if (parts.views == 0) return error(StatusCode::internal, "the call had no views");
  Row line(name);
  line.number("call_us", median(whole)).number("views_us", median(whole) - median(parts.all));
  line.number("place_us", median(parts.place)).number("plan_us", median(parts.plan)).number("send_us", median(parts.send));
  line.number("views", static_cast<double>(parts.views)).number("segments", static_cast<double>(parts.segments));
  line.number("descriptor_bytes", static_cast<double>(parts.descriptor_bytes));
  line.number("hot_bytes", static_cast<double>(parts.hot_bytes));
  emit(line);
  return {};
}

}  // namespace

void add_device_host_cases(std::vector<Case>& cases) {
  for (const uint32_t tokens : {32768u, 131072u}) {
    const std::string name = "cuda/kivi2/host_of_a_step/8x" + std::to_string(tokens / 1024) + "K";
    cases.push_back({name, [=](const Settings& settings, const Emit& emit) { return run(name, tokens, settings, emit); }});
  }
}

}  // namespace tierkv::bench
