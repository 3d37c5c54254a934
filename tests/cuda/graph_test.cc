// Steps of decoding as CUDA graphs, on a device: the rows of every step are made inside of the graph, many steps are launched
// without a wait, and results and blocks are those of a cache on the processor that got the same rows.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "cuda/backend.h"
#include "cuda/brief_testing.h"
#include "tierkv/cache.h"
#include "tierkv/cuda.h"

namespace tierkv::cuda {
namespace {

constexpr uint32_t kLayers = 2, kHeads = 8, kKvHeads = 2, kDim = 128;
constexpr double kTolerance = 2e-2;  // the processor's own kernels round

// Floats of the device, or of the processor where the device reads them.
struct Floats {
  Floats(size_t count, bool pinned) : pinned_(pinned) {
    void* memory = nullptr;
    EXPECT_EQ(pinned ? cudaMallocHost(&memory, count * sizeof(float)) : cudaMalloc(&memory, count * sizeof(float)), cudaSuccess);
    data = static_cast<float*>(memory);
  }
  ~Floats() { (void)(pinned_ ? cudaFreeHost(data) : cudaFree(data)); }
  Floats(const Floats&) = delete;
  float* data;

 private:
  const bool pinned_;
};

// A model whose step copies rows that were laid out for it: they come to where the cache reads them inside of the graph.
class Graphed {
 public:
  Graphed(const std::string& spec, const std::vector<uint32_t>& lengths, uint32_t most_steps)
      : batch_(lengths.size()),
        rows_(batch_ * (2 * kKvHeads + kHeads) * kDim * kLayers),
        outs_(batch_ * kHeads * kDim * kLayers),
        source_(rows_, false),
        made_(rows_, false),
        out_(outs_, false),
        given_(rows_ * most_steps, true),
        got_(outs_ * most_steps, true) {
    CacheConfig config;
    config.num_layers = kLayers, config.num_heads = kHeads, config.num_kv_heads = kKvHeads, config.head_dim = kDim;
    EXPECT_TRUE(apply_spec(spec, config).ok());
    for (auto& cache : caches_) cache = AdaptiveKVCache::create(config).value();
    std::mt19937 rng(11);
    std::normal_distribution<float> normal;
    for (size_t i = 0; i < rows_ * most_steps; ++i) given_.data[i] = normal(rng);
    std::vector<float> prompt(size_t{4096} * kKvHeads * kDim);
    for (float& x : prompt) x = normal(rng);
    for (const uint32_t length : lengths) {
      for (auto& cache : caches_) {
        const SeqId id = *cache->add_sequence();
        if (&cache == &caches_[0]) ids_.push_back(id);
        const RowsView view = RowsView::f32(prompt.data(), length, kKvHeads, kDim);
        for (uint32_t layer = 0; layer < kLayers; ++layer) EXPECT_TRUE(cache->append(id, layer, view, view).ok());
      }
    }
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    auto made = make_backend({});
    EXPECT_TRUE(made.ok()) << made.status().message();
    device = *made;
    caches_[1]->attend_with(device);
  }
  ~Graphed() {
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    step.reset();
    if (exec) cudaGraphExecDestroy(exec);
    if (graph_) cudaGraphDestroy(graph_);
    caches_[1].reset();
    cudaStreamDestroy(stream_);
  }

