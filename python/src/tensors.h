// tensors.h — torch tensors as they lie, for what every layer of every step does: an import of an array (arrays.h) takes longer
// than all the rest of such a call.
//
// torch 2.10 and later have a table of functions for it on their type (DLPack's __dlpack_c_exchange_api__), which tells all of a
// tensor in one call. Others are asked for their address, shape, strides, type and device one after the other.
#pragma once

#include <nanobind/nanobind.h>

#include "tierkv/cache.h"

namespace tierkv::python {

namespace nb = nanobind;

// [batch, a, b, channels], channels side by side. Strides are in elements.
struct Tensor {
  nb::object copy;  // where channels did not lie side by side: what `data` is of
  const char* data = nullptr;
  DType type = DType::f32;
  int device = -1;  // its number; -1: host memory
  int64_t shape[4] = {}, strides[4] = {};

  bool is(int64_t batch, int64_t a, int64_t b, int64_t channels) const {
    return shape[0] == batch && shape[1] == a && shape[2] == b && shape[3] == channels;
  }
  // Whether elements lie one after the other, so that they can be written as an array.
  bool dense() const;
};

// The tensor must outlive it, and gradients are the caller's business. Raises for what has not four dimensions or another type than
// float32, float16 and bfloat16; `what` is what messages call it: "keys".
Tensor tensor_of(nb::handle tensor, const char* what);

// For messages: "[1, 2, 3, 4]".
std::string shape_text(const int64_t (&shape)[4]);
// float32 [batch, a, b, channels] as "keys: float32 [1, 2, 3, 4]".
std::string text_of(const Tensor& tensor, const char* what);

}  // namespace tierkv::python
