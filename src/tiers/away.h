// away.h — blocks of a stream whose bytes a device has give up those in host memory, and get them back (store/block_store.h).
//
// Which:    archive blocks, and warm ones where nothing is archived. Warm blocks that are to become archive blocks are few and soon
//           read again, and the first tokens are a handful of rows: they stay. So do promoted blocks, which may go any time, and
//           blocks that other sequences hold as well.
// Threads:  REQUIRES, of all: the sequence's lock is held.
#pragma once

#include "tiers/stream.h"

namespace tierkv::tiers {

// After the device has attended to `views`, which are the stream's: from here on they have no bytes where it has them alone. What
// could not go is tried again when the stream has other blocks. `warm`: warm blocks go too.
void send_away(const StreamEnv& env, const HeadStream& s, bool warm, StreamViews& views) noexcept;

// Blocks that are away and nobody else's come back; `back` counts them. The status is the first that was not OK: that block and the
// later ones stay.
[[nodiscard]] Status bring_back(const StreamEnv& env, HeadStream& s, uint64_t& back);

}  // namespace tierkv::tiers
