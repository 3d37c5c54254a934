// model_cold.h — the random machine promotes tokens from the cold file and demotes them, and damages the file under the cache;
// included by the tests that run it.
//
// What must hold: a promoted block is its copy bit for bit, and with warm rows and copies in FP16 that is what was appended
// (check_rows). What lies below never changes. A fault of the file costs copies and nothing else.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>

#include "model_machine.h"

namespace tierkv::testing {

// The blocks below everything that is promoted, in order.
inline std::vector<uint64_t> Machine::bases(SeqId id) const {
  std::vector<uint64_t> out;
  for (uint32_t l = 0; l < config_.num_layers; ++l) {
    for (uint32_t h = 0; h < config_.num_kv_heads; ++h) {
      for (const tiers::BlockRef& ref : stream(id, l, h).blocks) {
        out.push_back((ref.promoted() ? ref.base : ref.block).checksum());
      }
    }
  }
  return out;
}

inline void Machine::check_promoted(SeqId id, uint32_t first, uint32_t end, bool complete) {
  const auto& store = *impl_of(*cache_).store;
  for (uint32_t l = 0; l < config_.num_layers; ++l) {
    for (uint32_t h = 0; h < config_.num_kv_heads; ++h) {
      for (const tiers::BlockRef& ref : stream(id, l, h).blocks) {
        const store::ColdCopy* copy = store.copy_record(ref.promoted() ? ref.base : ref.block);
        if (!ref.promoted()) {
          bool wanted = false;
          for (uint32_t row = 0; row < ref.rows; ++row)
            wanted |= ref.alive(row) && ref.position(row) >= first && ref.position(row) < end;
          if (complete && wanted && store::ColdFile::usable(copy)) return fail("a block with a copy was not promoted");
          continue;
        }
        if (!copy) return fail("promoted without a copy");
        if (ref.base.tier() != Tier::archive || ref.block.tier() != Tier::archive) return fail("promoted in another tier");
        if (ref.block.checksum() != copy->checksum || ref.block.codec() != copy->codec) return fail("promoted from something else");
        if (!impl_of(*cache_).intact(ref.block) || !impl_of(*cache_).intact(ref.base))
          return fail("a promoted block does not match its checksum");
      }
    }
    check_layer(id, l);
    check_rows(id, l, below(config_.num_kv_heads), 24);
  }
}

inline void Machine::promote() {
  const SeqId id = any_sequence();
  const uint32_t length = model_.at(id).longest(), first = one_in(2) ? 0 : below(length + 1);
  const uint32_t count = one_in(2) ? kAll : below(200), end = count == kAll ? kAll : first + count;
  const uint64_t digest = digest_of(*cache_);
  const auto below_it = bases(id);
  PromotionReport report;
  const Status status = cache_->promote(id, first, count, &report);
  if (!status.ok()) {
    const StatusCode code = status.code();
    const bool allowed = (!setup_.cold && code == StatusCode::failed_precondition) || (faulted_ && code == StatusCode::data_loss) ||
                         (may_run_out() && code == StatusCode::resource_exhausted);
    if (!allowed) return fail(status.to_string());
    if (digest != digest_of(*cache_)) return fail("a refused promotion changed the cache");
    done_["damaged copy"] += code == StatusCode::data_loss;
    return;
  }
  done_["promoted"] += report.blocks != 0;
  if (below_it != bases(id)) return fail("promotion changed what lies below");
  if (report.blocks == 0 && digest != digest_of(*cache_)) return fail("promotion of nothing changed the cache");
  check_promoted(id, first, end, true);
}

inline void Machine::demote() {
  if (!setup_.cold) return;
  const SeqId id = any_sequence();
  const auto below_it = bases(id);
  const uint32_t first = one_in(2) ? 0 : below(model_.at(id).longest() + 1);
  if (const Status status = cache_->demote(id, first, one_in(2) ? kAll : below(200)); !status.ok()) return fail(status.to_string());
  if (below_it != bases(id)) return fail("demotion changed what lies below");
  check_promoted(id, 0, 0, false);
}

// Some bytes of the file change, or its end is gone.
inline void Machine::damage_cold() {
  if (!setup_.cold_faults) return;
  const std::string& path = config_.cold.path;
  faulted_ = true;
  if (one_in(3)) {
    std::filesystem::resize_file(path, below(static_cast<uint32_t>(std::filesystem::file_size(path) + 1)));
    return;
  }
  const int fd = ::open(path.c_str(), O_RDWR);
  const uint64_t size = std::filesystem::file_size(path);
  for (int i = 0; i < 8 && size; ++i) {
    const char noise = static_cast<char>(below(256));
    if (::pwrite(fd, &noise, 1, static_cast<off_t>(below(static_cast<uint32_t>(size)))) != 1) fail("cannot damage the file");
  }
  ::close(fd);
}

}  // namespace tierkv::testing
