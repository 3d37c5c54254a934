// gguf_file.cc — reads a GGUF's metadata with ggml's own reader and checks what it leaves to the loader.
#include "engine/gguf_file.h"

#include <ggml.h>
#include <gguf.h>
#include <llama.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <mutex>
#include <regex>
#include <string_view>

#include "engine/error.h"
#include "engine/text.h"
#include "tierkv/llama.h"

namespace tierkv::engine {
namespace fs = std::filesystem;
namespace {

// Written by libllama's threads, who may not meet an exception: a text that is too long is cut.
struct KeptError {
  std::mutex mutex;
  char text[1024] = "";
};
KeptError kept_error;

void keep_error(ggml_log_level level, const char* text, void*) {
  if (level != GGML_LOG_LEVEL_ERROR || text == nullptr) return;
  std::string_view line = text;
  line = line.substr(0, line.find_last_not_of(" \n\r\t") + 1);
  // libllama puts the function's name first.
  if (const size_t colon = line.find(": "); colon != line.npos && line.find(' ') > colon) line.remove_prefix(colon + 2);
  const std::lock_guard lock(kept_error.mutex);
  kept_error.text[line.copy(kept_error.text, sizeof kept_error.text - 1)] = '\0';
}

void forget_error() {
  const std::lock_guard lock(kept_error.mutex);
  kept_error.text[0] = '\0';
}

using GgufPtr = std::unique_ptr<gguf_context, decltype(&gguf_free)>;

class Metadata {
 public:
  explicit Metadata(const gguf_context* file) : file_(file) {}

  std::string text(const std::string& key) const {
    const int64_t id = gguf_find_key(file_, key.c_str());
    return id >= 0 && gguf_get_kv_type(file_, id) == GGUF_TYPE_STRING ? gguf_get_val_str(file_, id) : "";
  }
  bool has(const std::string& key) const { return gguf_find_key(file_, key.c_str()) >= 0; }
  // Of an array the largest element: layers may differ.
  uint32_t number(const std::string& key, uint32_t fallback = 0) const {
    const int64_t id = gguf_find_key(file_, key.c_str());
    if (id < 0) return fallback;
    switch (gguf_get_kv_type(file_, id)) {
      case GGUF_TYPE_UINT32: return gguf_get_val_u32(file_, id);
      case GGUF_TYPE_INT32: return static_cast<uint32_t>(std::max(0, gguf_get_val_i32(file_, id)));
      case GGUF_TYPE_UINT64: return static_cast<uint32_t>(gguf_get_val_u64(file_, id));
      case GGUF_TYPE_UINT16: return gguf_get_val_u16(file_, id);
      case GGUF_TYPE_ARRAY: return largest(id, fallback);
      default: return fallback;
    }
  }

