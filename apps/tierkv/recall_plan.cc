// recall_plan.cc — stretches of text, and needles in them.
#include "recall_plan.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "files.h"
#include "recall_kinds.h"
#include "recall_text.h"

namespace tierkv::cli {
namespace {

constexpr size_t kAway = 500;          // tokens between a sentence and the question about it
constexpr size_t kBytesOfAToken = 16;  // enough text to cut a stretch from

void append(Tokens& to, const Tokens& more) { to.insert(to.end(), more.begin(), more.end()); }

// A needle, where it goes, and whether it is asked for.
struct Planted {
  std::string task;
  double depth = 0.0;
  Needle needle;
  bool asked = true;
};

struct Stretch {
  uint64_t from = 0;
  Tokens tokens;
  std::vector<size_t> ends;  // where sentences or lines end
};

// The end of a sentence nearest to a share of the stretch; without one near by, the middle of one.
size_t place(const Stretch& stretch, double share) {
  const size_t wanted = static_cast<size_t>(std::lround(share * static_cast<double>(stretch.tokens.size())));
  size_t best = wanted, distance = 64;
  for (const size_t end : stretch.ends) {
    const size_t off = end > wanted ? end - wanted : wanted - end;
    if (off < distance) best = end, distance = off;
  }
  return best;
}

// From the line or sentence after `from` on, around the end and on from the beginning as often as it takes.
std::string cut(const std::string& content, size_t& from, size_t bytes) {
  const size_t next = content.find_first_of(".!?\n", from);
  from = next == std::string::npos || next + 1 >= content.size() ? 0 : next + 1;
  std::string text = content.substr(from, bytes);
  while (text.size() < bytes) text += "\n" + content.substr(0, bytes - text.size());
  return text;
}

Stretch make_stretch(const TextSource& source, const Tokenizer& tokenizer, size_t length, std::mt19937& random) {
  Stretch stretch;
  std::string text;
  if (source.content.empty()) {
    stretch.from = random();
    text = generate_text(source.kind, length + 64, static_cast<uint32_t>(stretch.from));  // a word is a token or more
  } else {
    size_t from = random() % source.content.size();
    text = cut(source.content, from, kBytesOfAToken * length);
    stretch.from = from;
  }
  const Tokens once = tokenizer.encode(text, false);
  if (once.empty()) bad_input(source.kind + " has no tokens");
  while (stretch.tokens.size() < length) append(stretch.tokens, once);
  stretch.tokens.resize(length);
  for (size_t i = 0; i < length; ++i) {
    if (tokenizer.piece(stretch.tokens[i]).find_first_of(".!?\n") != std::string::npos) stretch.ends.push_back(i + 1);
  }
  return stretch;
}

Question make_question(const Planted& planted, const Tokenizer& tokenizer) {
  const Needle& needle = planted.needle;
  Question question{planted.task, planted.depth, tokenizer.encode(needle.question, false), {}, needle.answer, 0};
  const Tokens all = tokenizer.encode(needle.question + " " + needle.answer, false);
  const size_t length = question.question.size();
  if (all.size() > length && std::equal(question.question.begin(), question.question.end(), all.begin())) {
    question.answer.assign(all.begin() + static_cast<ptrdiff_t>(length), all.end());
  } else {
    question.answer = tokenizer.encode(" " + needle.answer, false);
  }
  return question;
}

class Planner {
 public:
  Planner(const RecallRequest& request, const Tokenizer& tokenizer) : request_(request), tokenizer_(tokenizer) {}

  void plan(const TextSource& source, uint32_t ctx, uint32_t trial, std::vector<Reading>& readings) const {
    const size_t depths = request_.depths.size();
    for (size_t i = 0; i < depths && (request_.has("passkey") || request_.has("quote")); ++i) {
      std::mt19937 random = seeded(ctx, trial, i);
      std::vector<Planted> planted;
      if (request_.has("passkey")) planted.push_back({"passkey", request_.depths[i], make_passkey(random)});
      if (request_.has("quote")) {
        // Not where the number is, if there is another place.
        size_t at = i;
        for (Needle& needle : make_quotes(request_.quotes, random))
          planted.push_back({"quote", request_.depths[(at++ + depths / 2) % depths], std::move(needle)});
      }
      readings.push_back(read(source, ctx, trial, introduction(request_.has("passkey"), request_.has("quote")), planted, random));
    }
    if (!request_.has("lines")) return;
    std::mt19937 random = seeded(ctx, trial, depths);
    readings.push_back(read(source, ctx, trial, kLinesIntroduction, lines(random), random));
  }

