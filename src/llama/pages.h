// pages.h — the pages of libllama's own small cache, given back to the kernel as soon as a layer's attention has been served.
//
// libllama keeps one micro-batch of keys and values for every layer, at least 256 cells, and nothing reads a layer's cells once
// tierkv's cache has them. So a layer's pages go back when the next layer begins: what stays of each tensor are the few pages
// that single tokens need, and decoding token by token never gives back or faults in anything.
//
// Invariant: only whole pages inside a tensor are released, so its neighbours keep their bytes; released cells read as zeros, which
//            is what libllama fills unused cells with.
// Threads:   served() and flush() when no other thread is inside the layer served before: ggml's threads meet between any two
//            nodes.
#pragma once

#include <ggml.h>

#include <cstddef>
#include <vector>

namespace tierkv::llama {

class CellPages {
 public:
  static constexpr size_t kKept = 4096;  // bytes of a tensor that stay

  explicit CellPages(size_t layers) : layers_(layers) { used_.reserve(2); }

  // `rows` cells of the layer's tensors are being served: keys and values are views of them. Releases what was served before.
  void served(size_t layer, const ggml_tensor* keys, const ggml_tensor* values, size_t rows);
  void flush();

  // What libllama's tensors have in memory now, of the layers served so far. 0 once their context is gone.
  size_t resident_bytes() const;

 private:
  struct Range {
    char* start = nullptr;
    size_t size = 0;
  };
  struct Layer {
    Range keys, values;
  };
  void serve(Range& range, const ggml_tensor* view, size_t rows);

  std::vector<Layer> layers_;
  std::vector<Range> used_;  // of the layer being served, two at most
};

}  // namespace tierkv::llama
