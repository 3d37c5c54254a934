// mass_beside.h — what rows receive from the queries of a call whose attention a device did: scored once more by the processor.
// Where few rows are asked about, in prompts, and where the device has no room to do it (mass.h). The sums over all rows, which
// scores are divided by, are the device's.
#pragma once

#include "attn/backend.h"

namespace tierkv::cuda {

// Rows of all heads, sequences and queries of a call, up to which the processor says what they receive, and does not wait for one
// more parcel and one more launch: about what one layer of a small model has in its hot and warm rings. A guess until
// it is measured on a device.
inline constexpr size_t kFewRows = 1024;

// Of works of steps: a prompt's mass is the processor's in any case.
size_t rows_asked(std::span<const attn::AttendWork> works);

// Writes what work.mass asks for. `lse`: [queries][query heads], of the whole call (attention.h). resource_exhausted: no memory for
// scratch; the sums are undefined then. REQUIRES: work.mass is not empty.
Status add_mass_beside(const attn::AttendWork& work, const float* lse, const Executor& run);

}  // namespace tierkv::cuda
