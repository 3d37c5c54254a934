// recall_run.cc — needles into haystacks, questions after them.
#include "recall_run.h"

#include <algorithm>
#include <cmath>

#include "deep_eval.h"
#include "files.h"

namespace tierkv::cli {
namespace {

constexpr uint32_t kAnswerTokens = 12;
constexpr uint32_t kNewest = 512;  // tokens that --deep leaves as they are

void append(Tokens& to, const Tokens& more) { to.insert(to.end(), more.begin(), more.end()); }

size_t room(uint32_t ctx, size_t fixed) {
  if (fixed + 16 > ctx)
    bad_input(format("a context of %u tokens has no room for a haystack: the rest alone takes %zu", ctx, fixed));
  return ctx - fixed;
}

}  // namespace

Haystack make_haystack(const RecallRequest& request, const Engine& engine, size_t length) {
  Haystack haystack;
  std::string text;
  if (request.haystack.empty()) {
    text = generate_prose(length + 64, request.options.seed);  // a word is a token or more
  } else {
    text = read_file(request.haystack);
    if (text.find_first_not_of(" \t\r\n") == std::string::npos) bad_input(request.haystack + " has no text");
    if (text.size() > 16 * length) text.resize(16 * length);
  }
  const Tokens once = engine.tokenizer().encode(text, false);
  if (once.empty()) bad_input("the haystack has no tokens");
  while (haystack.tokens.size() < length) haystack.tokens.insert(haystack.tokens.end(), once.begin(), once.end());
  haystack.tokens.resize(length);
  for (size_t i = 0; i < length; ++i) {
    const std::string piece = engine.tokenizer().piece(haystack.tokens[i]);
    if (piece.find_first_of(".!?\n") != std::string::npos) haystack.ends.push_back(i + 1);
  }
  return haystack;
}

Recall::Recall(Engine& engine, const RecallRequest& request, const SettingSpec& spec, uint32_t longest, Progress& progress)
    : engine_(engine),
      request_(request),
      spec_(spec),
      progress_(progress),
      session_(open_setting(engine, spec, longest, std::min(request.micro_batch, longest), request.learn)) {}

std::vector<RecallCell> Recall::passkey(uint32_t ctx, const Haystack& haystack) {
  std::mt19937 random(request_.options.seed + ctx);
  std::vector<RecallCell> cells;
  Tokens prefix = begin(kPasskeyIntroduction);
  const Needle sample = make_passkey(random);
  const size_t fixed = prefix.size() + tokens(sample.text).size() + tokens(sample.question).size() + kAnswerTokens + 8;
  const size_t length = room(ctx, fixed);
  session_->reset();
  feed(prefix, Want::none);
  size_t read = 0;
  for (const double depth : request_.depths) {
    RecallCell cell = empty_cell("passkey", ctx, depth);
    const size_t place = std::max(read, haystack.place(length, depth / 100.0));
    const Tokens before(haystack.tokens.begin() + static_cast<ptrdiff_t>(read),
                        haystack.tokens.begin() + static_cast<ptrdiff_t>(place));
    const Tokens after(haystack.tokens.begin() + static_cast<ptrdiff_t>(place),
                       haystack.tokens.begin() + static_cast<ptrdiff_t>(length));
    feed(before, Want::none);
    prefix.insert(prefix.end(), before.begin(), before.end());
    read = place;
    Checkpoint checkpoint(engine_, *session_, prefix);
    for (uint32_t trial = 0; trial < request_.trials; ++trial) {
      const Needle needle = make_passkey(random);
      Tokens rest = tokens(needle.text);
      rest.insert(rest.end(), after.begin(), after.end());
      if (trial != 0) checkpoint.restore();
      feed(rest, Want::none);
      nap();
      feed(tokens(needle.question), Want::last);
      judge(cell, needle);
    }
    checkpoint.restore_last();
    cells.push_back(std::move(cell));
  }
  return cells;
}

std::vector<RecallCell> Recall::lines(uint32_t ctx, const Haystack& haystack) {
  std::mt19937 random(request_.options.seed + ctx + 1);
  std::vector<RecallCell> cells;
  for (const double depth : request_.depths) cells.push_back(empty_cell("lines", ctx, depth));
  for (uint32_t trial = 0; trial < request_.trials; ++trial) lines_trial(ctx, haystack, random, cells);
  return cells;
}

uint64_t Recall::work(const RecallRequest& request, const std::string& task, uint32_t ctx) {
  if (task == "lines") return static_cast<uint64_t>(ctx) * request.trials;
  double total = request.depths.back() / 100.0;
  for (const double depth : request.depths) total += request.trials * (1.0 - depth / 100.0);
  return static_cast<uint64_t>(total * ctx);
}

void Recall::lines_trial(uint32_t ctx, const Haystack& haystack, std::mt19937& random, std::vector<RecallCell>& cells) {
  // The needles that are asked for, at their depths, and others spread evenly between them.
  std::vector<double> depths = request_.depths;
  const size_t others = request_.keys > depths.size() ? request_.keys - depths.size() : 0;
  for (size_t i = 0; i < others; ++i) depths.push_back(100.0 * (static_cast<double>(i) + 0.5) / static_cast<double>(others));
  const std::vector<Needle> needles = make_lines(depths.size(), random);
  std::vector<size_t> order(depths.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return depths[a] < depths[b]; });

