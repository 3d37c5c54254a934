#include "cache/attend_spilled.h"

#include <algorithm>
#include <cmath>

#include "attn/rows.h"
#include "base/guarded.h"
#include "base/per_thread.h"
#include "base/status_macros.h"
#include "cache/choose_blocks.h"

namespace tierkv::cache {
namespace {

using attn::AttendWork;
using attn::BlockView;
using store::ColdCopy;
using tiers::BlockRef;
using SpillKind = config::SpillMode::Kind;

// Which blocks of one KV head are read.
class Choice {
 public:
  Choice(const AdaptiveKVCache::Impl& impl, const AttendWork& done, uint32_t head, std::span<const BlockRef* const> blocks)
      : impl_(impl), done_(done), group_(done.queries.heads / impl.config.num_kv_heads), head_(head), blocks_(blocks) {}

  std::vector<const BlockRef*> wanted() {
    const SpillKind kind = impl_.spill.kind;
    std::vector<const BlockRef*> all(blocks_.begin(), blocks_.end());
    if (kind == SpillKind::exact || rows() > kMostDecodingRows) return all;
    if (kind == SpillKind::top && all.size() <= impl_.spill.top) return all;
    const BlockChoice choice = choose();
    std::vector<const BlockRef*> out;
    for (size_t b = 0; b < all.size(); ++b) {
      if (choice.read[b]) out.push_back(all[b]);
    }
    impl_.spill_counts.left_out += choice.left_out;
    impl_.spill_counts.add_mass(choice.left_out_mass);
    return out;
  }

 private:
  uint32_t rows() const { return done_.queries.tokens * group_; }

  // The resident part alone is in the sum they are measured against: what is read can only make it larger.
  BlockChoice choose() const {
    const uint32_t d = impl_.config.head_dim;
    std::vector<float> queries(static_cast<size_t>(rows()) * d), known(rows());
    for (uint32_t r = 0; r < rows(); ++r) {
      const uint32_t token = r / group_, query_head = head_ * group_ + r % group_;
      attn::widen_row(done_.queries, token, query_head, queries.data() + static_cast<size_t>(r) * d);
      known[r] = done_.lse[static_cast<size_t>(token) * done_.queries.heads + query_head];
    }
    BlockChooser chooser(queries, known, done_.params, blocks_.size());
    for (const BlockRef* ref : blocks_) chooser.add(impl_.store->spilled(ref->block)->summary, ref->rows);
    return impl_.spill.kind == SpillKind::top ? chooser.highest(impl_.spill.top) : chooser.bounded(impl_.spill.bounded);
  }

