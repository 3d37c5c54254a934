#include "store/cold_file.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <system_error>
#include <utility>

#include "base/modest_thread.h"
#include "base/status_macros.h"

namespace tierkv::store {

ColdFile::ColdFile(std::unique_ptr<ColdMedium> medium, Arena& arena, uint64_t limit, size_t queue_bytes)
    : medium_(std::move(medium)), arena_(arena), limit_(limit), queue_limit_(queue_bytes) {
  stats_.file_bytes = end_;
  try {
    writer_ = std::thread([this] { write_loop(); });
  } catch (const std::system_error&) {
    threaded_ = false;
  }
}

ColdFile::~ColdFile() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  ready_.notify_all();
  if (writer_.joinable()) writer_.join();
}

// --- slots

bool ColdFile::take_slot(size_t bytes, uint64_t& offset) {
  bytes = Arena::rounded(bytes);
  auto of = std::find_if(classes_.begin(), classes_.end(), [&](const SizeClass& c) { return c.bytes == bytes; });
  if (of == classes_.end()) of = classes_.insert(classes_.end(), SizeClass{bytes, 0, {}});
  if (of->free.empty()) {
    if (limit_ && end_ + bytes > limit_) return false;
    if (of->free.capacity() <= of->made) of->free.reserve(2 * of->made + 16);
    ++of->made;
    offset = end_;
    end_ += bytes;
  } else {
    offset = of->free.back();
    of->free.pop_back();
  }
  shrink_ = false;
  stats_.file_bytes = end_;
  stats_.used_bytes += bytes;
  ++stats_.copies;
  return true;
}

void ColdFile::give_slot(const ColdCopy& copy) noexcept {
  const size_t bytes = Arena::rounded(copy.sizes.total());
  const auto of = std::find_if(classes_.begin(), classes_.end(), [&](const SizeClass& c) { return c.bytes == bytes; });
  of->free.push_back(copy.offset);
  stats_.used_bytes -= bytes;
  if (--stats_.copies != 0) return;
  for (SizeClass& c : classes_) c.free.clear(), c.made = 0;
  stats_.file_bytes = end_ = kHeaderBytes;
  shrink_ = threaded_;  // the writer does it, in turn with what it writes
}

// --- copies

ColdCopy* ColdFile::add(const quant::CodecEntry& codec, const PayloadSizes& sizes, uint64_t checksum,
                        std::span<const std::byte> bytes) noexcept {
  void* memory = arena_.allocate(sizeof(ColdCopy), MemoryTag::bookkeeping);
  ColdCopy* copy = memory ? new (memory) ColdCopy : nullptr;
  bool taken = false;
  try {
    Queue item;  // made without the lock
    if (copy) {
      copy->codec = &codec;
      copy->sizes = sizes;
      copy->checksum = checksum;
      item.push_back({copy, {bytes.begin(), bytes.end()}, {}});
      item.front().self = item.begin();
    }
    Lock lock(mutex_);
    if (copy && stats_.queue_bytes + bytes.size() <= queue_limit_ && take_slot(sizes.total(), copy->offset)) {
      taken = true;
      copy->pending = &item.front();
      queue_.splice(queue_.end(), item);
      stats_.queue_bytes += bytes.size();
      if (!threaded_) write_first(lock);
    } else {
      ++stats_.skipped;
    }
  } catch (const std::bad_alloc&) {
    std::lock_guard lock(mutex_);
    ++stats_.skipped;
  }
  if (taken) {
    ready_.notify_one();
    return copy;
  }
  if (copy) arena_.release(copy, sizeof(ColdCopy), MemoryTag::bookkeeping);
  return nullptr;
}

