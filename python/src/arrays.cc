#include "arrays.h"

#include <nanobind/stl/string.h>

#include <limits>

#include "errors.h"

namespace tierkv::python {
namespace {

const char* dtype_name(nb::dlpack::dtype type) {
  const auto is = [&](nb::dlpack::dtype_code code, int bits) {
    return type.code == static_cast<uint8_t>(code) && type.bits == bits;
  };
  if (is(nb::dlpack::dtype_code::Float, 32)) return "float32";
  if (is(nb::dlpack::dtype_code::Float, 16)) return "float16";
  if (is(nb::dlpack::dtype_code::Float, 64)) return "float64";
  if (is(nb::dlpack::dtype_code::Bfloat, 16)) return "bfloat16";
  if (type.code == static_cast<uint8_t>(nb::dlpack::dtype_code::Int)) return "integers";
  if (type.code == static_cast<uint8_t>(nb::dlpack::dtype_code::UInt)) return "unsigned integers";
  return "another type";
}

// What torch would refuse to hand over, with a sentence of its own.
void refuse_gradients(nb::handle array, const char* what) {
  if (!nb::hasattr(array, "requires_grad")) return;
  nb::object asks = nb::getattr(array, "requires_grad");
  if (asks.is_none() || !nb::cast<bool>(nb::bool_(asks))) return;
  raise(StatusCode::invalid_argument,
        std::string(what) + ": the tensor requires a gradient, and a cache has none to give; pass tensor.detach()");
}

ReadOnly import(nb::handle array, const char* what) {
  refuse_gradients(array, what);
  ReadOnly imported;
  if (!nb::try_cast<ReadOnly>(array, imported, false)) {
    PyErr_Clear();
    const std::string type =
        nb::cast<std::string>(nb::str(nb::handle(reinterpret_cast<PyObject*>(Py_TYPE(array.ptr()))).attr("__name__")));
    raise(StatusCode::invalid_argument,
          std::string(what) + ": " + type + " is no array; pass a NumPy array, a torch tensor, or anything with __dlpack__");
  }
  return imported;
}

DType type_of(const ReadOnly& array, const char* what) {
  const std::string name = dtype_name(array.dtype());
  if (array.dtype().lanes == 1) {
    if (name == "float32") return DType::f32;
    if (name == "float16") return DType::f16;
    if (name == "bfloat16") return DType::bf16;
  }
  raise(StatusCode::invalid_argument,
        std::string(what) + ": " + shape_text(array) + " is not float32, float16 or bfloat16; convert it, say with .astype or .to");
}

uint32_t small(size_t value, const char* what) {
  if (value > std::numeric_limits<uint32_t>::max())
    raise(StatusCode::invalid_argument, std::string(what) + ": a dimension of " + std::to_string(value) + " is too long");
  return static_cast<uint32_t>(value);
}

}  // namespace

std::string shape_text(const ReadOnly& array) {
  std::string text = std::string(dtype_name(array.dtype())) + " [";
  for (size_t i = 0; i < array.ndim(); ++i) text += (i ? ", " : "") + std::to_string(array.shape(i));
  return text + "]";
}

Rows rows_of(nb::handle array, const char* what) {
  Rows rows{import(array, what), {}};
  const ReadOnly& given = rows.array;
  if (given.device_type() != nb::device::cpu::value && given.device_type() != nb::device::cuda_host::value)
    raise(StatusCode::unsupported,
          std::string(what) + ": the array is on a device, and this build reads host memory; pass it .cpu()");
  const DType type = type_of(given, what);
  if (given.ndim() != 3)
    raise(StatusCode::invalid_argument, std::string(what) + ": " + shape_text(given) + " must be [tokens, heads, head_dim]");
  if (given.shape(2) > 1 && given.stride(2) != 1)
    raise(StatusCode::invalid_argument, std::string(what) + ": " + shape_text(given) +
                                            " has channels that do not lie side by side; pass numpy.ascontiguousarray(array) or "
                                            "tensor.contiguous()");
  rows.view = {given.data(), type, small(given.shape(0), what), small(given.shape(1), what), small(given.shape(2), what)};
  rows.view.token_stride = given.stride(0);
  rows.view.head_stride = given.stride(1);
  return rows;
}

Floats floats_of(nb::handle array, size_t size, const char* what) {
  refuse_gradients(array, what);
  Floats floats;
  if (!nb::try_cast<Floats>(array, floats, false)) {
    PyErr_Clear();
    raise(StatusCode::invalid_argument, std::string(what) + " must be a writable, contiguous float32 array in host memory");
  }
  if (floats.size() != size)
    raise(StatusCode::invalid_argument,
          std::string(what) + " has " + std::to_string(floats.size()) + " elements and needs " + std::to_string(size));
  return floats;
}

Bytes::Bytes(nb::handle object) {
  if (PyObject_GetBuffer(object.ptr(), &buffer_, PyBUF_SIMPLE) != 0) throw nb::python_error();
}
Bytes::~Bytes() { PyBuffer_Release(&buffer_); }
std::span<const std::byte> Bytes::span() const {
  return {static_cast<const std::byte*>(buffer_.buf), static_cast<size_t>(buffer_.len)};
}

}  // namespace tierkv::python
