// plan.cc — `tierkv plan`: what a cache takes for a model, a context and a batch, before anything is run.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "commands.h"
#include "engine/gguf_file.h"
#include "load_engine.h"
#include "plan_calibration.h"
#include "plan_document.h"
#include "plan_measure.h"
#include "rope_options.h"
#include "terminal.h"

namespace tierkv::cli {
namespace {

using nlohmann::json;

constexpr const char* kFooter =
    "Examples:\n"
    "  tierkv plan -m model.gguf --ctx 32768 --batch 8\n"
    "  tierkv plan --layers 80 --heads 64 --kv-heads 8 --head-dim 128 --ctx 131072 --kv fp16 --kv balanced\n"
    "  tierkv plan -m smollm2 --kv compact --memory 4GiB       how many sequences fit\n"
    "  tierkv plan --adr004                                    ADR-004's tables, with correct arithmetic\n"
    "\n"
    "The bytes are measured on small caches of one head, not computed from bit widths: scales and headers are in them. Of a\n"
    "model only the GGUF's header is read, unless a calibration is here that may be of it. FP16 is counted as each layer needs "
    "it:\n"
    "no more than its window where it slides. Tables of a calibration, which all sequences share, are not counted.\n"
    "Units: 1 GiB is 1024 MiB.";

struct Request {
  Options options;
  uint32_t layers = 0, heads = 0, kv_heads = 0, head_dim = 0, window = 0;
  uint64_t ctx = 0, batch = 1;
  std::string memory;
  bool document = false;
  const CLI::Option* model_option = nullptr;
};

struct Shape {
  std::string name;
  uint32_t layers = 0, heads = 0, kv_heads = 0, head_dim = 0, context = 0, window = 0;
  std::vector<bool> slides;  // by layer
  bool windows_unknown = false;
  std::optional<GgufFile> file;  // the model, where all of the shape is its own
};

// libllama knows from the architecture which layers slide: all but every n-th.
uint32_t window_pattern(const std::string& architecture) {
  if (architecture == "gemma2" || architecture == "gpt-oss") return 2;
  if (architecture == "gemma3") return 6;
  if (architecture == "cohere2") return 4;
  return 0;
}

Shape shape_of(const Request& request) {
  Shape shape;
  if (request.model_option->count() > 0 || request.layers == 0) {
    const GgufFile file = read_gguf(find_model(request.options.model));
    shape = {model_title(file.path, file.name),
             file.layers,
             file.heads,
             file.kv_heads,
             file.head_dim,
             file.context,
             file.window,
             {},
             false,
             {}};
    if (!file.refused.empty())
      bad_input(file.path + ": a model of architecture " + file.architecture + " cannot use the cache: " + file.refused);
    const uint32_t pattern = window_pattern(file.architecture);
    shape.windows_unknown = shape.window != 0 && pattern == 0;
    if (shape.windows_unknown) shape.window = 0;
    for (uint32_t l = 0; l < shape.layers; ++l) shape.slides.push_back(shape.window != 0 && l % pattern < pattern - 1);
    if (request.layers + request.heads + request.kv_heads + request.head_dim + request.window == 0) shape.file = file;
  }
  if (request.layers != 0) shape.layers = request.layers, shape.slides.clear();
  if (request.heads != 0) shape.heads = request.heads;
  if (request.kv_heads != 0) shape.kv_heads = request.kv_heads;
  if (request.head_dim != 0) shape.head_dim = request.head_dim;
  if (shape.kv_heads == 0) shape.kv_heads = shape.heads;
  if (shape.heads == 0) shape.heads = shape.kv_heads;
  if (shape.head_dim == 0 || shape.kv_heads == 0)
    bad_input("a shape needs --layers, --kv-heads (or --heads) and --head-dim; or give a model with -m");
  if (request.window != 0) shape.window = request.window, shape.slides.clear();
  if (shape.slides.empty()) shape.slides.assign(shape.layers, shape.window != 0);
  if (shape.name.empty()) shape.name = "the given shape";
  return shape;
}

CacheConfig config_of(const Shape& shape, const std::string& kv) {
  CacheConfig config;
  check(apply_spec(kv, config), "--kv " + kv);
  config.num_layers = shape.layers;
  config.num_heads = shape.heads;
  config.num_kv_heads = shape.kv_heads;
  config.head_dim = shape.head_dim;
  for (uint32_t l = 0; l < shape.layers; ++l) {
    if (!shape.slides[l]) continue;
    LayerOverride change;
    change.first = change.last = l;
    change.window = shape.window;
    config.overrides.push_back(change);
  }
  check(validate(config), "--kv " + kv);
  return config;
}

// "8GiB", "512M", "1e9": bytes. K, M, G and T alone are the binary units.
double parse_bytes(const std::string& text) {
  size_t end = 0;
  double value = 0;
  try {
    value = std::stod(text, &end);
  } catch (const std::exception&) {
    end = 0;
  }
  std::string unit = text.substr(end);
  unit.erase(0, unit.find_first_not_of(' ') == std::string::npos ? unit.size() : unit.find_first_not_of(' '));
  static const std::string letters = "KMGTP";
  double scale = 1;
  bool known = end > 0 && (unit.empty() || unit == "B");
  if (!known && end > 0 && !unit.empty() && letters.find(unit[0]) != std::string::npos) {
    const std::string rest = unit.substr(1);
    known = rest.empty() || rest == "iB" || rest == "B";
    scale = std::pow(rest == "B" ? 1000.0 : 1024.0, static_cast<double>(letters.find(unit[0]) + 1));
  }
  if (!known || !(value > 0) || !std::isfinite(value))
    bad_input("--memory takes an amount such as 8GiB or 500MB, not \"" + text + "\"");
  return value * scale;
}

json plan_json(const std::string& kv, const SequencePlan& plan, uint64_t batch, double memory) {
  json tiers = json::object();
  for (int t = 0; t < kNumTiers; ++t) {
    tiers[tier_name(static_cast<Tier>(t))] = {{"tokens", plan.tier[t].tokens},
                                              {"bytes", plan.tier[t].bytes * static_cast<double>(batch)}};
  }
  json value = {{"kv", kv},
                {"sequence_bytes", plan.total_bytes},
                {"total_bytes", plan.total_bytes * static_cast<double>(batch)},
                {"bookkeeping_bytes", plan.bookkeeping_bytes * static_cast<double>(batch)},
                {"fp16_bytes", plan.fp16_bytes * static_cast<double>(batch)},
                {"compression", plan.fp16_bytes / plan.total_bytes},
                {"tiers", tiers}};
  if (memory > 0) value["sequences_that_fit"] = std::floor(memory / plan.total_bytes);
  return value;
}

std::string tier_cell(const SequencePlan& plan, Tier tier, uint64_t batch) {
  const PlanTier& part = plan.tier[static_cast<int>(tier)];
  return part.tokens > 0 ? tier_colour(tier, human_bytes(part.bytes * static_cast<double>(batch))) : dim("-");
}

int run(Request& request) {
  Options& options = request.options;
  settle(options);
  if (request.document) {
    json value = document_tables(options.text());
    emit_json(options, value);
    return 0;
  }
  if (options.kv.empty()) options.kv = {"fp16", "int8", "kivi4", "quality", "balanced", "compact"};
  check_kv(options.kv);
  const double memory = request.memory.empty() ? 0 : parse_bytes(request.memory);
  const llama::RopeSettings rope = rope_settings(options.rope);
  Shape shape = shape_of(request);
  if (rope != llama::RopeSettings()) {
    if (!shape.file) bad_input(rope.text() + ": only a model has RoPE; give one with -m, and no shape beside it");
    shape.context = load_engine(options).context();
  }
  const uint64_t ctx = request.ctx != 0 ? request.ctx : shape.context != 0 ? shape.context : 8192;
  if (shape.context != 0 && ctx > shape.context) {
    bad_input("a context of " + human_count(ctx) + " tokens is longer than the model's: " + shape.name +
              (rope == llama::RopeSettings() ? " was made for " : " with " + rope.text() + " runs to ") +
              human_count(shape.context));
  }

  json plans = json::array();
  std::vector<std::string> headers = {"<--kv", "in all", "of FP16", "sinks", "hot", "warm", "archive"};
  if (memory > 0) headers.push_back("fit " + human_bytes(memory));
  Table table(headers);
  double fp16 = 0;
  bool calibrated = false;
  Progress progress("measuring", options.kv.size(), options.quiet);
  for (const std::string& kv : options.kv) {
    const CalibrationPtr calibration = shape.file ? plan_calibration(*shape.file, kv, rope) : nullptr;
    const SequencePlan plan = measure_sequence(config_of(shape, kv), ctx, calibration);
    fp16 = plan.fp16_bytes * static_cast<double>(request.batch);
    calibrated |= calibration != nullptr;
    plans.push_back(plan_json(kv, plan, request.batch, memory));
    plans.back()["calibrated"] = calibration != nullptr;
    std::vector<std::string> cells = {calibration ? kv + " *" : kv,
                                      bold(human_bytes(plan.total_bytes * static_cast<double>(request.batch))),
                                      format("1/%.2f", plan.fp16_bytes / plan.total_bytes)};
    for (int t = 0; t < kNumTiers; ++t) cells.push_back(tier_cell(plan, static_cast<Tier>(t), request.batch));
    if (memory > 0) cells.push_back(human_count(static_cast<uint64_t>(memory / plan.total_bytes)));
    table.add(cells);
    progress.update(plans.size());
  }
  progress.finish();
  if (options.text()) {
    std::printf("%s: %u layers, %u query heads on %u KV heads of %u channels\n", bold(shape.name).c_str(), shape.layers,
                shape.heads, shape.kv_heads, shape.head_dim);
    if (shape.window != 0) {
      const auto sliding = std::count(shape.slides.begin(), shape.slides.end(), true);
      std::printf("%ld layers slide over %u tokens\n", static_cast<long>(sliding), shape.window);
    }
    std::printf("%s tokens x %s sequence%s; plain FP16 takes %s\n\n%s", human_count(ctx).c_str(),
                human_count(request.batch).c_str(), request.batch == 1 ? "" : "s", human_bytes(fp16).c_str(), table.str().c_str());
    if (calibrated) std::printf("\n* with the calibration of this model that is here\n");
  }
  if (shape.windows_unknown && !options.quiet) remark("The file does not say which layers slide: all are counted in full.\n");
  emit_json(options, {{"command", "plan"},
                      {"model", shape.file ? shape.file->name : shape.name},
                      {"title", shape.name},
                      {"layers", shape.layers},
                      {"heads", shape.heads},
                      {"kv_heads", shape.kv_heads},
                      {"head_dim", shape.head_dim},
                      {"ctx", ctx},
                      {"batch", request.batch},
                      {"memory_bytes", memory},
                      {"fp16_bytes", fp16},
                      {"plans", plans}});
  return 0;
}

}  // namespace

void add_plan(CLI::App& app, Action& action) {
  const auto [command, request] = add_command<Request>(
      app, action, "plan", "What a cache takes for a model, a context and a batch, and how many sequences fit", kFooter, run);
  const auto count = CLI::Range(1u, 1u << 24);
  request->model_option =
      command->add_option("-m,--model", request->options.model, "take the shape from a GGUF's header (file or known name)")
          ->type_name("MODEL")
          ->capture_default_str();
  command->add_option("--layers", request->layers, "layers")->check(count);
  command->add_option("--heads", request->heads, "query heads")->check(count);
  command->add_option("--kv-heads", request->kv_heads, "KV heads (default: as many as query heads)")->check(count);
  command->add_option("--head-dim", request->head_dim, "channels of a head")->check(count);
  command->add_option("--window", request->window, "every layer slides over so many tokens")->check(count);
  command->add_option("-c,--ctx", request->ctx, "tokens of a sequence (default: the model's context, or 8192)")
      ->check(CLI::Range(1u, 1u << 30));
  command->add_option("-b,--batch", request->batch, "sequences")->check(CLI::Range(1u, 1u << 24))->capture_default_str();
  command->add_option("--memory", request->memory, "say how many sequences fit this much: 8GiB, 500MB")->type_name("BYTES");
  command->add_flag("--adr004", request->document, "reproduce the tables of ADR-004 with correct arithmetic");
  add_rope_options(*command, request->options.rope);
  add_kv_option(*command, request->options, "several presets");
  add_output_options(*command, request->options);
}

}  // namespace tierkv::cli
