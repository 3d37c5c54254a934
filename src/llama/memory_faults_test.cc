// Memory that runs out anywhere in tierkv's own part of a host: a number and a sentence, no end of the process, nothing thrown
// through libllama, the sequence as long as before and the others untouched.
//
// libllama and ggml abort or crash without memory, so only requests of our own code are refused: calls into libllama step outside,
// its callbacks step inside again. libllama is a shared library, so definitions here take the place of its own.
#include <dlfcn.h>
#include <ggml-alloc.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <future>
#include <iterator>

#include "base/failing_memory.h"
#include "base/folder_testing.h"
#include "llama/test_model.h"

namespace {

using tierkv::testing::FailingMemory;

template <class Function>
Function* theirs(const char* name) {
  const FailingMemory::Scope outside(false);
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

// libllama's callbacks, one for each context that was made.
struct Callback {
  ggml_backend_sched_eval_callback call;
  void* user;
};
std::deque<Callback> callbacks;

bool on_node(ggml_tensor* node, bool asking, void* user) {
  const FailingMemory::Scope inside(true);
  const auto& callback = *static_cast<Callback*>(user);
  return callback.call(node, asking, callback.user);
}

ggml_custom_op_t custom_op;
void on_custom_op(ggml_tensor* node, int ith, int nth, void* user) {
  const FailingMemory::Scope inside(true);
  custom_op(node, ith, nth, user);
}

}  // namespace

#define STEP_OUTSIDE(result, name, parameters, arguments)       \
  extern "C" result name parameters {                           \
    static auto* const call = theirs<result parameters>(#name); \
    const FailingMemory::Scope outside(false);                  \
    return call arguments;                                      \
  }

STEP_OUTSIDE(int32_t, llama_decode, (llama_context * context, llama_batch batch), (context, batch))
STEP_OUTSIDE(void, llama_free, (llama_context * context), (context))
STEP_OUTSIDE(void, llama_memory_clear, (llama_memory_t memory, bool data), (memory, data))
STEP_OUTSIDE(void, llama_memory_seq_cp, (llama_memory_t memory, llama_seq_id from, llama_seq_id to, llama_pos first, llama_pos end),
             (memory, from, to, first, end))
STEP_OUTSIDE(float*, llama_get_logits_ith, (llama_context * context, int32_t i), (context, i))
STEP_OUTSIDE(llama_batch, llama_batch_init, (int32_t tokens, int32_t embedding, int32_t sequences), (tokens, embedding, sequences))
STEP_OUTSIDE(ggml_context*, ggml_init, (ggml_init_params params), (params))
STEP_OUTSIDE(ggml_backend_t, ggml_backend_init_by_type, (enum ggml_backend_dev_type type, const char* params), (type, params))
STEP_OUTSIDE(ggml_backend_buffer_t, ggml_backend_alloc_ctx_tensors, (ggml_context * context, ggml_backend_t backend),
             (context, backend))
STEP_OUTSIDE(ggml_status, ggml_backend_graph_compute, (ggml_backend_t backend, ggml_cgraph* graph), (backend, graph))

extern "C" llama_context* llama_init_from_model(llama_model* model, llama_context_params params) {
  static auto* const call = theirs<llama_context*(llama_model*, llama_context_params)>("llama_init_from_model");
  const FailingMemory::Scope outside(false);
  if (params.cb_eval != nullptr) {
    callbacks.push_back({params.cb_eval, params.cb_eval_user_data});
    params.cb_eval = on_node;
    params.cb_eval_user_data = &callbacks.back();
  }
  return call(model, params);
}

extern "C" ggml_tensor* ggml_custom_4d(ggml_context* context, ggml_type type, int64_t a, int64_t b, int64_t c, int64_t d,
                                       ggml_tensor** sources, int count, ggml_custom_op_t function, int tasks, void* user) {
  static auto* const call = theirs<ggml_tensor*(ggml_context*, ggml_type, int64_t, int64_t, int64_t, int64_t, ggml_tensor**, int,
                                                ggml_custom_op_t, int, void*)>("ggml_custom_4d");
  const FailingMemory::Scope outside(false);
  custom_op = function;
  return call(context, type, a, b, c, d, sources, count, on_custom_op, tasks, user);
}

namespace tierkv::llama {
namespace {

constexpr const char* kTiers = "hot=32,warm=64,archive=rot2,sinks=4,warm_block=32,archive_block=64";

// Two sequences: 0, which the calls are about, and 1, which they must leave alone.
struct World {
  static llama_model* model() {
    static const ModelPtr loaded = load_tiny("llama");
    return loaded.get();
  }

  explicit World(const char* spec) {
    params = test_params(32);
    params.n_seq_max = 3;
    params.n_threads = params.n_threads_batch = 2;
    kv = tierkv_llama_attach(&params, model(), spec, error, sizeof error);
    EXPECT_NE(kv, nullptr) << error;
    context = llama_init_from_model(model(), params);
    TestBatch batch(320);
    for (int i = 0; i < 160; ++i) batch.add(tokens[static_cast<size_t>(i)], i, 0, false);
    for (int i = 0; i < 160; ++i) batch.add(tokens[static_cast<size_t>(i)], i, 1, false);
    EXPECT_EQ(tierkv_llama_decode(kv, context, batch.batch), 0) << tierkv_llama_error(kv);
    EXPECT_EQ(tierkv_llama_save(kv, 0, saved.c_str()), 0) << tierkv_llama_error(kv);
    for (int i = 160; i < 240; ++i) more.add(tokens[static_cast<size_t>(i)], i, 0, i == 239);
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  ~World() {
    llama_free(context);
    tierkv_llama_free(kv);
  }
  // All there is of sequence 1.
  std::string others() {
    EXPECT_EQ(tierkv_llama_save(kv, 1, other.c_str()), 0) << tierkv_llama_error(kv);
    std::ifstream in(other, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  std::vector<llama_token> tokens = some_tokens(240, 7);
  llama_context_params params{};
  char error[200] = "";
  tierkv_llama* kv = nullptr;
  llama_context* context = nullptr;
  TestBatch more{80};  // of sequence 0
  const TestFolder folder;
  const std::string saved = folder.file("saved"), other = folder.file("other"), again = folder.file("again");
};

class HostMemoryFaults : public ::testing::Test {
 protected:
  // No calibration that lies about on this machine.
  void SetUp() override { ASSERT_EQ(setenv("TIERKV_CACHE", cache_.path().c_str(), 1), 0); }
  void TearDown() override { unsetenv("TIERKV_CACHE"); }

 private:
  const TestFolder cache_;
};

// Every request of a short call, fewer and fewer of a long one.
long next_request(long nth) { return nth > 60 ? nth + nth / 12 : nth + 1; }

// Runs a call on a thread of its own, so that what a thread allocates at its first call is refused too.
template <class Run>
bool refused_in(long nth, FailingMemory::Mode mode, const Run& run) {
  return std::async(std::launch::async,
                    [&] {
                      FailingMemory::arm(nth, mode, FailingMemory::Where::inside);
                      {
                        const FailingMemory::Scope inside(true);
                        run();
                      }
                      return FailingMemory::disarm();
                    })
      .get();
}

template <class Run>
void refuse_each(const char* name, const char* spec, const Run& run) {
  long refusals = 0;
  for (const auto mode : {FailingMemory::Mode::once, FailingMemory::Mode::from_then_on}) {
    auto world = std::make_unique<World>(spec);
    for (long nth = 1;; nth = next_request(nth)) {
      const std::string before = world->others();
      int32_t result = -99;
      const bool refused = refused_in(nth, mode, [&] { result = run(*world); });
      const std::string where = std::string(name) + " with " + spec + ", request " + std::to_string(nth) +
                                (mode == FailingMemory::Mode::once ? " refused" : " and all after it refused");
      EXPECT_TRUE(world->others() == before) << where << ": another sequence has changed";
      refusals += refused;
      if (!refused) {
        EXPECT_EQ(result, 0) << where << ": " << tierkv_llama_error(world->kv);
        break;
      }
      if (result == 0) {  // it did without; from the start again
        world = std::make_unique<World>(spec);
      } else {
        EXPECT_EQ(result, 1) << where << ": " << tierkv_llama_error(world->kv);
        EXPECT_STRNE(tierkv_llama_error(world->kv), "") << where;
      }
      if (::testing::Test::HasFailure()) return;
    }
  }
  EXPECT_GT(refusals, 0) << name << " asked for no memory: the test tests nothing";
}

TEST_F(HostMemoryFaults, Attaching) {
  llama_model* const model = World::model();
  long refusals = 0;
  for (const auto mode : {FailingMemory::Mode::once, FailingMemory::Mode::from_then_on}) {
    for (long nth = 1;; nth = next_request(nth)) {
      llama_context_params params = test_params(32);
      tierkv_llama* kv = nullptr;
      char error[200] = "";
      const bool refused = refused_in(nth, mode, [&] { kv = tierkv_llama_attach(&params, model, kTiers, error, 200); });
      refusals += refused;
      if (kv == nullptr) {
        EXPECT_STRNE(error, "") << nth;
        EXPECT_EQ(params.cb_eval, nullptr) << nth;
        EXPECT_EQ(params.abort_callback, nullptr) << nth;
        EXPECT_EQ(params.n_ctx, 32u) << nth;
      }
      tierkv_llama_free(kv);
      if (!refused) {
        EXPECT_NE(kv, nullptr) << error;
        break;
      }
    }
  }
  EXPECT_GT(refusals, 100);
}

TEST_F(HostMemoryFaults, Decoding) {
  // That a later try succeeds at the same positions says that the failed ones left nothing.
  for (const char* spec : {kTiers, "fp16", "hot=32,warm=64,archive=rot2,sinks=4,evict=h2o,max_seq_len=200"}) {
    refuse_each("decode", spec, [](World& w) { return tierkv_llama_decode(w.kv, w.context, w.more.batch); });
  }
  refuse_each("decode_each", kTiers, [](World& w) {
    const int32_t result = tierkv_llama_decode_each(w.kv, w.context, w.more.batch);
    // Where there was memory for the answers, they agree.
    return result == 0 ? tierkv_llama_seq_status(w.kv, 0) : result;
  });
}

TEST_F(HostMemoryFaults, LogitsAfterFailedDecodesAreRight) {
  const Logits stock = stock_logits(World::model(), some_tokens(240, 7), 32);
  World world("fp16");
  // Every request, also those of the batch's later parts.
  for (long nth = 1;; ++nth) {
    int32_t result = -99;
    const bool refused = refused_in(nth, FailingMemory::Mode::once,
                                    [&] { result = tierkv_llama_decode(world.kv, world.context, world.more.batch); });
    ASSERT_TRUE(result == 0 || (refused && result == 1)) << nth << ": " << result << " " << tierkv_llama_error(world.kv);
    if (result != 0) continue;
    const float* row = tierkv_llama_logits(world.kv, world.context, -1);
    ASSERT_NE(row, nullptr) << tierkv_llama_error(world.kv);
    ASSERT_LT(worst_difference({{row, row + 384}}, {stock.back()}), 1e-3) << nth;
    ASSERT_EQ(tierkv_llama_seq_rm(world.kv, 0, 160), 0);
    if (!refused) break;
  }
}

TEST_F(HostMemoryFaults, SequencesAndFiles) {
  refuse_each("seq_cp", kTiers, [](World& w) { return tierkv_llama_seq_cp(w.kv, 0, 2); });
  refuse_each("save", kTiers, [](World& w) { return tierkv_llama_save(w.kv, 0, w.again.c_str()); });
  refuse_each("load", kTiers, [](World& w) { return tierkv_llama_load(w.kv, 0, w.saved.c_str()); });
  refuse_each("set_pressure_handler", kTiers, [](World& w) {
    return tierkv_llama_set_pressure_handler(
        w.kv, [](void*, const tierkv_llama_pressure*) { return 0; }, nullptr);
  });
  // A wrong call stays a wrong call, whether or not there is memory for its sentence.
  World world(kTiers);
  int32_t wrong = 0;
  (void)refused_in(1, FailingMemory::Mode::from_then_on, [&] { wrong = tierkv_llama_seq_rm(world.kv, 9, 0); });
  EXPECT_NE(wrong, 0);
  EXPECT_STRNE(tierkv_llama_error(world.kv), "");
}

TEST_F(HostMemoryFaults, WhatFreesOrCountsAsksForNothing) {
  World world(kTiers);
  ASSERT_EQ(tierkv_llama_seq_cp(world.kv, 0, 2), 0);
  int32_t shortened = -1, removed = -1;
  uint64_t bytes = 0;
  const bool asked = refused_in(1, FailingMemory::Mode::from_then_on, [&] {
    shortened = tierkv_llama_seq_rm(world.kv, 0, 100);
    removed = tierkv_llama_seq_rm(world.kv, 2, 0);
    bytes = tierkv_llama_bytes(world.kv);
    llama_free(world.context);
    tierkv_llama_detach(world.kv);
    tierkv_llama_free(world.kv);
  });
  world.context = nullptr;
  world.kv = nullptr;
  EXPECT_FALSE(asked);
  EXPECT_EQ(shortened, 0);
  EXPECT_EQ(removed, 0);
  EXPECT_GT(bytes, 0u);
}

}  // namespace
}  // namespace tierkv::llama
