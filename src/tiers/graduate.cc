// graduate.cc — rows become older: from the tail into sinks and warm blocks, from warm blocks into the archive.
//
// The heads of a layer, of one sequence or of many, take their steps together: the next block of each that has one due is gathered,
// coded and sealed beside those of the others (seal.h), round after round.
#include <algorithm>
#include <functional>

#include "base/guarded.h"
#include "base/loan.h"
#include "tiers/seal.h"
#include "tiers/stream.h"

namespace tierkv::tiers {
namespace {

enum class Kind : uint8_t { none, sinks, graduate, demote };

bool wants_sinks(const HeadStream& s, const LayerPlan& plan) {
  return plan.sinks && s.blocks.empty() && s.tail.rows() && s.tail.position(0) == 0;
}

// The warm blocks first..last-1 that are to become one archive block: the oldest that together fill it. Blocks that eviction or
// truncation left short may make it short.
struct Oldest {
  size_t first = 0, last = 0;
};

bool find_oldest(const HeadStream& s, const LayerPlan& plan, Oldest& out) {
  const uint32_t target = plan.archive_codec->tokens;
  const auto& [version, first, warm] = s.warm();
  if (warm < static_cast<uint64_t>(plan.warm) + target) return false;
  const BlockList& blocks = s.blocks;
  size_t last = first;
  for (uint32_t rows = 0; last < blocks.size() && rows + blocks[last].live <= target; ++last) rows += blocks[last].live;
  out = {first, last};
  return last != first;  // a warm block larger than an archive block (an older configuration's): it stays
}

// What the head is due to do next, if anything. `most`: archive blocks that it may still make.
Kind next_step(const HeadStream& s, const LayerPlan& plan, uint32_t most, Oldest& oldest) {
  const uint32_t block = plan.first_block();
  if (!plan.ring && plan.hot != kAll && block != 0) {
    const uint64_t full = static_cast<uint64_t>(plan.hot) + block;
    if (wants_sinks(s, plan)) {
      if (s.tail.rows() >= full + plan.sinks) return Kind::sinks;
    } else if (s.tail.rows() >= full) {
      return Kind::graduate;
    }
  }
  if (plan.warm == kAll || plan.warm == 0 || plan.waiting || most == 0) return Kind::none;
  return find_oldest(s, plan, oldest) ? Kind::demote : Kind::none;
}

// One head of a call.
struct Head {
  HeadStream* stream = nullptr;
  Unsettled* of = nullptr;
  uint32_t made = 0;    // archive blocks
  bool failed = false;  // it had no memory, alone
};

// A head's part in a round.
struct Step {
  Head* head = nullptr;
  HeadStream* stream = nullptr;
  const LayerPlan* plan = nullptr;
  Kind kind = Kind::none;
  Oldest oldest;  // demote
  bool gathered = false;

  uint32_t block_rows() const { return kind == Kind::sinks ? plan->sinks : plan->first_block(); }
};

// Rows of the heads of a round, kept from call to call.
struct Batches : std::vector<RowBatch> {
  void trim() noexcept {
    if (size() > 8) erase(begin() + 8, end());
  }
};

// One call of settle().
class Settling {
 public:
  Settling(const StreamEnv& env, std::span<Unsettled> layers, Arena::Use use, const Executor& run)
      : env_(env), use_(use), run_(run), together_(env.backend->heads_at_once()) {
    for (Unsettled& layer : layers) {
      for (HeadStream& s : layer.heads) heads_.push_back({&s, &layer});
    }
  }

  // Throws bad_alloc: whatever is not done has not begun.
  void work() {
    while (collect()) {
      gather();
      code();
      commit();
    }
    for (const Head& head : heads_) head.of->settled &= !head.failed;
  }

 private:
  bool collect() {
    steps_.clear();
    for (size_t h = 0; h < heads_.size() && steps_.size() < together_; ++h) {
      Head& head = heads_[h];
      if (head.failed) continue;
      Step step{&head, head.stream, head.of->plan, Kind::none, {}, false};
      step.kind = next_step(*step.stream, *step.plan, head.of->most - head.made, step.oldest);
      if (step.kind != Kind::none) steps_.push_back(step);
    }
    return !steps_.empty();
  }

