// backend.cu — attn::Backend on a device, and tierkv/cuda.h.
#include <cstring>
#include <mutex>

#include "attn/cpu_backend.h"
#include "attn/rows.h"
#include "base/guarded.h"
#include "base/status_macros.h"
#include "cuda/backend.h"
#include "cuda/better.h"
#include "cuda/codec_tables.h"
#include "cuda/device_form.h"
#include "cuda/kernels.h"
#include "cuda/mass_beside.h"
#include "cuda/mirror.h"
#include "tierkv/cuda.h"

namespace tierkv::cuda {
namespace {

using attn::AttendWork;

bool same_shape(const AttendWork& a, const AttendWork& b) {
  return a.params.head_dim == b.params.head_dim && a.params.scale == b.params.scale && a.params.softcap == b.params.softcap &&
         a.params.causal == b.params.causal && a.params.window == b.params.window && a.sink_logits == b.sink_logits &&
         a.heads.size() == b.heads.size() && a.queries.heads == b.queries.heads;
}

uint32_t group_of(const AttendWork& work) { return work.queries.heads / static_cast<uint32_t>(work.heads.size()); }

// What travels to the device in one copy.
class Parcel {
 public:
  template <class T>
  size_t add(const T* from, size_t count) {
    bytes_.resize((bytes_.size() + 127) / 128 * 128);
    const size_t at = bytes_.size();
    bytes_.resize(at + count * sizeof(T));
    if (count != 0) std::memcpy(bytes_.data() + at, from, count * sizeof(T));
    return at;
  }
  template <class T>
  size_t add(const std::vector<T>& from) {
    return add(from.data(), from.size());
  }
  const std::vector<uint8_t>& bytes() const { return bytes_; }

 private:
  std::vector<uint8_t> bytes_;
};

class CudaBackend final : public DeviceBackend {
 public:
  CudaBackend(const DeviceFacts& facts, uint64_t byte_limit) : facts_(facts), mirror_(byte_limit) {}
  ~CudaBackend() override {
    if (stream_) cudaStreamDestroy(stream_);
  }

