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

// What DLPack or a CUDA array interface says of an array; strides in elements.
struct Told {
  const void* data = nullptr;
  std::string type;
  std::vector<int64_t> shape = {}, strides = {};
  bool host = true;
  int device = -1;  // of one on a CUDA device; -1: that is not told
};

std::string text_of(const Told& told) {
  std::string text = told.type + " [";
  for (size_t i = 0; i < told.shape.size(); ++i) text += (i ? ", " : "") + std::to_string(told.shape[i]);
  return text + "]";
}

Told told_by(const ReadOnly& array) {
  Told told{array.data(), array.dtype().lanes == 1 ? dtype_name(array.dtype()) : "another type"};
  for (size_t i = 0; i < array.ndim(); ++i) {
    told.shape.push_back(static_cast<int64_t>(array.shape(i)));
    told.strides.push_back(array.stride(i));
  }
  told.host = array.device_type() == nb::device::cpu::value || array.device_type() == nb::device::cuda_host::value;
  if (array.device_type() == nb::device::cuda::value) told.device = array.device_id();
  return told;
}

// Of arrays on a device that do not speak DLPack: __cuda_array_interface__, version 2 or 3.
Told told_by_interface(nb::handle array, uint64_t& stream) {
  const nb::dict said = nb::cast<nb::dict>(array.attr("__cuda_array_interface__"));
  const auto type = nb::cast<std::string>(said["typestr"]);
  Told told{reinterpret_cast<const void*>(nb::cast<uintptr_t>(nb::cast<nb::tuple>(said["data"])[0])), type == "<f4" ? "float32"
                                                                                                      : type == "<f2"
                                                                                                          ? "float16"
                                                                                                          : "another type"};
  told.host = false;
  for (nb::handle length : nb::cast<nb::tuple>(said["shape"])) told.shape.push_back(nb::cast<int64_t>(length));
  told.strides.assign(told.shape.size(), 1);
  for (size_t i = told.shape.size(); i-- > 1;) told.strides[i - 1] = told.strides[i] * told.shape[i];
  if (said.contains("strides") && !said["strides"].is_none()) {
    const int64_t size = type == "<f2" ? 2 : 4;
    size_t i = 0;
    for (nb::handle bytes : nb::cast<nb::tuple>(said["strides"])) told.strides[i++] = nb::cast<int64_t>(bytes) / size;
  }
  // 1 is the legacy default stream, which is 0 elsewhere.
  if (said.contains("stream") && !said["stream"].is_none()) {
    stream = nb::cast<uint64_t>(said["stream"]);
    if (stream == 1) stream = 0;
  }
  return told;
}

// A check of where an array is; whether it is on the device.
bool on_device(const Told& told, const Places& places, const char* what) {
  if (told.host) return false;
  if (places.device < 0)
    raise(StatusCode::unsupported,
          std::string(what) +
              ": the array is on a device, and this cache reads host memory; call tierkv.cuda.attach(cache) "
              "first, in a build with CUDA, or pass the array's .cpu()");
  if (told.device >= 0 && told.device != places.device)
    raise(StatusCode::invalid_argument, std::string(what) + ": the array is on CUDA device " + std::to_string(told.device) +
                                            ", and the cache is attached to " + std::to_string(places.device));
  return true;
}

DType type_of(const Told& told, const char* what) {
  if (told.type == "float32") return DType::f32;
  if (told.type == "float16") return DType::f16;
  if (told.type == "bfloat16") return DType::bf16;
  raise(StatusCode::invalid_argument,
        std::string(what) + ": " + text_of(told) + " is not float32, float16 or bfloat16; convert it, say with .astype or .to");
}

uint32_t small(int64_t value, const char* what) {
  if (value < 0 || value > std::numeric_limits<uint32_t>::max())
    raise(StatusCode::invalid_argument, std::string(what) + ": a dimension of " + std::to_string(value) + " is too long");
  return static_cast<uint32_t>(value);
}

}  // namespace

Rows rows_of(nb::handle array, const char* what, const Places& places) {
  Rows rows;
  Told told;
  uint64_t stream = places.stream;
  if (!nb::hasattr(array, "__dlpack__") && nb::hasattr(array, "__cuda_array_interface__")) {
    told = told_by_interface(array, stream);
  } else {
    rows.array = import(array, what);
    told = told_by(rows.array);
  }
  const bool device = on_device(told, places, what);
  const DType type = type_of(told, what);
  if (told.shape.size() != 3)
    raise(StatusCode::invalid_argument, std::string(what) + ": " + text_of(told) + " must be [tokens, heads, head_dim]");
  if (told.shape[2] > 1 && told.strides[2] != 1)
    raise(StatusCode::invalid_argument, std::string(what) + ": " + text_of(told) +
                                            " has channels that do not lie side by side; pass numpy.ascontiguousarray(array) or "
                                            "tensor.contiguous()");
  rows.view = {told.data, type, small(told.shape[0], what), small(told.shape[1], what), small(told.shape[2], what)};
  rows.view.token_stride = told.strides[0];
  rows.view.head_stride = told.strides[1];
  if (device) {
    rows.view.place = MemoryPlace::device;
    rows.view.ready = reinterpret_cast<void*>(stream);
  }
  return rows;
}

Results results_of(nb::handle array, const RowsView& queries, const Places& places) {
  const size_t size = size_t{queries.tokens} * queries.heads * queries.head_dim;
  Results results;
  if (queries.place == MemoryPlace::host) {
    results.host = floats_of(array, size, "out");
    results.data = results.host.data();
    return results;
  }
  refuse_gradients(array, "out");
  const bool taken = nb::try_cast<nb::ndarray<float, nb::c_contig>>(array, results.device, false);
  if (!taken) PyErr_Clear();
  if (!taken || results.device.device_type() != nb::device::cuda::value || results.device.device_id() != places.device)
    raise(StatusCode::invalid_argument, "out must be a writable, contiguous float32 array on CUDA device " +
                                            std::to_string(places.device) + ", where the queries are");
  if (results.device.size() != size)
    raise(StatusCode::invalid_argument,
          "out has " + std::to_string(results.device.size()) + " elements and needs " + std::to_string(size));
  results.data = results.device.data();
  return results;
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
