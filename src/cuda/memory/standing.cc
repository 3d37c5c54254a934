#include "cuda/memory/standing.h"

#include <algorithm>

namespace tierkv::cuda {
namespace {

// Views of one kind are a run: general ones, staged ones by their frame, whole blocks of a codec that has a fast path or takes the
// warm one.
constexpr uint32_t kGeneralKind = 0, kStagedKind = 1, kFastKind = 3;

uint32_t kind_of(const attn::BlockView& view, const CodecDesc& desc, uint32_t codec, uint32_t group) {
  if (view.rows == kTileRows && ready_path(desc, group) != Path::general) return kFastKind + 2 * codec;
  if (view.rows == kWarmTokens && takes_warm(desc, group)) return kFastKind + 2 * codec + 1;
  const std::optional<Frame> frame = staged_frame(desc);
  return frame ? kStagedKind + static_cast<uint32_t>(*frame) : kGeneralKind;
}

}  // namespace

uint32_t AreaRoom::take(uint32_t views) {
  for (auto at = free_.begin(); at != free_.end(); ++at) {
    if (at->second < views) continue;
    const auto [first, count] = *at;
    free_.erase(at);
    if (count > views) free_.emplace(first + views, count - views);
    return first;
  }
  return UINT32_MAX;
}

void AreaRoom::give(uint32_t first, uint32_t views) {
  if (views == 0) return;
  auto next = free_.lower_bound(first);
  if (next != free_.end() && next->first == first + views) {
    views += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == first) {
      before->second += views;
      return;
    }
  }
  free_.emplace(first, views);
}

const Standing::Area* Standing::find(const attn::Settled& settled, uint32_t group) const {
  const auto found = areas_.find(settled.owner);
  if (found == areas_.end()) return nullptr;
  const Area& area = *found->second;
  return area.version == settled.version && area.views == settled.views && area.group == group ? &area : nullptr;
}

Result<const Standing::Area*> Standing::area(const attn::Settled& settled, std::span<const attn::BlockView> views, uint32_t group) {
  std::unique_ptr<Area>& place = areas_[settled.owner];
  if (!place) place = std::make_unique<Area>();
  Area& area = *place;
  area.used = call_;
  if (area.version == settled.version && area.views == settled.views && area.group == group) return &area;
  if (area.version == 0) clear(area);  // memory ran out while it was made
  // What it holds of other views stays until the new ones have their places.
  struct Old {
    Places& places;
    std::vector<Area::Seen> seen;
    ~Old() {
      for (const Area::Seen& view : seen) {
        if (view.held) places.replaced(view.held);
      }
    }
  } old{mirror_.places(), {}};
  const size_t most = area.group == group ? std::min<size_t>(area.seen.size(), settled.views) : 0;
  const bool told = settled.before != 0 && area.version == settled.before && settled.same <= most;
  size_t same = told ? settled.same : 0;
  while (!told && same < most && area.seen[same].is(views[same])) ++same;
  old.seen.assign(area.seen.begin() + static_cast<ptrdiff_t>(same), area.seen.end());
  area.seen.resize(same);
  area.version = 0, area.group = group;
  Status made = see(area, views.first(settled.views));
  if (made.ok()) made = list(area, old.seen, same);
  if (!made.ok()) {
    clear(area);
    return made;
  }
  area.version = settled.version, area.views = settled.views;
  ++made_;
  return &area;
}

// Views behind those that it has seen already.
Status Standing::see(Area& area, std::span<const attn::BlockView> views) {
  const auto same = static_cast<uint32_t>(area.seen.size());
  area.loose.erase(std::lower_bound(area.loose.begin(), area.loose.end(), same), area.loose.end());
  area.last_position = same == 0 ? 0 : area.seen.back().last_position;
  area.seen.reserve(views.size());
  for (uint32_t v = same; v < views.size(); ++v) {
    const attn::BlockView& view = views[v];
    for (uint32_t row = view.ctx.positions || view.rows == 0 ? 0 : view.rows - 1; row < view.rows; ++row) {
      if (view.position(row) != attn::kDeadPosition) area.last_position = std::max(area.last_position, view.position(row));
    }
    Area::Seen seen;
    seen.last_position = area.last_position;
    if (view.ctx.positions || view.sealed == 0 || view.rows == 0) {
      area.loose.push_back(v);
    } else {
      TIERKV_ASSIGN_OR_RETURN(const uint32_t codec, tables_.find(*view.key_codec, *view.value_codec));
      const CodecDesc& desc = tables_.on_host()[codec];
      TIERKV_ASSIGN_OR_RETURN(seen.held, place(view, desc));
      mirror_.places().hold(seen.held);
      seen.sealed = view.sealed, seen.key_codec = view.key_codec, seen.value_codec = view.value_codec;
      seen.kind = kind_of(view, desc, codec, area.group);
      seen.desc.keys = seen.held->keys, seen.desc.values = seen.held->values;
      seen.desc.first_position = view.ctx.first_position, seen.desc.codec = codec;
      seen.desc.begin = 0, seen.desc.end = static_cast<uint16_t>(view.rows);
    }
    area.seen.push_back(seen);
  }
  return {};
}

