// handle.h — a cache as Python holds it: shared with the calls under way, so that close() in one thread does not pull it from under
// another, and with the pressure handler, which Python's collector has to see.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "errors.h"
#include "tierkv/cache.h"
#include "tierkv/cuda.h"

namespace tierkv::python {

class Handle {
 public:
  using Shared = std::shared_ptr<AdaptiveKVCache>;

  explicit Handle(Shared cache) : cache_(std::move(cache)) {}

  // The cache for one call. Refused after close().
  Shared live() const {
    if (!cache_) raise(StatusCode::failed_precondition, "the cache is closed; make another one");
    return cache_;
  }
  bool closed() const { return !cache_; }
  // Calls under way in other threads finish first; the last of them lets go of the memory.
  void close();

  // Asked with the GIL when a call lacks memory; None: nobody is.
  void set_pressure_handler(nb::object handler);
  nb::handle pressure_handler() const { return handler_; }
  void forget_handler() { handler_.reset(); }

  // The device that attention runs on, from attach() to detach(). No other call on the cache is under way in either.
  void attach(const cuda::Options& options);
  void detach();
  int device() const { return device_ ? number_ : -1; }
  const cuda::Device& attached() const;

  // Runs `work(cache)` without the GIL and raises what its Status says.
  template <class Work>
  void run(Work&& work) const {
    const Shared cache = live();
    check(without_gil([&] { return work(*cache); }));
  }
  // The same for work that has a result.
  template <class Work>
  auto get(Work&& work) const {
    const Shared cache = live();
    return take(without_gil([&] { return work(*cache); }));
  }
  // And for work that cannot fail.
  template <class Work>
  auto ask(Work&& work) const {
    const Shared cache = live();
    return without_gil([&] { return work(*cache); });
  }

 private:
  Shared cache_;
  nb::object handler_;
  std::shared_ptr<const cuda::Device> device_;
  int number_ = -1;
};

void bind_tokens(nb::class_<Handle>& cache);
void bind_step(nb::class_<Handle>& cache);
void bind_statistics(nb::class_<Handle>& cache);
void bind_snapshots(nb::class_<Handle>& cache);
void bind_device(nb::module_& m, nb::class_<Handle>& cache);

}  // namespace tierkv::python
