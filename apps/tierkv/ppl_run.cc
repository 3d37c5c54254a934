// ppl_run.cc — windows, and all settings through them in lockstep.
#include "ppl_run.h"

#include <algorithm>
#include <cmath>

#include "engine/clock.h"
#include "terminal.h"

namespace tierkv::cli {

ScoredWindows make_windows(const PplRequest& request, const Engine& engine, const Tokens& source, uint32_t ctx) {
  ScoredWindows text;
  text.skip = request.skip >= 0 ? static_cast<uint32_t>(std::min<int64_t>(request.skip, ctx)) : std::min(512u, ctx / 4);
  text.skip = std::max(text.skip, 1u);  // nothing predicts the first token
  if (text.skip >= ctx) bad_input(format("--skip %u leaves nothing to score in windows of %u tokens", text.skip, ctx));
  const llama_token first = engine.tokenizer().first_token();
  for (size_t at = request.from; at < source.size();) {
    Tokens window;
    if (first != LLAMA_TOKEN_NULL) window.push_back(first);
    const uint64_t length = request.tokens == 0 ? ctx : std::min<uint64_t>(ctx, request.tokens - text.fed);
    if (length <= text.skip) break;
    const size_t count = std::min<size_t>(length - window.size(), source.size() - at);
    window.insert(window.end(), source.begin() + static_cast<ptrdiff_t>(at), source.begin() + static_cast<ptrdiff_t>(at + count));
    at += count;
    if (window.size() <= text.skip) break;
    text.fed += window.size();
    text.scored += window.size() - text.skip;
    text.windows.push_back(std::move(window));
  }
  if (text.scored == 0) {
    bad_input(
        format("the text has %zu tokens, and the first %u of a window are not scored: nothing is left (a smaller --skip helps)",
               source.size(), text.skip));
  }
  text.block = static_cast<uint32_t>(std::clamp<uint64_t>(text.scored / 16, 16, 256));
  return text;
}

namespace {

class Run {
 public:
  Run(const ScoredWindows& text, const PplRequest& request, std::vector<PplSetting>& settings)
      : text_(text),
        chunk_(request.chunk),
        settings_(settings),
        rows_(request.chunk),
        progress_("ppl", text.fed * settings.size(), request.options.quiet) {}

  void all() {
    for (size_t w = 0; w < text_.windows.size(); ++w) {
      for (PplSetting& setting : settings_) {
        setting.session->reset();
        if (setting.deep) setting.deep->reset();
      }
      window(w);
      if (w != 0) continue;  // no window is longer than the first
      for (PplSetting& setting : settings_) {
        setting.memory = setting.session->memory();
        setting.resident = setting.session->kv_bytes();
        setting.process = process_memory();
      }
    }
    progress_.finish();
  }

 private:
  void window(size_t w) {
    const Tokens& tokens = text_.windows[w];
    for (size_t at = 0; at < tokens.size(); at += chunk_) {
      const size_t count = std::min<size_t>(chunk_, tokens.size() - at);
      for (size_t s = 0; s < settings_.size(); ++s) {
        progress_.label(format("window %zu of %zu, %s", w + 1, text_.windows.size(), settings_[s].label().c_str()));
        feed(settings_[s], s == 0, w, at, count);
        done_ += count;
        progress_.update(done_);
      }
    }
  }

  void feed(PplSetting& setting, bool reference, size_t w, size_t at, size_t count) {
    const Tokens& tokens = text_.windows[w];
    // Logits of a token predict the next one.
    const bool wanted = at + count >= text_.skip && at + 1 < tokens.size();
    double scoring = 0.0;
    auto on_logits = [&](uint32_t i, std::span<const float> logits) {
      const size_t next = at + i + 1;
      if (next < text_.skip || next >= tokens.size()) return;
      const double start = now();
      score(setting, reference, w, i, next, static_cast<uint32_t>(tokens[next]), logits);
      scoring += now() - start;
    };
    const double start = now();
    setting.session->feed(std::span(tokens).subspan(at, count), wanted ? Want::all : Want::none, on_logits, chunk_);
    setting.seconds += now() - start - scoring;
    if (setting.deep) setting.deep->settle(*setting.session);
  }

  void score(PplSetting& setting, bool reference, size_t w, uint32_t i, size_t position, uint32_t token,
             std::span<const float> logits) {
    ReferenceRow& row = rows_[i];
    if (reference) row.set(logits);
    const RowSummary summary = reference ? row.summary() : summarise(logits);
    const double kl = reference ? 0.0 : row.divergence(logits, summary);
    if (!std::isfinite(summary.log_sum_exp) || !std::isfinite(kl)) {
      fail(format("%s gave logits that are not numbers at position %zu of window %zu", setting.label().c_str(), position, w + 1));
    }
    const size_t blocks = (text_.windows.front().size() - text_.skip + text_.block - 1) / text_.block;
    const size_t block = w * blocks + (position - text_.skip) / text_.block;
    setting.scores.add(block, summary.log_sum_exp - static_cast<double>(logits[token]), row.nll(token), kl,
                       summary.top == row.summary().top);
  }

  const ScoredWindows& text_;
  uint32_t chunk_;
  std::vector<PplSetting>& settings_;
  std::vector<ReferenceRow> rows_;
  Progress progress_;
  uint64_t done_ = 0;
};

}  // namespace

void score(const ScoredWindows& text, const PplRequest& request, std::vector<PplSetting>& settings) {
  Run(text, request, settings).all();
}

}  // namespace tierkv::cli
