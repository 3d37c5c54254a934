// gguf_file.h — a GGUF without its weights: what kind of model it is and whether the file is whole; and where known models lie.
//
// Errors: Error, bad_input, for a file that is missing, not a GGUF, damaged or shorter than its tensors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/cancellation.h"
#include "engine/checked_file.h"

namespace tierkv::engine {

struct KnownModel {
  const char* name;  // for EngineOptions::model and `tierkv fetch`
  const char* file;  // in <cache folder>/models
  const char* about;
  KnownDigests digests;
};
const std::vector<KnownModel>& known_models();

// $TIERKV_CACHE, or tierkv/ in the XDG cache.
std::string cache_folder();
// The file that is meant: a path as it is, a known name's file in the cache folder. Missing: says how to get it. A known name's
// file that is not what was downloaded is refused; that is looked at once (checked_file.h).
std::string find_model(const std::string& name_or_path, const Cancellation* cancel = nullptr);

// What to call a model to people. `name` is general.name, which converters make up ("Smollm2 135M 8k Lc100K Mix1 Ep2"): a known one
// is called by what it is; otherwise the file's name without its quantization counts, if it says a size ("-8B-"), and `name` if
// not.
std::string model_title(const std::string& path, const std::string& name);

struct GgufFile {
  std::string path, name, architecture;
  uint32_t layers = 0;
  uint32_t heads = 0;
  uint32_t kv_heads = 0;  // of the layer that has most
  uint32_t head_dim = 0;
  uint32_t context = 0;
  uint32_t window = 0;  // sliding window, 0: none
  uint64_t file_bytes = 0;
  std::string refused;      // why the cache does not serve it, as far as the header tells; empty if it may
  std::string fingerprint;  // 16 hexadecimal digits of the metadata and of samples of the weights
};

// Reads the metadata, and checks that the file is as long as its tensors need.
GgufFile read_gguf(const std::string& path);

// libllama's and ggml's messages are not printed; the last error is kept, because it explains a failure. It is one for the process:
// where two threads load models at once, either may get the other's.
void quiet_libllama();
std::string last_libllama_error();

}  // namespace tierkv::engine