  // Rows of a layer lie as keys, values and queries of all sequences.
  size_t layer_rows() const { return rows_ / kLayers; }
  size_t part(int which) const { return batch_ * kKvHeads * kDim * static_cast<size_t>(which); }
  void capture() {
    auto recording = record(*caches_[1]);
    ASSERT_TRUE(recording.ok()) << recording.status().message();
    step = std::move(recording).value();
    ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal), cudaSuccess);
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      float* const rows = made_.data + layer * layer_rows();
      ASSERT_EQ(cudaMemcpyAsync(rows, source_.data + layer * layer_rows(), layer_rows() * sizeof(float), cudaMemcpyDeviceToDevice,
                                stream_),
                cudaSuccess);
      std::vector<AppendItem> items;
      std::vector<AttentionItem> asked;
      for (size_t s = 0; s < batch_; ++s) {
        const auto view = [&](size_t at, uint32_t heads) {
          RowsView out = RowsView::f32(rows + at + s * heads * kDim, 1, heads, kDim);
          out.place = MemoryPlace::device, out.ready = stream_;
          return out;
        };
        items.push_back({ids_[s], view(0, kKvHeads), view(part(1), kKvHeads), {}});
        asked.push_back({ids_[s], view(part(2), kHeads), out_.data + layer * (outs_ / kLayers) + s * kHeads * kDim});
      }
      const Status appended = caches_[1]->append_many(layer, items), attended = caches_[1]->attention(layer, asked);
      EXPECT_TRUE(appended.ok() && attended.ok()) << appended.message() << attended.message();
    }
    const Status ended = step->end();
    EXPECT_TRUE(ended.ok()) << ended.message();
    ASSERT_EQ(cudaStreamEndCapture(stream_, &graph_), cudaSuccess);
    ASSERT_EQ(cudaGraphInstantiate(&exec, graph_, 0), cudaSuccess);
  }

  void launch() { ASSERT_EQ(cudaGraphLaunch(exec, stream_), cudaSuccess); }
  void take_step() {
    ASSERT_EQ(cudaMemcpyAsync(source_.data, given_.data + steps_ * rows_, rows_ * sizeof(float), cudaMemcpyHostToDevice, stream_),
              cudaSuccess);
    const Status advanced = step->advance(exec, stream_);
    ASSERT_TRUE(advanced.ok()) << advanced.message() << " in step " << steps_;
    launch();
    ASSERT_EQ(cudaMemcpyAsync(got_.data + steps_ * outs_, out_.data, outs_ * sizeof(float), cudaMemcpyDeviceToHost, stream_),
              cudaSuccess);
    ++steps_;
  }
  // The processor's steps up to here, and whether the device's results were the same.
  void compare() {
    const Status checked = device->check();
    ASSERT_TRUE(checked.ok()) << checked.message();
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    for (; compared_ < steps_; ++compared_) {
      for (uint32_t layer = 0; layer < kLayers; ++layer) {
        const float* const rows = given_.data + compared_ * rows_ + layer * layer_rows();
        const float* const got = got_.data + compared_ * outs_ + layer * (outs_ / kLayers);
        double off = 0.0, size = 0.0;
        std::vector<float> want(kHeads * kDim);
        for (size_t s = 0; s < batch_; ++s) {
          const auto view = [&](size_t at, uint32_t heads) { return RowsView::f32(rows + at + s * heads * kDim, 1, heads, kDim); };
          ASSERT_TRUE(caches_[0]->append(ids_[s], layer, view(0, kKvHeads), view(part(1), kKvHeads)).ok());
          ASSERT_TRUE(caches_[0]->attention(ids_[s], layer, view(part(2), kHeads), want.data()).ok());
          for (size_t i = 0; i < want.size(); ++i) {
            const double difference = static_cast<double>(got[s * want.size() + i]) - want[i];
            off += difference * difference, size += static_cast<double>(want[i]) * want[i];
          }
        }
        ASSERT_LT(std::sqrt(off / size), kTolerance) << "layer " << layer << " of step " << compared_;
      }
    }
  }
  void expect_same_tokens() {
    for (const SeqId id : caches_[0]->sequences()) {
      const auto here = caches_[0]->freeze(id), there = caches_[1]->freeze(id);
      ASSERT_TRUE(here.ok() && there.ok()) << there.status().message();
      EXPECT_TRUE(*here == *there) << "sequence " << id;
    }
  }
  AdaptiveKVCache& here() { return *caches_[0]; }
  AdaptiveKVCache& there() { return *caches_[1]; }
  const std::vector<SeqId>& ids() const { return ids_; }
  cudaStream_t stream() const { return stream_; }

  std::shared_ptr<DeviceBackend> device;
  std::unique_ptr<StepGraph> step;
  cudaGraphExec_t exec = nullptr;

 private:
  const size_t batch_, rows_, outs_;  // floats of a step
  Floats source_, made_, out_, given_, got_;
  std::unique_ptr<AdaptiveKVCache> caches_[2];  // on the processor, on the device
  std::vector<SeqId> ids_;
  cudaStream_t stream_ = nullptr;
  cudaGraph_t graph_ = nullptr;
  size_t steps_ = 0, compared_ = 0;
};

