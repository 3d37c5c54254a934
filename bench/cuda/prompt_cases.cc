// What bench/cuda/prompt.py calls: many queries against a past of real blocks (few different ones in many copies), checked and
// launched step by step on any stream.
#include <cuda_runtime_api.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "cuda/backend.h"
#include "cuda/memory/graph.h"
#include "cuda/plan/device_form.h"
#include "cuda/prompt/prompt_attention.h"
#include "cuda/runtime/prompt_kernels.h"
#include "cuda/runtime/runtime.h"
#include "quant/table_testing.h"

using namespace tierkv;
using namespace tierkv::cuda;

namespace {

std::string last_error;
constexpr uint32_t kDifferent = 16;

size_t rounded(size_t bytes) { return (bytes + 127) / 128 * 128; }

// A device's machine that remembers what it is asked to launch instead of launching it.
class Recorder final : public Machine {
 public:
  explicit Recorder(std::unique_ptr<Machine> machine) : machine_(std::move(machine)) {}
  MachineFacts facts() const override { return machine_->facts(); }
  Status enter() override { return machine_->enter(); }
  Status follow(const StreamName& stream) override { return machine_->follow(stream); }
  Status leave() override { return machine_->leave(); }
  void go_aside() noexcept override { machine_->go_aside(); }
  void come_back() noexcept override { machine_->come_back(); }
  Result<uint8_t*> allocate_staging(size_t bytes) override { return machine_->allocate_staging(bytes); }
  void release_staging(uint8_t* memory) noexcept override { machine_->release_staging(memory); }
  Status send(uint8_t* to, const void* from, size_t bytes) override { return machine_->send(to, from, bytes); }
  Status send_pieces(uint8_t* to, size_t to_stride, const void* from, size_t from_stride, size_t bytes, size_t count) override {
    return machine_->send_pieces(to, to_stride, from, from_stride, bytes, count);
  }
  Status clear(uint8_t* at, size_t bytes) override { return machine_->clear(at, bytes); }
  Status attend(const Launch& launch, const Plan& plan) override { return machine_->attend(launch, plan); }
  Status weigh(const MassLaunch& launch) override { return machine_->weigh(launch); }
  Status prompt(const PromptLaunch& launch, PromptStep step) override {
    steps.emplace_back(launch, step);
    return {};
  }
  Status encode(const EncodeLaunch& launch) override { return machine_->encode(launch); }
  Status fetch(void* to, const uint8_t* from, size_t bytes) override { return machine_->fetch(to, from, bytes); }
  Status move_rows(std::span<const RowMove> moves, uint32_t head_dim) override { return machine_->move_rows(moves, head_dim); }
  Status wait() override { return machine_->wait(); }
  Result<std::unique_ptr<Mark>> make_mark() override { return machine_->make_mark(); }
  Status put(Mark& mark) override { return machine_->put(mark); }
  Result<std::unique_ptr<cuda::Graph>> make_graph() override { return machine_->make_graph(); }
  Status leave_to(cuda::Graph& graph) override { return machine_->leave_to(graph); }

  std::vector<std::pair<PromptLaunch, PromptStep>> steps;

 protected:
  Result<uint8_t*> take_memory(size_t bytes) override { return machine_->allocate(bytes); }
  void give_memory(uint8_t* memory) noexcept override { machine_->release(memory); }

 private:
  const std::unique_ptr<Machine> machine_;
};

// Blocks of one codec and length.
struct Kind {
  std::unique_ptr<quant::Codec> key, value;
  uint32_t tokens = 0, codec = 0;
  std::vector<std::vector<std::byte>> keys, values;
  std::vector<Placed> slots;  // of each block, on the device

  Status make(const std::string& name, uint32_t n, uint32_t dim) {
    tokens = n;
    TIERKV_ASSIGN_OR_RETURN(const quant::CodecPair pair, quant::parse_codec_pair(name));
    TIERKV_ASSIGN_OR_RETURN(key, quant::testing::make_any_codec(pair.key, quant::Side::key, {n, dim}));
    TIERKV_ASSIGN_OR_RETURN(value, quant::testing::make_any_codec(pair.value, quant::Side::value, {n, dim}));
    for (uint32_t i = 0; i < kDifferent; ++i) {
      std::vector<float> rows = quant::testing::random_rows({n, dim}, 2 * i + 1);
      if (quant::testing::calibrated(*key)) rows = quant::testing::TableModel::of(dim).turned(std::move(rows), 0);
      keys.emplace_back(key->bytes()), values.emplace_back(value->bytes());
      TIERKV_RETURN_IF_ERROR(key->encode(rows.data(), {}, keys.back()));
      TIERKV_RETURN_IF_ERROR(value->encode(quant::testing::random_rows({n, dim}, 2 * i + 2).data(), {}, values.back()));
    }
    return {};
  }
};

}  // namespace

extern "C" {
struct tierkv_prompt_shape {
  const char* archive;  // codec of whole blocks of 128 tokens
  const char* warm;     // of blocks of 64 tokens behind them
  uint32_t warm_tokens, sinks;
  uint32_t past, tokens;  // the new tokens follow the past, as rows of fp16
  uint32_t query_heads, kv_heads, head_dim;
};
struct tierkv_prompt;
}

