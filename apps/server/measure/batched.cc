// batched.cc — tokens of many sequences at a time: a tierkv cache against libllama's own with FP16, as llama-batched-bench has it
// (one unified cache, one batch of a token of each sequence a step).
//
//   tierkv_measure_batched MODEL [clients] [context] [steps] [threads]
//
// Both are in one process with the same model, the same threads and the same batch, and take steps in turns, so that whatever else
// the machine does happens to both. One prompt is read by each and then copied to the other sequences, byte for byte and not
// shared. Prints one JSON object: medians on the clock, and processor time of the whole process.
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "engine/batch.h"
#include "engine/clock.h"
#include "engine/engine.h"
#include "engine/error.h"

namespace {

using namespace tierkv;

double processor_s() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) { return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec); };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

struct Times {
  std::vector<double> clock, processor;
  template <class Step>
  void take(const Step& step) {
    const double clock_start = engine::now(), processor_start = processor_s();
    step();
    clock.push_back(engine::now() - clock_start);
    processor.push_back(processor_s() - processor_start);
  }
  static double median(std::vector<double> values) {
    std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
    return values[values.size() / 2];
  }
};

llama_token token_at(uint32_t i) { return static_cast<llama_token>(100 + (i * 7919u) % 40000u); }

constexpr uint32_t kMicroBatch = 256;

template <class Decode>
void read_prompt(uint32_t context, const Decode& decode) {
  for (uint32_t at = 0; at < context; at += kMicroBatch) {
    engine::Batch batch(kMicroBatch);
    for (uint32_t i = at; i < std::min(context, at + kMicroBatch); ++i) batch.add(token_at(i), i, 0, i + 1 == context);
    decode(batch.get());
  }
}

template <class Decode>
void step(uint32_t clients, uint32_t position, const Decode& decode) {
  engine::Batch batch(clients);
  for (uint32_t s = 0; s < clients; ++s) batch.add(token_at(position + s * 17), position, static_cast<int32_t>(s), true);
  decode(batch.get());
}

std::unique_ptr<llama_context, decltype(&llama_free)> open_stock(engine::Engine& engine, uint32_t clients, uint32_t cells) {
  llama_context_params params = llama_context_default_params();
  params.n_ctx = cells;
  params.n_batch = params.n_ubatch = kMicroBatch;
  params.n_seq_max = clients;
  params.n_threads = params.n_threads_batch = static_cast<int32_t>(engine.threads());
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
  params.kv_unified = true;
  return {llama_init_from_model(engine.model(), params), llama_free};
}

}  // namespace

int main(int argc, char** argv) try {
  const auto number = [&](int i, uint32_t otherwise) { return argc > i ? static_cast<uint32_t>(std::atoi(argv[i])) : otherwise; };
  const uint32_t clients = number(2, 8), context = number(3, 4096), steps = number(4, 24), threads = number(5, 1);
  engine::EngineOptions options;
  options.model = argc > 1 ? argv[1] : "smollm2";
  options.threads = threads;
  engine::Engine engine(options);

  engine::SessionOptions session;
  session.slots = clients;
  session.ctx = context + steps + 1;
  const auto tiered = engine.open_context("balanced", session);
  const auto decode_tiered = [&](const llama_batch& batch) { engine::check(tiered->host().decode(tiered->get(), batch)); };
  read_prompt(context, decode_tiered);
  const auto frozen = engine::take(tiered->cache().freeze(engine::take(tiered->host().sequence(0))));
  for (uint32_t s = 1; s < clients; ++s) {
    engine::check(tiered->host().bind(static_cast<int32_t>(s), engine::take(tiered->cache().unfreeze(frozen))));
  }

  const auto stock = open_stock(engine, clients, clients * (context + steps + 32));
  const auto decode_stock = [&](const llama_batch& batch) {
    if (llama_decode(stock.get(), batch) != 0) engine::bad_input("libllama could not decode");
  };
  if (!stock) engine::bad_input("libllama gave no context");
  read_prompt(context, decode_stock);
  std::vector<uint8_t> state(llama_state_seq_get_size(stock.get(), 0));
  state.resize(llama_state_seq_get_data(stock.get(), state.data(), state.size(), 0));
  for (uint32_t s = 1; s < clients; ++s) {
    if (llama_state_seq_set_data(stock.get(), state.data(), state.size(), static_cast<llama_seq_id>(s)) == 0)
      engine::bad_input("libllama did not take a copy of a sequence");
  }

  Times ours, theirs;
  for (uint32_t i = 0; i < steps; ++i) {
    const auto one = [&] { step(clients, context + i, decode_tiered); };
    const auto two = [&] { step(clients, context + i, decode_stock); };
    if (i % 2) ours.take(one), theirs.take(two);
    else theirs.take(two), ours.take(one);
  }
  const double our_step = Times::median(ours.processor), their_step = Times::median(theirs.processor);
  const double our_clock = Times::median(ours.clock), their_clock = Times::median(theirs.clock);
  std::printf(
      "{\"clients\": %u, \"context\": %u, \"threads\": %u, \"steps\": %u,\n"
      " \"tierkv\": {\"clock_ms\": %.1f, \"processor_ms\": %.1f, \"tokens_per_s\": %.1f},\n"
      " \"libllama_f16\": {\"clock_ms\": %.1f, \"processor_ms\": %.1f, \"tokens_per_s\": %.1f},\n"
      " \"ratio_clock\": %.2f, \"ratio_processor\": %.2f}\n",
      clients, context, threads, steps, 1e3 * our_clock, 1e3 * our_step, clients / our_clock, 1e3 * their_clock, 1e3 * their_step,
      clients / their_clock, their_clock / our_clock, their_step / our_step);
  return 0;
} catch (const std::exception& problem) {
  std::fprintf(stderr, "%s\n", problem.what());
  return 1;
}
