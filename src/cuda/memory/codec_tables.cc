#include "cuda/memory/codec_tables.h"

#include <algorithm>

#include "cuda/plan/fragments.h"

namespace tierkv::cuda {

CodecTables::~CodecTables() {
  for (uint8_t* const memory : memory_) machine_.release(memory);
}

Result<uint32_t> CodecTables::find(const quant::Codec& key, const quant::Codec& value) {
  const Pair name(&key, &value);
  if (name == last_) return last_index_;
  if (const auto found = known_.find(name); found != known_.end()) {
    last_ = name, last_index_ = found->second;
    return last_index_;
  }
  CodecDesc desc;
  if (!readable(key, value, desc)) return error(StatusCode::unsupported, "a device has no reader for this codec");
  CodecDesc there = desc;
  TIERKV_RETURN_IF_ERROR(copy_tables(there));
  desc.key_fragments = there.key_fragments;  // a plan only asks whether there are some
  host_.push_back(desc);
  device_.push_back(there);
  const auto index = static_cast<uint32_t>(host_.size() - 1);
  known_.emplace(name, index);
  return index;
}

Status CodecTables::copy_tables(CodecDesc& desc) {
  quant::SideLayout& key = desc.key;
  if (key.kind != quant::LayoutKind::words) return {};
  if (is_klt(fast_path(desc, 1))) {
    // A copy of its own, since this vector's memory is soon another's.
    const std::vector<uint32_t> tables = klt_device_tables(key);
    TIERKV_ASSIGN_OR_RETURN(const uint8_t* const there, copied(tables.data(), tables.size() * sizeof(uint32_t)));
    copies_.erase(tables.data());
    desc.key_fragments = there;  // or nothing
  }
  TIERKV_ASSIGN_OR_RETURN(const uint8_t* const rows, copied(key.rows, size_t{2} * key.components * key.head_dim));
  TIERKV_ASSIGN_OR_RETURN(const uint8_t* const mean, copied(key.mean, size_t{4} * key.head_dim));
  TIERKV_ASSIGN_OR_RETURN(const uint8_t* const turns,
                          copied(key.turns, size_t{8} * quant::kTurnDigits * quant::kTurnBase * key.pairs));
  TIERKV_ASSIGN_OR_RETURN(const uint8_t* const turned, copied(key.turned, size_t{4} * key.pairs));
  key.rows = reinterpret_cast<const uint16_t*>(rows);
  key.mean = reinterpret_cast<const float*>(mean);
  key.turns = reinterpret_cast<const float*>(turns);
  key.turned = reinterpret_cast<const uint16_t*>(turned);
  return {};
}

Result<const CodecDesc*> CodecTables::there() {
  if (device_.size() > room_) {  // calls that are on their way read the one before
    const size_t room = std::max<size_t>(16, 2 * device_.size());
    TIERKV_ASSIGN_OR_RETURN(list_, allocate(room * sizeof(CodecDesc)));
    room_ = room, listed_ = 0;
  }
  if (listed_ != device_.size()) {
    const size_t fresh = (device_.size() - listed_) * sizeof(CodecDesc);
    TIERKV_RETURN_IF_ERROR(machine_.send(list_ + listed_ * sizeof(CodecDesc), device_.data() + listed_, fresh));
    listed_ = device_.size();
  }
  return reinterpret_cast<const CodecDesc*>(list_);
}

Result<uint8_t*> CodecTables::allocate(size_t bytes) {
  memory_.reserve(memory_.size() + 1);
  TIERKV_ASSIGN_OR_RETURN(uint8_t* const there, machine_.allocate(bytes));
  memory_.push_back(there);
  bytes_ += bytes;
  return there;
}

Result<const uint8_t*> CodecTables::copied(const void* from, size_t bytes) {
  if (bytes == 0) return static_cast<const uint8_t*>(nullptr);
  if (const auto found = copies_.find(from); found != copies_.end()) return found->second;
  TIERKV_ASSIGN_OR_RETURN(uint8_t* const there, allocate(bytes));
  TIERKV_RETURN_IF_ERROR(machine_.send(there, from, bytes));
  copies_.emplace(from, there);
  return static_cast<const uint8_t*>(there);
}

}  // namespace tierkv::cuda