// A run of each kind, one after the other, the largest first: it only grows then, and what is behind it is little. `gone` are the
// views that it had behind the first `same`: in every run they were the last.
Status Standing::list(Area& area, std::span<const Area::Seen> gone, size_t same) {
  struct Part {
    uint32_t kind, was = 0, stays = 0, more = 0, first = 0;
    uint32_t views() const { return stays + more; }
  };
  std::vector<Part> parts;
  for (size_t r = 0; r < area.runs.size(); ++r) parts.push_back({area.kinds[r], area.runs[r].first, area.runs[r].views});
  const auto part = [&](uint32_t kind) -> Part& {
    const auto found = std::find_if(parts.begin(), parts.end(), [&](const Part& other) { return other.kind == kind; });
    return found != parts.end() ? *found : parts.emplace_back(Part{kind});
  };
  for (const Area::Seen& seen : gone) {
    if (seen.held) --part(seen.kind).stays;
  }
  const std::span<const Area::Seen> fresh = std::span(area.seen).subspan(same);
  for (const Area::Seen& seen : fresh) {
    if (seen.held) ++part(seen.kind).more;
  }
  std::erase_if(parts, [](const Part& one) { return one.views() == 0; });
  const auto largest =
      std::max_element(parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.views() < b.views(); });
  if (!parts.empty() && largest->views() / 2 > parts[0].views()) std::rotate(parts.begin(), largest, largest + 1);
  uint32_t total = 0;
  for (const Part& one : parts) total += one.views();
  TIERKV_RETURN_IF_ERROR(make_room(area, total));
  uint32_t at = area.first;
  for (Part& one : parts) one.first = std::exchange(at, at + one.views());

  // What stays and lies elsewhere from now on is taken out before anything is written over it.
  moved_.clear();
  for (const Part& one : parts) {
    if (one.first != one.was) moved_.insert(moved_.end(), list_.begin() + one.was, list_.begin() + one.was + one.stays);
  }
  auto from = moved_.cbegin();
  for (const Part& one : parts) {
    const bool moves = one.first != one.was;
    if (moves) std::copy_n(from, one.stays, list_.begin() + one.first), from += one.stays;
    if (const uint32_t begin = moves ? 0 : one.stays; begin != one.views()) {
      unsent_.emplace_back(one.first + begin, one.views() - begin);
    }
  }
  for (const Area::Seen& seen : fresh) {
    if (!seen.held) continue;
    Part& one = part(seen.kind);
    list_[one.first + one.stays++] = seen.desc;
  }
  area.runs.clear(), area.kinds.clear();
  for (const Part& one : parts) {
    SettledRun& run = area.runs.emplace_back();
    run.first = one.first, run.views = one.stays, run.descs = list_.data() + one.first;
    area.kinds.push_back(one.kind);
    describe(area, one.kind, run);
  }
  return {};
}

// What a plan wants to know of a run.
void Standing::describe(const Area& area, uint32_t kind, SettledRun& run) const {
  run.codec = run.descs[0].codec;
  const auto add = [&](const ViewDesc& view, uint32_t times) {
    const CodecDesc& desc = tables_.on_host()[view.codec];
    for (int c = 0; c < 3; ++c) run.chunks[c] += times * chunks_of(view, 16u << c);
    run.bytes += times * (block_bytes(desc) * view.end / desc.key.tokens);
  };
  if (kind >= kFastKind) {  // one like the other
    run.path = (kind - kFastKind) % 2 == 0 ? ready_path(tables_.on_host()[run.codec], area.group) : Path::warm;
    add(run.descs[0], run.views);
  } else {
    run.path = kind == kGeneralKind ? Path::general : Path::staged;
    for (uint32_t v = 0; v < run.views; ++v) add(run.descs[v], 1);
  }
}