 private:
  std::mt19937 seeded(uint32_t ctx, uint32_t trial, size_t number) const {
    std::seed_seq seed = {request_.options.seed, ctx, trial, static_cast<uint32_t>(number)};
    return std::mt19937(seed);
  }

  // Those that are asked for, at their depths, and others spread evenly between them.
  std::vector<Planted> lines(std::mt19937& random) const {
    std::vector<double> depths = request_.depths;
    const size_t others = request_.keys > depths.size() ? request_.keys - depths.size() : 0;
    for (size_t i = 0; i < others; ++i) depths.push_back(100.0 * (static_cast<double>(i) + 0.5) / static_cast<double>(others));
    std::vector<Planted> planted;
    for (Needle& needle : make_lines(depths.size(), random)) {
      const size_t i = planted.size();
      planted.push_back({"lines", depths[i], std::move(needle), i < request_.depths.size()});
    }
    return planted;
  }

  Reading read(const TextSource& source, uint32_t ctx, uint32_t trial, const std::string& before,
               const std::vector<Planted>& planted, std::mt19937& random) const {
    Reading reading{source.kind, ctx, trial, 0, {}, {}};
    if (const llama_token first = tokenizer_.first_token(); first != LLAMA_TOKEN_NULL) reading.text.push_back(first);
    append(reading.text, tokenizer_.encode(before, false));
    size_t fixed = reading.text.size() + kAnswerTokens + 8, question = 0;
    std::vector<Tokens> hidden;
    std::vector<Question> questions;
    for (const Planted& one : planted) {
      hidden.push_back(tokenizer_.encode(one.needle.text, false));
      fixed += hidden.back().size();
      questions.push_back(make_question(one, tokenizer_));
      question = std::max(question, questions.back().question.size() + questions.back().answer.size());
    }
    const bool far = std::any_of(planted.begin(), planted.end(), [](const Planted& one) { return one.task == "quote"; });
    fixed += question;
    if (fixed + 16 + (far ? kAway : 0) > ctx)
      bad_input(format("a context of %u tokens has no room for a haystack: the rest alone takes %zu%s", ctx, fixed,
                       far ? ", and 500 must stand behind a sentence that is to be quoted" : ""));
    const Stretch stretch = make_stretch(source, tokenizer_, ctx - fixed, random);
    reading.stretch = stretch.from;

    std::vector<std::pair<size_t, size_t>> places;  // where, which
    for (size_t i = 0; i < planted.size(); ++i) {
      size_t at = place(stretch, planted[i].depth / 100.0);
      if (planted[i].task == "quote") at = std::min(at, stretch.tokens.size() - kAway);
      places.emplace_back(at, i);
    }
    std::stable_sort(places.begin(), places.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    size_t read = 0;
    const auto pass = [&](size_t until) {
      reading.text.insert(reading.text.end(), stretch.tokens.begin() + static_cast<ptrdiff_t>(read),
                          stretch.tokens.begin() + static_cast<ptrdiff_t>(until));
      read = until;
    };
    std::vector<size_t> ends(planted.size());
    for (const auto& [at, i] : places) {
      pass(at);
      append(reading.text, hidden[i]);
      ends[i] = reading.text.size();
    }
    pass(stretch.tokens.size());
    for (size_t i = 0; i < planted.size(); ++i) {
      if (!planted[i].asked) continue;
      questions[i].away = static_cast<uint32_t>(reading.text.size() - ends[i]);
      reading.questions.push_back(std::move(questions[i]));
    }
    return reading;
  }

  const RecallRequest& request_;
  const Tokenizer& tokenizer_;
};

}  // namespace

bool RecallRequest::has(const char* task) const { return std::find(tasks.begin(), tasks.end(), task) != tasks.end(); }

std::vector<TextSource> text_sources(const RecallRequest& request) {
  std::vector<TextSource> sources;
  for (const std::string& kind : request.kinds) sources.push_back({kind, ""});
  for (const std::string& path : request.haystacks) {
    sources.push_back({path, read_file(path)});
    if (sources.back().content.find_first_not_of(" \t\r\n") == std::string::npos) bad_input(path + " has no text");
  }
  return sources;
}

std::vector<Reading> plan_readings(const RecallRequest& request, const std::vector<TextSource>& sources,
                                   const Tokenizer& tokenizer) {
  std::vector<Reading> readings;
  const Planner planner(request, tokenizer);
  for (const uint32_t ctx : request.ctx) {
    for (const TextSource& source : sources) {
      for (uint32_t trial = 0; trial < request.trials; ++trial) planner.plan(source, ctx, trial, readings);
    }
  }
  return readings;
}

}  // namespace tierkv::cli
