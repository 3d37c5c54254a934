// ppl.cc — `tierkv ppl`: how much a cache setting costs in quality, over the same text for all of them (ppl_run.h measures).
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "compare.h"
#include "load_engine.h"
#include "number_range.h"
#include "ppl_run.h"
#include "run_record.h"
#include "terminal.h"

namespace tierkv::cli {
namespace {

using nlohmann::json;

constexpr const char* kFooter =
    "Examples:\n"
    "  tierkv ppl --kv balanced --kv compact --stock q8_0,q4_0\n"
    "  tierkv ppl --ctx 8192 --tokens 32768 --kv archive=kivi2-g64 --json ppl.json\n"
    "  tierkv ppl -f book.txt --kv \"max_seq_len=2048,evict=h2o\"\n"
    "  tierkv ppl --compare balanced,archive=klt1.5+top4 --ctx 2048     every eviction policy and KIVI at the same bytes\n"
    "  tierkv ppl --reference stock --kv fp16 --stock f16-noflash       parity: is our FP16 as near to libllama as it is to "
    "itself?\n"
    "\n"
    "The reference is our FP16 cache unless another is named: one with an FP16 archive shows what an archive's codec costs by "
    "itself. Delta is the difference of the perplexities, with its paired standard error: both saw the\n"
    "same tokens, and blocks of up to 256 consecutive tokens are the sample. KLD is the mean Kullback-Leibler divergence from the\n"
    "reference's predictions, in nats. Bits are resident bytes, everything counted: of the coldest tier that holds tokens, and in "
    "all, over what\n"
    "the whole context would take as FP16 (so what was evicted counts as saved). Stock is libllama's own cache.";

// Of the tier that holds the oldest tokens; of stock, of the only one.
double coldest_bits(const PplSetting& setting, uint32_t head_dim, double bits_total) {
  if (setting.spec.stock) return bits_total;
  for (const Tier tier : {Tier::archive, Tier::warm, Tier::hot, Tier::sink}) {
    if (setting.memory[tier].tokens > 0) return setting.memory[tier].bits_per_value(head_dim);
  }
  return 0.0;
}

json setting_json(const PplSetting& setting, const PplRequest& request, Engine& engine, const ScoredWindows& text,
                  uint64_t fp16_bytes) {
  const PairedResult result = setting.scores.result();
  const uint32_t head_dim = engine.shape().head_dim;
  const double bits_total = 16.0 * static_cast<double>(setting.resident) / static_cast<double>(std::max<uint64_t>(fp16_bytes, 1));
  json value = {{"command", "ppl"},
                {"model", engine.name()},
                {"title", engine.title()},
                {"kv", setting.spec.kv},
                {"stock", setting.spec.stock},
                {"reference", request.reference},
                {"text", request.file.empty() ? "WikiText-2 test" : request.file},
                {"ppl", result.ppl},
                {"ppl_se", result.ppl_se},
                {"delta", result.delta},
                {"delta_se", result.delta_se},
                {"kld", result.kld},
                {"kld_se", result.kld_se},
                {"top1", result.top1},
                {"bits_archive", coldest_bits(setting, head_dim, bits_total)},
                {"bits_total", bits_total},
                {"resident_bytes", setting.resident},
                {"tokens", result.tokens},
                {"seconds", setting.seconds},
                {"tokens_per_second", setting.seconds > 0 ? static_cast<double>(text.fed) / setting.seconds : 0.0},
                {"ctx", text.windows.front().size()},
                {"windows", text.windows.size()},
                {"chunk", request.chunk},
                {"skip", text.skip},
                {"block_tokens", text.block},
                {"blocks", result.blocks}};
  if (setting.deep) {
    value["deep"] = {{"ratio", setting.deep->ratio()},
                     {"bytes", setting.deep->bytes()},
                     {"tokens", setting.deep->tokens()},
                     {"quality", setting.deep->quality()},
                     {"every", request.deep_every},
                     {"recent", request.deep_recent},
                     {"encode_seconds", setting.deep->encode_seconds()},
                     {"decode_seconds", setting.deep->decode_seconds()}};
    value["label"] = setting.deep_label;
    value["bits_archive"] = 16.0 / setting.deep->ratio();
  }
  add_process_memory(value, setting.process);
  if (chooses_blocks(setting.spec))
    add_skipped(value, setting.memory.read_blocks, setting.memory.skipped_blocks, setting.memory.skipped_mass);
  if (!setting.spec.stock) value["memory"] = memory_json(setting.memory, head_dim);
  return value;
}

std::string tier_bits(const PplSetting& setting, uint32_t head_dim) {
  if (setting.spec.stock) return "";
  std::string text;
  for (int t = 0; t < kNumTiers; ++t) {
    const TierMemory& tier = setting.memory.tier[t];
    if (tier.tokens == 0) continue;
    text +=
        (text.empty() ? "" : " ") + tier_colour(static_cast<Tier>(t), format("%c %.2f", "SHWA"[t], tier.bits_per_value(head_dim)));
  }
  return text;
}

void print(const std::vector<PplSetting>& settings, const json& values, Engine& engine, const ScoredWindows& text,
           const PplRequest& request) {
  std::printf("%s: %s tokens scored in %zu window%s of %zu, fed %u at a time, the first %u of each not scored\n\n",
              bold(engine.title()).c_str(), human_count(text.scored).c_str(), text.windows.size(),
              text.windows.size() == 1 ? "" : "s", text.windows.front().size(), request.chunk, text.skip);
  Table table({"<setting", "PPL", "delta", "± se", "KLD", "top-1", "bits", "<bits by tier", "resident", "tokens/s"});
  for (size_t i = 0; i < settings.size(); ++i) {
    const json& v = values[i];
    const PairedResult result = settings[i].scores.result();
    const bool reference = i == 0;
    table.add({settings[i].label(), format("%.4f", result.ppl), reference ? dim("-") : format("%+.4f", result.delta),
               reference                        ? dim("-")
               : std::isfinite(result.delta_se) ? format("%.4f", result.delta_se)
                                                : dim("?"),
               reference ? dim("-") : format(result.kld < 1e-4 ? "%.1e" : "%.5f", result.kld),
               reference ? dim("-") : format("%.2f%%", 100.0 * result.top1), format("%.2f", v["bits_total"].get<double>()),
               settings[i].deep ? format("deep %.1fx, %.3f bits, quality %.4f", settings[i].deep->ratio(),
                                         16.0 / settings[i].deep->ratio(), settings[i].deep->quality())
                                : tier_bits(settings[i], engine.shape().head_dim),
               human_bytes(static_cast<double>(settings[i].resident)), format("%.0f", v["tokens_per_second"].get<double>())});
  }
  std::printf(
      "%s\n%s\n", table.str().c_str(),
      dim(format("Standard errors are paired, over blocks of %u tokens. S first tokens, H hot, W warm, A archive.", text.block))
          .c_str());
}

int run(PplRequest& request) {
  Options& options = request.options;
  settle(options);
  if (options.kv.empty() && request.deep.empty() && request.deep_quality.empty() && request.compare.empty())
    options.kv = {"balanced"};
  if (!request.compare.empty()) check_kv({request.compare});
  const bool from_stock = request.reference == "stock";
  if (!from_stock) check_kv({request.reference});
  std::vector<SettingSpec> specs = settle_settings(
      from_stock ? std::vector<SettingSpec>{{"f16", true}, {"fp16", false}} : std::vector<SettingSpec>{{request.reference, false}},
      options.kv, request.stock);
  const std::string source = evaluation_text(request.file);
  Engine engine = load_engine(options);
  (void)engine.shape();  // refuses what the cache does not serve, and settles the context
  const uint32_t ctx = request.ctx != 0 ? engine.check_context(request.ctx) : std::min(4096u, engine.context());
  request.chunk = std::min(request.chunk, ctx);
  const ScoredWindows text = make_windows(request, engine, engine.tokenizer().encode(source, false), ctx);

  std::vector<Compared> rivals;
  if (!request.compare.empty()) {
    rivals = rivals_of(engine, request.compare, ctx, request.chunk, options.quiet);
    const auto others = specs.begin() + (from_stock ? 2 : 1);  // behind the reference
    std::vector<SettingSpec> compared;
    for (const Compared& rival : rivals) compared.push_back(rival.spec);
    specs.insert(others, compared.begin(), compared.end());
  }
  std::vector<PplSetting> settings(specs.size());
  for (size_t i = 0; i < specs.size(); ++i) {
    settings[i].spec = specs[i];
    settings[i].session = open_setting(engine, specs[i], ctx, request.chunk, request.learn);
  }
  const auto add_deep = [&](double ratio, double quality) {
    DeepOptions target;
    target.ratio = ratio;
    target.quality = quality;
    PplSetting& setting = settings.emplace_back();
    setting.spec = {request.deep_kv, false};
    setting.deep_label = ratio > 0 ? format("deep %gx of %s", ratio, request.deep_kv.c_str())
                                   : format("deep at quality %g of %s", quality, request.deep_kv.c_str());
    setting.deep = std::make_unique<DeepPacker>(target, request.deep_every, request.deep_recent);
    setting.session = open_setting(engine, setting.spec, ctx, request.chunk);
  };
  for (const double ratio : request.deep) add_deep(ratio, 0.0);
  for (const double quality : request.deep_quality) add_deep(0.0, quality);
  score(text, request, settings);

  json values = json::array();
  const uint64_t fp16_bytes = settings[from_stock ? 1 : 0].memory.fp16_bytes;
  for (const PplSetting& setting : settings) values.push_back(setting_json(setting, request, engine, text, fp16_bytes));
  add_compared(values, rivals);
  if (options.text()) {
    print(settings, values, engine, text, request);
    if (!rivals.empty()) print_rivals(rivals);
  }
  emit_results(options, values);
  return 0;
}

}  // namespace

void add_ppl(CLI::App& app, Action& action) {
  const auto [command, request] = add_command<PplRequest>(
      app, action, "ppl", "Perplexity, divergence and memory of cache settings over one text", kFooter, run);
  command->add_option("-f,--file", request->file, "the text (default: WikiText-2 test, as `tierkv fetch wikitext2` leaves it)")
      ->type_name("FILE");
  command->add_option("-c,--ctx", request->ctx, "tokens of a window (default: 4096, or the model's context if that is less)")
      ->check(CLI::Range(2u, 1u << 24));
  command->add_option("--chunk", request->chunk, "tokens fed at a time")->check(CLI::Range(1u, 4096u))->capture_default_str();
  command->add_option("-n,--tokens", request->tokens, "tokens of the text to use, 0: all of them")
      ->check(CLI::Range(0u, 1u << 30))
      ->capture_default_str();
  command->add_option("--from", request->from, "tokens of the text to pass over first")
      ->check(CLI::Range(0u, 1u << 30))
      ->capture_default_str();
  command
      ->add_option("--skip", request->skip,
                   "first tokens of a window that are not scored (default: 512, at most a quarter of --ctx)")
      ->check(CLI::Range(0u, 1u << 24));
  command
      ->add_option("--reference", request->reference,
                   "what others are compared with: a cache setting as --kv has them, or libllama's own f16 (stock)")
      ->type_name("SPEC")
      ->capture_default_str();
  add_compare_option(*command, request->compare);
  command
      ->add_option("--deep", request->deep,
                   "also through the deep archive at these ratios, e.g. 20,32: older tokens are packed, thrown away and loaded "
                   "back as the text goes by")
      ->type_name("RATIOS")
      ->delimiter(',')
      ->check(number_range(2.0, 1000.0));
  command->add_option("--deep-quality", request->deep_quality, "the same at these shares of energy, e.g. 0.97")
      ->type_name("SHARES")
      ->delimiter(',')
      ->check(number_range(0.0, 1.0));
  command->add_option("--deep-kv", request->deep_kv, "the cache that the deep archive is taken from and loaded into")
      ->type_name("SPEC")
      ->capture_default_str();
  command->add_option("--deep-every", request->deep_every, "tokens packed at a time")
      ->check(CLI::Range(64u, 1u << 20))
      ->capture_default_str();
  command->add_option("--deep-recent", request->deep_recent, "newest tokens that are never packed")
      ->check(CLI::Range(64u, 1u << 20))
      ->capture_default_str();
  add_learn_option(*command, request->learn);
  add_stock_option(*command, request->stock, "none");
  add_model_option(*command, request->options);
  add_kv_option(*command, request->options, "balanced");
  add_output_options(*command, request->options);
}

}  // namespace tierkv::cli
