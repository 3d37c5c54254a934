#include "cases.h"

#include <cuda_runtime_api.h>

#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "base/status_macros.h"
#include "cuda/backend.h"
#include "cuda/memory/codec_tables.h"
#include "cuda/plan/device_form.h"
#include "cuda/runtime/kernels.h"
#include "cuda/runtime/runtime.h"
#include "exact.h"
#include "quant/table_testing.h"

using namespace tierkv;
using namespace tierkv::cuda;

namespace {

std::string last_error;
constexpr uint32_t kDifferent = 32;  // blocks of a kind; the others are copies

size_t rounded(size_t bytes) { return (bytes + 127) / 128 * 128; }

// Different blocks of one codec and length, in host memory. Made once a program: what a grid of shapes would take longest for.
struct Coded {
  std::unique_ptr<quant::Codec> key, value;
  std::vector<std::byte> key_bytes, value_bytes;

  static Result<const Coded*> of(const std::string& name, uint32_t tokens, uint32_t dim) {
    static std::map<std::tuple<std::string, uint32_t, uint32_t>, std::unique_ptr<Coded>> known;
    std::unique_ptr<Coded>& coded = known[{name, tokens, dim}];
    if (!coded) {
      auto made = std::make_unique<Coded>();
      TIERKV_RETURN_IF_ERROR(made->make(name, tokens, dim));
      coded = std::move(made);
    }
    return coded.get();
  }

  std::span<const std::byte> keys(uint32_t i) const { return {key_bytes.data() + i * key->bytes(), key->bytes()}; }
  std::span<const std::byte> values(uint32_t i) const { return {value_bytes.data() + i * value->bytes(), value->bytes()}; }

  Status make(const std::string& name, uint32_t n, uint32_t dim) {
    TIERKV_ASSIGN_OR_RETURN(const quant::CodecPair pair, quant::parse_codec_pair(name));
    TIERKV_ASSIGN_OR_RETURN(key, quant::testing::make_any_codec(pair.key, quant::Side::key, {n, dim}));
    TIERKV_ASSIGN_OR_RETURN(value, quant::testing::make_any_codec(pair.value, quant::Side::value, {n, dim}));
    key_bytes.resize(kDifferent * key->bytes()), value_bytes.resize(kDifferent * value->bytes());
    for (uint32_t i = 0; i < kDifferent; ++i) {
      std::vector<float> rows = quant::testing::random_rows({n, dim}, 2 * i + 1);
      if (quant::testing::calibrated(*key)) rows = quant::testing::TableModel::of(dim).turned(std::move(rows), 0);
      const std::vector<float> others = quant::testing::random_rows({n, dim}, 2 * i + 2);
      TIERKV_RETURN_IF_ERROR(key->encode(rows.data(), {}, {key_bytes.data() + i * key->bytes(), key->bytes()}));
      TIERKV_RETURN_IF_ERROR(value->encode(others.data(), {}, {value_bytes.data() + i * value->bytes(), value->bytes()}));
    }
    return {};
  }
};

// Such blocks in a strip of slots as the device has them.
struct Kind {
  const Coded* coded = nullptr;
  uint32_t tokens = 0, codec = 0;
  size_t value_offset = 0, slot = 0;
  std::vector<std::byte> strip;

  const quant::Codec& key() const { return *coded->key; }
  const quant::Codec& value() const { return *coded->value; }

  void fill_strip(const CodecDesc& desc) {
    std::vector<std::byte> room[2];
    for (uint32_t i = 0; i < kDifferent; ++i) {
      const auto k = device_form(key(), desc.key, coded->keys(i), room[0]),
                 v = device_form(value(), desc.value, coded->values(i), room[1]);
      value_offset = rounded(k.size()), slot = value_offset + rounded(v.size());
      strip.resize((i + 1) * slot);
      std::copy(k.begin(), k.end(), strip.begin() + static_cast<ptrdiff_t>(i * slot));
      std::copy(v.begin(), v.end(), strip.begin() + static_cast<ptrdiff_t>(i * slot + value_offset));
    }
  }
};

}  // namespace

