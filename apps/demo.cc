// tierkv-demo — a long synthetic decode through several presets side by side: what each tier holds, what it costs, what it changes.
//
// Every preset gets the same rows: a long prompt in one go, then single tokens, each followed by attention in every layer. The
// outputs of the fp16 preset are the yardstick for the others. Some outputs of every preset are compared with double precision
// (demo_check.h): when one is further off than it may be, the demo says so and ends with 1. Public headers only: this is also an
// example of how to use the library.
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "demo_check.h"
#include "demo_model.h"
#include "tierkv/cache.h"

namespace {

constexpr const char* kUsage =
    "usage: tierkv-demo [options]\n"
    "A long synthetic decode through the presets fp16, int8, kivi2 and balanced, side by side.\n\n"
    "  --tokens N    tokens of the prompt (default 8192)\n"
    "  --steps N     tokens decoded after it (default 64)\n"
    "  --layers N    layers of the make-believe model (default 4)\n"
    "  --kv SPEC     one more preset, file or inline form such as hot=64,warm=448,archive=kivi2; may be given again\n"
    "  --json        one JSON line per preset\n"
    "  --help        this text\n"
    "Colours are used on a terminal only, and not at all when NO_COLOR is set.\n";

struct Options {
  demo::Shape shape;
  uint32_t tokens = 8192;
  uint32_t steps = 64;
  bool json = false;
  std::vector<std::string> presets = {"fp16", "int8", "kivi2", "balanced"};
};

struct Outcome {
  std::string name;
  tierkv::MemoryStats memory;
  double rss_growth = 0;  // bytes, of the process, caused by this cache
  double error = 0;       // ||out - fp16 out|| / ||fp16 out|| over all steps and layers
  double prompt_seconds = 0;
  double step_ms = 0;  // one decoded token: append and attention in all layers
  demo::Check check;
  demo::Tolerance tolerance;

  // NaN is not within anything.
  bool right() const {
    return check.attention <= tolerance.attention && (tolerance.preset == 0.0 || check.preset <= tolerance.preset);
  }
};

double resident_bytes() {
  FILE* file = std::fopen("/proc/self/statm", "r");
  long total = 0, resident = 0;
  if (!file) return 0;
  const int read = std::fscanf(file, "%ld %ld", &total, &resident);
  std::fclose(file);
  return read == 2 ? static_cast<double>(resident) * static_cast<double>(sysconf(_SC_PAGESIZE)) : 0;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void stop_if(const tierkv::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "tierkv-demo: %s\n", status.to_string().c_str());
  std::exit(1);
}

// The outputs of every step and layer, for the presets that come after fp16 to be compared with.
class Outputs {
 public:
  // All of it is touched now, so that the growth of the process from here on is the cache's.
  Outputs(size_t outputs, size_t size) : values_(outputs * size, 0.0f) {}
  void add(const std::vector<float>& out) {
    std::copy(out.begin(), out.end(), values_.begin() + static_cast<ptrdiff_t>(filled_));
    filled_ += out.size();
  }
  double error(const Outputs& reference) const {
    double difference = 0, norm = 0;
    for (size_t i = 0; i < values_.size(); ++i) {
      const double d = static_cast<double>(values_[i]) - reference.values_[i];
      difference += d * d;
      norm += static_cast<double>(reference.values_[i]) * reference.values_[i];
    }
    return norm > 0 ? std::sqrt(difference / norm) : 0;
  }