  Status start() {
    TIERKV_RETURN_IF_ERROR(status_of(static_cast<cudaError_t>(prepare_kernels(facts_.tensor_paths)), "loading the kernels"));
    return status_of(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream");
  }

  Status accepts(const RowsView& rows, const char* what) const override { return cpu().accepts(rows, what); }
  Status encode(std::span<const attn::EncodeWork> blocks) const override { return cpu().encode(blocks); }
  void decode(std::span<const attn::DecodeWork> blocks) const override { cpu().decode(blocks); }

  void attend(std::span<AttendWork> works, const Executor& run) const override {
    std::lock_guard lock(mutex_);
    if (const Status chosen = status_of(cudaSetDevice(facts_.ordinal), "choosing the device"); !chosen.ok()) {
      for (AttendWork& work : works) work.status = chosen;
      return;
    }
    std::vector<AttendWork*> batch;
    for (AttendWork& work : works) {
      if (!serves(work)) {
        ++on_processor_;
        cpu().attend({&work, 1}, run);
        continue;
      }
      if (!batch.empty() && !same_shape(*batch.front(), work)) attend_batch(batch, run);
      batch.push_back(&work);
    }
    attend_batch(batch, run);
  }

  Usage usage() const override {
    std::lock_guard lock(mutex_);
    Usage out;
    out.block_bytes = mirror_.bytes(), out.blocks = mirror_.blocks(), out.uploads = mirror_.uploads();
    out.scratch_bytes = parcel_.size() + hot_.size() + results_.size() + partials_.size() + counters_.size() + tables_.bytes();
    out.launches = launches_, out.on_processor = on_processor_;
    return out;
  }

 private:
  static const attn::Backend& cpu() { return attn::cpu_backend(); }

  bool serves(const AttendWork& work) const {
    if (!few_rows_asked(work) || work.queries.tokens == 0 || work.queries.tokens > kMostQueries) return false;
    if (work.heads.empty() || group_of(work) > kMostGroup || work.params.head_dim > 256) return false;
    for (const auto& views : work.heads) {
      for (const attn::BlockView& view : views) {
        if (!tables_.find(*view.key_codec, *view.value_codec).ok()) return false;
      }
    }
    return true;
  }

  void attend_batch(std::vector<AttendWork*>& batch, const Executor& run) const {
    if (batch.empty()) return;
    const Status status = guarded("attend on the device", [&] { return on_device(batch, run); });
    for (AttendWork* work : batch) {
      if (!status.ok()) work->status = status;
      else if (overflowed(*work)) cpu().attend({work, 1}, run);  // halves have less range than the processor's floats
    }
    batch.clear();
  }

  static bool overflowed(const AttendWork& work) { return work.status.code() == StatusCode::out_of_range; }

  Status on_device(const std::vector<AttendWork*>& batch, const Executor& run) const {
    mirror_.begin_call();
    const AttendWork& first = *batch.front();
    const uint32_t d = first.params.head_dim, group = group_of(first);
    std::vector<std::vector<Placed>> placed;
    TIERKV_RETURN_IF_ERROR(place_views(batch, placed));
    std::vector<PlanTask> tasks;
    std::vector<float> queries;
    collect(batch, placed, tasks, queries);
    const PlanInput input{tables_.on_host(),  tasks, first.params, group, static_cast<uint32_t>(facts_.multiprocessors),
                          facts_.tensor_paths};
    const Plan plan = make_plan(input);
    Launch launch;
    launch.head_dim = d, launch.group = group;
    launch.scale = first.params.scale, launch.softcap = first.params.softcap;
    launch.ctas = static_cast<uint32_t>(plan.cta_begin.size() - 1), launch.general_ctas = plan.general_ctas;
    launch.staged_ctas = plan.staged_ctas, launch.first_staged = plan.first_staged;
    launch.chunk_rows = plan.chunk_rows;
    TIERKV_RETURN_IF_ERROR(send(plan, queries, first, launch));
    TIERKV_RETURN_IF_ERROR(make_room(plan, queries.size() / d, launch));
    ++launches_;
    TIERKV_RETURN_IF_ERROR(
        status_of(static_cast<cudaError_t>(launch_attend(launch, plan.firsts, plan.fast, stream_)), "the launch"));
    return take_results(batch, queries.size() / d, plan.tasks.size(), launch, run);
  }

  // Bytes of both sides of a view on the device.
  struct Sizes {
    size_t keys, values;
  };
  static Sizes sizes_of(const attn::BlockView& view, const CodecDesc& codec) {
    return {codec.key_better ? device_bytes(codec.key, codec.key_better) : view.keys.size(),
            codec.value_better ? device_bytes(codec.value, codec.value_better) : view.values.size()};
  }

  // Sealed blocks are found or copied; rows that may still change go into one buffer of this call.
  Status place_views(const std::vector<AttendWork*>& batch, std::vector<std::vector<Placed>>& placed) const {
    size_t hot = 0;
    Status found;
    for_each_view(batch, [&](const attn::BlockView& view) {
      const Result<uint32_t> codec = tables_.find(*view.key_codec, *view.value_codec);
      if (!codec.ok()) found = codec.status();
      if (view.sealed != 0 || !codec.ok()) return;
      const Sizes sizes = sizes_of(view, tables_.on_host()[*codec]);
      hot += rounded(sizes.keys) + rounded(sizes.values);
    });
    TIERKV_RETURN_IF_ERROR(found);
    TIERKV_RETURN_IF_ERROR(hot_.reserve(hot));
    TIERKV_RETURN_IF_ERROR(hot_host_.reserve(hot));
    size_t at = 0;
    for (const AttendWork* work : batch) {
      for (const auto& views : work->heads) {
        std::vector<Placed>& out = placed.emplace_back();
        out.reserve(views.size());
        for (const attn::BlockView& view : views) {
          TIERKV_ASSIGN_OR_RETURN(const uint32_t codec, tables_.find(*view.key_codec, *view.value_codec));
          TIERKV_ASSIGN_OR_RETURN(const Mirror::Place place, place_view(view, tables_.on_host()[codec], at));
          out.push_back({place.keys, place.values, codec});
        }
      }
    }
    return status_of(cudaMemcpyAsync(hot_.data(), hot_host_.data(), at, cudaMemcpyHostToDevice, stream_), "copying hot rows");
  }

  // `at`: where the next hot rows go.
  Result<Mirror::Place> place_view(const attn::BlockView& view, const CodecDesc& codec, size_t& at) const {
    const Sizes sizes = sizes_of(view, codec);
    if (view.sealed != 0) {
      if (const auto there = mirror_.find(view.sealed, sizes.keys, sizes.values)) return *there;
    }
    const std::span<const std::byte> keys = device_form(*view.key_codec, codec.key, view.keys, key_form_);
    const std::span<const std::byte> values = device_form(*view.value_codec, codec.value, view.values, value_form_);
    if (view.sealed != 0) return mirror_.place(view.sealed, keys, values, stream_);
    const auto hot_rows = [&](std::span<const std::byte> bytes) {
      std::memcpy(hot_host_.data() + at, bytes.data(), bytes.size());
      const uint8_t* const there = hot_.data() + at;
      at += rounded(bytes.size());
      return there;
    };
    const uint8_t* const first = hot_rows(keys);
    return Mirror::Place{first, hot_rows(values)};
  }

  static size_t rounded(size_t bytes) { return (bytes + 127) / 128 * 128; }

  template <class F>
  static void for_each_view(const std::vector<AttendWork*>& batch, const F& f) {
    for (const AttendWork* work : batch) {
      for (const auto& views : work->heads) {
        for (const attn::BlockView& view : views) f(view);
      }
    }
  }

  static void collect(const std::vector<AttendWork*>& batch, const std::vector<std::vector<Placed>>& placed,
                      std::vector<PlanTask>& tasks, std::vector<float>& queries) {
    size_t list = 0;
    for (const AttendWork* work : batch) {
      const uint32_t d = work->params.head_dim, group = group_of(*work);
      const size_t first = queries.size() / d;
      queries.resize(queries.size() + static_cast<size_t>(work->queries.tokens) * work->queries.heads * d);
      float* to = queries.data() + first * d;
      for (uint32_t q = 0; q < work->queries.tokens; ++q) {
        for (uint32_t h = 0; h < work->queries.heads; ++h, to += d) attn::widen_row(work->queries, q, h, to);
      }
      for (uint32_t h = 0; h < work->heads.size(); ++h, ++list) {
        for (uint32_t q = 0; q < work->queries.tokens; ++q) {
          const auto row = static_cast<uint32_t>(first + static_cast<size_t>(q) * work->queries.heads + h * group);
          tasks.push_back({work->heads[h], placed[list], work->positions[q], row, h * group});
        }
      }
    }
  }

  Status send(const Plan& plan, const std::vector<float>& queries, const AttendWork& first, Launch& launch) const {
    Parcel parcel;
    const size_t codecs = parcel.add(tables_.on_device()), views = parcel.add(plan.views), masks = parcel.add(plan.masks),
                 segments = parcel.add(plan.segments), tasks = parcel.add(plan.tasks), ctas = parcel.add(plan.cta_begin),
                 rows = parcel.add(queries), sinks = first.sink_logits ? parcel.add(first.sink_logits, first.queries.heads) : 0;
    const std::vector<uint8_t>& bytes = parcel.bytes();
    TIERKV_RETURN_IF_ERROR(parcel_.reserve(bytes.size()));
    TIERKV_RETURN_IF_ERROR(parcel_host_.reserve(bytes.size()));
    std::memcpy(parcel_host_.data(), bytes.data(), bytes.size());
    const uint8_t* const at = parcel_.data();
    launch.codecs = reinterpret_cast<const CodecDesc*>(at + codecs);
    launch.views = reinterpret_cast<const ViewDesc*>(at + views);
    launch.masks = reinterpret_cast<const uint32_t*>(at + masks);
    launch.segments = reinterpret_cast<const SegmentDesc*>(at + segments);
    launch.tasks = reinterpret_cast<const TaskDesc*>(at + tasks);
    launch.cta_begin = reinterpret_cast<const uint32_t*>(at + ctas);
    launch.queries = reinterpret_cast<const float*>(at + rows);
    if (first.sink_logits) launch.sink_logits = reinterpret_cast<const float*>(at + sinks);
    return status_of(cudaMemcpyAsync(parcel_.data(), parcel_host_.data(), bytes.size(), cudaMemcpyHostToDevice, stream_),
                     "sending a call");
  }

  Status make_room(const Plan& plan, size_t rows, Launch& launch) const {
    const size_t states = static_cast<size_t>(plan.partials) * launch.group, d = launch.head_dim;
    TIERKV_RETURN_IF_ERROR(partials_.reserve(states * (d + 2) * sizeof(float)));
    TIERKV_RETURN_IF_ERROR(counters_.reserve(plan.tasks.size() * sizeof(uint32_t), /*zeroed=*/true));
    TIERKV_RETURN_IF_ERROR(results_.reserve((rows * (d + 1) + plan.tasks.size()) * sizeof(float)));
    launch.partial_out = reinterpret_cast<float*>(partials_.data());
    launch.partial_top = launch.partial_out + states * d;
    launch.partial_sum = launch.partial_top + states;
    launch.arrived = reinterpret_cast<uint32_t*>(counters_.data());
    launch.out = reinterpret_cast<float*>(results_.data());
    launch.lse = launch.out + rows * d;
    launch.failed = reinterpret_cast<uint32_t*>(launch.lse + rows);
    return status_of(cudaMemsetAsync(launch.failed, 0, plan.tasks.size() * sizeof(uint32_t), stream_), "clearing memory");
  }

  Status take_results(const std::vector<AttendWork*>& batch, size_t rows, size_t tasks, const Launch& launch,
                      const Executor& run) const {
    const size_t d = launch.head_dim, bytes = (rows * (d + 1) + tasks) * sizeof(float);
    TIERKV_RETURN_IF_ERROR(results_host_.reserve(bytes));
    TIERKV_RETURN_IF_ERROR(status_of(cudaMemcpyAsync(results_host_.data(), results_.data(), bytes, cudaMemcpyDeviceToHost, stream_),
                                     "reading results"));
    TIERKV_RETURN_IF_ERROR(status_of(cudaStreamSynchronize(stream_), "attention"));
    const auto* out = reinterpret_cast<const float*>(results_host_.data());
    const float* lse = out + rows * d;
    const auto* failed = reinterpret_cast<const uint32_t*>(lse + rows);
    for (AttendWork* work : batch) {
      const size_t count = static_cast<size_t>(work->queries.tokens) * work->queries.heads;
      std::memcpy(work->out, out, count * d * sizeof(float));
      if (work->lse) std::memcpy(work->lse, lse, count * sizeof(float));
      work->status = Status();
      for (size_t t = 0; t < work->heads.size() * work->queries.tokens; ++t) {
        if (failed[t]) work->status = error(StatusCode::out_of_range, "scores left the range of the device's numbers");
      }
      if (!work->mass.empty() && work->status.ok()) work->status = add_mass_beside(*work, lse, run);
      out += count * d, lse += count, failed += work->heads.size() * work->queries.tokens;
    }
    return {};
  }

  const DeviceFacts facts_;
  mutable std::mutex mutex_;  // guards all below: one call at a time
  cudaStream_t stream_ = nullptr;
  mutable Mirror mirror_;
  mutable CodecTables tables_;
  mutable Buffer parcel_, hot_, results_, partials_, counters_;
  mutable HostBuffer parcel_host_, hot_host_, results_host_;
  mutable std::vector<std::byte> key_form_, value_form_;  // of the block at hand
  mutable uint64_t launches_ = 0, on_processor_ = 0;
};

}  // namespace

Result<std::shared_ptr<DeviceBackend>> make_backend(const Options& options) {
  return guarded("attach a device", [&]() -> Result<std::shared_ptr<DeviceBackend>> {
    TIERKV_ASSIGN_OR_RETURN(const DeviceFacts facts, open_device(options.device));
    auto backend = std::make_shared<CudaBackend>(facts, options.byte_limit);
    TIERKV_RETURN_IF_ERROR(backend->start());
    return std::shared_ptr<DeviceBackend>(backend);
  });
}

Status available(int device) {
  TIERKV_ASSIGN_OR_RETURN(const DeviceFacts facts, open_device(device));
  (void)facts;
  return {};
}

Result<std::shared_ptr<const Device>> attach(AdaptiveKVCache& cache, const Options& options) {
  TIERKV_ASSIGN_OR_RETURN(const std::shared_ptr<DeviceBackend> backend, make_backend(options));
  cache.attend_with(backend);
  return std::shared_ptr<const Device>(backend);
}

void detach(AdaptiveKVCache& cache) { cache.attend_with(nullptr); }

}  // namespace tierkv::cuda