// A little more than is needed now, so that the next block fits.
Status Standing::make_room(Area& area, uint32_t views) {
  if (views <= area.room) return {};
  const uint32_t wanted = views + views / 16 + 8;
  room_.give(area.first, std::exchange(area.room, 0));
  uint32_t first = room_.take(wanted);
  if (first == UINT32_MAX) {
    drop_idle();
    first = room_.take(wanted);
  }
  if (first == UINT32_MAX) {
    const uint32_t more = std::max(wanted, room_.size() / 8 + 1024);  // the list is sent anew then, which is seldom
    if (uint64_t{front_} + room_.size() + more > UINT32_MAX) {
      return error(StatusCode::resource_exhausted, "the views of settled blocks are more than a device's list can hold; detach");
    }
    list_.resize(room_.size() + more);
    for (auto& [owner, other] : areas_) {
      for (SettledRun& run : other->runs) run.descs = list_.data() + run.first;
    }
    room_.grow(more);
    first = room_.take(wanted);
  }
  area.first = first, area.room = wanted;
  return {};
}

void Standing::clear(Area& area) {
  for (const Area::Seen& seen : area.seen) {
    if (seen.held) mirror_.places().let_go(seen.held);
  }
  area.seen.clear();
  area.runs.clear(), area.kinds.clear();
  area.loose.clear();
  area.version = 0, area.views = 0, area.last_position = 0;
}

Standing::Areas::iterator Standing::erase(Areas::iterator at) {
  clear(*at->second);
  room_.give(at->second->first, at->second->room);
  return areas_.erase(at);
}

Result<Places::Entry*> Standing::place(const attn::BlockView& view, const CodecDesc& codec) {
  for (;;) {
    Result<Places::Entry*> there = mirror_.place(view, codec);
    if (there.ok() || there.status().code() != StatusCode::resource_exhausted || !drop_oldest()) return there;
  }
}

// False: all there are were asked for by this call.
bool Standing::drop_oldest() {
  auto oldest = areas_.end();
  for (auto at = areas_.begin(); at != areas_.end(); ++at) {
    if (at->second->used == call_ || at->second->seen.empty()) continue;
    if (oldest == areas_.end() || at->second->used < oldest->second->used) oldest = at;
  }
  if (oldest == areas_.end()) return false;
  erase(oldest);
  return true;
}

void Standing::drop_idle() {
  for (auto at = areas_.begin(); at != areas_.end();) {
    if (call_ - at->second->used > kIdleCalls) at = erase(at);
    else ++at;
  }
}

Status Standing::reserve_front(size_t bytes) {
  const size_t wanted = (bytes + sizeof(ViewDesc) - 1) / sizeof(ViewDesc);
  if (wanted <= front_) return {};
  if (wanted + wanted / 2 + room_.size() > UINT32_MAX) {
    return error(StatusCode::resource_exhausted,
                 "a call sends more than a device's list can hold; attend to fewer sequences a call");
  }
  front_ = static_cast<uint32_t>(wanted + wanted / 2);
  whole_ = true;
  return {};
}

Status Standing::send_areas() {
  const size_t bytes = front_bytes() + list_.size() * sizeof(ViewDesc);
  if (bytes > memory_.size()) {
    whole_ = true;
    TIERKV_RETURN_IF_ERROR(memory_.renew(bytes));
  }
  uint8_t* const to = memory_.data() + front_bytes();
  if (whole_) {
    TIERKV_RETURN_IF_ERROR(list_.empty() ? Status() : bounce_.send(to, list_.data(), list_.size() * sizeof(ViewDesc)));
  } else {
    for (const auto& [first, views] : unsent_) {
      TIERKV_RETURN_IF_ERROR(bounce_.send(to + size_t{first} * sizeof(ViewDesc), list_.data() + first, views * sizeof(ViewDesc)));
    }
  }
  unsent_.clear();
  whole_ = false;
  return {};
}

}  // namespace tierkv::cuda