struct tierkv_bench {
  uint32_t dim = 0, group = 0, kv_heads = 0, query_heads = 0;
  std::vector<uint32_t> lengths;
  std::vector<std::unique_ptr<Kind>> kinds;
  std::unique_ptr<Machine> machine;
  std::unique_ptr<CodecTables> codecs;
  std::vector<std::vector<attn::BlockView>> views;  // by task
  std::vector<std::vector<uint32_t>> which;         // of each view: its block in the strip
  std::vector<float> queries;
  struct Set {
    Buffer blocks, parcel;
    Launch launch;
    CtaFirsts firsts;
    Path path;
  };
  std::vector<std::unique_ptr<Set>> sets;
  Buffer query_rows, partials, results, counters;
  double bytes = 0.0;
  std::string says;

  Status make(const tierkv_bench_shape& shape);
  Status add_set(uint32_t ctas, bool tensor_cores);
  Status place(Set& set, std::vector<std::vector<Placed>>& placed);
  Kind* add_kind(const std::string& name, uint32_t tokens, Status& status);
  double check(uint32_t set);
};

Kind* tierkv_bench::add_kind(const std::string& name, uint32_t tokens, Status& status) {
  const auto coded = Coded::of(name, tokens, dim);
  status = coded.status();
  if (!coded.ok()) return nullptr;
  const auto found = codecs->find(*(*coded)->key, *(*coded)->value);
  status = found.status();
  if (!found.ok()) return nullptr;
  kinds.push_back(std::make_unique<Kind>());
  kinds.back()->coded = *coded, kinds.back()->tokens = tokens, kinds.back()->codec = *found;
  kinds.back()->fill_strip(codecs->on_host()[*found]);
  return kinds.back().get();
}

Status tierkv_bench::make(const tierkv_bench_shape& shape) {
  TIERKV_ASSIGN_OR_RETURN(const DeviceFacts facts, open_device(0));
  TIERKV_ASSIGN_OR_RETURN(machine, open_machine(0));
  codecs = std::make_unique<CodecTables>(*machine);
  dim = shape.head_dim, kv_heads = shape.kv_heads, query_heads = shape.query_heads, group = query_heads / kv_heads;
  lengths.assign(shape.lengths, shape.lengths + shape.sequences);
  Status status;
  Kind *sinks = nullptr, *archive = nullptr, *warm = nullptr, *hot = nullptr;
  if (shape.sinks) sinks = add_kind("fp16", shape.sinks, status);
  if (status.ok()) archive = add_kind(shape.archive, 128, status);
  if (status.ok() && shape.warm_tokens) warm = add_kind(shape.warm, 64, status);
  if (status.ok() && shape.hot) hot = add_kind("fp16", shape.hot, status);
  TIERKV_RETURN_IF_ERROR(status);
  for (const uint32_t length : lengths) {
    for (uint32_t h = 0; h < kv_heads; ++h) {
      auto& list = views.emplace_back();
      auto& choice = which.emplace_back();
      uint32_t at = 0;
      const auto add = [&](const Kind& kind, uint32_t count) {
        for (uint32_t b = 0; b < count; ++b, at += kind.tokens) {
          attn::BlockView view;
          view.key_codec = &kind.key(), view.value_codec = &kind.value();
          view.keys = kind.coded->keys(b % kDifferent), view.values = kind.coded->values(b % kDifferent);
          view.ctx.first_position = at;
          view.rows = kind.tokens;
          list.push_back(view);
          choice.push_back(b % kDifferent);
        }
      };
      if (sinks) add(*sinks, 1);
      const uint32_t behind = shape.warm_tokens + shape.hot;
      add(*archive, (length - at - std::min(behind, length - at) + 127) / 128);
      if (warm) add(*warm, shape.warm_tokens / 64);
      if (hot) add(*hot, 1);
    }
  }
  std::mt19937 rng(17);
  std::normal_distribution<float> normal;
  queries.resize(views.size() * group * dim);
  for (float& x : queries) x = normal(rng);
  TIERKV_RETURN_IF_ERROR(query_rows.reserve(queries.size() * sizeof(float)));
  TIERKV_RETURN_IF_ERROR(status_of(
      cudaMemcpy(query_rows.data(), queries.data(), queries.size() * sizeof(float), cudaMemcpyHostToDevice), "sending queries"));
  for (uint32_t s = 0; s < shape.sets; ++s)
    TIERKV_RETURN_IF_ERROR(add_set(static_cast<uint32_t>(facts.multiprocessors), facts.tensor_paths));
  const double values = 2.0 * dim * views.size() * lengths[0];
  char text[160];
  std::snprintf(text, sizeof text, "%s, %.3f bits a value, %u ctas, %u of them general and %u staged", path_name(sets[0]->path),
                bytes * 8 / values, sets[0]->launch.ctas, sets[0]->launch.general_ctas, sets[0]->launch.staged_ctas);
  says = text;
  return {};
}