 private:
  uint32_t largest(int64_t id, uint32_t fallback) const {
    const gguf_type type = gguf_get_arr_type(file_, id);
    const size_t count = gguf_get_arr_n(file_, id);
    if ((type != GGUF_TYPE_UINT32 && type != GGUF_TYPE_INT32) || count == 0) return fallback;
    const auto* values = static_cast<const uint32_t*>(gguf_get_arr_data(file_, id));
    return *std::max_element(values, values + count);
  }
  const gguf_context* file_;
};

// The header does not tell everything that inspecting the loaded model does.
std::string why_refused(const GgufFile& file, const Metadata& meta) {
  const std::string& a = file.architecture;
  const bool recurrent = meta.has(a + ".ssm.state_size") || meta.has(a + ".shortconv.l_cache");
  if (file.heads == 0) return "it is recurrent and keeps no keys and values";
  if (recurrent) return "it is a hybrid of attention and recurrent layers";
  if (meta.has(a + ".attention.kv_lora_rank")) return "it uses latent attention (MLA), which keeps no plain keys and values";
  const bool alibi = a == "bloom" || a == "refact" || a == "jais" || meta.has(a + ".attention.max_alibi_bias");
  if (alibi) return "it uses ALiBi position biases";
  if (file.head_dim < 32 || file.head_dim > 256 || file.head_dim % 16 != 0) {
    return "its head_dim is " + std::to_string(file.head_dim) + ", and only multiples of 16 from 32 to 256 are served";
  }
  return "";
}

std::string quoted_reason() {
  const std::string reason = last_libllama_error();
  return reason.empty() ? "" : " (" + reason + ")";
}

void check_magic(const std::string& path) {
  std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  if (!file) bad_input("cannot read " + path + ": " + std::strerror(errno));
  char magic[4] = {};
  if (std::fread(magic, 1, 4, file.get()) != 4 || std::memcmp(magic, "GGUF", 4) != 0) {
    bad_input(path + " is not a GGUF file: it does not start with \"GGUF\"");
  }
}

// FNV-1a over a small file, or over the metadata and 4096 samples of the weights: a fine-tune changes nearly all of them.
std::string fingerprint_of(const std::string& path, uint64_t metadata_bytes, uint64_t file_bytes) {
  constexpr uint64_t kWhole = 16u << 20, kSamples = 4096, kSample = 256;
  std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  uint64_t hash = 0xCBF29CE484222325ull ^ file_bytes;
  std::vector<unsigned char> block(1 << 16);
  auto mix = [&](uint64_t from, uint64_t count) {
    while (count > 0) {
      const ssize_t got =
          file ? pread(fileno(file.get()), block.data(), std::min<uint64_t>(block.size(), count), static_cast<off_t>(from)) : 0;
      if (got <= 0) return;
      for (ssize_t i = 0; i < got; ++i) hash = (hash ^ block[static_cast<size_t>(i)]) * 0x100000001B3ull;
      from += static_cast<uint64_t>(got);
      count -= static_cast<uint64_t>(got);
    }
  };
  if (file_bytes <= kWhole) {
    mix(0, file_bytes);
  } else {
    mix(0, metadata_bytes);
    for (uint64_t i = 0; i < kSamples; ++i) mix(metadata_bytes + (file_bytes - metadata_bytes) / kSamples * i, kSample);
  }
  return format("%016llx", static_cast<unsigned long long>(hash));
}

}  // namespace

void quiet_libllama() {
  llama_log_set(keep_error, nullptr);
  ggml_log_set(keep_error, nullptr);
}

std::string last_libllama_error() {
  const std::lock_guard lock(kept_error.mutex);
  return kept_error.text;
}

const std::vector<KnownModel>& known_models() {
  static const std::vector<KnownModel> models = {
      {"smollm2",
       "SmolLM2-135M-Instruct.Q4_1.gguf",
       "SmolLM2-135M-Instruct, 98 MB, Apache-2.0",
       {"b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53", "1dff70ef9e211d0ab8951aa641e75aa1"}},
      {"gemma3-270m",
       "gemma-3-270m-q4_k_m.gguf",
       "Gemma-3-270M base, 253 MB, Gemma terms of use",
       {"a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818", "24a425df14b444ea9334a390523ab4e2"}},
  };
  return models;
}

std::string cache_folder() { return llama::cache_folder(); }

std::string find_model(const std::string& name_or_path, const Cancellation* cancel) {
  for (const KnownModel& known : known_models()) {
    const std::string stem = fs::path(known.file).stem().string();
    if (name_or_path != known.name && name_or_path != stem && name_or_path != stem.substr(0, stem.rfind('.'))) continue;
    if (fs::exists(name_or_path)) break;  // a file of that name in this folder wins
    const std::string path = cache_folder() + "/models/" + known.file;
    if (!fs::exists(path)) {
      bad_input("the model " + std::string(known.name) + " is not here yet: `tierkv fetch " + known.name + "` downloads it (" +
                known.about + ")");
    }
    if (!is_unchanged(path, known.digests, cancel)) {
      bad_input(path + " is not the file that was downloaded: its content is another. `tierkv fetch " + known.name +
                "` gets it again");
    }
    return path;
  }
  std::error_code ignored;
  if (fs::is_directory(name_or_path, ignored)) bad_input(name_or_path + " is a folder, not a GGUF file");
  if (!fs::exists(name_or_path, ignored)) {
    std::string names;
    for (const KnownModel& known : known_models()) names += (names.empty() ? "" : ", ") + std::string(known.name);
    bad_input("there is no model file " + name_or_path + " (known names: " + names + ")");
  }
  return name_or_path;
}

std::string model_title(const std::string& path, const std::string& name) {
  static constexpr struct {
    const char *name, *title;
  } kTitles[] = {{"Smollm2 135M 8k Lc100K Mix1 Ep2", "SmolLM2-135M-Instruct"}, {"Gemma 3 270m", "Gemma-3-270M"}};
  for (const auto& known : kTitles) {
    if (name == known.name) return known.title;
  }
  static const std::regex quantization("[-._](i?q[0-9]\\w*|[bf]+(16|32)|mxfp4)$", std::regex::icase);
  static const std::regex size("(^|[-_. ])[0-9.]+[bm]([-_. ]|$)", std::regex::icase);
  const std::string stem = std::regex_replace(fs::path(path).stem().string(), quantization, "");
  return std::regex_search(stem, size) ? stem : name;
}

GgufFile read_gguf(const std::string& path) {
  quiet_libllama();
  check_magic(path);
  forget_error();
  gguf_init_params params{};
  params.no_alloc = true;
  const GgufPtr file(gguf_init_from_file(path.c_str(), params), gguf_free);
  if (!file) bad_input(path + " is a damaged or truncated GGUF file: its header cannot be read" + quoted_reason());

  GgufFile result;
  result.path = path;
  std::error_code problem;
  result.file_bytes = fs::file_size(path, problem);
  const uint64_t data = gguf_get_data_offset(file.get());
  uint64_t needed = data;
  for (int64_t i = 0; i < gguf_get_n_tensors(file.get()); ++i) {
    needed = std::max<uint64_t>(needed, data + gguf_get_tensor_offset(file.get(), i) + gguf_get_tensor_size(file.get(), i));
  }
  if (result.file_bytes < needed) {
    bad_input(path + " is truncated: its tensors need " + human_count(needed) + " bytes, and the file has " +
              human_count(result.file_bytes));
  }
  const Metadata meta(file.get());
  result.architecture = meta.text("general.architecture");
  if (result.architecture.empty()) bad_input(path + " does not say its architecture: it is not a language model");
  const std::string& a = result.architecture;
  result.name = meta.text("general.name");
  if (result.name.empty()) result.name = fs::path(path).stem().string();
  result.layers = meta.number(a + ".block_count");
  result.heads = meta.number(a + ".attention.head_count");
  result.kv_heads = meta.number(a + ".attention.head_count_kv", result.heads);
  result.head_dim =
      meta.number(a + ".attention.key_length", result.heads ? meta.number(a + ".embedding_length") / result.heads : 0);
  result.context = meta.number(a + ".context_length");
  result.window = meta.number(a + ".attention.sliding_window");
  result.refused = why_refused(result, meta);
  result.fingerprint = fingerprint_of(path, data, result.file_bytes);
  return result;
}

}  // namespace tierkv::engine
