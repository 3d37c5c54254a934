// device.cc — a cache whose attention runs on a CUDA device (tierkv/cuda.h). Without CUDA in the build all of it is refused.
#include "handle.h"

namespace tierkv::python {

void Handle::attach(const cuda::Options& options) {
  const Shared cache = live();
  device_ = take(without_gil([&] { return cuda::attach(*cache, options); }));
  number_ = options.device;
}

void Handle::detach() {
  const Shared cache = live();
  check(without_gil([&] {
    Status status = cuda::detach(*cache);
    if (status.code() != StatusCode::resource_exhausted) device_.reset();  // else it stays attached
    return status;
  }));
}

const cuda::Device& Handle::attached() const {
  if (!device_) raise(StatusCode::failed_precondition, "no device is attached; call tierkv.cuda.attach(cache)");
  return *device_;
}

void bind_device(nb::module_& m, nb::class_<Handle>& cache) {
  nb::class_<cuda::Usage>(m, "CudaUsage", "What a cache has on its device, and what was done there.")
      .def_ro("block_bytes", &cuda::Usage::block_bytes)
      .def_ro("scratch_bytes", &cuda::Usage::scratch_bytes)
      .def_ro("device_bytes", &cuda::Usage::device_bytes)
      .def_ro("peak_bytes", &cuda::Usage::peak_bytes)
      .def_ro("blocks", &cuda::Usage::blocks)
      .def_ro("only_bytes", &cuda::Usage::only_bytes)
      .def_ro("only_blocks", &cuda::Usage::only_blocks)
      .def_ro("uploads", &cuda::Usage::uploads)
      .def_ro("launches", &cuda::Usage::launches)
      .def_ro("on_processor", &cuda::Usage::on_processor);
  m.def(
      "cuda_available", [](int device) { check(without_gil([&] { return cuda::available(device); })); }, nb::arg("device"));
  cache
      .def(
          "cuda_attach",
          [](Handle& self, int device, uint64_t byte_limit, bool keep_on_host) {
            self.attach({device, byte_limit, keep_on_host});
          },
          nb::arg("device"), nb::arg("byte_limit"), nb::arg("keep_on_host"))
      .def("cuda_detach", &Handle::detach)
      .def("cuda_device", &Handle::device)
      .def("cuda_usage",
           [](const Handle& self) {
             const Handle::Shared cache = self.live();
             const cuda::Device& device = self.attached();
             return without_gil([&] { return device.usage(); });
           })
      .def("cuda_check", [](const Handle& self) {
        const Handle::Shared cache = self.live();
        const cuda::Device& device = self.attached();
        check(without_gil([&] { return device.check(); }));
      });
}

}  // namespace tierkv::python
