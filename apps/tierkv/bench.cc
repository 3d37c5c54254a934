// bench.cc — `tierkv bench`: end-to-end speed of cache settings beside libllama's own cache, in one process.
//
// A time alone means nothing on a busy machine, so all sessions are open at once and take turns: a slice of the prompt each, then a
// token each, with another one first every round. Ratios are against stock f16, which is always among them.
#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>

#include "commands.h"
#include "deep_eval.h"
#include "eval_common.h"
#include "eval_stats.h"
#include "number_range.h"
#include "recall_text.h"
#include "terminal.h"

namespace tierkv::cli {
namespace {

using nlohmann::json;

constexpr const char* kFooter =
    "Examples:\n"
    "  tierkv bench --kv balanced --kv compact\n"
    "  tierkv bench --depths 0,4096,8000 --tokens 128 --json bench.json\n"
    "  tierkv bench -m gemma3-270m --depths 16384 -f book.txt      a short text is repeated\n"
    "  tierkv bench --depths 4096 --deep 20 --kv deep,calibration=deep.tkc      waking an idle sequence beside reading its text "
    "again\n"
    "\n"
    "Depth is how many tokens the cache holds when decoding begins. Ratios are speeds relative to stock f16 in the same run: above "
    "1 is\n"
    "faster. \"host\" is the part of a decode step that connects libllama with the cache, attention and append excluded.";

constexpr uint32_t kNewest = 4;      // tokens that --deep leaves as they are
constexpr uint32_t kLeastNap = 512;  // a shorter text is read again as soon

struct Request {
  Options options;
  std::vector<std::string> stock = {"f16", "q8_0", "q4_0"};
  std::vector<uint32_t> depths = {0, 1024, 2048, 4096, 8192};
  uint32_t tokens = 64, warm_up = 2, micro_batch = 256;
  double deep = 0.0;  // ratio; 0: not measured
  std::string file;
  const CLI::Option* depths_option = nullptr;
};

struct Setting {
  SettingSpec spec;
  std::unique_ptr<Session> session;
  double prefill = 0.0;  // seconds so far
};

// One setting at one depth.
struct Point {
  SettingSpec spec;
  uint32_t depth = 0;
  double prefill = 0.0;       // seconds for the whole prompt
  double first_token = 0.0;   // until the first token could be chosen
  std::vector<double> steps;  // seconds of a decode step
  uint64_t resident = 0;
  ProcessMemory process;  // with every setting in it
  bool has_host = false;
  llama::HostTimes host;  // of the decode steps
  std::string path;
  std::optional<ParkTimes> nap;

  double total() const {
    double sum = 0.0;
    for (const double step : steps) sum += step;
    return sum;
  }
};

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

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
  Bench(Engine& engine, const Request& request, const Tokens& text, std::vector<Setting>& settings)
      : engine_(engine),
        request_(request),
        text_(text),
        settings_(settings),
        progress_("bench", work(request) * settings.size(), request.options.quiet) {}

  std::vector<Point> all() {
    std::vector<Point> points;
    uint32_t reached = 0;
    for (const uint32_t depth : request_.depths) {
      prefill(reached, depth);
      reached = depth;
      for (Point& point : decode(depth)) points.push_back(std::move(point));
    }
    progress_.finish();
    return points;
  }