struct tierkv_prompt {
  uint32_t dim = 0, group = 0, kv_heads = 0, query_heads = 0, tokens = 0;
  bool hopper = false;
  std::unique_ptr<Recorder> machine;
  std::unique_ptr<CodecTables> codecs;
  std::unique_ptr<PromptAttention> prompts;
  std::vector<std::unique_ptr<Kind>> kinds;
  std::vector<attn::BlockView> views;  // of every head
  std::vector<std::vector<Placed>> placed;
  std::vector<std::unique_ptr<Buffer>> buffers;
  std::vector<float> queries;
  std::vector<uint32_t> positions;
  Buffer query_rows, results;
  double bytes = 0.0;

  Status make(const tierkv_prompt_shape& shape);
  Status add_kind(const std::string& name, uint32_t n, uint32_t blocks);
  Status place();
  int run(uint32_t what, cudaStream_t stream) const;
  double check();
};

Status tierkv_prompt::add_kind(const std::string& name, uint32_t n, uint32_t blocks) {
  if (blocks == 0) return {};
  kinds.push_back(std::make_unique<Kind>());
  Kind& kind = *kinds.back();
  TIERKV_RETURN_IF_ERROR(kind.make(name, n, dim));
  TIERKV_ASSIGN_OR_RETURN(kind.codec, codecs->find(*kind.key, *kind.value));
  for (uint32_t b = 0; b < blocks; ++b) {
    attn::BlockView& view = views.emplace_back();
    view.key_codec = kind.key.get(), view.value_codec = kind.value.get();
    view.keys = kind.keys[b % kDifferent], view.values = kind.values[b % kDifferent];
    view.rows = n;
  }
  return {};
}

// Every view of every head has bytes of its own on the device.
Status tierkv_prompt::place() {
  std::vector<std::byte> forms[2], image;
  std::vector<std::pair<size_t, size_t>> at;
  std::vector<uint32_t> codec;
  for (const attn::BlockView& view : views) {
    const uint32_t index = *codecs->find(*view.key_codec, *view.value_codec);
    const CodecDesc& desc = codecs->on_host()[index];
    const auto k = device_form(*view.key_codec, desc.key, view.keys, forms[0]);
    const auto v = device_form(*view.value_codec, desc.value, view.values, forms[1]);
    const size_t first = image.size(), second = first + rounded(k.size());
    image.resize(second + rounded(v.size()));
    std::copy(k.begin(), k.end(), image.begin() + static_cast<ptrdiff_t>(first));
    std::copy(v.begin(), v.end(), image.begin() + static_cast<ptrdiff_t>(second));
    at.emplace_back(first, second), codec.push_back(index);
  }
  bytes = static_cast<double>(image.size()) * kv_heads;
  for (uint32_t h = 0; h < kv_heads; ++h) {
    buffers.push_back(std::make_unique<Buffer>());
    TIERKV_RETURN_IF_ERROR(buffers.back()->reserve(image.size()));
    uint8_t* const to = buffers.back()->data();
    TIERKV_RETURN_IF_ERROR(status_of(cudaMemcpy(to, image.data(), image.size(), cudaMemcpyHostToDevice), "sending blocks"));
    auto& list = placed.emplace_back();
    for (size_t v = 0; v < views.size(); ++v) list.push_back({to + at[v].first, to + at[v].second, codec[v]});
  }
  return {};
}

Status tierkv_prompt::make(const tierkv_prompt_shape& shape) {
  TIERKV_ASSIGN_OR_RETURN(const DeviceFacts facts, open_device(0));
  hopper = facts.hopper && std::getenv("TIERKV_NO_HOPPER") == nullptr;
  TIERKV_ASSIGN_OR_RETURN(std::unique_ptr<Machine> real, open_machine(0));
  machine = std::make_unique<Recorder>(std::move(real));
  codecs = std::make_unique<CodecTables>(*machine);
  prompts = std::make_unique<PromptAttention>(*machine, *codecs);
  dim = shape.head_dim, kv_heads = shape.kv_heads, query_heads = shape.query_heads, group = query_heads / kv_heads;
  tokens = shape.tokens;
  if (shape.sinks) TIERKV_RETURN_IF_ERROR(add_kind("fp16", shape.sinks, 1));
  TIERKV_RETURN_IF_ERROR(add_kind(shape.archive, 128, (shape.past - shape.sinks - shape.warm_tokens) / 128));
  TIERKV_RETURN_IF_ERROR(add_kind(shape.warm, 64, shape.warm_tokens / 64));
  TIERKV_RETURN_IF_ERROR(add_kind("fp16", 64, tokens / 64));
  uint32_t at = 0;
  for (attn::BlockView& view : views) view.ctx.first_position = at, at += view.rows;
  for (uint32_t q = 0; q < tokens; ++q) positions.push_back(at - tokens + q);
  TIERKV_RETURN_IF_ERROR(place());
  std::mt19937 rng(17);
  std::normal_distribution<float> normal;
  queries.resize(static_cast<size_t>(tokens) * query_heads * dim);
  for (float& x : queries) x = normal(rng);
  const size_t rows = queries.size() / dim;
  TIERKV_RETURN_IF_ERROR(query_rows.reserve(queries.size() * sizeof(float)));
  TIERKV_RETURN_IF_ERROR(results.reserve((rows * (dim + 1) + 1) * sizeof(float), true));
  TIERKV_RETURN_IF_ERROR(status_of(
      cudaMemcpy(query_rows.data(), queries.data(), queries.size() * sizeof(float), cudaMemcpyHostToDevice), "sending queries"));
  std::vector<PromptHead> heads;
  for (const auto& list : placed) heads.push_back({views, list});
  PromptWork work;
  work.heads = heads, work.positions = positions;
  work.rows.queries = query_rows.data(), work.rows.token_stride = query_heads * dim, work.rows.head_stride = dim;
  work.rows.query_heads = query_heads, work.rows.out = reinterpret_cast<float*>(results.data());
  work.rows.lse = work.rows.out + rows * dim;
  attn::AttendParams params;
  params.head_dim = dim, params.scale = 1.0f / std::sqrt(static_cast<float>(dim));
  TIERKV_RETURN_IF_ERROR(prompts->attend({{&work, 1}, params, group, nullptr, reinterpret_cast<uint32_t*>(work.rows.lse + rows)}));
  return machine->wait();
}

