// twin_machine_testing.h — a machine whose memory is the processor's and whose launch is the scalar twin, so that tests run all of
// a device's backend but its threads.
#pragma once

#include <cmath>
#include <cstdlib>
#include <cstring>

#include "cuda/machine.h"
#include "cuda/prompt_twin_testing.h"
#include "cuda/twin_testing.h"

namespace tierkv::cuda::testing {

class TwinMachine final : public Machine {
 public:
  // `memory`: so many bytes in all can be allocated; 0: any number.
  explicit TwinMachine(MachineFacts facts = {7, true}, uint64_t memory = 0) : facts_(facts), memory_(memory) {}

  MachineFacts facts() const override { return facts_; }
  Status enter() override { return {}; }
  Result<uint8_t*> allocate(size_t bytes) override {
    if (memory_ != 0 && allocated_ + bytes > memory_) return error(StatusCode::resource_exhausted, "no device memory");
    const size_t whole = (bytes + 255) / 256 * 256;
    auto* const memory = static_cast<uint8_t*>(std::aligned_alloc(256, whole));
    std::memset(memory, 0, whole);
    allocated_ += bytes;
    return memory;
  }
  void release(uint8_t* memory) noexcept override { std::free(memory); }
  Result<uint8_t*> allocate_staging(size_t bytes) override { return static_cast<uint8_t*>(std::malloc(bytes)); }
  void release_staging(uint8_t* memory) noexcept override { std::free(memory); }

  Status send(uint8_t* to, const void* from, size_t bytes) override {
    sent += bytes, ++sends;
    std::memcpy(to, from, bytes);
    return {};
  }
  Status send_pieces(uint8_t* to, size_t to_stride, const void* from, size_t from_stride, size_t bytes, size_t count) override {
    sent += bytes * count, ++sends;
    for (size_t i = 0; i < count; ++i) {
      std::memcpy(to + i * to_stride, static_cast<const uint8_t*>(from) + i * from_stride, bytes);
    }
    return {};
  }
  Status clear(uint8_t* at, size_t bytes) override {
    std::memset(at, 0, bytes);
    return {};
  }
  Status attend(const Launch& launch, const Plan& plan) override {
    last = launch;
    if (attends) Twin(launch, plan.partials).run(launch.out, launch.lse);
    return {};
  }
  Status prompt(const PromptLaunch& launch, PromptStep step) override {
    if (attends) PromptTwin(launch).run(step);
    return {};
  }
  Status fetch(void* to, const uint8_t* from, size_t bytes) override {
    std::memcpy(to, from, bytes);
    return {};
  }
  Status wait() override { return {}; }

  uint64_t sent = 0, sends = 0;  // bytes, and how often
  Launch last;
  bool attends = true;  // false: outputs are whatever they were, for measurements of what is around it

 private:
  const MachineFacts facts_;
  const uint64_t memory_;
  uint64_t allocated_ = 0;
};

}  // namespace tierkv::cuda::testing
