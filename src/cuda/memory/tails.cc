#include "cuda/memory/tails.h"

#include <algorithm>
#include <cstring>

namespace tierkv::cuda {

Tails::~Tails() {
  for (auto& [owner, strip] : strips_) machine_.release(strip->memory);
}

bool Tails::rows_of(const attn::AttendWork& work, uint32_t& first, uint32_t& end, size_t& row_bytes) {
  if (work.settled.size() != work.heads.size()) return false;
  row_bytes = work.params.head_dim * sizeof(uint16_t);
  for (size_t h = 0; h < work.heads.size(); ++h) {
    const attn::Settled& settled = work.settled[h];
    if (settled.tail_version == 0 || settled.version == 0 || settled.views >= work.heads[h].size()) return false;
    const auto views = work.heads[h].subspan(settled.views);
    uint32_t next = views[0].ctx.first_position;
    if (h == 0) first = next;
    else if (next != first) return false;
    for (const attn::BlockView& view : views) {
      const size_t bytes = view.rows * row_bytes;
      if (view.ctx.positions || view.ctx.first_position != next || view.keys.size() != bytes || view.values.size() != bytes)
        return false;
      next += view.rows;
    }
    if (h == 0) end = next;
    else if (next != end) return false;
  }
  return true;
}

bool Tails::fits(const attn::AttendWork& work, const Strip& strip, uint32_t first, uint32_t end, size_t row_bytes) {
  const bool known = strip.row_bytes == row_bytes &&
                     std::equal(work.settled.begin(), work.settled.end(), strip.versions.begin(), strip.versions.end(),
                                [](const attn::Settled& s, uint64_t version) { return s.tail_version == version; });
  return known && first >= strip.base && end - strip.base <= strip.room;
}

size_t Tails::staged_bytes(const attn::AttendWork& work) const {
  uint32_t first = 0, end = 0;
  size_t row_bytes = 0;
  if (!rows_of(work, first, end, row_bytes)) return 0;
  const auto found = strips_.find(work.settled[0].owner);
  if (found != strips_.end() && fits(work, *found->second, first, end, row_bytes)) {
    first = std::min(end, std::max(first, found->second->end));
  }
  return size_t{end - first} * row_bytes * 2 * work.heads.size();
}

// Hot rows come and go by blocks, mostly of 64: a strip with room for those until the next one goes, and for a step, need not grow.
// Longer ones grow by half.
uint32_t Tails::room_for(uint32_t rows) {
  constexpr uint32_t kBlock = 64, kFew = 4 * kBlock, kStep = 16;
  if (rows <= kFew) return (rows + kBlock - 1) / kBlock * kBlock + kStep;
  return (rows + rows / 2 + kStep - 1) / kStep * kStep;
}

Status Tails::begin_call(size_t staged) {
  ++call_;
  staged_ = 0;
  staging_.reset();
  if (staged == 0) return {};
  TIERKV_ASSIGN_OR_RETURN(staging_, slots_.take(staged));
  return {};
}

Result<const Tails::Strip*> Tails::place(const attn::AttendWork& work) {
  uint32_t first = 0, end = 0;
  size_t row_bytes = 0;
  if (!rows_of(work, first, end, row_bytes)) return static_cast<const Strip*>(nullptr);
  std::unique_ptr<Strip>& place = strips_[work.settled[0].owner];
  if (!place) place = std::make_unique<Strip>();
  Strip& strip = *place;
  strip.used = call_;
  if (!fits(work, strip, first, end, row_bytes)) {
    const uint32_t rows = end - first;
    if (rows > strip.room || strip.row_bytes != row_bytes || strip.versions.size() != work.settled.size()) {
      release(strip);
      drop_idle();
      strip.versions.assign(work.settled.size(), 0);
      strip.row_bytes = row_bytes;
      strip.room = room_for(rows);
      const Result<uint8_t*> memory = machine_.allocate(strip.bytes());
      if (!memory.ok()) {
        strip.room = 0;
        return memory.status();
      }
      strip.memory = *memory;
      bytes_ += strip.bytes();
    }
    for (size_t h = 0; h < work.settled.size(); ++h) strip.versions[h] = work.settled[h].tail_version;
    strip.base = strip.end = first;
  }
  const uint32_t from = std::max(first, strip.end);
  if (from < end) {
    if (const Status sent = send_rows(work, strip, from, end); !sent.ok()) {
      strip.versions[0] = 0;  // nobody knows what it has
      return sent;
    }
    strip.end = end;
  }
  return &strip;
}

void Tails::clear_for(const attn::AttendWork& work, uint32_t more) {
  uint32_t first = 0, end = 0;
  size_t row_bytes = 0;
  const auto found = work.settled.empty() ? strips_.end() : strips_.find(work.settled[0].owner);
  if (found == strips_.end() || !rows_of(work, first, end, row_bytes)) return;
  Strip& strip = *found->second;
  if (first >= strip.base && end + more - strip.base <= strip.room) return;
  if (!strip.versions.empty()) spoiled(strip);
  if (end + more - first > strip.room) release(strip), strip.room = 0;
}

bool Tails::has(const attn::AttendWork& work) const {
  uint32_t first = 0, end = 0;
  size_t row_bytes = 0;
  if (!rows_of(work, first, end, row_bytes)) return false;
  const auto found = strips_.find(work.settled[0].owner);
  return found != strips_.end() && fits(work, *found->second, first, end, row_bytes) && found->second->end >= end;
}

Result<Tails::Strip*> Tails::extend(const attn::TakeWork& work) {
  const auto found = strips_.find(work.owner);
  if (found == strips_.end()) return static_cast<Strip*>(nullptr);
  Strip& strip = *found->second;
  const uint32_t end = work.position + work.keys.tokens;
  if (strip.row_bytes != work.keys.head_dim * sizeof(uint16_t) || strip.versions != work.tail_versions ||
      strip.end != work.position || work.tail_first < strip.base || end - work.tail_first > strip.room) {
    return static_cast<Strip*>(nullptr);
  }
  strip.used = call_;
  if (end - strip.base > strip.room) {
    const uint32_t live = strip.end - work.tail_first, free = work.tail_first - strip.base;
    if (free < live / 4) return static_cast<Strip*>(nullptr);  // it gets more room when its rows are sent again
    TIERKV_RETURN_IF_ERROR(slide(strip, work.tail_first));
  }
  return &strip;
}

// The rows from `first` on, in pieces that do not overlap.
Status Tails::slide(Strip& strip, uint32_t first) {
  const auto dim = static_cast<uint32_t>(strip.row_bytes / sizeof(uint16_t));
  strip.change = changes_.next();
  const uint32_t by = first - strip.base, live = strip.end - first;
  for (uint32_t done = 0; done < live; done += by) {
    RowMove move;
    move.to = strip.memory + size_t{done} * strip.row_bytes;
    move.from = strip.memory + size_t{done + by} * strip.row_bytes;
    move.from_token = move.to_token = dim;
    move.from_head = move.to_head = static_cast<int64_t>(strip.room) * dim;
    move.tokens = std::min(by, live - done), move.heads = static_cast<uint32_t>(2 * strip.versions.size());
    move.from_type = move.to_type = DType::f16;
    if (Status moved = machine_.move_rows({&move, 1}, dim); !moved.ok()) {
      spoiled(strip);
      return moved;
    }
  }
  strip.base = first;
  return {};
}

Status Tails::send_rows(const attn::AttendWork& work, Strip& strip, uint32_t from, uint32_t end) {
  const size_t piece = size_t{end - from} * strip.row_bytes;
  uint8_t* const staged = staging_->data() + staged_;
  staged_ += piece * 2 * work.heads.size();
  for (size_t h = 0; h < work.heads.size(); ++h) {
    for (const attn::BlockView& view : work.heads[h].subspan(work.settled[h].views)) {
      const uint32_t at = std::max(view.ctx.first_position, from), last = view.ctx.first_position + view.rows;
      if (at >= last) continue;
      const size_t bytes = size_t{last - at} * strip.row_bytes, skipped = size_t{at - view.ctx.first_position} * strip.row_bytes;
      uint8_t* const to = staged + 2 * h * piece + size_t{at - from} * strip.row_bytes;
      std::memcpy(to, view.keys.data() + skipped, bytes);
      std::memcpy(to + piece, view.values.data() + skipped, bytes);
    }
  }
  rows_sent_ += end - from;
  strip.change = changes_.next();
  return machine_.send_pieces(strip.memory + size_t{from - strip.base} * strip.row_bytes, strip.side_bytes(), staged, piece, piece,
                              2 * work.heads.size());
}

const uint8_t* Tails::rows_there(const attn::TailRows& rows, uint32_t first, uint32_t count, size_t row_bytes) noexcept {
  const auto found = rows.owner ? strips_.find(rows.owner) : strips_.end();
  if (found == strips_.end()) return nullptr;
  const Strip& strip = *found->second;
  const bool known = strip.memory && strip.row_bytes == row_bytes && rows.head < strip.versions.size() && strip.versions[0] != 0 &&
                     strip.versions[rows.head] == rows.version;
  if (!known || first < strip.base || first + count > strip.end) return nullptr;
  if (!changes_.done(strip.change)) return nullptr;
  return rows.values ? strip.values(rows.head, first) : strip.keys(rows.head, first);
}

void Tails::release(Strip& strip) {
  if (!strip.memory) return;
  bytes_ -= strip.bytes();
  machine_.release(std::exchange(strip.memory, nullptr));
}

void Tails::drop_idle() {
  std::erase_if(strips_, [&](auto& entry) {
    if (call_ - entry.second->used <= kIdleCalls) return false;
    release(*entry.second);
    return true;
  });
}

}  // namespace tierkv::cuda
