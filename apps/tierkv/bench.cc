// bench.cc — `tierkv bench`: end-to-end speed of cache settings beside libllama's own cache, in one process (bench_run.h measures).
#include <algorithm>
#include <nlohmann/json.hpp>

#include "bench_run.h"
#include "commands.h"
#include "eval_stats.h"
#include "load_engine.h"
#include "number_range.h"
#include "recall_kinds.h"
#include "run_record.h"
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

const BenchPoint& reference_of(const std::vector<BenchPoint>& points, const BenchPoint& point) {
  return *std::find_if(points.begin(), points.end(), [&](const BenchPoint& p) {
    return p.depth == point.depth && p.spec == SettingSpec{"f16", true};
  });
}

json point_json(const BenchPoint& point, const BenchPoint& reference, const Engine& engine, const BenchRequest& request) {
  const double p50 = quantile(point.steps, 0.5), reference_p50 = quantile(reference.steps, 0.5);
  json value = {{"command", "bench"},
                {"model", engine.name()},
                {"title", engine.title()},
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

void print_naps(const std::vector<BenchPoint>& points) {
  Table table({"depth", "<setting", "prefill", "parking", "waking", "times faster", "packed", "ratio"});
  for (const BenchPoint& point : points) {
    if (!point.nap) continue;
    table.add({human_count(point.depth), point.spec.label(), human_seconds(point.prefill), human_seconds(point.nap->park_seconds),
               human_seconds(point.nap->wake_seconds), format("%.1f", point.prefill / point.nap->wake_seconds),
               human_bytes(static_cast<double>(point.nap->report.bytes)), format("%.1fx", point.nap->report.ratio)});
  }
  if (std::any_of(points.begin(), points.end(), [](const BenchPoint& p) { return p.nap.has_value(); })) {
    std::printf("\n%s\n%s\n", table.str().c_str(),
                dim("Waking a sequence from the deep archive beside reading its text again.").c_str());
  }
}

void print(const std::vector<BenchPoint>& points, const json& values, const Engine& engine, const BenchRequest& request) {
  std::printf("%s, %u threads, %u tokens decoded at each depth\n\n", bold(engine.title()).c_str(), request.options.threads,
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
void settle_depths(BenchRequest& request, const Engine& engine) {
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

int run(BenchRequest& request) {
  Options& options = request.options;
  settle(options);
  if (options.kv.empty()) options.kv = {"fp16", "balanced"};
  const std::vector<SettingSpec> specs = settle_settings({{"f16", true}}, options.kv, request.stock);
  std::string source = request.file.empty() ? "" : evaluation_text(request.file);
  Engine engine = load_engine(options);
  (void)engine.shape();
  if (request.depths_option->count() == 0) std::erase_if(request.depths, [&](uint32_t depth) { return depth > engine.context(); });
  settle_depths(request, engine);

  const size_t needed = request.depths.back() + request.tokens + request.warm_up;
  if (source.empty()) source = generate_text("prose", needed, options.seed);
  const Tokens once = engine.tokenizer().encode(source, false);
  if (once.empty()) bad_input("the text has no tokens");
  Tokens text;
  while (text.size() < needed) text.insert(text.end(), once.begin(), once.end());
  text.resize(needed);

  std::vector<BenchSetting> settings(specs.size());
  const uint32_t ctx = static_cast<uint32_t>(needed);
  request.micro_batch = std::min(request.micro_batch, ctx);
  for (size_t i = 0; i < specs.size(); ++i) {
    settings[i].spec = specs[i];
    settings[i].session = open_setting(engine, specs[i], ctx, request.micro_batch);
  }
  const std::vector<BenchPoint> points = run_bench(engine, request, text, settings);
  json values = json::array();
  for (const BenchPoint& point : points) values.push_back(point_json(point, reference_of(points, point), engine, request));
  if (options.text()) print(points, values, engine, request);
  emit_results(options, values);
  return 0;
}

}  // namespace

void add_bench(CLI::App& app, Action& action) {
  const auto [command, request] = add_command<BenchRequest>(
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
