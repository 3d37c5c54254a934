// pyramid.h — budgets that shrink from the first layer to the last. The caller gives the mean over the layers and gets, layer by
// layer, whole numbers that never grow with the layer, sum to num_layers * budget exactly, and lie in 1 .. 2*budget
// (budget 0 gives 0 everywhere, a layer past the end is treated as the last).
#pragma once

#include <cstdint>

namespace tierkv::policy {

// PyramidKV (arXiv 2406.02069): beside the observation window of w tokens that every layer keeps, layer budgets fall linearly from
// max = 2(C-w) - min to min = (C-w)/beta, C the mean budget. C <= w leaves every layer at C. REQUIRES: beta >= 1.
uint32_t pyramidkv_budget(uint32_t layer, uint32_t num_layers, uint32_t budget, uint32_t window, double beta);

// ruvector-attention's weights (L - l)/L, normalised so that the mean is the budget: 2C(L - l)/(L + 1).
uint32_t pyramid_linear_budget(uint32_t layer, uint32_t num_layers, uint32_t budget);

// ruvector-attention's pyramid_budget to the letter: its max_seq_len is what all layers share, each share rounded up, at least 1.
uint32_t pyramid_share_001(uint32_t layer, uint32_t num_layers, uint32_t max_seq_len);

}  // namespace tierkv::policy