// Copies of the strips, task after task, at addresses of their own.
Status tierkv_bench::place(Set& set, std::vector<std::vector<Placed>>& placed) {
  size_t total = 0;
  for (const auto& list : views) {
    for (const attn::BlockView& view : list) {
      for (const auto& kind : kinds) total += &kind->key() == view.key_codec ? kind->slot : 0;
    }
  }
  TIERKV_RETURN_IF_ERROR(set.blocks.reserve(total));
  std::vector<std::unique_ptr<Buffer>> strips;
  for (const auto& kind : kinds) {
    strips.push_back(std::make_unique<Buffer>());
    TIERKV_RETURN_IF_ERROR(strips.back()->reserve(kind->strip.size()));
    TIERKV_RETURN_IF_ERROR(status_of(
        cudaMemcpy(strips.back()->data(), kind->strip.data(), kind->strip.size(), cudaMemcpyHostToDevice), "sending blocks"));
  }
  uint8_t* at = set.blocks.data();
  for (size_t t = 0; t < views.size(); ++t) {
    auto& out = placed.emplace_back();
    for (size_t v = 0; v < views[t].size();) {
      size_t k = 0;
      while (&kinds[k]->key() != views[t][v].key_codec) ++k;
      const Kind& kind = *kinds[k];
      size_t n = 1;  // blocks that follow one another in the strip too
      while (v + n < views[t].size() && views[t][v + n].key_codec == &kind.key() && which[t][v + n] == which[t][v] + n) ++n;
      TIERKV_RETURN_IF_ERROR(
          status_of(cudaMemcpyAsync(at, strips[k]->data() + which[t][v] * kind.slot, n * kind.slot, cudaMemcpyDeviceToDevice),
                    "copying blocks"));
      for (size_t i = 0; i < n; ++i, at += kind.slot) out.push_back({at, at + kind.value_offset, kind.codec});
      v += n;
    }
  }
  TIERKV_RETURN_IF_ERROR(machine->wait());  // for the tables too
  return status_of(cudaDeviceSynchronize(), "copying blocks");
}

