#include "cuda/memory/bounce.h"

#include <algorithm>
#include <cstring>

namespace tierkv::cuda {

Bounce::~Bounce() {
  for (Piece& piece : pieces_) {
    if (piece.put) (void)piece.mark->wait();
    machine_.release_staging(piece.memory);
  }
}

Status Bounce::go_on() {
  if (Piece& full = pieces_[at_]; full.memory) {
    TIERKV_RETURN_IF_ERROR(machine_.put(*full.mark));
    full.put = true;
  }
  const size_t next = (at_ + 1) % kPieces;
  Piece& piece = pieces_[next];
  if (!piece.memory) {
    TIERKV_ASSIGN_OR_RETURN(piece.mark, machine_.make_mark());
    TIERKV_ASSIGN_OR_RETURN(piece.memory, machine_.allocate_staging(kPieceBytes));
  }
  if (piece.put) TIERKV_RETURN_IF_ERROR(piece.mark->wait());
  piece.put = false;
  at_ = next, used_ = 0;
  return {};
}

Status Bounce::send(uint8_t* to, const void* from, size_t bytes) {
  const auto* source = static_cast<const uint8_t*>(from);
  while (bytes != 0) {
    if (used_ == kPieceBytes) TIERKV_RETURN_IF_ERROR(go_on());
    const size_t some = std::min(bytes, kPieceBytes - used_);
    uint8_t* const staged = pieces_[at_].memory + used_;
    std::memcpy(staged, source, some);
    TIERKV_RETURN_IF_ERROR(machine_.send(to, staged, some));
    used_ += some, to += some, source += some, bytes -= some;
  }
  return {};
}

}  // namespace tierkv::cuda
