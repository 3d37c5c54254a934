// mass_beside.h — what rows receive from the queries of a call whose attention a device did: scored once more by the processor, for
// those who want to know (attn/mass.h). They ask about the newest few hundred rows of a head; the sums over all rows, which scores
// are divided by, are the device's.
#pragma once

#include "attn/backend.h"

namespace tierkv::cuda {

// Whether every head asks about so few rows that this is worth its while; true where none asks, and false where nothing else is
// wanted of the call.
bool few_rows_asked(const attn::AttendWork& work);

// Writes what work.mass asks for. `lse`: [queries][query heads], of the whole call (attention.h). resource_exhausted: no memory for
// scratch; the sums are undefined then. REQUIRES: work.mass is not empty.
Status add_mass_beside(const attn::AttendWork& work, const float* lse, const Executor& run);

}  // namespace tierkv::cuda