Status tierkv_bench::add_set(uint32_t ctas, bool tensor_cores) {
  sets.push_back(std::make_unique<Set>());
  Set& set = *sets.back();
  std::vector<std::vector<Placed>> placed;
  TIERKV_RETURN_IF_ERROR(place(set, placed));
  std::vector<PlanTask> tasks;
  for (size_t t = 0; t < views.size(); ++t) {
    tasks.push_back({views[t], placed[t], lengths[t / kv_heads], static_cast<uint32_t>(t) * group,
                     static_cast<uint32_t>(t % kv_heads) * group});
  }
  attn::AttendParams params;
  params.head_dim = dim;
  params.causal = false;
  params.scale = 1.0f / std::sqrt(static_cast<float>(dim));
  const Plan plan = make_plan({codecs->on_host(), tasks, params, group, ctas, tensor_cores, 0, nullptr, codecs->on_device()});
  std::vector<uint8_t> parcel;
  const auto add = [&](const auto& from) {
    parcel.resize(rounded(parcel.size()));
    const size_t to = parcel.size();
    parcel.resize(to + from.size() * sizeof from[0]);
    if (!from.empty()) std::memcpy(parcel.data() + to, from.data(), from.size() * sizeof from[0]);
    return to;
  };
  const size_t descs = add(codecs->on_device()), list = add(plan.views), segments = add(plan.segments), task_list = add(plan.tasks),
               begins = add(plan.cta_begin);
  TIERKV_RETURN_IF_ERROR(set.parcel.reserve(parcel.size()));
  TIERKV_RETURN_IF_ERROR(
      status_of(cudaMemcpy(set.parcel.data(), parcel.data(), parcel.size(), cudaMemcpyHostToDevice), "sending descriptors"));
  const size_t states = static_cast<size_t>(plan.partials) * group, rows = queries.size() / dim;
  TIERKV_RETURN_IF_ERROR(partials.reserve(states * (dim + 2) * sizeof(float)));
  TIERKV_RETURN_IF_ERROR(results.reserve((rows * dim + tasks.size()) * sizeof(float)));
  TIERKV_RETURN_IF_ERROR(counters.reserve((2 + tasks.size()) * sizeof(uint32_t), true));
  Launch& launch = set.launch;
  const uint8_t* const at = set.parcel.data();
  launch.codecs = reinterpret_cast<const CodecDesc*>(at + descs);
  launch.views = reinterpret_cast<const ViewDesc*>(at + list);
  launch.segments = reinterpret_cast<const SegmentDesc*>(at + segments);
  launch.tasks = reinterpret_cast<const TaskDesc*>(at + task_list);
  launch.cta_begin = reinterpret_cast<const uint32_t*>(at + begins);
  launch.queries = reinterpret_cast<const float*>(query_rows.data());
  launch.out = reinterpret_cast<float*>(results.data());
  launch.failed = reinterpret_cast<uint32_t*>(launch.out + rows * dim);
  launch.partial_out = reinterpret_cast<float*>(partials.data());
  launch.partial_top = launch.partial_out + states * dim;
  launch.partial_sum = launch.partial_top + states;
  launch.given = reinterpret_cast<uint32_t*>(counters.data());
  launch.arrived = launch.given + 2;
  launch.head_dim = dim, launch.group = group, launch.scale = params.scale;
  take_blocks(plan, launch);
  set.path = plan.fast, set.firsts = plan.firsts;
  bytes = static_cast<double>(plan.bytes);
  return {};
}

double tierkv_bench::check(uint32_t set) {
  cudaMemset(results.data(), 0xFF, queries.size() * sizeof(float));
  if (tierkv_bench_run(this, set, nullptr) != 0 || cudaDeviceSynchronize() != cudaSuccess) return INFINITY;
  std::vector<float> out(queries.size());
  cudaMemcpy(out.data(), results.data(), out.size() * sizeof(float), cudaMemcpyDeviceToHost);
  double worst = 0.0;
  for (const size_t t : {size_t{0}, views.size() / 2, views.size() - 1}) {
    const size_t first = t * group * dim;
    const std::vector<double> expected = exact_attention(views[t], queries.data() + first, group, dim);
    double off = 0.0, size = 0.0;
    for (size_t i = 0; i < expected.size(); ++i) {
      const double want = expected[i], got = out[first + i];
      if (!std::isfinite(got)) return INFINITY;
      off += (got - want) * (got - want), size += want * want;
    }
    worst = std::max(worst, std::sqrt(off / size));
  }
  return worst;
}

tierkv_bench* tierkv_bench_make(const tierkv_bench_shape* shape) {
  auto bench = std::make_unique<tierkv_bench>();
  const Status status = bench->make(*shape);
  if (status.ok()) return bench.release();
  last_error = status.message();
  return nullptr;
}
void tierkv_bench_free(tierkv_bench* bench) { delete bench; }
const char* tierkv_bench_error(void) { return last_error.c_str(); }
int tierkv_bench_run(tierkv_bench* bench, uint32_t set, void* stream) {
  const auto& one = *bench->sets[set];
  return launch_attend(one.launch, one.firsts, one.path, static_cast<cudaStream_t>(stream));
}
double tierkv_bench_check(tierkv_bench* bench, uint32_t set) { return bench->check(set); }
double tierkv_bench_bytes(const tierkv_bench* bench) { return bench->bytes; }
const char* tierkv_bench_says(const tierkv_bench* bench) { return bench->says.c_str(); }
