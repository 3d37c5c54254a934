// bounce.h — sends of memory that is not staging: through a ring of staging pieces, so that nobody waits for what was asked for
// before. (A device's runtime may wait for a whole stream before it copies ordinary memory.)
//
// A piece is written from its begin to its end and then marked; it is used again when its mark is reached. Who sends more than the
// ring holds waits for its oldest piece.
#pragma once

#include <array>
#include <memory>

#include "cuda/memory/machine.h"

namespace tierkv::cuda {

class Bounce {
 public:
  explicit Bounce(Machine& machine) : machine_(machine) {}
  ~Bounce();
  Bounce(const Bounce&) = delete;
  Bounce& operator=(const Bounce&) = delete;

  // As Machine::send(): `from` is free again when this returns.
  Status send(uint8_t* to, const void* from, size_t bytes);

 private:
  static constexpr size_t kPieceBytes = size_t{1} << 20, kPieces = 8;
  struct Piece {
    uint8_t* memory = nullptr;
    std::unique_ptr<Mark> mark;
    bool put = false;
  };

  // The piece at hand is full: the next one, when the device is done with it.
  Status go_on();

  Machine& machine_;
  std::array<Piece, kPieces> pieces_;
  size_t at_ = 0, used_ = kPieceBytes;
};

}  // namespace tierkv::cuda
