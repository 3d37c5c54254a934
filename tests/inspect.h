// inspect.h — a test's eyes: the cache's own state behind the public class, and a digest of everything a caller could ever notice.
#pragma once

#include <cstdint>
#include <cstring>
#include <set>
#include <type_traits>

#include "base/checksum.h"
#include "cache/impl.h"
#include "store/packed_group.h"
#include "tierkv/cache.h"

namespace tierkv::testing {

// Explicit instantiations may name private members, so the public header needs no friend for the tests' sake.
template <auto Member>
struct ImplDoor {
  friend AdaptiveKVCache::Impl& impl_of(const AdaptiveKVCache& cache) { return *(cache.*Member); }
};
AdaptiveKVCache::Impl& impl_of(const AdaptiveKVCache& cache);
template struct ImplDoor<&AdaptiveKVCache::impl_>;

class Digest {
 public:
  void add(const void* data, size_t bytes) {
    const uint64_t parts[2] = {value_, checksum({static_cast<const std::byte*>(data), bytes})};
    value_ = checksum(std::as_bytes(std::span(parts)));
  }
  template <class T>
  void add(const T& x) {
    static_assert(std::is_arithmetic_v<T>);
    add(&x, sizeof x);
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0x9E3779B97F4A7C15ull;
};

// Rows of a windowed layer that left the window and its slack may be forgotten at any moment: `oldest` is the first that counts.
inline void digest_stream(const AdaptiveKVCache::Impl& impl, const tiers::HeadStream& s, uint32_t oldest, Digest& d) {
  for (const tiers::BlockRef& ref : s.blocks) {
    if (ref.position(ref.rows - 1u) < oldest) continue;
    d.add(ref.block.checksum());
    d.add(static_cast<int>(ref.block.tier()));
    d.add(ref.rows);
    d.add(ref.live);
    for (uint32_t row = 0; row < ref.rows; ++row) d.add(ref.position(row));
    if (ref.stats) d.add(ref.stats, static_cast<size_t>(ref.rows) * impl.env.signals * sizeof(float));
  }
  const size_t row_bytes = impl.env.head_dim * sizeof(uint16_t);
  for (uint32_t row = 0; row < s.tail.rows(); ++row) {
    if (s.tail.position(row) < oldest) continue;
    d.add(s.tail.position(row));
    d.add(s.tail.key_row(row), row_bytes);
    d.add(s.tail.value_row(row), row_bytes);
    if (impl.env.signals) d.add(s.tail.stats_row(row), impl.env.signals * sizeof(float));
  }
}

inline void digest_sequence(const AdaptiveKVCache::Impl& impl, const tiers::Sequence& sequence, Digest& d) {
  const std::lock_guard landed(sequence.mutex);
  for (uint32_t l = 0; l < sequence.num_layers(); ++l) {
    const tiers::LayerState& state = sequence.layer(l);
    d.add(state.length);
    d.add(state.unobserved);
    d.add(state.window_queries);
    const plan::LayerShape& plan = impl.planner->shape(l);
    const uint32_t reach = plan.window ? plan.window - 1 + plan.slack : state.length;
    for (const tiers::HeadStream& s : sequence.heads(l)) digest_stream(impl, s, state.length > reach ? state.length - reach : 0, d);
  }
}

// One sequence, whatever its id. REQUIRES: no call is under way.
inline uint64_t sequence_digest(const AdaptiveKVCache& cache, SeqId id) {
  Digest d;
  digest_sequence(impl_of(cache), *impl_of(cache).sequences.at(id), d);
  return d.value();
}

// Everything about every sequence, to the bit. REQUIRES: no call is under way.
inline void digest_sequences(const AdaptiveKVCache& cache, Digest& d) {
  const AdaptiveKVCache::Impl& impl = impl_of(cache);
  for (const auto& [id, sequence] : impl.sequences) {
    d.add(id);
    digest_sequence(impl, *sequence, d);
  }
}

// Of the tokens alone: what a calibration must leave as it is. The width of archives to come may be another with tables.
inline uint64_t digest_of_tokens(const AdaptiveKVCache& cache) {
  Digest d;
  digest_sequences(cache, d);
  return d.value();
}

inline uint64_t digest_of(const AdaptiveKVCache& cache) {
  Digest d;
  digest_sequences(cache, d);
  for (const LayerThresholds& t : cache.thresholds()) {
    d.add(t.hot);
    d.add(t.warm);
    d.add(t.archive_bits);
  }
  d.add(cache.quality_metrics().samples);
  return d.value();
}

// What the sequences hold, walked block by block, each block and buffer once: the truth that the arena's books must agree with.
struct Walked {
  uint64_t tier[kNumTiers] = {};
  uint64_t bookkeeping = 0;  // without block headers
  uint64_t parked = 0;
  uint64_t blocks = 0;
};
inline uint64_t spill_record_bytes(const AdaptiveKVCache::Impl& impl, tiers::BlockHandle block) {
  const store::ColdCopy& record = *impl.store->spilled(block);
  return Arena::rounded(sizeof record) + Arena::rounded(record.summary_bytes);
}
inline Walked walk(const AdaptiveKVCache& cache) {
  const AdaptiveKVCache::Impl& impl = impl_of(cache);
  Walked out;
  std::set<const void*> seen;
  for (const auto& [id, sequence] : impl.sequences) {
    out.bookkeeping += sequence->record_bytes();
    for (uint32_t l = 0; l < sequence->num_layers(); ++l) {
      for (const tiers::HeadStream& s : sequence->heads(l)) {
        for (const tiers::BlockRef& ref : s.blocks) {
          if (ref.positions) out.bookkeeping += Arena::rounded(ref.tokens() * sizeof(uint32_t));
          if (ref.stats) out.bookkeeping += Arena::rounded(size_t{ref.tokens()} * impl.env.signals * sizeof(float));
          for (const tiers::BlockHandle block : {ref.block, ref.base}) {
            const store::ColdCopy* copy = block ? impl.store->copy_record(block) : nullptr;
            if (copy && seen.insert(copy).second) out.bookkeeping += Arena::rounded(sizeof(store::ColdCopy));
          }
          if (ref.promoted() && seen.insert(ref.base.identity()).second) {
            ++out.blocks;
            if (ref.base.spilled()) out.bookkeeping += spill_record_bytes(impl, ref.base);
            else if (!ref.base.away())
              out.tier[static_cast<int>(Tier::archive)] += impl.store->held_bytes(*ref.base.codec(), Tier::archive);
          }
          if (!seen.insert(ref.block.identity()).second) continue;
          ++out.blocks;
          if (ref.block.spilled()) {
            out.bookkeeping += spill_record_bytes(impl, ref.block);
          } else if (ref.block.resident()) {
            out.tier[static_cast<int>(ref.block.tier())] += impl.store->held_bytes(*ref.block.codec(), ref.block.tier());
          } else if (ref.block.packed() && seen.insert(ref.block.group()).second) {
            out.parked += ref.block.group()->held();
          }
        }
        out.bookkeeping += s.blocks.storage_bytes() + s.tail.bookkeeping_bytes();
        if (s.tail.buffer_bytes() && seen.insert(s.tail.buffer_identity()).second) {
          out.tier[static_cast<int>(Tier::hot)] += s.tail.buffer_bytes();
        }
      }
    }
  }
  return out;
}

// Resident bytes as reported, as walked, and the arena's own books; empty when they agree.
inline std::string books_problem(const AdaptiveKVCache& cache) {
  const Arena& arena = *impl_of(cache).arena;
  const MemoryStats m = cache.memory_usage();
  const auto differ = [](const char* what, uint64_t reported, uint64_t truth) {
    return std::string(what) + " reported " + std::to_string(reported) + ", the arena has " + std::to_string(truth);
  };
  const Walked walked = walk(cache);
  uint64_t sum = m.bookkeeping_bytes + m.free_bytes + m.parked_bytes;
  for (int t = 0; t < kNumTiers; ++t) {
    const uint64_t truth = arena.allocated(static_cast<MemoryTag>(t));
    if (walked.tier[t] != truth) return differ(tier_name(static_cast<Tier>(t)), walked.tier[t], truth);
    if (m.tier[t].bytes() != truth) return differ(tier_name(static_cast<Tier>(t)), m.tier[t].bytes(), truth);
    sum += m.tier[t].bytes();
  }
  if (m.bookkeeping_bytes != arena.allocated(MemoryTag::bookkeeping)) {
    return differ("bookkeeping", m.bookkeeping_bytes, arena.allocated(MemoryTag::bookkeeping));
  }
  const uint64_t slabs = m.bookkeeping_bytes - walked.bookkeeping;
  if (slabs % store::BlockStore::kSlabBytes || slabs < walked.blocks * sizeof(store::BlockHeader)) {
    return differ("bookkeeping without headers", walked.bookkeeping, m.bookkeeping_bytes);
  }
  if (walked.parked != m.parked_bytes) return differ("parked", walked.parked, m.parked_bytes);
  if (m.free_bytes != arena.free_bytes()) return differ("free", m.free_bytes, arena.free_bytes());
  if (m.total_bytes != arena.mapped()) return differ("total", m.total_bytes, arena.mapped());
  if (sum != m.total_bytes) return differ("the sum of all parts", sum, m.total_bytes);
  if (m.budget_bytes && m.peak_bytes > m.budget_bytes) return differ("budget exceeded: peak", m.peak_bytes, m.budget_bytes);
  return {};
}

}  // namespace tierkv::testing
