#include "calib/kvquant.h"

#include <algorithm>
#include <cmath>

#include "base/status_macros.h"

namespace tierkv::calib {
namespace {

constexpr float kWidest = 1e6f;          // keys were fp16 before they were turned
constexpr float kOutermostLevel = 4.0f;  // Q-Norm stretches a little past 1

bool within(const std::vector<float>& values, float low, float high) {
  return std::all_of(values.begin(), values.end(), [&](float x) { return x >= low && x <= high; });
}

bool good(const KvquantHead& head) {
  for (size_t c = 0; c < head.low.size(); ++c) {
    if (!(head.low[c] <= head.high[c])) return false;
  }
  return within(head.low, -kWidest, kWidest) && within(head.high, -kWidest, kWidest) && within(head.weight, 0.0f, kWidest);
}

bool good(const KvquantCodebook& book) {
  return within(book.levels, -kOutermostLevel, kOutermostLevel) && within(book.edges, -1.0f, 1.0f) &&
         std::is_sorted(book.levels.begin(), book.levels.end()) && std::is_sorted(book.edges.begin(), book.edges.end());
}

}  // namespace

uint32_t kvquant_outliers(uint32_t tokens, uint32_t head_dim) {
  return std::max(1u, static_cast<uint32_t>(std::lround(static_cast<double>(tokens) * head_dim * kKvquantOutliers)));
}

void KvquantTables::write(ByteWriter& out) const {
  out.put(layers);
  out.put(kv_heads);
  out.put(head_dim);
  for (const KvquantHead& head : heads) {
    out.put_array(head.low);
    out.put_array(head.high);
    out.put_array(head.weight);
  }
  for (const KvquantCodebook& book : codebooks) {
    out.put_array(book.levels);
    out.put_array(book.edges);
  }
}

Result<KvquantTables> KvquantTables::read(ByteReader& in, const ModelId& model) {
  KvquantTables tables;
  tables.layers = in.get<uint32_t>();
  tables.kv_heads = in.get<uint32_t>();
  tables.head_dim = in.get<uint32_t>();
  if (!in.ok()) return error(StatusCode::data_loss, "the KVQuant tables are cut short");
  if (tables.layers != model.layers || tables.kv_heads != model.kv_heads || tables.head_dim != model.head_dim) {
    return error(StatusCode::invalid_argument, "the KVQuant tables are for ", tables.layers, " layers of ", tables.kv_heads,
                 " KV heads of ", tables.head_dim, "; the model has ", model.layers, " of ", model.kv_heads, " of ",
                 model.head_dim);
  }
  const size_t heads = static_cast<size_t>(tables.layers) * tables.kv_heads;
  for (size_t i = 0; i < heads; ++i) {
    KvquantHead head;
    head.low = in.get_array<float>(tables.head_dim);
    head.high = in.get_array<float>(tables.head_dim);
    head.weight = in.get_array<float>(tables.head_dim);
    if (!in.ok()) return error(StatusCode::data_loss, "the KVQuant tables are cut short in head ", i, " of ", heads);
    if (!good(head)) return error(StatusCode::data_loss, "the KVQuant tables have ranges out of order or not finite in head ", i);
    tables.heads.push_back(std::move(head));
  }
  for (uint32_t i = 0; i < tables.layers * 2; ++i) {
    for (uint32_t bits = kKvquantMinBits; bits <= kKvquantMaxBits; ++bits) {
      KvquantCodebook book;
      book.levels = in.get_array<float>(1u << bits);
      book.edges = in.get_array<float>((1u << bits) - 1);
      if (!in.ok()) return error(StatusCode::data_loss, "the KVQuant tables are cut short in the codebooks of layer ", i / 2);
      if (!good(book))
        return error(StatusCode::data_loss, "the KVQuant tables have a codebook out of order or not finite in layer ", i / 2);
      tables.codebooks.push_back(std::move(book));
    }
  }
  return tables;
}

}  // namespace tierkv::calib
