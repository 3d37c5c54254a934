// device_form.h — a block's bytes as a device wants them: the codec's own, and its better rows behind them (better.h). Host code.
#pragma once

#include <span>
#include <vector>

#include "quant/codec.h"
#include "quant/layout.h"

namespace tierkv::cuda {

// `bytes` themselves where no rows are better, else what `room` was filled with. REQUIRES: bytes are a valid block of `codec`,
// `side` is its layout.
std::span<const std::byte> device_form(const quant::Codec& codec, const quant::SideLayout& side, std::span<const std::byte> bytes,
                                       std::vector<std::byte>& room);

}  // namespace tierkv::cuda
