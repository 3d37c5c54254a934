// scheduler_step.cc — one batch: what goes into it, and what comes of it.
#include <algorithm>

#include "engine/batch.h"
#include "engine/clock.h"
#include "engine/error.h"
#include "serve/scheduler_work.h"

namespace tierkv::serve {

using engine::now;

// Answers first, a row each. Then pieces of prompts, one by one around those that read, beginning with another one every time.
std::vector<Scheduler::Part> Scheduler::plan_step(uint32_t& writers, uint32_t& prompt_rows) {
  std::vector<Part> parts, readers;
  for (size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[(i + turn_) % slots_.size()];
    if (!slot.work) continue;
    if (slot.work->writes()) parts.push_back({&slot, 1, 0});
    else readers.push_back({&slot, 0, 0});
  }
  ++turn_;
  writers = static_cast<uint32_t>(parts.size());
  uint32_t room = pace_.rows(writers);
  for (bool more = true; more && room > 0;) {
    more = false;
    for (Part& part : readers) {
      const uint32_t piece = std::min(pace_.piece(), part.slot->work->pending() - part.rows);
      if (piece == 0 || room < pace_.piece()) continue;
      part.rows += piece;
      room -= pace_.piece();
      prompt_rows += piece;
      more = true;
    }
  }
  for (const Part& part : readers) {
    if (part.rows > 0) parts.push_back(part);
  }
  return parts;
}

void Scheduler::step() {
  uint32_t writers = 0, prompt_rows = 0;
  std::vector<Part> parts = plan_step(writers, prompt_rows);
  if (parts.empty()) return;
  engine::Batch batch(writers + prompt_rows);
  for (Part& part : parts) {
    const Work& work = *part.slot->work;
    for (uint32_t i = 0; i < part.rows; ++i) {
      const bool last = work.fed + i + 1 == work.tokens.size();
      batch.add(work.tokens[work.fed + i], work.fed + i, work.place, last);
    }
    part.last_row = batch.get().n_tokens - 1;
  }
  std::vector<llama::SequenceStatus> statuses;
  const double start = now();
  const Status whole = context_.host().decode(context_.get(), batch.get(), statuses);
  pace_.took(writers, prompt_rows, now() - start);
  metrics_.update([&](Counts& counts) {
    ++counts.steps;
    counts.busy_slots += parts.size();
    counts.prompt_tokens += prompt_rows;
  });
  for (const Part& part : parts) {
    const auto status =
        std::find_if(statuses.begin(), statuses.end(), [&](const auto& s) { return s.seq == part.slot->work->place; });
    settle(part, status == statuses.end() ? whole : status->status);
  }
}

void Scheduler::settle(const Part& part, const Status& status) {
  Work& work = *part.slot->work;
  if (!status.ok()) {
    if (status.code() == StatusCode::resource_exhausted) lacks_memory(*part.slot, status);
    else fail(*part.slot, ApiError(abort_.requested() ? 503 : 500, status.message()));
    return;
  }
  shelf_.advanced(work.place, std::span(work.tokens).subspan(work.fed, part.rows));
  work.fed += part.rows;
  if (work.pending() > 0) return;
  const auto logits = context_.host().logits(part.last_row);
  if (!logits.ok()) {
    fail(*part.slot, ApiError(500, logits.status().message()));
    return;
  }
  if (work.written == 0) prompt_read(work, *logits);
  pick(*part.slot, *logits);
}

void Scheduler::prompt_read(Work& work, std::span<const float> logits) {
  if (work.job->ask.reuse) shelf_.keep_prompt(work.place, logits);
  work.job->prompt_read = true;
}

// The next token of an answer, and whether it is the last.
void Scheduler::pick(Slot& slot, std::span<const float> logits) {
  Work& work = *slot.work;
  const Ask& ask = work.job->ask;
  if (work.written >= ask.most_tokens) return finish(slot, Finish::length);  // none was asked for
  llama_token token = LLAMA_TOKEN_NULL;
  try {
    token = work.sampler.pick(logits);
  } catch (const engine::Error& error) {
    return fail(slot, ApiError(error.kind() == engine::ErrorKind::bad_input ? 400 : 500, error.what(), "grammar"));
  }
  if (token == LLAMA_TOKEN_NULL) return finish(slot, Finish::stop);  // nothing fits the grammar
  const double time = now();
  metrics_.update([&](Counts& counts) {
    if (work.written == 0) counts.first_token.add(time - work.job->arrived);
    else counts.between_tokens.add(time - work.last_token);
    ++counts.written_tokens;
    counts.longest = std::max<uint64_t>(counts.longest, work.tokens.size());
  });
  if (work.written == 0) work.first_token = time;
  work.last_token = time;
  ++work.written;
  // A text that its grammar lets end has nothing else to say.
  const bool may_end = !ask.ignore_end || ask.sampling.grammar != nullptr;
  if (may_end && engine_.tokenizer().is_end(token)) return finish(slot, Finish::stop);
  work.tokens.push_back(token);
  if (ask.probabilities) work.trace.add(probability(token, logits, ask.most_likely, engine_.tokenizer()));
  const std::string text = work.stops.add(work.joiner.add(engine_.tokenizer().piece(token)));
  if (!text.empty()) work.job->mailbox->put({work.job->index, text, std::nullopt, work.trace.shown(text.size())});
  if (work.stops.hit()) finish(slot, Finish::stop);
  else if (work.written >= ask.most_tokens || work.tokens.size() >= options_.context) finish(slot, Finish::length);
}

// Its place goes back, and it waits for another answer to end. Alone it has what there is.
void Scheduler::lacks_memory(Slot& slot, const Status& status) {
  Work& work = *slot.work;
  if (busy_ <= 1) {
    if (work.written > 0) return finish(slot, Finish::length);
    ApiError error(429, "the cache's budget has no room for this prompt: " + status.message());
    error.retry_after = retry_after();
    return fail(slot, error);
  }
  metrics_.update([](Counts& counts) { ++counts.suspended; });
  shelf_.give_back(work.place);
  work.place = -1;
  work.fed = 0;
  if (work.job->ask.reuse) work.loading = shelf_.look(work.tokens);
  waiting_.push_front(std::move(slot.work));
  memory_short_ = true;
  --busy_;
  ++queued_;
}

}  // namespace tierkv::serve
