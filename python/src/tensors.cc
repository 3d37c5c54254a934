#include "tensors.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <string>
#include <vector>

#include "errors.h"

namespace tierkv::python {
namespace {

// The table behind __dlpack_c_exchange_api__, as DLPack 1.3 lays it out. Its first two fields stay what they are in every version.
struct Exchange {
  uint32_t major, minor;
  const Exchange* older;
  void *allocate, *manage, *wrap;
  int (*describe)(void* object, nb::dlpack::dltensor* out);  // may be null
  void* stream;
};
constexpr uint32_t kMajor = 1;

const Exchange* table_of(nb::handle type) {
  const nb::object capsule = nb::getattr(type, "__dlpack_c_exchange_api__", nb::none());
  if (!PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api")) return nullptr;
  auto* table = static_cast<const Exchange*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  while (table && table->major > kMajor) table = table->older;
  return table && table->major == kMajor && table->describe ? table : nullptr;
}

// Of the type that was asked for last, which is torch.Tensor: there is one in a process that matters. Under the GIL.
const Exchange* known_table(nb::handle type) {
  static PyObject* last = nullptr;  // a reference of its own: no other type comes to lie there
  static const Exchange* table = nullptr;
  if (type.ptr() == last) return table;
  const Exchange* found = table_of(type);
  Py_XDECREF(last);
  last = type.inc_ref().ptr(), table = found;
  return table;
}

const char* name_of(DType type) { return type == DType::f32 ? "float32" : type == DType::f16 ? "float16" : "bfloat16"; }

[[noreturn]] void refuse(const char* what, const std::string& why) {
  raise(StatusCode::invalid_argument, std::string(what) + ": " + why);
}

DType type_of(nb::dlpack::dtype type, const char* what) {
  const bool floats = type.code == static_cast<uint8_t>(nb::dlpack::dtype_code::Float) && type.lanes == 1;
  if (floats && type.bits == 32) return DType::f32;
  if (floats && type.bits == 16) return DType::f16;
  if (type.code == static_cast<uint8_t>(nb::dlpack::dtype_code::Bfloat) && type.bits == 16 && type.lanes == 1) return DType::bf16;
  refuse(what, "the tensor is not float32, float16 or bfloat16");
}

Tensor told_by(const Exchange& table, nb::handle object, const char* what) {
  nb::dlpack::dltensor told;
  if (table.describe(object.ptr(), &told) != 0) throw nb::python_error();
  if (told.ndim != 4) refuse(what, "a tensor of " + std::to_string(told.ndim) + " dimensions, and 4 are meant");
  Tensor tensor;
  tensor.data = static_cast<const char*>(told.data) + told.byte_offset;
  tensor.type = type_of(told.dtype, what);
  const bool host = told.device.device_type == nb::device::cpu::value || told.device.device_type == nb::device::cuda_host::value;
  tensor.device = host ? -1 : told.device.device_id;
  int64_t next = 1;
  for (int i = 3; i >= 0; --i) {
    tensor.shape[i] = told.shape[i];
    tensor.strides[i] = told.strides ? told.strides[i] : next;
    next *= told.shape[i];
  }
  return tensor;
}

Tensor told_by_itself(nb::handle object, const char* what) {
  const auto shape = nb::cast<std::vector<int64_t>>(object.attr("shape"));
  const auto strides = nb::cast<std::vector<int64_t>>(object.attr("stride")());
  if (shape.size() != 4) refuse(what, "a tensor of " + std::to_string(shape.size()) + " dimensions, and 4 are meant");
  Tensor tensor;
  tensor.data = reinterpret_cast<const char*>(nb::cast<uintptr_t>(object.attr("data_ptr")()));
  const nb::object dtype = object.attr("dtype");  // nb::str() of what attr() gives would take it for a string
  const auto type = nb::cast<std::string>(nb::str(dtype));
  if (type == "torch.float16") tensor.type = DType::f16;
  else if (type == "torch.bfloat16") tensor.type = DType::bf16;
  else if (type != "torch.float32") refuse(what, "the tensor is not float32, float16 or bfloat16");
  tensor.device = nb::cast<int>(object.attr("get_device")());
  std::copy(shape.begin(), shape.end(), tensor.shape);
  std::copy(strides.begin(), strides.end(), tensor.strides);
  return tensor;
}

Tensor told(nb::handle object, const char* what) {
  const Exchange* table = known_table(nb::handle(reinterpret_cast<PyObject*>(Py_TYPE(object.ptr()))));
  return table ? told_by(*table, object, what) : told_by_itself(object, what);
}

}  // namespace

bool Tensor::dense() const {
  int64_t next = 1;
  for (int i = 3; i >= 0; --i) {
    if (shape[i] != 1 && strides[i] != next) return false;
    next *= shape[i];
  }
  return true;
}

Tensor tensor_of(nb::handle tensor, const char* what) {
  Tensor found = told(tensor, what);
  if (found.strides[3] == 1 || found.shape[3] == 1) return found;
  nb::object copy = tensor.attr("contiguous")();
  found = told(copy, what);
  found.copy = std::move(copy);
  return found;
}

std::string shape_text(const int64_t (&shape)[4]) {
  std::string text = "[";
  for (int i = 0; i < 4; ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

std::string text_of(const Tensor& tensor, const char* what) {
  const std::string text = std::string(what) + ": " + name_of(tensor.type) + " " + shape_text(tensor.shape);
  return text + (tensor.device < 0 ? "" : " on CUDA device " + std::to_string(tensor.device));
}

}  // namespace tierkv::python
