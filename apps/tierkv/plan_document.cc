// plan_document.cc — ADR-004's two tables.
#include "plan_document.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "engine_names.h"
#include "plan_measure.h"
#include "terminal.h"

namespace tierkv::cli {
namespace {

using nlohmann::json;

// Layers, heads and channels of the sizes that the document names: LLaMA-7B, LLaMA-70B with all 64 heads (as the document counts;
// the released model has 8 KV heads), and PaLM-540B as if it had a KV head for each of its 48 heads (it has one).
struct Row {
  const char* size;
  uint32_t layers, heads, head_dim, released_kv_heads;
  uint64_t batch, ctx;
  double printed;  // bytes in FP16, as the document has it
};

constexpr Row kRows[] = {
    {"7B", 32, 32, 128, 32, 1, 2048, 256e6},    {"70B", 80, 64, 128, 8, 1, 2048, 2.6e9},   {"70B", 80, 64, 128, 8, 32, 2048, 83e9},
    {"540B", 118, 48, 256, 1, 512, 2048, 3e12}, {"70B", 80, 64, 128, 8, 1, 131072, 166e9},
};

// The document's tiers: 64 tokens in FP16, 448 in 4-bit KIVI, the rest in 2-bit KIVI.
constexpr const char* kTiers = "hot=64,warm=448,warm_codec=kivi4-g64,archive=kivi2-g64,sinks=0";

std::string decimal(double bytes) {
  static const char* const units[] = {"B", "kB", "MB", "GB", "TB"};
  int unit = 0;
  while (bytes >= 1000.0 && unit < 4) bytes /= 1000.0, ++unit;
  return format(bytes < 10 ? "%.2f %s" : bytes < 100 ? "%.1f %s" : "%.0f %s", bytes, units[unit]);
}

double fp16_bytes(const Row& row, uint32_t heads) {
  return 2.0 * row.layers * heads * row.head_dim * static_cast<double>(row.ctx) * static_cast<double>(row.batch) * 2.0;
}

SequencePlan measured(const char* kv, const Row& row) {
  CacheConfig config;
  check(apply_spec(kv, config));
  config.num_layers = row.layers;
  config.num_heads = config.num_kv_heads = row.heads;
  config.head_dim = row.head_dim;
  return measure_sequence(config, row.ctx);
}

json scaling_table(bool print) {
  Table table({"<model", "batch", "context", "document, FP16", "its formula, FP16", "FP32", "with the real KV heads",
               "document's tiers", "balanced"});
  json rows = json::array();
  for (const Row& row : kRows) {
    const double fp16 = fp16_bytes(row, row.heads), released = fp16_bytes(row, row.released_kv_heads);
    const double tiers = measured(kTiers, row).total_bytes * static_cast<double>(row.batch);
    const double balanced = measured("balanced", row).total_bytes * static_cast<double>(row.batch);
    table.add({row.size, human_count(row.batch), human_count(row.ctx), "~" + decimal(row.printed), bold(decimal(fp16)),
               decimal(2 * fp16), decimal(released), decimal(tiers), decimal(balanced)});
    rows.push_back({{"model", row.size},
                    {"layers", row.layers},
                    {"heads", row.heads},
                    {"head_dim", row.head_dim},
                    {"released_kv_heads", row.released_kv_heads},
                    {"batch", row.batch},
                    {"ctx", row.ctx},
                    {"document_fp16_bytes", row.printed},
                    {"fp16_bytes", fp16},
                    {"fp32_bytes", 2 * fp16},
                    {"released_fp16_bytes", released},
                    {"tiers_bytes", tiers},
                    {"balanced_bytes", balanced}});
  }
  if (print) {
    std::printf(
        "%s\nKV_cache_size = 2 * num_layers * num_heads * head_dim * seq_len * batch_size * bytes_per_element; 1 GB is "
        "1,000,000,000 bytes.\n\n%s\n",
        bold("Memory Scaling Analysis").c_str(), table.str().c_str());
  }
  return rows;
}

struct Part {
  const char* name;
  double tokens, bytes_per_element, printed;
};

json example_table(bool print) {
  const Row row = {"70B", 80, 64, 128, 8, 8, 32768, 687e9};
  const double elements = 2.0 * row.layers * row.heads * row.head_dim * static_cast<double>(row.batch);
  const Part parts[] = {{"tail", 64, 2, 1.34e9}, {"warm", 448, 0.5, 4.69e9}, {"archive", 32256, 0.25, 168e9}};
  const SequencePlan plan = measured(kTiers, row);
  const Tier tiers[] = {Tier::hot, Tier::warm, Tier::archive};
  const double batch = static_cast<double>(row.batch), fp16 = fp16_bytes(row, row.heads);

  Table table({"<part", "tokens", "bytes an element", "document", "its formula", "measured, metadata counted"});
  table.add(
      {"FP16 baseline", human_count(row.ctx), "2", decimal(row.printed), bold(decimal(fp16)), decimal(plan.fp16_bytes * batch)});
  json rows = json::array();
  double sum = 0;
  for (int i = 0; i < 3; ++i) {
    const double bytes = elements * parts[i].tokens * parts[i].bytes_per_element;
    const double real = plan.tier[static_cast<int>(tiers[i])].bytes * batch;
    sum += bytes;
    table.add({parts[i].name, format("%.0f", parts[i].tokens), format("%g", parts[i].bytes_per_element), decimal(parts[i].printed),
               bold(decimal(bytes)), decimal(real)});
    rows.push_back({{"part", parts[i].name},
                    {"tokens", parts[i].tokens},
                    {"document_bytes", parts[i].printed},
                    {"bytes", bytes},
                    {"measured_bytes", real}});
  }
  const double total = plan.total_bytes * batch;
  table.add({"total", human_count(row.ctx), "", "174 GB, 3.95x", bold(decimal(sum) + format(", %.2fx", fp16 / sum)),
             decimal(total) + format(", %.2fx", fp16 / total)});
  // SQuat was to divide the archive by 2.5 once more.
  const double archive = elements * parts[2].tokens * parts[2].bytes_per_element, squat = sum - archive + archive / 2.5;
  table.add({"with SQuat, 2.5x on the archive", "", "0.1", "73 GB, 9.4x", bold(decimal(squat) + format(", %.2fx", fp16 / squat)),
             dim("-")});
  if (print) {
    std::printf("%s\n80 layers, 64 heads of 128 channels, 32,768 tokens, batch 8.\n\n%s\n", bold("Appendix A, example 1").c_str(),
                table.str().c_str());
    std::printf("\"Measured\" is a real cache with --kv %s.\n", kTiers);
    std::printf(
        "0.1 bytes an element (0.8 bits) for keys and values, as the SQuat row needs, is a claim of the document that tierkv does "
        "not repeat.\n");
  }
  return {{"fp16_bytes", fp16},   {"document_fp16_bytes", row.printed}, {"parts", rows},
          {"total_bytes", sum},   {"document_total_bytes", 174e9},      {"measured_total_bytes", total},
          {"squat_bytes", squat}, {"document_squat_bytes", 73e9}};
}

}  // namespace

json document_tables(bool print) {
  json scaling = scaling_table(print);
  json example = example_table(print);
  return {{"command", "plan"}, {"document", "000"}, {"kv", kTiers}, {"memory_scaling", scaling}, {"appendix_a", example}};
}

}  // namespace tierkv::cli
