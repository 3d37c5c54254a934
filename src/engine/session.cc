// session.cc — feeding a sequence in chunks, and what its times are.
#include "engine/session.h"

#include <algorithm>
#include <utility>

#include "engine/batch.h"
#include "engine/clock.h"
#include "engine/error.h"
#include "engine/text.h"

namespace tierkv::engine {

Session::Session(std::string name, int32_t slot, const Cancellation* cancel, const ThreadCount& threads)
    : name_(std::move(name)), slot_(slot), cancel_(cancel), threads_(threads) {}
Session::~Session() = default;

SeqId Session::sequence() { fail(name_ + " has no tierkv cache"); }
void Session::bind(SeqId) { fail(name_ + " has no tierkv cache"); }

void Session::feed(std::span<const llama_token> tokens, Want want, const OnLogits& on_logits, uint32_t chunk,
                   const OnProgress& on_progress) {
  if (tokens.empty()) return;
  if (length_ + tokens.size() > limit()) {
    bad_input("the text needs a context of " + human_count(length_ + tokens.size()) + " tokens, and " + human_count(limit()) +
              " is all there is");
  }
  const uint32_t step = chunk == 0 ? micro_batch() : std::min(chunk, micro_batch());
  const double start = now();
  for (size_t done = 0; done < tokens.size();) {
    if (cancelled()) throw Cancelled();
    const size_t count = std::min<size_t>(step, tokens.size() - done);
    const bool final = done + count == tokens.size();
    feed_chunk(tokens.subspan(done, count), static_cast<uint32_t>(done), want == Want::last && !final ? Want::none : want,
               on_logits);
    done += count;
    if (on_progress) on_progress(static_cast<uint32_t>(done));
  }
  const double seconds = now() - start;
  (tokens.size() == 1 ? times_.decode_s : times_.prefill_s) += seconds;
  (tokens.size() == 1 ? times_.decode_tokens : times_.prefill_tokens) += tokens.size();
}

void Session::decode_one(const llama_batch& batch) {
  llama_set_n_threads(context(), static_cast<int32_t>(threads_.now()), llama_n_threads_batch(context()));
  const double wall = now(), cpu = processor_seconds();
  decode(batch);
  threads_.took(now() - wall, processor_seconds() - cpu, free_cores(threads_.now()));
}

void Session::feed_chunk(std::span<const llama_token> tokens, uint32_t first, Want want, const OnLogits& on_logits) {
  Batch batch(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    const bool logits = want == Want::all || (want == Want::last && i + 1 == tokens.size());
    batch.add(tokens[i], length_ + static_cast<uint32_t>(i), slot_, logits);
  }
  if (tokens.size() == 1 && threads_.most() > 1) {
    decode_one(batch.get());
  } else {
    decode(batch.get());
  }
  length_ += static_cast<uint32_t>(tokens.size());
  if (want == Want::none) return;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const bool last = i + 1 == tokens.size();
    if (want == Want::last && !last) continue;
    const float* row = llama_get_logits_ith(context(), static_cast<int32_t>(i));
    if (row == nullptr) fail("libllama gave no logits for token " + std::to_string(first + i));
    if (on_logits) on_logits(first + static_cast<uint32_t>(i), {row, limits_.vocabulary});
    if (last) last_.assign(row, row + limits_.vocabulary);
  }
}

}  // namespace tierkv::engine
