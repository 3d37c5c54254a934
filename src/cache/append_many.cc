// append_many.cc — a step of a batch: the rows of all sequences go to their tails, and what is due of all of them then settles in
// one call, so that threads, or a device, get it together.
//
// Their locks are held together, taken in the order of ids as attention does. What cannot come this way (a sequence that is not
// there, no memory for its rows) is left for the ordinary one, one by one, which says what is wrong, or makes room: that must hold
// no lock.
#include "cache/append_many.h"

#include <algorithm>
#include <deque>
#include <mutex>

#include "base/guarded.h"
#include "base/status_macros.h"
#include "cache/appending.h"
#include "cache/rows.h"
#include "cache/step_graph.h"

namespace tierkv {

using tiers::Sequence;

namespace cache {
namespace {

// An item whose rows are in host memory.
struct Here {
  AppendItem* item = nullptr;
  RowsView keys, values;
  bool done = false;     // its rows are in, or it has a status that says why not
  bool checked = false;  // its rows are finite
};

// One that comes together with others. Its sequence is locked.
struct Joint {
  Here* here = nullptr;
  std::shared_ptr<Sequence> sequence;
  std::unique_lock<Sequence::Mutex> lock;
  uint32_t position = 0;
  std::optional<Appending> rows;
};

// One call. Throws bad_alloc before any row is in, not after.
class Together {
 public:
  Together(AdaptiveKVCache::Impl& impl, uint32_t layer) : impl_(impl), layer_(layer) {}

  void run(std::vector<Here>& items) {
    hold(items);
    std::vector<Joint*> joined;
    std::vector<Grown> grown;
    for (Joint& joint : joints_) {
      if (begins(joint)) joined.push_back(&joint);
    }
    if (joined.size() < 2) return;
    grown.reserve(joined.size());
    for (std::vector<Joint*> stepping = joined; take_step(stepping, grown);) {
    }
    for (Joint* joint : joined) finish(*joint);
  }

 private:
  // In the order of ids; what is left is in the order of the items.
  void hold(std::vector<Here>& items) {
    for (Here& here : items) {
      if (here.done || here.keys.tokens == 0) continue;
      auto found = impl_.find(here.item->seq);
      if (!found.ok()) continue;
      Joint& joint = joints_.emplace_back();
      joint.here = &here, joint.sequence = std::move(found).value();
    }
    std::vector<Joint*> sorted;
    for (Joint& joint : joints_) sorted.push_back(&joint);
    std::sort(sorted.begin(), sorted.end(), [](const Joint* a, const Joint* b) { return a->here->item->seq < b->here->item->seq; });
    for (Joint* joint : sorted) joint->lock = std::unique_lock(joint->sequence->mutex);
  }

  bool begins(Joint& joint) {
    Sequence& seq = *joint.sequence;
    if (!impl_.check_awake(joint.here->item->seq, seq).ok()) return false;
    joint.position = seq.layer(layer_).length;
    // Rows that choose their archive do so in the order of the items, each with all of its own.
    if (!plans_->layer(layer_, joint.position).choices.empty()) return false;
    uint64_t needed = 0;
    joint.rows.emplace(impl_, seq, layer_, joint.here->keys, joint.here->values, plans_);
    if (!joint.rows->begin(needed).ok()) return false;
    // Under a budget the way back of several steps is not paid for by all at the same time.
    return impl_.arena->limit() == 0 || !joint.rows->backed_up();
  }

  // False: nobody has anything left to do. Needs no memory of its own.
  bool take_step(std::vector<Joint*>& stepping, std::vector<Grown>& grown) noexcept {
    std::erase_if(stepping, [](Joint* joint) { return joint->rows->done() || !joint->rows->step().ok(); });
    grown.clear();
    for (const Joint* joint : stepping) grown.push_back(joint->rows->grown());
    settle_grown(impl_, layer_, grown);
    for (size_t i = 0; i < stepping.size(); ++i) stepping[i]->rows->settled(grown[i].settled);
    return !stepping.empty();
  }

  // One that was refused is as it was before.
  void finish(Joint& joint) noexcept {
    if (!joint.rows->done()) return;
    Here& here = *joint.here;
    if (impl_.learning.active()) impl_.learning.add_rows(here.item->seq, layer_, joint.position, here.keys, here.values);
    here.item->status = Status();
    here.done = true;
  }