// what: 1 unpack, 2 attend, 4 merge, summed.
int tierkv_prompt::run(uint32_t what, cudaStream_t stream) const {
  for (const auto& [launch, step] : machine->steps) {
    if ((what >> static_cast<uint32_t>(step) & 1u) == 0) continue;
    if (const int error = launch_prompt(launch, step, hopper, stream); error != 0) return error;
  }
  return 0;
}

// Some tokens and heads against double precision over the decoded rows.
double tierkv_prompt::check() {
  cudaMemset(results.data(), 0xFF, queries.size() * sizeof(float));
  if (run(7, nullptr) != 0 || cudaDeviceSynchronize() != cudaSuccess) return INFINITY;
  std::vector<float> out(queries.size());
  cudaMemcpy(out.data(), results.data(), out.size() * sizeof(float), cudaMemcpyDeviceToHost);
  std::vector<float> keys, values;
  for (const attn::BlockView& view : views) {
    const size_t before = keys.size(), n = static_cast<size_t>(view.rows) * dim;
    keys.resize(before + n), values.resize(before + n);
    view.key_codec->decode(view.keys, view.ctx, 0, view.rows, keys.data() + before);
    view.value_codec->decode(view.values, view.ctx, 0, view.rows, values.data() + before);
  }
  double worst = 0.0;
  for (const uint32_t token : {0u, tokens / 2 + 5, tokens - 1}) {
    for (const uint32_t head : {0u, query_heads - 1}) {
      const size_t row = static_cast<size_t>(token) * query_heads + head;
      const float* q = queries.data() + row * dim;
      std::vector<double> sums(dim);
      double total = 0.0, off = 0.0, size = 0.0;
      for (size_t i = 0; i <= positions[token]; ++i) {
        double s = 0.0;
        for (uint32_t c = 0; c < dim; ++c) s += static_cast<double>(q[c]) * keys[i * dim + c];
        const double w = std::exp(s / std::sqrt(static_cast<double>(dim)) - 20.0);
        total += w;
        for (uint32_t c = 0; c < dim; ++c) sums[c] += w * values[i * dim + c];
      }
      for (uint32_t c = 0; c < dim; ++c) {
        const double want = sums[c] / total, got = out[row * dim + c];
        if (!std::isfinite(got)) return INFINITY;
        off += (got - want) * (got - want), size += want * want;
      }
      worst = std::max(worst, std::sqrt(off / size));
    }
  }
  return worst;
}

extern "C" {
tierkv_prompt* tierkv_prompt_make(const tierkv_prompt_shape* shape) {
  auto made = std::make_unique<tierkv_prompt>();
  const Status status = made->make(*shape);
  if (status.ok()) return made.release();
  last_error = status.message();
  return nullptr;
}
void tierkv_prompt_free(tierkv_prompt* prompt) { delete prompt; }
const char* tierkv_prompt_error(void) { return last_error.c_str(); }
int tierkv_prompt_run(tierkv_prompt* prompt, uint32_t what, void* stream) {
  return prompt->run(what, static_cast<cudaStream_t>(stream));
}
double tierkv_prompt_check(tierkv_prompt* prompt) { return prompt->check(); }
double tierkv_prompt_bytes(const tierkv_prompt* prompt) { return prompt->bytes; }
uint32_t tierkv_prompt_rounds(const tierkv_prompt* prompt) { return static_cast<uint32_t>(prompt->prompts->rounds()); }
double tierkv_prompt_scratch(const tierkv_prompt* prompt) { return static_cast<double>(prompt->prompts->bytes()); }
}
