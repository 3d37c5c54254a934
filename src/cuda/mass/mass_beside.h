// mass_beside.h — what rows receive from the queries of a call whose attention a device did: scored once more by the processor.
// Where few rows are asked about, in prompts, and where the device has no room to do it (mass.h). The sums over all rows, which
// scores are divided by, are the device's.
#pragma once

#include "attn/backend.h"

namespace tierkv::cuda {

// Rows of a head up to which the processor says what they receive: about two default rings of hot and warm tokens. More are the
// device's, which needs one more parcel and one more launch for it, whatever their number. Where the two meet was not measured on a
// device; with many sequences it is lower.
inline constexpr size_t kFewRows = 1024;

// Of the head that asks about most, of works of steps: a prompt's mass is the processor's in any case.
size_t most_rows_asked(std::span<const attn::AttendWork> works);

// Writes what work.mass asks for. `lse`: [queries][query heads], of the whole call (attention.h). resource_exhausted: no memory for
// scratch; the sums are undefined then. REQUIRES: work.mass is not empty.
Status add_mass_beside(const attn::AttendWork& work, const float* lse, const Executor& run);

}  // namespace tierkv::cuda
