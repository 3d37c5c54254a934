// standing.h — descriptors of settled views (attn/backend.h: Settled), in the device's list of views from call to call.
//
// A head's settled views hardly change from step to step: a block comes every 64 or 128 tokens. What a plan needs of them is made
// once for each version, one area of the list a head, and found again by owner and version; an area holds the copies of its blocks
// (places.h). A version that the area does not have makes it anew in its place, from the first view on that is another: the owner
// says which that is, or views are compared.
//
// The list: [front: of the call under way, views first][areas]. The front has a fixed size and is written over by every call. The
// host has a copy of the areas, which is what is sent when the device's list has to grow.
// Rows that are dead need a mask, and masks are of a call: views with such rows are left out, and named (Area::loose).
// Room:     an owner that does not come back cannot say so. Areas that were not used for long go when the list would grow, and
//           when blocks need the memory of those that they hold.
#pragma once

#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "attn/backend.h"
#include "cuda/memory/codec_tables.h"
#include "cuda/memory/mirror.h"
#include "cuda/plan/plan.h"

namespace tierkv::cuda {

// Where areas lie in a list of so many views: first fit.
class AreaRoom {
 public:
  // UINT32_MAX: nothing that is free is large enough.
  uint32_t take(uint32_t views);
  void give(uint32_t first, uint32_t views);
  void grow(uint32_t by) { give(std::exchange(size_, size_ + by), by); }
  uint32_t size() const { return size_; }

 private:
  std::map<uint32_t, uint32_t> free_;  // first, views
  uint32_t size_ = 0;
};

class Standing {
 public:
  Standing(Machine& machine, Bounce& bounce, Mirror& mirror, CodecTables& tables)
      : bounce_(bounce), mirror_(mirror), tables_(tables), memory_(machine) {}

  struct Area {
    uint64_t version = 0;
    uint32_t views = 0;            // settled ones, loose ones too
    uint32_t last_position = 0;    // of all their rows; a query there or later sees all of the area
    std::vector<SettledRun> runs;  // firsts count from base()
    std::vector<uint32_t> kinds;   // of the runs
    std::vector<uint32_t> loose;   // settled views that are not in it
    uint32_t first = 0, room = 0;
    uint32_t group = 0;
    uint64_t used = 0;
    // A settled view, as it was when it was described.
    struct Seen {
      uint64_t sealed = 0;
      const quant::Codec* key_codec = nullptr;
      const quant::Codec* value_codec = nullptr;
      Places::Entry* held = nullptr;  // null: it is loose
      uint32_t kind = 0;              // those of one kind are a run
      uint32_t last_position = 0;     // of all rows up to its end
      ViewDesc desc;
      bool is(const attn::BlockView& view) const {
        return held && !view.ctx.positions && view.sealed == sealed && view.key_codec == key_codec &&
               view.value_codec == value_codec && view.ctx.first_position == desc.first_position && view.rows == desc.end;
      }
    };
    std::vector<Seen> seen;
  };

  void begin_call() { ++call_; }
  // The area of this version, if it is there.
  const Area* find(const attn::Settled& settled, uint32_t group) const;
  // The same, made if it is not. `views`: all of the head. unsupported: a codec that a device cannot read. resource_exhausted: no
  // room for its blocks or its descriptors; what was there of its owner is gone.
  // REQUIRES: a version.
  Result<const Area*> area(const attn::Settled& settled, std::span<const attn::BlockView> views, uint32_t group);
  // A block's place, at the cost of areas that this call did not ask for. As Mirror::place().
  Result<Places::Entry*> place(const attn::BlockView& view, const CodecDesc& codec);

  // The list on the device; the front is sent by the caller. Areas that are new are sent now. What base() was changes when the
  // front has to grow.
  Status reserve_front(size_t bytes);
  Status send_areas();
  uint32_t base() const { return front_; }
  size_t front_bytes() const { return size_t{front_} * sizeof(ViewDesc); }
  uint8_t* data() const { return memory_.data(); }
  size_t bytes() const { return memory_.size(); }
  size_t areas() const { return areas_.size(); }
  uint64_t made() const { return made_; }  // areas so far

 private:
  using Areas = std::unordered_map<const void*, std::unique_ptr<Area>>;  // by owner

  Status see(Area& area, std::span<const attn::BlockView> views);
  Status list(Area& area, std::span<const Area::Seen> gone, size_t same);
  void describe(const Area& area, uint32_t kind, SettledRun& run) const;
  Status make_room(Area& area, uint32_t views);
  void clear(Area& area);
  Areas::iterator erase(Areas::iterator at);
  bool drop_oldest();
  void drop_idle();

  static constexpr uint64_t kIdleCalls = 8192;

  Bounce& bounce_;
  Mirror& mirror_;
  CodecTables& tables_;
  DeviceMemory memory_;
  uint32_t front_ = 4096;
  bool whole_ = true;                                  // the device has none of the list
  std::vector<ViewDesc> list_;                         // the areas
  std::vector<std::pair<uint32_t, uint32_t>> unsent_;  // first, views
  std::vector<ViewDesc> moved_;                        // of the area that is listed
  AreaRoom room_;
  Areas areas_;
  uint64_t call_ = 0, made_ = 0;
};

}  // namespace tierkv::cuda