void ColdFile::release(ColdCopy* copy) noexcept {
  if (copy->refs.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  bool shrink = false;
  {
    Queue gone;  // freed without the lock
    Lock lock(mutex_);
    if (copy == writing_) {
      abandoned_ = true;  // the writer frees it
      return;
    }
    if (copy->pending) {
      const auto* item = static_cast<const Pending*>(copy->pending);
      stats_.queue_bytes -= item->bytes.size();
      gone.splice(gone.end(), queue_, item->self);
    }
    if (copy->state != ColdCopy::State::lost) give_slot(*copy);
    shrink = shrink_;
    idle_.notify_all();
  }
  if (shrink) ready_.notify_one();
  free_record(copy);
}

void ColdFile::free_record(ColdCopy* copy) noexcept {
  if (copy->summary) arena_.release(copy->summary, copy->summary_bytes, MemoryTag::bookkeeping);
  copy->~ColdCopy();
  arena_.release(copy, sizeof(ColdCopy), MemoryTag::bookkeeping);
}

Result<ColdCopy*> ColdFile::write_now(const quant::CodecEntry& codec, const PayloadSizes& sizes, uint64_t checksum,
                                      std::span<const std::byte> bytes, std::span<const std::byte> summary) {
  // This is what is done when memory is short: it may use the headroom.
  void* memory = arena_.allocate(sizeof(ColdCopy), MemoryTag::bookkeeping, Arena::Use::relief);
  if (!memory) return error(StatusCode::resource_exhausted, "no memory to remember where a block is in the cold file");
  auto* copy = new (memory) ColdCopy;
  copy->codec = &codec;
  copy->sizes = sizes;
  copy->checksum = checksum;
  copy->summary = static_cast<std::byte*>(arena_.allocate(summary.size(), MemoryTag::bookkeeping, Arena::Use::relief));
  bool taken = false, at_limit = false;
  if (copy->summary) {
    copy->summary_bytes = static_cast<uint16_t>(summary.size());
    std::memcpy(copy->summary, summary.data(), summary.size());
    std::lock_guard lock(mutex_);
    try {
      taken = take_slot(sizes.total(), copy->offset);
      at_limit = !taken;
    } catch (const std::bad_alloc&) {
    }
  }
  if (!taken) {
    free_record(copy);
    if (!at_limit) return error(StatusCode::resource_exhausted, "no memory to remember where a block is in the cold file");
    return error(StatusCode::resource_exhausted, "the cold file has no room for a block of ", bytes.size(),
                 " bytes: cold_budget of ", limit_, " bytes is reached; raise it");
  }
  Status status;
  {
    std::lock_guard file(file_);
    status = medium_->write(copy->offset, bytes);
  }
  std::lock_guard lock(mutex_);
  if (status.ok()) {
    copy->state = ColdCopy::State::written;
    ++stats_.written;
    return copy;
  }
  ++stats_.failed;
  note(status);
  lose(*copy);
  free_record(copy);
  return status;
}

void ColdFile::lose(ColdCopy& copy) noexcept {
  if (copy.state == ColdCopy::State::lost) return;
  copy.state = ColdCopy::State::lost;
  give_slot(copy);
}

void ColdFile::note(const Status& status) noexcept {
  try {
    stats_.problem = status.message();
  } catch (const std::bad_alloc&) {  // the counts say it too
  }
}

Status ColdFile::read(ColdCopy& copy, std::span<std::byte> out) {
  uint64_t offset = 0;
  {
    std::lock_guard lock(mutex_);
    if (copy.state == ColdCopy::State::lost) return error(StatusCode::data_loss, "the cold copy is lost");
    if (const auto* item = static_cast<const Pending*>(copy.pending)) {
      std::memcpy(out.data(), item->bytes.data(), out.size());
      return {};
    }
    offset = copy.offset;
  }
  return check(copy, out, medium_->read(offset, out));
}

// Only bytes that match are anybody's.
Status ColdFile::check(ColdCopy& copy, std::span<const std::byte> bytes, Status status) {
  if (status.ok() && payload_checksum(copy.sizes, bytes) != copy.checksum)
    status = error(StatusCode::data_loss, "bytes in the cold file do not match their checksum");
  if (status.ok()) return status;
  std::lock_guard lock(mutex_);
  note(status);
  if (status.code() == StatusCode::data_loss) {
    stats_.damaged += copy.state != ColdCopy::State::lost;
    lose(copy);
    if (shrink_) ready_.notify_one();
  }
  return status;
}

Status ColdFile::read_run(std::span<ColdCopy* const> copies, std::span<std::byte> out, size_t& lost) {
  lost = 0;
  for (ColdCopy* copy : copies) {
    if (!usable(copy)) return error(StatusCode::data_loss, "a block in the cold file is lost");
    ++lost;
  }
  const Status whole = medium_->read(copies[0]->offset, out);
  size_t at = 0;
  lost = 0;
  for (ColdCopy* copy : copies) {
    const std::span<std::byte> bytes = out.subspan(at, copy->sizes.total());
    // A run that could not be read as a whole may be readable in part.
    TIERKV_RETURN_IF_ERROR(check(*copy, bytes, whole.ok() ? Status() : medium_->read(copy->offset, bytes)));
    at += Arena::rounded(bytes.size());
    ++lost;
  }
  return {};
}

// --- the writer

void ColdFile::write_first(Lock& lock) {
  Pending& item = queue_.front();  // stays where it is: only the writer takes the front while writing_ says so
  writing_ = item.copy;
  const uint64_t offset = item.copy->offset;
  if (threaded_) lock.unlock();
  const Status status = medium_->write(offset, item.bytes);
  if (threaded_) lock.lock();
  ColdCopy* copy = writing_;
  writing_ = nullptr;
  copy->pending = nullptr;
  stats_.queue_bytes -= item.bytes.size();
  if (status.ok()) {
    copy->state = ColdCopy::State::written;
    ++stats_.written;
  } else {
    ++stats_.failed;
    note(status);
    lose(*copy);
  }
  const bool gone = std::exchange(abandoned_, false);
  if (gone && copy->state != ColdCopy::State::lost) give_slot(*copy);
  if (gone) {
    lock.unlock();
    free_record(copy);
    lock.lock();
  }
  queue_.pop_front();
  finish(lock);
}

// The writer alone shrinks the file, and what it writes later comes after that.
void ColdFile::finish(Lock& lock) {
  if (queue_.empty() && std::exchange(shrink_, false)) {
    lock.unlock();
    {
      std::lock_guard file(file_);  // against write_now(), which has a place in the file before it writes
      lock.lock();
      const bool empty = stats_.copies == 0;
      lock.unlock();
      if (empty) medium_->shrink(kHeaderBytes);
    }
    lock.lock();
  }
  idle_.notify_all();
}

void ColdFile::write_loop() {
  be_modest(10);  // copies can wait, tokens cannot
  Lock lock(mutex_);
  for (;;) {
    ready_.wait(lock, [&] { return stop_ || busy(); });
    if (stop_) break;
    if (queue_.empty()) finish(lock);
    else write_first(lock);
  }
}

void ColdFile::drain() {
  Lock lock(mutex_);
  idle_.wait(lock, [&] { return !busy() || stop_; });
}

uint64_t ColdFile::file_bytes() const {
  std::lock_guard lock(mutex_);
  return stats_.file_bytes;
}

ColdStats ColdFile::stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace tierkv::store