 private:
  static uint64_t work(const Request& request) {
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

  std::vector<Point> decode(uint32_t depth) {
    std::vector<Point> points(settings_.size());
    std::vector<std::unique_ptr<Checkpoint>> back;
    std::vector<llama::HostTimes> before(settings_.size());
    for (size_t i = 0; i < settings_.size(); ++i) {
      Setting& setting = settings_[i];
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
  const Request& request_;
  const Tokens& text_;
  std::vector<Setting>& settings_;
  Progress progress_;
  size_t turn_ = 0;
  uint64_t done_ = 0;
};

const Point& reference_of(const std::vector<Point>& points, const Point& point) {
  return *std::find_if(points.begin(), points.end(), [&](const Point& p) {
    return p.depth == point.depth && p.spec == SettingSpec{"f16", true};
  });
}

json point_json(const Point& point, const Point& reference, const Engine& engine, const Request& request) {
  const double p50 = quantile(point.steps, 0.5), reference_p50 = quantile(reference.steps, 0.5);
  json value = {{"command", "bench"},
                {"model", engine.name()},
                {"threads", request.options.threads},
                {"kv", point.spec.kv},
                {"stock", point.spec.stock},
                {"depth", point.depth},
                {"prefill_tokens", point.depth},
                {"prefill_seconds", point.prefill},
                {"prefill_tokens_per_second", point.prefill > 0 ? point.depth / point.prefill : 0.0},
                {"prefill_ratio", point.prefill > 0 ? reference.prefill / point.prefill : 0.0},
                {"ttft_seconds", point.first_token},
                {"decode_tokens", point.steps.size()},
                {"decode_tokens_per_second", static_cast<double>(point.steps.size()) / point.total()},
                {"p50_ms", 1e3 * p50},
                {"p99_ms", 1e3 * quantile(point.steps, 0.99)},
                {"decode_ratio", reference_p50 / p50},
                {"resident_bytes", point.resident}};
  add_process_memory(value, point.process);
  if (point.nap) {
    value["deep"] = {{"ratio", point.nap->report.ratio},
                     {"bytes", point.nap->report.bytes},
                     {"tokens", point.nap->report.tokens},
                     {"quality", point.nap->report.quality},
                     {"park_seconds", point.nap->park_seconds},
                     {"wake_seconds", point.nap->wake_seconds},
                     {"wake_ratio", point.prefill / point.nap->wake_seconds}};
  }
  if (point.has_host && point.host.decode > 0) {
    value["path"] = point.path;
    value["host_share"] = point.host.own / point.host.decode;
    value["attention_share"] = point.host.attention / point.host.decode;
    value["append_share"] = point.host.append / point.host.decode;
  }
  return value;
}

void print_naps(const std::vector<Point>& points) {
  Table table({"depth", "<setting", "prefill", "parking", "waking", "times faster", "packed", "ratio"});
  for (const Point& point : points) {
    if (!point.nap) continue;
    table.add({human_count(point.depth), point.spec.label(), human_seconds(point.prefill), human_seconds(point.nap->park_seconds),
               human_seconds(point.nap->wake_seconds), format("%.1f", point.prefill / point.nap->wake_seconds),
               human_bytes(static_cast<double>(point.nap->report.bytes)), format("%.1fx", point.nap->report.ratio)});
  }
  if (std::any_of(points.begin(), points.end(), [](const Point& p) { return p.nap.has_value(); })) {
    std::printf("\n%s\n%s\n", table.str().c_str(),
                dim("Waking a sequence from the deep archive beside reading its text again.").c_str());
  }
}

void print(const std::vector<Point>& points, const json& values, const Engine& engine, const Request& request) {
  std::printf("%s, %u threads, %u tokens decoded at each depth\n\n", bold(engine.name()).c_str(), request.options.threads,
              request.tokens);
  Table table(
      {"depth", "<setting", "prefill t/s", "ratio", "first token", "decode t/s", "ratio", "p50", "p99", "host", "resident"});
  for (size_t i = 0; i < points.size(); ++i) {
    const json& v = values[i];
    const bool prefilled = points[i].depth > 0;
    table.add({i == 0 || points[i].depth != points[i - 1].depth ? human_count(points[i].depth) : "", points[i].spec.label(),
               prefilled ? format("%.0f", v["prefill_tokens_per_second"].get<double>()) : dim("-"),
               prefilled ? format("%.2f", v["prefill_ratio"].get<double>()) : dim("-"), human_seconds(points[i].first_token),
               format("%.1f", v["decode_tokens_per_second"].get<double>()), format("%.2f", v["decode_ratio"].get<double>()),
               format("%.1f ms", v["p50_ms"].get<double>()), format("%.1f ms", v["p99_ms"].get<double>()),
               v.contains("host_share") ? format("%.1f%%", 100.0 * v["host_share"].get<double>()) : dim("-"),
               human_bytes(static_cast<double>(points[i].resident))});
  }
  std::printf("%s\n%s\n", table.str().c_str(),
              dim("Ratios are speeds relative to stock f16 (of the medians, for decoding); above 1 is faster.").c_str());
  print_naps(points);
}

// A depth that leaves no room for decoding moves up to where there is.
void settle_depths(Request& request, const Engine& engine) {
  const uint32_t reserve = request.tokens + request.warm_up;
  if (reserve >= engine.context())
    bad_input(format("--tokens %u does not fit the model's context of %u", request.tokens, engine.context()));
  for (uint32_t& depth : request.depths) {
    if (depth > engine.context()) engine.check_context(depth);
    depth = std::min(depth, engine.context() - reserve);
  }
  std::sort(request.depths.begin(), request.depths.end());
  request.depths.erase(std::unique(request.depths.begin(), request.depths.end()), request.depths.end());
}

int run(Request& request) {
  Options& options = request.options;
  settle(options);
  if (options.kv.empty()) options.kv = {"fp16", "balanced"};
  const std::vector<SettingSpec> specs = settle_settings({{"f16", true}}, options.kv, request.stock);
  std::string source = request.file.empty() ? "" : evaluation_text(request.file);
  Engine engine(options);
  (void)engine.shape();
  if (request.depths_option->count() == 0) std::erase_if(request.depths, [&](uint32_t depth) { return depth > engine.context(); });
  settle_depths(request, engine);

  const size_t needed = request.depths.back() + request.tokens + request.warm_up;
  if (source.empty()) source = generate_prose(needed, options.seed);
  const Tokens once = engine.tokenize(source, false);
  if (once.empty()) bad_input("the text has no tokens");
  Tokens text;
  while (text.size() < needed) text.insert(text.end(), once.begin(), once.end());
  text.resize(needed);

  std::vector<Setting> settings(specs.size());
  const uint32_t ctx = static_cast<uint32_t>(needed);
  request.micro_batch = std::min(request.micro_batch, ctx);
  for (size_t i = 0; i < specs.size(); ++i) {
    settings[i].spec = specs[i];
    settings[i].session = open_setting(engine, specs[i], ctx, request.micro_batch);
  }
  const std::vector<Point> points = Bench(engine, request, text, settings).all();
  json values = json::array();
  for (const Point& point : points) values.push_back(point_json(point, reference_of(points, point), engine, request));
  if (options.text()) print(points, values, engine, request);
  emit_json(options, values);
  return 0;
}

}  // namespace

void add_bench(CLI::App& app, Action& action) {
  const auto [command, request] = add_command<Request>(
      app, action, "bench", "Prefill and decode speed beside libllama's own cache, at several depths", kFooter, run);
  request->depths_option =
      command->add_option("--depths", request->depths, "tokens in the cache when decoding begins (default: 0,1024,2048,4096,8192)")
          ->delimiter(',')
          ->type_name("N,...");
  command->add_option("-n,--tokens", request->tokens, "tokens decoded at each depth")
      ->check(CLI::Range(1u, 1u << 20))
      ->capture_default_str();
  command->add_option("-b,--batch", request->micro_batch, "tokens of a prefill step")
      ->check(CLI::Range(1u, 4096u))
      ->capture_default_str();
  command
      ->add_option("--deep", request->deep,
                   "also park and wake a copy of each sequence at this ratio (needs a calibration with the deep archive's tables)")
      ->check(number_range(2.0, 1000.0))
      ->type_name("RATIO");
  command->add_option("-f,--file", request->file, "a text, repeated if it is short (default: generated prose)")->type_name("FILE");
  add_stock_option(*command, request->stock, "f16,q8_0,q4_0; f16 is always run");
  add_seed_option(*command, request->options);
  add_model_option(*command, request->options);
  add_kv_option(*command, request->options, "fp16 and balanced");
  add_output_options(*command, request->options);
}

}  // namespace tierkv::cli
