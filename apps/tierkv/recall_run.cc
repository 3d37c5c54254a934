// recall_run.cc — texts in, questions after them.
#include "recall_run.h"

#include <algorithm>
#include <cctype>
#include <cmath>

#include "deep_eval.h"
#include "recall_text.h"

namespace tierkv::cli {
namespace {

constexpr uint32_t kNewest = 512;  // tokens that --deep leaves as they are
constexpr uint32_t kShown = 8;     // tokens of a wrong copy that are shown behind the first difference

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }
bool is_quote(const Question& question) { return question.task == "quote"; }

Tokens join(const Tokens& question, std::span<const llama_token> answer) {
  Tokens tokens = question;
  tokens.insert(tokens.end(), answer.begin(), answer.end());
  return tokens;
}

}  // namespace

Recall::Recall(Engine& engine, const RecallRequest& request, const SettingSpec& spec, uint32_t longest, const DigitMask& mask)
    : engine_(engine),
      request_(request),
      mask_(mask),
      session_(open_setting(engine, spec, longest, std::min(request.micro_batch, longest), request.learn)) {}

std::vector<RecallAnswer> Recall::read(const Reading& reading, Progress& progress, uint64_t done, bool keep) {
  session_->reset();
  session_->feed(reading.text, Want::none, {}, 0, [&](uint32_t now) { progress.update(done + now); });
  // With --deep, what was read goes through the deep archive before it is asked about.
  if (request_.deep > 0.0 && session_->cache() != nullptr)
    (void)park_and_wake(*session_->cache(), session_->sequence(), request_.deep, kNewest);
  if (keep) kept_ = take(session_->cache()->freeze(session_->sequence()));
  return ask_all(reading);
}

std::vector<RecallAnswer> Recall::take_over(const Reading& reading, std::span<const std::byte> kept) {
  session_->bind(take(session_->cache()->unfreeze(kept)));
  return ask_all(reading);
}

std::vector<RecallAnswer> Recall::ask_all(const Reading& reading) {
  Checkpoint checkpoint(engine_, *session_, reading.text);
  std::vector<RecallAnswer> answers;
  for (const Question& question : reading.questions) {
    if (!answers.empty()) checkpoint.restore();
    answers.push_back(ask(question, checkpoint));
  }
  return answers;
}

RecallAnswer Recall::ask(const Question& question, Checkpoint& checkpoint) {
  const MemoryStats before = session_->memory();
  RecallAnswer answer = look(question, checkpoint);
  const MemoryStats after = session_->memory();
  answer.read_blocks = after.read_blocks - before.read_blocks;
  answer.skipped_blocks = after.skipped_blocks - before.skipped_blocks;
  answer.skipped_mass = after.skipped_mass;
  return answer;
}

RecallAnswer Recall::look(const Question& question, Checkpoint& checkpoint) {
  const Followed followed = follow(question);
  const uint32_t length = static_cast<uint32_t>(question.answer.size());
  RecallAnswer answer;
  answer.p_all = std::exp(followed.log_all);
  answer.p_token = std::exp(followed.log_all / length);
  const bool as_expected = followed.free == length && followed.ends;
  answer.free = as_expected ? " " + question.expected : go_on(question, followed.free, false, checkpoint);
  if (is_quote(question)) {
    answer.words = static_cast<uint32_t>(split_words(question.expected).size());
    answer.leading = static_cast<uint32_t>(leading_words(answer.free, question.expected));
    answer.correct = answer.free_correct = answer.leading == answer.words;
    answer.said = answer.free;
    return answer;
  }
  answer.p_digits = std::exp(followed.log_digits);
  answer.free = until_number_ends(answer.free);
  answer.free_correct = answers(answer.free, question.expected);
  answer.said = followed.forced == length ? " " + question.expected : go_on(question, followed.forced, true, checkpoint);
  answer.correct = answers(answer.said, question.expected);
  return answer;
}

void Recall::feed(const Question& question, std::span<const llama_token> answer, Want want, const OnLogits& on_logits) {
  if (!request_.by_token || request_.question_by_token()) {
    const Tokens all = join(question.question, answer);
    const size_t before = want == Want::all ? question.question.size() - 1 : 0;
    const uint32_t step = request_.by_token ? 1 : 0;
    session_->feed(std::span(all).first(before), Want::none, {}, step);
    session_->feed(std::span(all).subspan(before), want, on_logits, step);
    return;
  }
  session_->feed(question.question, Want::last, [&](uint32_t, std::span<const float> row) {
    if (on_logits) on_logits(0, row);
  });
  session_->feed(
      answer, want,
      [&](uint32_t index, std::span<const float> row) {
        if (on_logits) on_logits(index + 1, row);
      },
      1);
}

Recall::Followed Recall::follow(const Question& question) {
  Followed followed;
  std::string said;
  const auto on_logits = [&](uint32_t index, std::span<const float> row) {
    const llama_token best = likeliest(row);
    if (index == question.answer.size()) {
      const std::string next = engine_.tokenizer().is_end(best) ? "" : engine_.tokenizer().piece(best);
      followed.ends = next.empty() || !(is_quote(question) ? is_letter(next[0]) : is_digit(next[0]));
      return;
    }
    const llama_token right = question.answer[index];
    followed.log_all += log_probability(row, right);
    if (followed.free == index && best == right) ++followed.free;
    if (!is_quote(question)) {
      const std::vector<llama_token> allowed = mask_.allowed(said, question.expected.size());
      followed.log_digits += log_probability(row, right, allowed);
      if (followed.forced == index && !allowed.empty() && likeliest(row, allowed) == right) ++followed.forced;
    }
    said += engine_.tokenizer().piece(right);
  };
  feed(question, question.answer, Want::all, on_logits);
  return followed;
}

// The greedy answer from where it leaves the expected one: `right` tokens of that are said already.
std::string Recall::go_on(const Question& question, uint32_t right, bool forced, Checkpoint& checkpoint) {
  checkpoint.restore();
  feed(question, std::span(question.answer).first(right), Want::last);
  std::string said;
  for (uint32_t i = 0; i < right; ++i) said += engine_.tokenizer().piece(question.answer[i]);
  const std::string expected = " " + question.expected;
  uint32_t shown = 0;  // tokens behind the first difference
  for (size_t i = right; i < question.answer.size() + kAnswerTokens && session_->length() < session_->limit(); ++i) {
    const auto logits = session_->last_logits();
    llama_token token = likeliest(logits);
    if (forced) {
      const std::vector<llama_token> allowed = mask_.allowed(said, question.expected.size());
      if (allowed.empty()) break;
      token = likeliest(logits, allowed);
    } else if (engine_.tokenizer().is_end(token)) {
      break;
    }
    said += engine_.tokenizer().piece(token);
    if (is_quote(question)) {
      if (!expected.starts_with(said) && ++shown >= kShown) break;
    } else if (until_number_ends(said).size() != said.size()) {
      break;
    }
    session_->feed(std::span(&token, 1), Want::last);
  }
  return said;
}

}  // namespace tierkv::cli
