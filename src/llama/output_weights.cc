#include "llama/output_weights.h"

#include <ggml.h>
#include <gguf.h>

#include <algorithm>
#include <cstdio>
#include <memory>

namespace tierkv::llama {
namespace {

struct GgufFile {
  explicit GgufFile(const std::string& path) : file(std::fopen(path.c_str(), "rb"), std::fclose) {
    if (!file) return;
    ggml_context* tensors = nullptr;
    gguf_init_params params{};
    params.no_alloc = true;
    params.ctx = &tensors;
    gguf.reset(gguf_init_from_file(path.c_str(), params));
    context.reset(tensors);
  }
  bool ok() const { return file && gguf && context; }

  std::unique_ptr<FILE, int (*)(FILE*)> file;
  std::unique_ptr<gguf_context, void (*)(gguf_context*)> gguf{nullptr, gguf_free};
  std::unique_ptr<ggml_context, void (*)(ggml_context*)> context{nullptr, ggml_free};
};

// The tensor's rows as floats, [rows][columns]; empty when it is not there or not of that width.
std::vector<float> read_rows(GgufFile& from, const std::string& name, int64_t columns) {
  const int64_t id = gguf_find_tensor(from.gguf.get(), name.c_str());
  const ggml_tensor* tensor = id < 0 ? nullptr : ggml_get_tensor(from.context.get(), name.c_str());
  if (tensor == nullptr || tensor->ne[0] != columns || tensor->ne[2] != 1 || tensor->ne[3] != 1) return {};
  const ggml_to_float_t to_float = ggml_get_type_traits(tensor->type)->to_float;
  if (tensor->type != GGML_TYPE_F32 && to_float == nullptr) return {};
  std::vector<char> bytes(ggml_nbytes(tensor));
  const auto offset = static_cast<off_t>(gguf_get_data_offset(from.gguf.get()) + gguf_get_tensor_offset(from.gguf.get(), id));
  if (fseeko(from.file.get(), offset, SEEK_SET) != 0 || std::fread(bytes.data(), 1, bytes.size(), from.file.get()) != bytes.size())
    return {};
  std::vector<float> values(static_cast<size_t>(tensor->ne[0] * tensor->ne[1]));
  if (tensor->type == GGML_TYPE_F32) {
    std::copy_n(reinterpret_cast<const float*>(bytes.data()), values.size(), values.data());
  } else {
    to_float(bytes.data(), values.data(), static_cast<int64_t>(values.size()));
  }
  return values;
}

// gram += the outer product of every row's channels of one head.
void add_rows(const std::vector<float>& rows, size_t columns, size_t first, uint32_t dim, float* gram) {
  for (size_t row = 0; row < rows.size() / columns; ++row) {
    const float* x = rows.data() + row * columns + first;
    for (uint32_t i = 0; i < dim; ++i) {
      const float scale = x[i];
      float* out = gram + static_cast<size_t>(i) * dim;
      for (uint32_t j = 0; j < dim; ++j) out[j] += scale * x[j];
    }
  }
}

}  // namespace

float OutputWeights::scale(const float* out, size_t columns) const {
  if (projection.empty()) return 1.0f;
  double sum = 0.0;
  for (size_t row = 0; row < projection.size(); row += columns) {
    float sums[8] = {};
    for (size_t c = 0; c < columns; c += 8) {
      for (size_t k = 0; k < 8; ++k) sums[k] += projection[row + c + k] * out[c + k];
    }
    const float y = ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
    sum += static_cast<double>(y) * y;
  }
  return static_cast<float>(sum * static_cast<double>(columns) / static_cast<double>(projection.size()));
}

std::vector<OutputWeights> output_weights(const ModelShape& shape, const std::string& path, ThreadPool& pool) {
  std::vector<OutputWeights> layers(shape.layers);
  GgufFile file(path);
  if (!file.ok()) return layers;
  const size_t dim = shape.head_dim, columns = shape.heads * dim;
  for (uint32_t layer = 0; layer < shape.layers; ++layer) {
    const std::string block = "blk." + std::to_string(shape.cache_layers[layer]);
    std::vector<float> rows = read_rows(file, block + ".attn_output.weight", static_cast<int64_t>(columns));
    if (rows.empty()) continue;
    OutputWeights& weights = layers[layer];
    const std::vector<float> norm =
        read_rows(file, block + ".post_attention_norm.weight", static_cast<int64_t>(rows.size() / columns));
    // Models that have one after the feed-forward part too mean it as such; others call the norm before that part so.
    if (!norm.empty() && gguf_find_tensor(file.gguf.get(), (block + ".post_ffw_norm.weight").c_str()) >= 0) {
      weights.projection = rows;
      for (size_t i = 0; i < rows.size(); ++i) rows[i] *= norm[i / columns];
    }
    weights.gram.assign(columns * dim, 0.0f);
    pool.run(shape.heads,
             [&](uint32_t head) { add_rows(rows, columns, head * dim, shape.head_dim, weights.gram.data() + head * dim * dim); });
  }
  return layers;
}

}  // namespace tierkv::llama
