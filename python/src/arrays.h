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

// Where a call may find its rows: in host memory, and in the memory of the device that the cache is attached to.
struct Places {
  int device = -1;      // its number; -1: none is attached, and arrays on a device are refused
  uint64_t stream = 0;  // after whose work rows on it are valid
};

// Rows and the array that holds them for as long as this lives; who tells of a CUDA array by its interface holds it himself.
struct Rows {
  ReadOnly array;
  RowsView view;
};

// [tokens, heads, head_dim], f32, f16 or bf16, any strides but for the channels, which lie side by side.
// `what` is what messages call it: "keys".
Rows rows_of(nb::handle array, const char* what, const Places& places = {});

// A float32 array of `size` elements to write to, contiguous, in host memory.
Floats floats_of(nb::handle array, size_t size, const char* what);

// Room for the results of queries, in the memory that they are in.
struct Results {
  Floats host;
  nb::ndarray<float, nb::c_contig> device;
  float* data = nullptr;
};
Results results_of(nb::handle array, const RowsView& queries, const Places& places);

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

}  // namespace tierkv::python