  Tokens text = begin(kLinesIntroduction);
  size_t fixed = text.size() + kAnswerTokens + 8, question = 0;
  for (const Needle& needle : needles) {
    fixed += tokens(needle.text).size();
    question = std::max(question, tokens(needle.question).size());
  }
  const size_t length = room(ctx, fixed + question);
  size_t read = 0;
  for (const size_t i : order) {
    const size_t place = std::max(read, haystack.place(length, depths[i] / 100.0));
    text.insert(text.end(), haystack.tokens.begin() + static_cast<ptrdiff_t>(read),
                haystack.tokens.begin() + static_cast<ptrdiff_t>(place));
    append(text, tokens(needles[i].text));
    read = place;
  }
  text.insert(text.end(), haystack.tokens.begin() + static_cast<ptrdiff_t>(read),
              haystack.tokens.begin() + static_cast<ptrdiff_t>(length));
  session_->reset();
  feed(text, Want::none);
  nap();
  Checkpoint checkpoint(engine_, *session_, text);
  for (size_t i = 0; i < cells.size(); ++i) {
    if (i != 0) checkpoint.restore();
    session_->feed(tokens(needles[i].question), Want::last);
    judge(cells[i], needles[i]);
  }
}

Tokens Recall::begin(const char* introduction) const {
  Tokens result;
  if (const llama_token first = engine_.tokenizer().first_token(); first != LLAMA_TOKEN_NULL) result.push_back(first);
  append(result, tokens(introduction));
  return result;
}

void Recall::feed(const Tokens& tokens, Want want) {
  const uint64_t before = done_;
  session_->feed(tokens, want, {}, 0, [&](uint32_t done) { progress_.update(base_ + before + done); });
  done_ += tokens.size();
}

// With --deep, what was read goes through the deep archive before it is asked about.
void Recall::nap() {
  if (request_.deep > 0.0 && session_->cache() != nullptr)
    (void)park_and_wake(*session_->cache(), session_->sequence(), request_.deep, kNewest);
}

void Recall::judge(RecallCell& cell, const Needle& needle) {
  std::string said;
  for (uint32_t i = 0; i < kAnswerTokens && session_->length() < session_->limit(); ++i) {
    const auto logits = session_->last_logits();
    const llama_token token = static_cast<llama_token>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    if (engine_.tokenizer().is_end(token)) break;
    said += engine_.tokenizer().piece(token);
    const size_t digit = said.find_first_of("0123456789");
    if (digit != std::string::npos && said.find_first_not_of("0123456789", digit) != std::string::npos) break;
    session_->feed(std::span(&token, 1), Want::last);
  }
  ++cell.total;
  if (answers(said, needle.answer)) {
    ++cell.correct;
  } else {
    cell.wrong.push_back(said + " for " + needle.answer);
  }
}

}  // namespace tierkv::cli
