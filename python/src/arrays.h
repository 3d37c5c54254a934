// arrays.h — arrays of NumPy, torch and whoever speaks DLPack or the buffer protocol, as the views that the cache reads. No copies:
// a layout that the cache cannot read is refused, and the sentence says what to call.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <span>
#include <string>
#include <vector>

#include "tierkv/cache.h"

namespace tierkv::python {

namespace nb = nanobind;

using ReadOnly = nb::ndarray<nb::ro>;
using Floats = nb::ndarray<float, nb::c_contig, nb::device::cpu>;

// Rows and the array that holds them for as long as this lives.
struct Rows {
  ReadOnly array;
  RowsView view;
};

// [tokens, heads, head_dim], f32, f16 or bf16 in host memory, any strides but for the channels, which lie side by side.
// `what` is what messages call it: "keys".
Rows rows_of(nb::handle array, const char* what);

// A float32 array of `size` elements to write to, contiguous.
Floats floats_of(nb::handle array, size_t size, const char* what);

// The bytes of a bytes-like object, held while this lives.
class Bytes {
 public:
  explicit Bytes(nb::handle object);
  ~Bytes();
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;
  std::span<const std::byte> span() const;

 private:
  Py_buffer buffer_;
};

// "float64 [3, 2, 64]" for messages.
std::string shape_text(const ReadOnly& array);

}  // namespace tierkv::python
