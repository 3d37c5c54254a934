// append_many.h — rows of many sequences come in together, and how the rest of them comes in one by one.
#pragma once

#include <span>
#include <vector>

#include "cache/impl.h"

namespace tierkv::cache {

// Shapes, and whether the backend can read the memory they are in.
Status check_rows(const AdaptiveKVCache::Impl& impl, const AppendItem& item);

// Every element of rows in host memory, as invalid_argument says.
Status check_finite_rows(const AdaptiveKVCache::Impl& impl, const RowsView& keys, const RowsView& values);

// REQUIRES, of all below: the items' rows are checked, and no lock is held.

// One sequence's rows, in host memory and finite. What lacks memory is tried again as pressure.h has it.
Status append_here(AdaptiveKVCache::Impl& impl, SeqId seq, uint32_t layer, const RowsView& keys, const RowsView& values);

// Steps of decoding whose rows are in a device's memory go to where the device keeps a tail's, and nobody waits (append_there.cc).
// Items whose rows are in, or were refused, leave the list. Throws bad_alloc before any row is in.
// `attended`: as attn::Backend::take().
void append_there(AdaptiveKVCache::Impl& impl, uint32_t layer, std::vector<AppendItem*>& items, bool attended);

// All of them, each with its status. Refused as a whole, or bad_alloc: none is in. REQUIRES: their rows need not be checked, but no
// sequence is there twice.
Status append_all(AdaptiveKVCache::Impl& impl, uint32_t layer, std::span<AppendItem> items, bool attended = false);

}  // namespace tierkv::cache
