#include "llama/pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

namespace tierkv::llama {
namespace {

uintptr_t page_size() {
  static const auto size = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  return size;
}

// The whole pages of a range. Where the kernel refuses (locked memory, say), the pages stay: that costs memory and nothing else.
void release(char* start, size_t size) {
  const uintptr_t page = page_size(), at = reinterpret_cast<uintptr_t>(start);
  const uintptr_t first = (at + page - 1) / page * page, end = (at + size) / page * page;
  if (first < end) (void)madvise(reinterpret_cast<void*>(first), end - first, MADV_DONTNEED);
}

// Of the pages that begin in a range, so that none is counted for two neighbours; 0 where there is no memory any more.
size_t in_memory(const char* start, size_t size) {
  const uintptr_t page = page_size(), at = reinterpret_cast<uintptr_t>(start);
  const uintptr_t first = (at + page - 1) / page * page, end = (at + size + page - 1) / page * page;
  unsigned char present[512];  // so many pages at a time: statistics allocate nothing
  size_t bytes = 0;
  for (uintptr_t from = first; from < end;) {
    const uintptr_t to = std::min(end, from + sizeof present * page);
    if (mincore(reinterpret_cast<void*>(from), to - from, present) != 0) return 0;
    for (size_t i = 0; i < (to - from) / page; ++i) bytes += (present[i] & 1) != 0 ? page : 0;
    from = to;
  }
  return bytes;
}

}  // namespace

void CellPages::serve(Range& range, const ggml_tensor* view, size_t rows) {
  const ggml_tensor* tensor = view->view_src != nullptr ? view->view_src : view;
  char* start = static_cast<char*>(tensor->data);
  const size_t size = ggml_nbytes(tensor);
  // libllama writes zeros over the whole tensor when it makes it, so the first time all of it goes.
  const bool is_new = range.start != start || range.size != size;
  range = {start, size};
  if (size > kKept && (is_new || rows * tensor->nb[1] > kKept)) used_.push_back({start + kKept, size - kKept});
}

void CellPages::served(size_t layer, const ggml_tensor* keys, const ggml_tensor* values, size_t rows) {
  flush();
  serve(layers_[layer].keys, keys, rows);
  serve(layers_[layer].values, values, rows);
}

void CellPages::flush() {
  for (const Range& range : used_) release(range.start, range.size);
  used_.clear();
}

size_t CellPages::resident_bytes() const {
  size_t bytes = 0;
  for (const Layer& layer : layers_) {
    bytes += in_memory(layer.keys.start, layer.keys.size) + in_memory(layer.values.start, layer.values.size);
  }
  return bytes;
}

}  // namespace tierkv::llama
