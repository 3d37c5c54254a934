// bench_run.cc — sessions that take turns.
#include "bench_run.h"

#include <algorithm>

#include "engine/clock.h"
#include "terminal.h"

namespace tierkv::cli {
namespace {

constexpr uint32_t kNewest = 4;      // tokens that --deep leaves as they are
constexpr uint32_t kLeastNap = 512;  // a shorter text is read again as soon

double feed_timed(Session& session, std::span<const llama_token> tokens, Want want) {
  const double start = now();
  session.feed(tokens, want);
  return now() - start;
}

llama::HostTimes difference(const llama::HostTimes& after, const llama::HostTimes& before) {
  return {after.decode - before.decode, after.append - before.append, after.attention - before.attention, after.own - before.own,
          after.calls - before.calls};
}

class Bench {
 public:
  Bench(Engine& engine, const BenchRequest& request, const Tokens& text, std::vector<BenchSetting>& settings)
      : engine_(engine),
        request_(request),
        text_(text),
        settings_(settings),
        progress_("bench", work(request) * settings.size(), request.options.quiet) {}

  std::vector<BenchPoint> all() {
    std::vector<BenchPoint> points;
    uint32_t reached = 0;
    for (const uint32_t depth : request_.depths) {
      prefill(reached, depth);
      reached = depth;
      for (BenchPoint& point : decode(depth)) points.push_back(std::move(point));
    }
    progress_.finish();
    return points;
  }

 private:
  static uint64_t work(const BenchRequest& request) {
    return request.depths.back() + request.depths.size() * (request.tokens + request.warm_up);
  }

  // Calls `step` for every setting, another one first each time.
  template <class Step>
  void round(Step step) {
    for (size_t i = 0; i < settings_.size(); ++i) {
      const size_t which = (i + turn_) % settings_.size();
      progress_.label(settings_[which].spec.label());
      done_ += step(which);
      progress_.update(done_);
    }
    ++turn_;
  }

  void prefill(uint32_t from, uint32_t to) {
    for (uint32_t at = from; at < to;) {
      const uint32_t count = std::min(request_.micro_batch, to - at);
      const std::span<const llama_token> slice = std::span(text_).subspan(at, count);
      round([&](size_t i) {
        settings_[i].prefill += feed_timed(*settings_[i].session, slice, at + count == to ? Want::last : Want::none);
        return count;
      });
      at += count;
    }
  }

  std::vector<BenchPoint> decode(uint32_t depth) {
    std::vector<BenchPoint> points(settings_.size());
    std::vector<std::unique_ptr<Checkpoint>> back;
    std::vector<llama::HostTimes> before(settings_.size());
    for (size_t i = 0; i < settings_.size(); ++i) {
      BenchSetting& setting = settings_[i];
      points[i].spec = setting.spec;
      points[i].depth = depth;
      points[i].prefill = setting.prefill;
      points[i].first_token = setting.prefill;
      points[i].resident = setting.session->kv_bytes();
      points[i].process = process_memory();
      back.push_back(std::make_unique<Checkpoint>(engine_, *setting.session, Tokens(text_.begin(), text_.begin() + depth)));
    }
    // The fork behind a checkpoint makes the first step copy what both would write to: not a part of decoding.
    for (uint32_t step = 0; step < request_.warm_up + request_.tokens; ++step) {
      const bool counts = step >= request_.warm_up;
      round([&](size_t i) {
        Session& session = *settings_[i].session;
        if (step == request_.warm_up && session.host() != nullptr) before[i] = session.host()->times();
        const double seconds = feed_timed(session, std::span(text_).subspan(depth + step, 1), Want::last);
        if (depth == 0 && step == 0) points[i].first_token = seconds;
        if (counts) points[i].steps.push_back(seconds);
        return 1u;
      });
    }
    for (size_t i = 0; i < settings_.size(); ++i) {
      if (llama::Host* host = settings_[i].session->host()) {
        points[i].has_host = true;
        points[i].host = difference(host->times(), before[i]);
        points[i].path = host->path() == llama::Path::patch ? "patch" : "overwrite";
      }
      back[i]->restore_last();
      if (request_.deep > 0.0 && depth >= kLeastNap && !settings_[i].spec.stock) points[i].nap = nap(*settings_[i].session);
    }
    return points;
  }

  // Of a copy, so that what follows decodes what was measured so far.
  ParkTimes nap(Session& session) const {
    AdaptiveKVCache& cache = *session.cache();
    const SeqId copy = take(cache.fork(session.sequence()), "--deep");
    const ParkTimes times = park_and_wake(cache, copy, request_.deep, kNewest);
    check(cache.remove(copy), "--deep");
    return times;
  }

  Engine& engine_;
  const BenchRequest& request_;
  const Tokens& text_;
  std::vector<BenchSetting>& settings_;
  Progress progress_;
  size_t turn_ = 0;
  uint64_t done_ = 0;
};

}  // namespace

std::vector<BenchPoint> run_bench(Engine& engine, const BenchRequest& request, const Tokens& text,
                                  std::vector<BenchSetting>& settings) {
  return Bench(engine, request, text, settings).all();
}

}  // namespace tierkv::cli