  AdaptiveKVCache::Impl& impl_;
  const uint32_t layer_;
  const std::shared_ptr<const plan::Plans> plans_ = impl_.planner->now();  // the same ones for the whole call
  std::deque<Joint> joints_;
};

void append_together(AdaptiveKVCache::Impl& impl, uint32_t layer, std::vector<Here>& items) {
  // Where blocks are spilled, each sequence's go before the next one's tails would take their room.
  if (items.size() < 2 || spills(impl)) return;
  uint32_t tokens = 0;
  for (Here& here : items) {
    Status finite = guarded("append rows", [&] { return check_finite_rows(impl, here.keys, here.values); });
    here.done = !finite.ok();
    here.checked = finite.ok();
    here.item->status = std::move(finite);
    if (!here.done) tokens += here.keys.tokens;
  }
  impl.keep_room_to_archive(tokens);
  (void)with_memory([&] {
    Together(impl, layer).run(items);
    return true;
  });
}

Status check_distinct(std::span<const AppendItem> items) {
  std::vector<SeqId> ids;
  for (const AppendItem& item : items) ids.push_back(item.seq);
  std::sort(ids.begin(), ids.end());
  const auto twice = std::adjacent_find(ids.begin(), ids.end());
  if (twice == ids.end()) return {};
  return error(StatusCode::invalid_argument, "sequence ", *twice, " is in the batch twice");
}

}  // namespace

// Those of a device's memory are taken there, or come down together.
Status append_all(AdaptiveKVCache::Impl& impl, uint32_t layer, std::span<AppendItem> items, bool attended) {
  std::vector<AppendItem*> fine;
  for (AppendItem& item : items) {
    item.status = check_rows(impl, item);
    if (item.status.ok()) fine.push_back(&item);
  }
  if (fine.empty()) return {};
  const RowsView& first = fine[0]->keys;
  for (const AppendItem* item : fine) {
    if (!same_memory(item->keys, first) || !same_memory(item->values, first))
      return error(StatusCode::invalid_argument, "the rows of one call are in one memory, a device's after one stream");
  }
  std::vector<RowsView> rows;
  std::vector<Here> here;
  rows.reserve(2 * fine.size());
  here.reserve(fine.size());
  const bool there = first.place != MemoryPlace::host;
  if (there) append_there(impl, layer, fine, attended);
  for (const AppendItem* item : fine) rows.push_back(item->keys), rows.push_back(item->values);
  Result<std::shared_ptr<const void>> brought = std::shared_ptr<const void>();
  if (there && !fine.empty()) brought = impl.env.backend->bring(rows);
  if (!brought.ok()) {
    for (AppendItem* item : fine) item->status = brought.status();
    return {};
  }
  for (size_t i = 0; i < fine.size(); ++i) here.push_back({fine[i], rows[2 * i], rows[2 * i + 1], false});
  append_together(impl, layer, here);
  for (const Here& one : here) {
    if (one.done) continue;
    one.item->status = guarded("append rows", [&]() -> Status {
      if (!one.checked) TIERKV_RETURN_IF_ERROR(check_finite_rows(impl, one.keys, one.values));
      return append_here(impl, one.item->seq, layer, one.keys, one.values);
    });
  }
  return {};
}

namespace {

Status append_items(AdaptiveKVCache::Impl& impl, uint32_t layer, std::span<AppendItem> items, bool attended) {
  bool recorded = false;
  const Status whole = guarded("append rows", [&]() -> Status {
    TIERKV_RETURN_IF_ERROR(impl.check_layer(layer));
    TIERKV_RETURN_IF_ERROR(check_distinct(items));
    if (const auto said = record_append(impl, layer, items)) {
      recorded = true;
      return *said;
    }
    return append_all(impl, layer, items, attended);
  });
  if (!whole.ok() || recorded) {
    for (AppendItem& item : items) item.status = whole;
  }
  for (const AppendItem& item : items) TIERKV_RETURN_IF_ERROR(item.status);
  return {};
}

// What a backend still has to ask for when a step ends, whatever came of it.
struct Settling {
  const attn::Backend& backend;
  ~Settling() { backend.settle(); }
};

}  // namespace
}  // namespace cache

Status AdaptiveKVCache::append_many(uint32_t layer, std::span<AppendItem> items) {
  return cache::append_items(*impl_, layer, items, false);
}

Status AdaptiveKVCache::step(uint32_t layer, std::span<AppendItem> rows, std::span<AttentionItem> items,
                             const AttentionOptions& options) {
  const cache::Settling settling{*impl_->env.backend};
  const Status appended = cache::append_items(*impl_, layer, rows, true);
  if (appended.ok()) return attention(layer, items, options);
  for (AttentionItem& item : items) item.status = appended;
  return appended;
}

}  // namespace tierkv