TEST(CudaGraph, ManyStepsWithoutAWait) {
  const uint32_t steps = testing::count(200, 12, 4);
  for (const char* spec : testing::some({"hot=64,warm=448,warm_codec=even4,archive=rot2,sinks=4",
                                         "hot=16,warm=64,warm_block=16,archive_block=32,archive=kivi4-g16,hot_type=bf16",
                                         "hot=32,warm=0,archive=kivi2,sinks=4", "fp16"},
                                        2)) {
    SCOPED_TRACE(spec);
    Graphed model(spec, {1500, 70, 613}, steps);
    model.capture();
    for (uint32_t step = 0; step < steps && !::testing::Test::HasFatalFailure(); ++step) model.take_step();
    model.compare();
    if (::testing::Test::HasFatalFailure()) return;
    model.expect_same_tokens();
    EXPECT_EQ(model.device->usage().on_processor, 0u);
  }
}

TEST(CudaGraph, SequencesChangeBetweenLaunches) {
  const uint32_t steps = testing::count(80, 10, 4);
  Graphed model("hot=32,warm=64,archive=kivi2,sinks=4", {700, 150}, steps);
  model.capture();
  std::mt19937 rng(3);
  for (uint32_t step = 0; step < steps; ++step) {
    const SeqId any = model.ids()[rng() % 2];
    const uint32_t what = rng() % 6;
    if (what < 3) model.compare();  // what comes is of both caches
    const uint32_t length = *model.there().length(any) - static_cast<uint32_t>(rng() % 4);
    for (AdaptiveKVCache* cache : {&model.here(), &model.there()}) {
      if (what == 0) {
        ASSERT_TRUE(cache->truncate(any, length).ok());
      }
      if (what == 1) {
        ASSERT_TRUE(cache->fork(any).ok());
      }
      if (what == 2) {
        std::vector<float> query(size_t{kHeads} * kDim, 0.25f), out(query.size());
        ASSERT_TRUE(cache->attention(any, 1, RowsView::f32(query.data(), 1, kHeads, kDim), out.data()).ok());
      }
    }
    model.take_step();
    if (::testing::Test::HasFatalFailure()) return;
  }
  model.compare();
  model.expect_same_tokens();
}

TEST(CudaGraph, MistakesAreFound) {
  Graphed model("hot=32,warm=64,archive=kivi2,sinks=4", {300, 150}, 8), other("fp16", {40}, 8);
  model.capture(), other.capture();
  for (int i = 0; i < 3; ++i) model.take_step();
  if (!testing::brief()) {  // compute-sanitizer would call it an error of ours
    EXPECT_EQ(model.step->advance(other.exec, model.stream()).code(), StatusCode::invalid_argument);
  }
  model.take_step();
  model.compare();
  ASSERT_FALSE(::testing::Test::HasFatalFailure());
  ASSERT_TRUE(model.step->advance(model.exec, model.stream()).ok());  // and no launch
  ASSERT_TRUE(model.step->advance(model.exec, model.stream()).ok());
  model.launch();
  EXPECT_EQ(model.there().freeze(model.ids()[0]).status().code(), StatusCode::failed_precondition);
  EXPECT_EQ(model.step->advance(model.exec, model.stream()).code(), StatusCode::failed_precondition);
  for (const SeqId id : model.ids()) ASSERT_TRUE(model.there().truncate(id, *model.here().length(id)).ok());
  EXPECT_TRUE(model.there().freeze(model.ids()[0]).ok());
  EXPECT_EQ(model.step->advance(model.exec, model.stream()).code(), StatusCode::failed_precondition) << "from now on";
}

}  // namespace
}  // namespace tierkv::cuda