 private:
  std::vector<float> values_;
  size_t filled_ = 0;
};

Outcome decode(const std::string& preset, const Options& options, const demo::Model& model, Outputs& outputs) {
  const demo::Shape& shape = options.shape;
  tierkv::CacheConfig config;
  config.num_layers = shape.layers;
  config.num_heads = shape.heads;
  config.num_kv_heads = shape.kv_heads;
  config.head_dim = shape.head_dim;
  config.threads = std::clamp(std::thread::hardware_concurrency(), 1u, 8u);
  stop_if(tierkv::apply_spec(preset, config));

  // What this function needs itself is allocated and touched before the first look at the process.
  std::vector<float> keys, values, query, out(static_cast<size_t>(shape.heads) * shape.head_dim);
  const uint32_t chunk = 256;
  model.rows(0, 0, chunk, keys, values);
  const double rss_before = resident_bytes();

  auto created = tierkv::AdaptiveKVCache::create(config);
  stop_if(created.status());
  tierkv::AdaptiveKVCache& cache = **created;
  auto added = cache.add_sequence();
  stop_if(added.status());
  const tierkv::SeqId seq = *added;

  Outcome outcome;
  outcome.name = preset;
  for (uint32_t layer = 0; layer < shape.layers; ++layer) {
    for (uint32_t done = 0; done < options.tokens; done += chunk) {
      const uint32_t n = std::min(chunk, options.tokens - done);
      model.rows(layer, done, n, keys, values);
      const auto start = std::chrono::steady_clock::now();
      stop_if(cache.append(seq, layer, tierkv::RowsView::f32(keys.data(), n, shape.kv_heads, shape.head_dim),
                           tierkv::RowsView::f32(values.data(), n, shape.kv_heads, shape.head_dim)));
      outcome.prompt_seconds += seconds_since(start);
    }
  }
  double step_seconds = 0;
  for (uint32_t step = 0; step < options.steps; ++step) {
    const uint32_t position = options.tokens + step;
    for (uint32_t layer = 0; layer < shape.layers; ++layer) {
      model.rows(layer, position, 1, keys, values);
      model.query(layer, position, query);
      const auto start = std::chrono::steady_clock::now();
      stop_if(cache.append(seq, layer, tierkv::RowsView::f32(keys.data(), 1, shape.kv_heads, shape.head_dim),
                           tierkv::RowsView::f32(values.data(), 1, shape.kv_heads, shape.head_dim)));
      stop_if(cache.attention(seq, layer, tierkv::RowsView::f32(query.data(), 1, shape.heads, shape.head_dim), out.data()));
      step_seconds += seconds_since(start);
      outputs.add(out);
    }
  }
  outcome.step_ms = options.steps ? 1e3 * step_seconds / options.steps : 0;
  outcome.rss_growth = resident_bytes() - rss_before;
  outcome.memory = cache.memory_usage();
  auto check = demo::check_attention(cache, seq, model, shape, options.tokens + options.steps);
  stop_if(check.status());
  outcome.check = *check;
  outcome.tolerance = demo::tolerance_of(preset, options.tokens + options.steps);
  return outcome;
}

void print_json(const Outcome& o, const Options& options) {
  const double streams = static_cast<double>(options.shape.layers) * options.shape.kv_heads;
  std::printf("{\"preset\":\"%s\",\"tiers\":{", o.name.c_str());
  for (int t = 0; t < tierkv::kNumTiers; ++t) {
    const tierkv::TierMemory& tier = o.memory.tier[t];
    std::printf("%s\"%s\":{\"tokens\":%.0f,\"payload_bytes\":%llu,\"overhead_bytes\":%llu}", t ? "," : "",
                tierkv::tier_name(static_cast<tierkv::Tier>(t)), static_cast<double>(tier.tokens) / streams,
                static_cast<unsigned long long>(tier.payload_bytes), static_cast<unsigned long long>(tier.overhead_bytes));
  }
  std::printf(
      "},\"total_bytes\":%llu,\"fp16_bytes\":%llu,\"compression\":%.4f,\"rss_growth_bytes\":%.0f,\"relative_error\":%.6g,"
      "\"attention_error\":%.3g,\"error_to_model\":%.3g,\"right\":%s,\"prompt_seconds\":%.4f,\"ms_per_token\":%.4f}\n",
      static_cast<unsigned long long>(o.memory.total_bytes), static_cast<unsigned long long>(o.memory.fp16_bytes),
      o.memory.compression(), o.rss_growth, o.error, o.check.attention, o.check.preset, o.right() ? "true" : "false",
      o.prompt_seconds, o.step_ms);
}

double mib(uint64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

// One character per share of the FP16 cache; the tiers in the order a token passes through them.
class Bars {
 public:
  Bars() : colour_(isatty(STDOUT_FILENO) && !std::getenv("NO_COLOR")) {}

  static constexpr int kWidth = 48;

  std::string of(const tierkv::MemoryStats& memory) const {
    std::string bar;
    int used = 0;
    double sum = 0;
    for (int t = 0; t < tierkv::kNumTiers; ++t) {
      sum += static_cast<double>(memory.tier[t].bytes()) / static_cast<double>(memory.fp16_bytes) * kWidth;
      const int least = memory.tier[t].tokens ? used + 1 : used;  // a tier that holds something shows
      const int until = std::min(kWidth, std::max(least, static_cast<int>(std::ceil(sum - 1e-9))));
      if (until > used) bar += painted(t, std::string(static_cast<size_t>(until - used), letter(t)));
      used = std::max(used, until);
    }
    return bar + std::string(static_cast<size_t>(kWidth - used), ' ');
  }

  std::string painted(int tier, const std::string& text) const {
    static const char* const codes[] = {"\033[35m", "\033[31m", "\033[33m", "\033[34m"};
    return colour_ ? codes[tier] + text + "\033[0m" : text;
  }

  static char letter(int tier) { return "SHWA"[tier]; }

 private:
  bool colour_;
};

void print_outcome(const Outcome& o, const Options& options, const Bars& bars) {
  const double streams = static_cast<double>(options.shape.layers) * options.shape.kv_heads;
  std::printf("%-9s|%s| %7.1f MiB  %5.2fx", o.name.c_str(), bars.of(o.memory).c_str(), mib(o.memory.total_bytes),
              o.memory.compression());
  std::printf("   RSS +%.1f MiB   %.1f ms/token", o.rss_growth / (1 << 20), o.step_ms);
  if (o.name == "fp16") std::printf("   the yardstick\n");
  else std::printf("   output off by %.2f %%\n", 100 * o.error);
  for (int t = 0; t < tierkv::kNumTiers; ++t) {
    const tierkv::TierMemory& tier = o.memory.tier[t];
    if (tier.tokens == 0) continue;
    std::printf("          %s %6.0f tokens %8.2f MiB  %5.2f bits a value\n",
                bars.painted(t, std::string(1, Bars::letter(t)) + " " + tierkv::tier_name(static_cast<tierkv::Tier>(t)) +
                                    std::string(7 - std::strlen(tierkv::tier_name(static_cast<tierkv::Tier>(t))), ' '))
                    .c_str(),
                static_cast<double>(tier.tokens) / streams, mib(tier.bytes()), tier.bits_per_value(options.shape.head_dim));
  }
  std::printf(
      "          attention is off by %.1e from double precision on the rows it holds (%.0e allowed), %u outputs looked at\n",
      o.check.attention, o.tolerance.attention, o.check.outputs);
  std::printf("\n");
}

// Names every preset whose attention is wrong; false when there is one.
bool all_right(const std::vector<Outcome>& outcomes) {
  bool right = true;
  for (const Outcome& o : outcomes) {
    if (o.right()) continue;
    right = false;
    std::fprintf(
        stderr,
        "tierkv-demo: attention of \"%s\" is wrong: off by %g from double precision on the rows it holds (%g allowed), by %g "
        "on the model's own (%g allowed)\n",
        o.name.c_str(), o.check.attention, o.tolerance.attention, o.check.preset, o.tolerance.preset);
  }
  return right;
}

uint32_t parse_count(const char* option, const char* text, uint32_t least, uint32_t most) {
  char* end = nullptr;
  const unsigned long value = std::strtoul(text, &end, 10);
  if (end == text || *end || value < least || value > most) {
    std::fprintf(stderr, "tierkv-demo: %s takes a number from %u to %u, not \"%s\"\n", option, least, most, text);
    std::exit(2);
  }
  return static_cast<uint32_t>(value);
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--help" || name == "-h") {
      std::fputs(kUsage, stdout);
      std::exit(0);
    }
    if (name == "--json") {
      options.json = true;
      continue;
    }
    const bool known = name == "--tokens" || name == "--steps" || name == "--layers" || name == "--kv";
    if (!known || i + 1 >= argc) {
      std::fprintf(stderr, known ? "tierkv-demo: %s needs a value\n%s" : "tierkv-demo: unknown option %s\n%s", name.c_str(),
                   kUsage);
      std::exit(2);
    }
    const char* value = argv[++i];
    if (name == "--tokens") options.tokens = parse_count("--tokens", value, 1, 1u << 20);
    else if (name == "--steps") options.steps = parse_count("--steps", value, 1, 4096);
    else if (name == "--layers") options.shape.layers = parse_count("--layers", value, 1, 128);
    else options.presets.push_back(value);
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  const demo::Shape& shape = options.shape;
  const Bars bars;
  if (!options.json) {
    std::printf(
        "%u + %u tokens through a make-believe model: %u layers, %u query heads on %u KV heads of %u channels.\n"
        "A full bar is what plain FP16 takes. Tiers: S first tokens, H newest, W recent, A archive.\n\n",
        options.tokens, options.steps, shape.layers, shape.heads, shape.kv_heads, shape.head_dim);
  }
  const demo::Model model(shape);
  const size_t steps = static_cast<size_t>(options.steps) * shape.layers, size = static_cast<size_t>(shape.heads) * shape.head_dim;
  Outputs reference(steps, size);
  std::vector<Outcome> outcomes;
  for (const std::string& preset : options.presets) {
    Outputs outputs(steps, size);
    Outcome outcome = decode(preset, options, model, outcomes.empty() ? reference : outputs);
    if (!outcomes.empty()) outcome.error = outputs.error(reference);
    if (options.json) print_json(outcome, options);
    else print_outcome(outcome, options, bars);
    std::fflush(stdout);
    outcomes.push_back(std::move(outcome));
  }
  if (!all_right(outcomes)) return 1;
  if (options.json) return 0;
  const auto balanced = std::find_if(outcomes.begin(), outcomes.end(), [](const Outcome& o) { return o.name == "balanced"; });
  std::printf(
      "In words: \"balanced\" remembers all %u tokens in %.1f MiB instead of %.1f, %.1f times less memory, and what attention "
      "reads\n"
      "from it differs from uncompressed memory by %.1f %%.\n",
      options.tokens + options.steps, mib(balanced->memory.total_bytes), mib(balanced->memory.fp16_bytes),
      balanced->memory.compression(), 100 * balanced->error);
  return 0;
}
