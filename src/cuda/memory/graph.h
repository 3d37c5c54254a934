// graph.h — places of our launches in a graph that a caller captures and launches many times: what a machine (machine.h) knows of
// it.
//
// While his stream is captured, add_*() puts a launch there that does nothing yet. Before each launch of what was made of the graph
// set_*() says what each place does from the next launch on; launches before it are not disturbed.
// End:     the last place counts launches in Progress, which is in staging memory: a launch whose number does not follow the one
//          before it is found there.
// Errors:  as machine.h. invalid_argument: the executable graph is not of the graph that was captured.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "cuda/memory/machine.h"

namespace tierkv::cuda {

// Written by the device. `done`: the number of the last launch that was, and everything of it is there. `broken`: the first number
// that was not launched, or twice; 0: none.
struct Progress {
  uint64_t done = 0, broken = 0;

  // For the processor, which does not write.
  static uint64_t read(const uint64_t& of) { return std::atomic_ref(const_cast<uint64_t&>(of)).load(std::memory_order_acquire); }
  bool reached(uint64_t number) const { return read(done) >= number; }
  bool whole(uint64_t number) const {
    const uint64_t first = read(broken);
    return first == 0 || number < first;
  }
  // What the last place of a graph does.
  void end(uint64_t number) {
    if (done + 1 != number && broken == 0) broken = done < number ? done + 1 : number;
    done = number;
  }
};

class Graph {
 public:
  virtual ~Graph() = default;

  virtual Result<bool> captures(void* stream) = 0;
  // Of the capture that the places are in from the first on, on this stream. Numbers are places of their kind, from 0 on.
  virtual Status follow(void* stream) = 0;
  virtual Status add_moves(size_t most) = 0;
  virtual Status add_attend(uint32_t group, uint32_t head_dim) = 0;
  virtual Status add_end() = 0;

  // Of the executable graph that was opened last, which is open from its end on: set_end() comes first, and says whether it is one.
  virtual Status set_end(void* exec, Progress* progress, uint64_t number) = 0;
  virtual Status set_moves(uint32_t place, std::span<const RowMove> moves, uint32_t head_dim) = 0;
  virtual Status set_attend(uint32_t place, const Launch& launch, const Plan& plan) = 0;

  // Until everything of launches so far is done. Threads: any.
  virtual Status wait() const = 0;
};

}  // namespace tierkv::cuda