  const AdaptiveKVCache::Impl& impl_;
  const AttendWork& done_;
  const uint32_t group_, head_;
  const std::span<const BlockRef* const> blocks_;
};

struct Item {
  uint32_t head = 0;
  const BlockRef* ref = nullptr;
  ColdCopy* record = nullptr;
  size_t at = 0;  // in the buffer
};

// Reads the blocks of one piece, neighbours in the file together.
Status load(AdaptiveKVCache::Impl& impl, std::span<Item> items, std::byte* buffer, const Executor& run) {
  std::vector<Item*> order;
  for (Item& item : items) order.push_back(&item);
  std::sort(order.begin(), order.end(), [](const Item* a, const Item* b) { return a->record->offset < b->record->offset; });
  std::vector<ColdCopy*> records;
  struct Run {
    size_t first, count, at, bytes;
  };
  std::vector<Run> runs;
  size_t at = 0;
  uint64_t behind = 0;  // where the file goes on after the last one
  for (Item* item : order) {
    const size_t bytes = item->record->sizes.total();
    if (runs.empty() || item->record->offset != behind) runs.push_back({records.size(), 0, at, 0});
    item->at = at;
    ++runs.back().count;
    runs.back().bytes = at + bytes - runs.back().at;
    at += Arena::rounded(bytes);
    behind = item->record->offset + Arena::rounded(bytes);
    records.push_back(item->record);
  }
  std::vector<Status> statuses(runs.size());
  run(static_cast<uint32_t>(runs.size()), [&](uint32_t i) {
    statuses[i] = guarded("read spilled blocks", [&] {
      size_t lost = 0;
      return impl.cold->read_run(std::span(records).subspan(runs[i].first, runs[i].count), {buffer + runs[i].at, runs[i].bytes},
                                 lost);
    });
  });
  for (const Status& status : statuses) TIERKV_RETURN_IF_ERROR(status);
  return {};
}

// Two parts of one softmax: outputs by the weight of their sums.
void join(AttendWork& whole, const AttendWork& part) {
  const size_t d = whole.params.head_dim, rows = static_cast<size_t>(whole.queries.tokens) * whole.queries.heads;
  for (size_t r = 0; r < rows; ++r) {
    const float a = whole.lse[r], b = part.lse[r];
    if (std::isinf(b) && b < 0.0f) continue;  // it saw nothing there
    const double top = std::max(a, b), wa = std::exp(a - top), wb = std::exp(b - top), sum = wa + wb;
    for (size_t c = 0; c < d; ++c) {
      whole.out[r * d + c] = static_cast<float>((wa * whole.out[r * d + c] + wb * part.out[r * d + c]) / sum);
    }
    whole.lse[r] = static_cast<float>(top + std::log(sum));
  }
}

struct Buffer {
  std::vector<std::byte> bytes;
  std::byte* aligned(size_t size) {
    bytes.resize(size + Arena::kAlign);
    const auto address = reinterpret_cast<uintptr_t>(bytes.data());
    return bytes.data() + (Arena::kAlign - address % Arena::kAlign) % Arena::kAlign;
  }
};

}  // namespace

Status join_spilled(AdaptiveKVCache::Impl& impl, uint32_t layer, std::span<const tiers::StreamViews> heads, AttendWork& done,
                    const Executor& run) {
  std::vector<Item> items;
  for (uint32_t h = 0; h < heads.size(); ++h) {
    for (const BlockRef* ref : Choice(impl, done, h, heads[h].spilled).wanted())
      items.push_back({h, ref, impl.store->spilled(ref->block), 0});
  }
  impl.spill_counts.read += items.size();
  const size_t out_size = static_cast<size_t>(done.queries.tokens) * done.queries.heads;
  std::vector<float> out(out_size * done.params.head_dim), lse(out_size);
  for (size_t first = 0; first < items.size();) {
    size_t end = first, bytes = 0;
    for (; end < items.size(); ++end) {
      const size_t more = Arena::rounded(items[end].record->sizes.total());
      if (end > first && bytes + more > kPieceBytes) break;
      bytes += more;
    }
    const store::CountedScratch counted(*impl.store, bytes);
    std::byte* const buffer = per_thread<Buffer>().aligned(bytes);
    const std::span<Item> piece = std::span(items).subspan(first, end - first);
    TIERKV_RETURN_IF_ERROR(load(impl, piece, buffer, run));
    std::vector<std::vector<BlockView>> views(heads.size());
    for (const Item& item : piece) {
      const tiers::CodecEntry& codec = *item.record->codec;
      const store::BlockBytes at = tiers::split({buffer + item.at, item.record->sizes.total()}, codec);
      const quant::BlockContext ctx{layer, item.head, item.ref->first_position, item.ref->positions};
      views[item.head].push_back({codec.key.get(), codec.value.get(), at.keys, at.values, ctx, item.ref->rows});
    }
    AttendWork work;
    for (const auto& head : views) work.heads.emplace_back(head);
    work.queries = done.queries;
    work.positions = done.positions;
    work.out = out.data();
    work.lse = lse.data();
    work.params = done.params;
    impl.env.backend->attend({&work, 1}, run);
    TIERKV_RETURN_IF_ERROR(work.status);
    join(done, work);
    first = end;
  }
  return {};
}

Status weigh_resident(const AdaptiveKVCache::Impl& impl, std::vector<attn::HeadMass> wanted, const AttendWork& done,
                      const Executor& run) {
  AttendWork work = attn::mass_alone(done, std::move(wanted), done.lse);
  impl.env.backend->attend({&work, 1}, run);
  return work.status;
}

}  // namespace tierkv::cache
