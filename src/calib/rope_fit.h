// rope_fit.h — whether a calibration's RoPE is a model's, and what to say when it is not.
//
// A model's RoPE is known from where it runs: ggml's own rounding, torch's, the order of the list. Two are the same here when they
// turn the same pairs of channels by angles that differ by a part in ten thousand at most. Stretching a model, even by one part in
// a hundred, is another RoPE; computing it elsewhere is not. Threads:  pure functions of their arguments.
#pragma once

#include <string>
#include <vector>

#include "tierkv/rope.h"
#include "tierkv/status.h"

namespace tierkv::calib {

enum class RopeFit {
  same,
  angles,  // the same pairs of channels, other angles: a stretched model
  pairs,   // other pairs of channels: keys in another order, or another part of a head
};

RopeFit compare(const Rope& made, const Rope& model);
// The worst of all layers. `pairs` where their numbers differ.
RopeFit compare(const std::vector<Rope>& made, const std::vector<Rope>& model);
// invalid_argument unless they are the same: which channels of which layer turn differently, how many do, and what to do.
Status check_ropes(const std::vector<Rope>& made, const std::vector<Rope>& model);
// The same in words, without advice: "in layer 1 channels 62 and 63 turn by 0.0001 a position there and by 2.5e-05 here, and ...".
std::string describe_difference(const std::vector<Rope>& made, const std::vector<Rope>& model);

}  // namespace tierkv::calib