  // The rows of each step as they are where they are, in blocks or in a tail; as floats where a block wants more rows than a tail
  // gives it. What the processor codes twice, for the cold file too, it decodes once.
  void gather() {
    const bool twice = env_.cold_codec && env_.store->cold() && !env_.backend->remembers();
    if (batches_->size() < steps_.size()) batches_->resize(steps_.size());
    decodes_.clear();
    for (size_t i = 0; i < steps_.size(); ++i) {
      Step& step = steps_[i];
      RowBatch& batch = (*batches_)[i];
      batch.clear();
      if (step.kind != Kind::demote) continue;
      const BlockList& blocks = step.stream->blocks;  // to look at: what is not changed keeps its version
      for (size_t b = step.oldest.first; b < step.oldest.last; ++b)
        batch.refer_to_live_rows(env_, blocks[b], step.stream->layer, step.stream->head);
      if (twice) batch.list_decodes(env_, decodes_);
      step.gathered = true;
    }
    if (!decodes_.empty()) env_.backend->decode(decodes_, run_);
    for (size_t i = 0; i < steps_.size(); ++i) {
      Step& step = steps_[i];
      if (step.kind == Kind::demote) continue;
      const HeadStream& s = *step.stream;
      const uint32_t rows = step.block_rows();
      const CodecEntry* const codec = step.kind == Kind::sinks ? step.plan->sink_codec : step.plan->first_codec(s.head);
      if (rows == codec->tokens) (*batches_)[i].refer_to_tail(env_, s.tail, rows, step.head->of->owner, s.head);
      else (*batches_)[i].add_tail(env_, s.tail, rows);
      step.gathered = true;
    }
  }

  Making making(const Step& step, RowBatch& batch) const {
    const HeadStream& s = *step.stream;
    const LayerPlan& plan = *step.plan;
    Making block{&batch, nullptr, nullptr, Tier::archive, nullptr, s.layer, s.head, nullptr, plan.window == 0, {}};
    if (step.kind == Kind::sinks) {
      block.codec = block.raw = plan.sink_codec;
      block.tier = Tier::sink;
    } else if (step.kind == Kind::graduate) {
      block.codec = plan.first_codec(s.head);
      block.raw = plan.warm ? plan.raw_warm : plan.raw_archive;
      block.tier = plan.warm ? Tier::warm : Tier::archive;
      block.guide = plan.guide(s.head);
    } else {
      block.codec = plan.archive(s.head);
      block.raw = plan.raw_archive;
      block.source = s.blocks[step.oldest.first].block.codec();
    }
    return block;
  }

  // A block for each step that has rows; blocks_[coded_[i]] is that of step i.
  void code() {
    blocks_.clear();
    coded_.clear();
    for (size_t i = 0; i < steps_.size(); ++i) {
      coded_.push_back(blocks_.size());
      RowBatch& batch = (*batches_)[i];
      if (steps_[i].gathered && batch.rows() != 0) blocks_.push_back(making(steps_[i], batch));
    }
    seal(env_, blocks_, use_, run_);
    copy_behind(env_, blocks_, run_);
  }

  // Needs no memory but for the streams' lists.
  void commit() noexcept {
    const bool alone = steps_.size() == 1;
    for (size_t i = 0; i < steps_.size(); ++i) {
      const Step& step = steps_[i];
      RowBatch& batch = (*batches_)[i];
      const bool coded = step.gathered && batch.rows() != 0;
      std::optional<BlockRef> ref = coded ? blocks_[coded_[i]].made : std::nullopt;
      const bool done = step.kind == Kind::demote ? demoted(step, ref, batch.rows()) : graduated(step, ref);
      if (done) {
        step.head->made += step.kind == Kind::demote;
        continue;
      }
      // With the others it may have lacked room that they have given back by now.
      if (alone) step.head->failed = true;
      else together_ = 1;
    }
  }

  bool graduated(const Step& step, const std::optional<BlockRef>& ref) noexcept {
    if (!ref) return false;
    HeadStream& s = *step.stream;
    BlockRef fresh = *ref;
    if (!s.blocks.push_back(*env_.arena, fresh, use_)) {
      release_ref(env_, fresh);
      return false;
    }
    s.tail.drop_front(step.block_rows());
    env_.count_graduated(ref->block.tier(), step.block_rows());
    return true;
  }

