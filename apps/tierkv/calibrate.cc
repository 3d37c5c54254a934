// calibrate.cc — `tierkv calibrate`: learns from a text how a model's keys and values are spread, for codecs that need to know.
#include "tierkv/calibrate.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "engine/gguf_file.h"
#include "eval_common.h"
#include "load_engine.h"
#include "terminal.h"

namespace tierkv::cli {
namespace fs = std::filesystem;
namespace {

using nlohmann::json;

constexpr const char* kFooter =
    "Examples:\n"
    "  tierkv calibrate                                     the default model on WikiText-2 validation\n"
    "  tierkv calibrate -m model.gguf -f prose.txt -f code.txt -o model.tkc\n"
    "  tierkv calibrate -m gemma3-270m --tokens 8192 --json calibration.json\n"
    "\n"
    "Forward passes only; 8,192 tokens are enough, and the kind of text matters more than its length: give several kinds (-f may "
    "be repeated), and\n"
    "windows are taken from each in turn. Without -o the file goes where the archive looks for it: calibration/ in $TIERKV_CACHE, "
    "under the model's\n"
    "fingerprint, which is the same for every quantization of a model. A file for another model is never used.";

struct Request {
  Options options;
  std::vector<std::string> files;
  std::string output;
  llama::CalibrateOptions calibrate;
};

std::string default_text() {
  const std::string path = cache_folder() + "/text/wiki.valid.raw";
  std::error_code ignored;
  if (!fs::exists(path, ignored)) {
    bad_input("the validation text of WikiText-2 is not here (" + path +
              "): `tierkv fetch wikitext2` downloads it, or give a text with -f FILE");
  }
  return path;
}

// A folder that is made for the result, and goes again if there is none.
class Folder {
 public:
  explicit Folder(const fs::path& path) : path_(path) {
    std::error_code problem;
    made_ = fs::create_directories(path, problem);
    if (problem) bad_input("cannot make the folder " + path.string() + ": " + problem.message());
  }
  ~Folder() {
    std::error_code ignored;
    if (made_ && fs::is_empty(path_, ignored)) fs::remove(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

 private:
  fs::path path_;
  bool made_ = false;
};

std::string hex(uint64_t value) { return format("%016llx", static_cast<unsigned long long>(value)); }

json report_json(const llama::CalibrateReport& report, const Request& request, const Engine& engine) {
  json value = {{"command", "calibrate"},
                {"model", engine.name()},
                {"title", engine.title()},
                {"fingerprint", hex(report.fingerprint)},
                {"file", request.output},
                {"id", report.id},
                {"bytes", report.bytes},
                {"texts", request.files},
                {"tokens", report.tokens},
                {"windows", report.windows},
                {"block", request.calibrate.block},
                {"sampled", report.sampled},
                {"pairs", report.pairs},
                {"layers_without_residual", report.without_residual},
                {"layers_without_projection", report.without_projection},
                {"seconds", report.seconds},
                {"watching_seconds", report.watching_seconds},
                {"solving_seconds", report.solving_seconds},
                {"held_out_tokens", report.held_out_tokens},
                {"held_out_error", report.held_out_error},
                {"held_out_error_without", report.held_out_without},
                {"key_bits_by_layer", report.key_bits}};
  if (!request.calibrate.probe) return value;
  value["probe"] = {{"tokens", request.calibrate.probe_tokens}, {"codec", "klt1"},
                    {"seconds", report.probing_seconds},        {"lambda_keys", report.key_weights},
                    {"lambda_values", report.value_weights},    {"kld_keys", report.key_divergence},
                    {"kld_values", report.value_divergence},    {"kld_floor", report.floor_divergence}};
  return value;
}

void print_by_layer(const char* what, const std::vector<double>& values) {
  std::printf("%s\n", what);
  for (size_t i = 0; i < values.size(); ++i) {
    if (i % 10 == 0) std::printf("%s%s", i == 0 ? "" : "\n", dim(format("%5zu ", i)).c_str());
    std::printf(" %5.2f", values[i]);
  }
  std::printf("\n");
}

void print(const llama::CalibrateReport& report, const Request& request, const Engine& engine) {
  std::printf("%s: %s tokens in %llu window%s, %s keys and values sampled, %s (%s of it watching attention, %s computing tables)\n",
              bold(engine.title()).c_str(), human_count(report.tokens).c_str(), static_cast<unsigned long long>(report.windows),
              report.windows == 1 ? "" : "s", human_count(report.sampled).c_str(), human_seconds(report.seconds).c_str(),
              human_seconds(report.watching_seconds).c_str(), human_seconds(report.solving_seconds).c_str());
  std::printf("%s: %s, calibration %s of model %s\n\n", request.output.c_str(),
              human_bytes(static_cast<double>(report.bytes)).c_str(), report.id.c_str(), hex(report.fingerprint).c_str());
  if (report.held_out_tokens != 0) {
    std::printf(
        "checked on %s tokens beside those: the archive's error is %.2f times that of one without tables, at 2.03 bits "
        "instead of 3.25\n\n",
        human_count(report.held_out_tokens).c_str(), report.held_out_error / report.held_out_without);
  } else {
    std::printf("not checked: all of the text was read, and none is left to check the tables on\n\n");
  }
  print_by_layer("bits of a key value by layer, when all layers have 1.5 on average:", report.key_bits);
  if (!request.calibrate.probe) return;
  std::printf("\nprobing took %s\n", human_seconds(report.probing_seconds).c_str());
  print_by_layer("how much more than predicted an error in a layer's keys changes what comes next:", report.key_weights);
  print_by_layer("and in its values:", report.value_weights);
}

int run(Request& request) {
  Options& options = request.options;
  settle(options);
  check_writable(request.output);
  if (request.files.empty()) request.files = {default_text()};
  std::vector<std::string> texts;
  for (const std::string& file : request.files) texts.push_back(read_file(file));
  Engine engine = load_engine(options);
  const llama::ModelShape& shape = engine.shape();
  std::optional<Folder> folder;
  if (request.output.empty()) {
    folder.emplace(fs::path(cache_folder()) / "calibration");
    request.output = llama::calibration_path(shape);
  }
  std::vector<Tokens> tokens;
  for (const std::string& text : texts) tokens.push_back(engine.tokenizer().encode(text, false));

  llama::CalibrateOptions& calibrate = request.calibrate;
  calibrate.threads = options.threads;
  calibrate.first_token = engine.tokenizer().first_token();
  calibrate.model_file = engine.path();
  for (const std::string& file : request.files)
    calibrate.text_name += (calibrate.text_name.empty() ? "" : ", ") + fs::path(file).filename().string();
  Progress progress("reading", 1000, options.quiet);
  calibrate.progress = [&](const llama::CalibrateProgress& at) {
    const std::string_view phase = at.phase;
    progress.label(
        phase == "reading"   ? format("reading %s of %s tokens", human_count(at.done).c_str(), human_count(at.total).c_str())
        : phase == "probing" ? format("probing, run %s of %s", human_count(at.done).c_str(), human_count(at.total).c_str())
                             : "computing tables");
    progress.update(1000 * at.done / std::max<uint64_t>(at.total, 1));
  };
  calibrate.cancelled = interrupted;
  auto result = llama::calibrate(shape, tokens, request.output, calibrate);
  progress.finish();
  if (!result.ok() && interrupted()) throw Cancelled();
  const llama::CalibrateReport report = take(std::move(result), "cannot calibrate " + engine.title());
  if (options.text()) print(report, request, engine);
  emit_json(options, report_json(report, request, engine));
  return 0;
}

}  // namespace

void add_calibrate(CLI::App& app, Action& action) {
  const auto [command, request] = add_command<Request>(
      app, action, "calibrate", "Learn from a text what a model's keys look like, for calibrated archives", kFooter, run);
  llama::CalibrateOptions& calibrate = request->calibrate;
  command->add_flag("--deep", calibrate.deep,
                    "with tables for deep archives (`snapshot save --deep`), about 40 MB for a small model");
  command->add_flag("--probe", calibrate.probe,
                    "measure what an error in each layer does to predictions, and weigh layers by it: minutes more");
  command->add_option("--probe-tokens", calibrate.probe_tokens, "tokens whose predictions are looked at in each run of --probe")
      ->check(CLI::Range(64u, 1u << 20))
      ->capture_default_str();
  command
      ->add_option("-f,--file", request->files,
                   "a text; may be repeated (default: WikiText-2 validation, as `tierkv fetch wikitext2` leaves it)")
      ->type_name("FILE")
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command->add_option("-o,--output", request->output, "the file to write (default: where the archive looks for the model's)")
      ->type_name("FILE");
  command->add_option("-n,--tokens", calibrate.tokens, "tokens of the texts to use, 0: all of them")
      ->check(CLI::Range(0u, 1u << 30))
      ->capture_default_str();
  command->add_option("--window", calibrate.window, "tokens of a window (less if the model's context is)")
      ->check(CLI::Range(1024u, 1u << 20))
      ->capture_default_str();
  command->add_option("--block", calibrate.block, "tokens of an archive block")
      ->check(CLI::Range(16u, 1024u))
      ->capture_default_str();
  command->add_option("--sample", calibrate.sample_tokens, "tokens whose keys and values are looked at one by one")
      ->check(CLI::Range(1024u, 1u << 20))
      ->capture_default_str();
  command->add_option("--every", calibrate.query_stride, "look at the attention of every N-th token")
      ->check(CLI::Range(1u, 64u))
      ->capture_default_str();
  add_model_option(*command, request->options);
  add_output_options(*command, request->options);
}

}  // namespace tierkv::cli
