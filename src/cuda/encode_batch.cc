#include "cuda/encode_batch.h"

#include <algorithm>
#include <cstring>
#include <functional>

#include "attn/cpu_backend.h"
#include "base/guarded.h"

namespace tierkv::cuda {

using attn::EncodeWork;
using quant::LayoutKind;
using quant::SideCoding;

namespace {

// Sides of blocks that are worth a trip.
constexpr size_t kLeastWorks = 4;

// What was asked for there is done when it comes back, whatever happened.
struct Aside {
  explicit Aside(Machine& of) : machine(of) { machine.go_aside(); }
  ~Aside() {
    if (busy) (void)machine.wait();
    machine.come_back();
  }
  Aside(const Aside&) = delete;
  Aside& operator=(const Aside&) = delete;
  Machine& machine;
  bool busy = true;
};

}  // namespace

EncodeBatch::EncodeBatch(Machine& machine)
    : machine_(machine),
      codings_there_(machine),
      guides_there_(machine),
      parcel_(machine),
      out_(machine),
      parcel_host_(machine),
      out_host_(machine) {}

EncodeBatch::~EncodeBatch() {
  for (const auto& [from, there] : copies_) machine_.release(there);
}

Result<const uint8_t*> EncodeBatch::copied(const void* from, size_t bytes) {
  if (bytes == 0) return static_cast<const uint8_t*>(nullptr);
  uint8_t*& there = copies_[from];
  if (there == nullptr) {
    TIERKV_ASSIGN_OR_RETURN(uint8_t* const fresh, machine_.allocate(bytes));
    if (Status sent = machine_.send(fresh, from, bytes); !sent.ok()) {
      machine_.release(fresh);  // or another codec would take its zeros for the table
      return sent;
    }
    there = fresh;
    table_bytes_ += bytes;
  }
  return static_cast<const uint8_t*>(there);
}

Result<SideCoding> EncodeBatch::copy_tables(const SideCoding& from) {
  SideCoding to = from;
  if (from.layout.kind != LayoutKind::words) return to;
  const quant::SideLayout& side = from.layout;
  TIERKV_ASSIGN_OR_RETURN(const uint8_t* const analysis, copied(from.analysis, size_t{4} * from.padded * side.head_dim));
  TIERKV_ASSIGN_OR_RETURN(const uint8_t* const shift, copied(from.shift, size_t{4} * from.padded));
  TIERKV_ASSIGN_OR_RETURN(const uint8_t* const turns,
                          copied(side.turns, size_t{8} * quant::kTurnDigits * quant::kTurnBase * side.pairs));
  TIERKV_ASSIGN_OR_RETURN(const uint8_t* const turned, copied(side.turned, size_t{4} * side.pairs));
  to.analysis = reinterpret_cast<const float*>(analysis);
  to.shift = reinterpret_cast<const float*>(shift);
  to.layout.turns = reinterpret_cast<const float*>(turns);
  to.layout.turned = reinterpret_cast<const uint16_t*>(turned);
  return to;
}

Result<uint32_t> EncodeBatch::guide_of(const EncodeWork& work) {
  if (work.ctx.guide == nullptr) return kNoGuide;
  if (const auto found = known_guides_.find(work.ctx.guide); found != known_guides_.end()) return found->second;
  quant::GuideTables tables;
  uint32_t guide = kNoGuide;
  if (work.ctx.guide->guide_tables(tables)) {
    TIERKV_ASSIGN_OR_RETURN(const uint8_t* const rows, copied(tables.rows, size_t{4} * tables.count * tables.head_dim));
    TIERKV_ASSIGN_OR_RETURN(const uint8_t* const turns,
                            copied(tables.turns, size_t{8} * quant::kTurnDigits * quant::kTurnBase * tables.pairs));
    TIERKV_ASSIGN_OR_RETURN(const uint8_t* const turned, copied(tables.turned, size_t{4} * tables.pairs));
    tables.rows = reinterpret_cast<const float*>(rows);
    tables.turns = reinterpret_cast<const float*>(turns);
    tables.turned = reinterpret_cast<const uint16_t*>(turned);
    guide = static_cast<uint32_t>(guides_.size());
    guides_.push_back(tables);
  }
  known_guides_.emplace(work.ctx.guide, guide);
  return guide;
}

uint32_t EncodeBatch::coding_of(const EncodeWork& work) {
  const auto [found, fresh] = known_.try_emplace(work.codec, kNotHere);
  if (fresh) {
    SideCoding coding;
    if (work.codec->coding(coding) && codable(coding)) {
      Result<SideCoding> there = copy_tables(coding);
      if (there.ok()) {
        codings_.push_back(*there);
        found->second = static_cast<uint32_t>(codings_.size() - 1);
      }
    }
  }
  if (found->second == kNotHere) return kNotHere;
  const quant::SideLayout& side = codings_[found->second].layout;
  const bool guided = side.even != 0 && work.ctx.guide != nullptr && !guidable(codings_[found->second]);
  const bool scattered = side.kind == LayoutKind::words && work.ctx.positions != nullptr;  // it may be refused for its positions
  return guided || scattered ? kNotHere : found->second;
}

Status EncodeBatch::send_tables() {
  if (codings_sent_ != codings_.size()) {
    codings_sent_ = 0;
    const size_t bytes = codings_.size() * sizeof(SideCoding);
    TIERKV_RETURN_IF_ERROR(codings_there_.reserve(bytes));
    TIERKV_RETURN_IF_ERROR(machine_.send(codings_there_.data(), codings_.data(), bytes));
    codings_sent_ = codings_.size();
  }
  if (guides_sent_ != guides_.size()) {
    guides_sent_ = 0;
    const size_t bytes = guides_.size() * sizeof(quant::GuideTables);
    TIERKV_RETURN_IF_ERROR(guides_there_.reserve(bytes));
    TIERKV_RETURN_IF_ERROR(machine_.send(guides_there_.data(), guides_.data(), bytes));
    guides_sent_ = guides_.size();
  }
  return {};
}

size_t EncodeBatch::place_rows(std::span<EncodeWork* const> works, Tails* tails) {
  sources_.clear();
  size_t bytes = 0;
  for (size_t i = 0; i < works.size(); ++i) {
    const EncodeWork& work = *works[i];
    const quant::SideLayout& side = codings_[coding_[i]].layout;
    Source& source = sources_.emplace_back();
    const size_t elements = size_t{side.tokens} * side.head_dim;
    if (!work.rows) {
      source.type = work.tail.bf16 ? RowType::bf16 : RowType::f16;
      if (tails) source.there = tails->rows_there(work.tail, work.ctx.first_position, side.tokens, size_t{2} * side.head_dim);
    }
    if (source.there) continue;
    source.at = bytes, source.bytes = elements * (work.rows ? sizeof(float) : sizeof(uint16_t));
    bytes += line_rounded(source.bytes);
  }
  return bytes;
}

// One parcel: descriptors, then rows that are not there.
Status EncodeBatch::send(std::span<EncodeWork* const> works, const Executor& run, Tails* tails) {
  TIERKV_RETURN_IF_ERROR(send_tables());
  size_t parts = 0;
  for (size_t i = 0; i < works.size(); ++i) parts += encode_parts(codings_[coding_[i]]);
  const size_t rows = place_rows(works, tails);
  const size_t flags = line_rounded(works.size() * sizeof(uint32_t));  // the results begin with them
  const size_t descs_at = line_rounded(256 * sizeof(float)), parts_at = descs_at + line_rounded(works.size() * sizeof(EncodeDesc));
  const size_t rows_at = parts_at + line_rounded(parts * sizeof(EncodePart));
  out_bytes_ = flags;
  at_.clear();
  for (const EncodeWork* work : works) {
    at_.push_back(out_bytes_);
    out_bytes_ += line_rounded(work->out.size());
  }
  TIERKV_RETURN_IF_ERROR(parcel_.reserve(rows_at + rows));
  TIERKV_RETURN_IF_ERROR(parcel_host_.reserve(rows_at + rows));
  TIERKV_RETURN_IF_ERROR(out_.reserve(out_bytes_));
  TIERKV_RETURN_IF_ERROR(out_host_.reserve(out_bytes_));

  EncodeLaunch launch;
  auto* const descs = reinterpret_cast<EncodeDesc*>(parcel_host_.data() + descs_at);
  auto* part = reinterpret_cast<EncodePart*>(parcel_host_.data() + parts_at);
  std::memcpy(parcel_host_.data(), log8_table(), 256 * sizeof(float));
  for (size_t i = 0; i < works.size(); ++i) {
    const SideCoding& coding = codings_[coding_[i]];
    const Source& source = sources_[i];
    descs[i] = {source.there ? source.there : parcel_.data() + rows_at + source.at,
                out_.data() + at_[i],
                reinterpret_cast<uint32_t*>(out_.data()) + i,
                coding.layout.head_dim,
                works[i]->ctx.first_position,
                coding_[i],
                source.type,
                guide_[i]};
    for (uint32_t p = 0; p < encode_parts(coding); ++p) *part++ = {static_cast<uint32_t>(i), p};
    launch.shared_bytes = std::max<uint32_t>(launch.shared_bytes, encode_floats(coding, guide_[i] != kNoGuide) * sizeof(float));
  }
  const auto copy_rows = [&](uint32_t i) {
    const Source& source = sources_[i];
    const void* const from = works[i]->rows ? static_cast<const void*>(works[i]->rows) : works[i]->tail.rows;
    if (!source.there) std::memcpy(parcel_host_.data() + rows_at + source.at, from, source.bytes);
  };
  if (rows != 0) run(static_cast<uint32_t>(works.size()), std::cref(copy_rows));
  bytes_sent_ += rows;
  TIERKV_RETURN_IF_ERROR(machine_.send(parcel_.data(), parcel_host_.data(), rows_at + rows));
  TIERKV_RETURN_IF_ERROR(machine_.clear(out_.data(), flags));
  launch.codings = reinterpret_cast<const SideCoding*>(codings_there_.data());
  launch.guides = reinterpret_cast<const quant::GuideTables*>(guides_there_.data());
  launch.works = reinterpret_cast<const EncodeDesc*>(parcel_.data() + descs_at);
  launch.parts = reinterpret_cast<const EncodePart*>(parcel_.data() + parts_at);
  launch.num_parts = static_cast<uint32_t>(parts);
  launch.log8 = reinterpret_cast<const float*>(parcel_.data());
  TIERKV_RETURN_IF_ERROR(machine_.encode(launch));
  return machine_.fetch(out_host_.data(), out_.data(), out_bytes_);
}

Status EncodeBatch::fetch(std::span<EncodeWork* const> works) {
  TIERKV_RETURN_IF_ERROR(machine_.wait());
  const auto* const refused = reinterpret_cast<const uint32_t*>(out_host_.data());
  for (size_t i = 0; i < works.size(); ++i) {
    EncodeWork& work = *works[i];
    if (refused[i] != 0) {
      work.status = error(StatusCode::invalid_argument, "the codec does not take these rows");
      continue;
    }
    std::memcpy(work.out.data(), out_host_.data() + at_[i], work.out.size());
    work.status = {};
    ++encoded_;
  }
  return {};
}

void EncodeBatch::encode(std::span<EncodeWork> blocks, const Executor& run, Tails* tails) {
  if (blocks.size() < kLeastWorks || !machine_.enter().ok()) return attn::cpu_backend().encode(blocks, run);
  Aside aside(machine_);
  std::vector<EncodeWork*> here, there;
  coding_.clear(), guide_.clear();
  for (EncodeWork& work : blocks) {
    const uint32_t coding = coding_of(work);
    const bool asks = coding != kNotHere && codings_[coding].layout.even != 0;
    const Result<uint32_t> guide = asks ? guide_of(work) : Result<uint32_t>(kNoGuide);
    if (coding == kNotHere || !guide.ok()) {
      here.push_back(&work);
      continue;
    }
    there.push_back(&work);
    coding_.push_back(coding);
    guide_.push_back(*guide);
  }
  if (there.size() < kLeastWorks) there.clear();
  if (!there.empty() && !send(there, run, tails).ok()) there.clear();
  if (there.empty()) return attn::cpu_backend().encode(blocks, run);
  // Meanwhile, what is the processor's.
  std::vector<EncodeWork> own;
  for (const EncodeWork* work : here) own.push_back(*work);
  attn::cpu_backend().encode(own, run);
  for (size_t i = 0; i < here.size(); ++i) here[i]->status = std::move(own[i].status);
  aside.busy = false;
  if (fetch(there).ok()) return;
  for (EncodeWork* work : there) attn::cpu_backend().encode({work, 1}, attn::in_turn());
}

}  // namespace tierkv::cuda