  bool demoted(const Step& step, const std::optional<BlockRef>& ref, uint32_t rows) noexcept {
    if (rows != 0 && !ref) return false;
    HeadStream& s = *step.stream;
    auto [first, last] = step.oldest;
    if (ref) {
      env_.count_graduated(Tier::archive, rows);
      release_ref(env_, s.blocks[first]);
      s.blocks[first++] = *ref;
    }
    for (size_t i = first; i < last; ++i) release_ref(env_, s.blocks[i]);
    s.blocks.erase(first, last - first);
    return true;
  }

  const StreamEnv& env_;
  const Arena::Use use_;
  const Executor& run_;
  std::vector<Head> heads_;
  size_t together_;  // heads that take a step at once. It bounds the rows that are on their way
  std::vector<Step> steps_;
  Loan<Batches> batches_;  // at least as many as there are steps
  std::vector<attn::DecodeWork> decodes_;
  std::vector<Making> blocks_;
  std::vector<size_t> coded_;
};

}  // namespace

const HeadStream::Warm& HeadStream::warm() const {
  // Not drawn here: attention draws it between two steps, and wants to be told what stayed.
  const uint64_t version = blocks.drawn_version();
  if (version != 0 && warm_.version == version) return warm_;
  warm_ = {version, 0, 0};
  while (warm_.first < blocks.size() && blocks[warm_.first].block.tier() != Tier::warm) ++warm_.first;
  for (size_t i = warm_.first; i < blocks.size(); ++i) warm_.rows += blocks[i].live;
  return warm_;
}

void settle(const StreamEnv& env, std::span<Unsettled> layers, const Executor& run, Arena::Use use) noexcept {
  Oldest oldest;
  bool any = false;
  for (Unsettled& layer : layers) {
    const auto due = [&](const HeadStream& s) { return next_step(s, *layer.plan, layer.most, oldest) != Kind::none; };
    layer.settled = std::none_of(layer.heads.begin(), layer.heads.end(), due);
    any |= !layer.settled;
  }
  if (!any) return;  // nearly always, and it takes no memory to see it
  // Each block is made whole before anything of its stream changes, so that there is nothing to undo.
  (void)with_memory([&] {
    Settling settling(env, layers, use, run);
    for (Unsettled& layer : layers) layer.settled = true;
    const bool done = with_memory([&] {
      settling.work();
      return true;
    });
    for (Unsettled& layer : layers) layer.settled &= done;
    return true;
  });
}

bool settle(const StreamEnv& env, std::span<HeadStream> heads, const LayerPlan& plan, const Executor& run, uint32_t most,
            Arena::Use use) {
  Unsettled layer{heads, &plan, most, nullptr};
  settle(env, {&layer, 1}, run, use);
  return layer.settled;
}

bool settle(const StreamEnv& env, HeadStream& s, const LayerPlan& plan, uint32_t most, Arena::Use use) {
  return settle(env, {&s, 1}, plan, attn::in_turn(), most, use);
}

bool due_for_archive(const StreamEnv& env, const HeadStream& s, const LayerPlan& plan, RowBatch& batch) {
  batch.clear();
  if (plan.ring || plan.hot == kAll || plan.warm == kAll || plan.waiting) return false;
  const uint32_t target = plan.archive_codec->tokens, block = plan.first_block(), sinks = wants_sinks(s, plan) ? plan.sinks : 0;
  size_t i = s.warm().first;
  const uint64_t warm = s.warm().rows;
  const uint64_t stays = static_cast<uint64_t>(plan.hot) + sinks, tail = s.tail.rows();
  const uint64_t graduates = tail > stays ? (tail - stays) / block * block : 0;
  if (warm + graduates < static_cast<uint64_t>(plan.warm) + target) return false;
  for (; i < s.blocks.size() && batch.rows() + s.blocks[i].live <= target; ++i) {
    batch.add_live_rows(env, s.blocks[i], s.layer, s.head);
  }
  if (const uint32_t more = target - batch.rows(); more && i == s.blocks.size()) {
    RowBatch& front = scratch_batch();
    front.add_tail(env, s.tail, sinks + more);
    batch.add_rows(env, front, sinks, more);
  }
  return batch.rows() != 0;
}

}  // namespace tierkv::tiers
