#include "cuda/encode/encode_batch.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>

#include "attn/cpu_backend.h"
#include "base/guarded.h"

namespace tierkv::cuda {

using attn::EncodeWork;
using quant::LayoutKind;
using quant::Side;
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

uint32_t EncodeBatch::source_of(const quant::Codec& codec) {
  const auto [found, fresh] = known_sources_.try_emplace(&codec, kNotHere);
  SideCoding coding;
  if (fresh && codec.spec().top == 0 && codec.layout(coding.layout) && decodable(coding.layout)) {
    coding.values = codec.side() == quant::Side::value;
    codings_.push_back(coding);
    found->second = static_cast<uint32_t>(codings_.size() - 1);
  }
  return found->second;
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

void EncodeBatch::into_parcel(Source& source, size_t bytes) {
  source.at = parcel_rows_, source.bytes = bytes;
  parcel_rows_ += line_rounded(bytes);
}

bool EncodeBatch::place_blocks(const EncodeWork& work, uint32_t coding, Mirror* mirror, Source& source) {
  // Rows that become 16-bit ones are not taken through shared memory there.
  if (work.rows || work.blocks.empty() || codings_[coding].layout.kind == LayoutKind::rows16) return false;
  const Side side = work.codec->side();
  const auto source_coding = [&](const attn::BlockRows& rows) {
    return source_of(side == Side::key ? *rows.block.key_codec : *rows.block.value_codec);
  };
  for (const attn::BlockRows& rows : work.blocks) {
    if (source_coding(rows) == kNotHere) return false;
  }
  source.first_block = blocks_.size(), source.blocks = work.blocks.size();
  for (const attn::BlockRows& rows : work.blocks) {
    const std::span<const std::byte> from = side == Side::key ? rows.block.keys : rows.block.values;
    const bool again = blocks_.size() > source.first_block && blocks_.back().from == from.data();  // other rows of it
    BlockSource block{
        again ? blocks_.back().source : Source(), from.data(), {nullptr, source_coding(rows), rows.first, rows.count}};
    if (!again && mirror) block.source.there = mirror->bytes_there(rows.block, side);
    if (!again && !block.source.there) into_parcel(block.source, from.size());
    blocks_.push_back(block);
  }
  return true;
}

void EncodeBatch::place_rows(std::span<EncodeWork* const> works, Tails* tails, Mirror* mirror) {
  sources_.clear();
  blocks_.clear();
  parcel_rows_ = 0;
  for (size_t i = 0; i < works.size(); ++i) {
    const EncodeWork& work = *works[i];
    Source& source = sources_.emplace_back();
    if (place_blocks(work, coding_[i], mirror, source)) continue;
    const quant::SideLayout& side = codings_[coding_[i]].layout;
    const bool wide = work.rows || !work.blocks.empty();
    if (!wide) {
      source.type = work.tail.bf16 ? RowType::bf16 : RowType::f16;
      if (tails) source.there = tails->rows_there(work.tail, work.ctx.first_position, side.tokens, size_t{2} * side.head_dim);
    }
    if (!source.there) into_parcel(source, size_t{side.tokens} * side.head_dim * (wide ? sizeof(float) : sizeof(uint16_t)));
  }
}

// What is not there, into staging memory: codes and 16-bit rows as they are, and floats.
Status EncodeBatch::fill_rows(std::span<EncodeWork* const> works, const Executor& run, uint8_t* rows) const {
  std::atomic<bool> refused = false;
  const auto fill = [&](uint32_t i) {
    const EncodeWork& work = *works[i];
    const Source& source = sources_[i];
    for (size_t b = source.first_block; b < source.first_block + source.blocks; ++b) {
      const Source& block = blocks_[b].source;
      if (!block.there) std::memcpy(rows + block.at, blocks_[b].from, block.bytes);
    }
    if (source.there || source.blocks != 0) return;
    if (work.rows || work.blocks.empty()) {
      const void* const from = work.rows ? static_cast<const void*>(work.rows) : work.tail.rows;
      std::memcpy(rows + source.at, from, source.bytes);
      return;
    }
    const auto decode = [&] {
      attn::decode_blocks(work.blocks, work.codec->side(), reinterpret_cast<float*>(rows + source.at));
      return true;
    };
    if (!with_memory(decode)) refused.store(true, std::memory_order_relaxed);
  };
  run(static_cast<uint32_t>(works.size()), std::cref(fill));
  return refused.load(std::memory_order_relaxed) ? error(StatusCode::resource_exhausted, "no memory to decode a block") : Status();
}

// One parcel: descriptors, then rows and codes that are not there.
Status EncodeBatch::send(std::span<EncodeWork* const> works, const Executor& run, Tails* tails, Mirror* mirror) {
  place_rows(works, tails, mirror);
  const size_t rows = parcel_rows_;
  TIERKV_RETURN_IF_ERROR(send_tables());
  size_t parts = 0;
  for (size_t i = 0; i < works.size(); ++i) parts += encode_parts(codings_[coding_[i]]);
  const size_t flags = line_rounded(works.size() * sizeof(uint32_t));  // the results begin with them
  const size_t descs_at = line_rounded(256 * sizeof(float)), parts_at = descs_at + line_rounded(works.size() * sizeof(EncodeDesc));
  const size_t blocks_at = parts_at + line_rounded(parts * sizeof(EncodePart));
  const size_t rows_at = blocks_at + line_rounded(blocks_.size() * sizeof(DecodeDesc));
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
  const auto at = [&](const Source& source) { return source.there ? source.there : parcel_.data() + rows_at + source.at; };
  auto* const blocks = reinterpret_cast<DecodeDesc*>(parcel_host_.data() + blocks_at);
  const auto* const blocks_there = reinterpret_cast<const DecodeDesc*>(parcel_.data() + blocks_at);
  for (size_t b = 0; b < blocks_.size(); ++b) {
    blocks[b] = blocks_[b].desc;
    blocks[b].bytes = at(blocks_[b].source);
  }
  for (size_t i = 0; i < works.size(); ++i) {
    const SideCoding& coding = codings_[coding_[i]];
    const Source& source = sources_[i];
    descs[i] = {source.blocks == 0 ? at(source) : nullptr,
                out_.data() + at_[i],
                reinterpret_cast<uint32_t*>(out_.data()) + i,
                coding.layout.head_dim,
                works[i]->ctx.first_position,
                coding_[i],
                source.type,
                guide_[i],
                source.blocks == 0 ? nullptr : blocks_there + source.first_block,
                static_cast<uint32_t>(source.blocks)};
    for (uint32_t p = 0; p < encode_parts(coding); ++p) *part++ = {static_cast<uint32_t>(i), p};
    launch.shared_bytes = std::max<uint32_t>(launch.shared_bytes, encode_floats(coding, guide_[i] != kNoGuide) * sizeof(float));
  }
  if (rows != 0) TIERKV_RETURN_IF_ERROR(fill_rows(works, run, parcel_host_.data() + rows_at));
  bytes_sent_ += rows;
  TIERKV_RETURN_IF_ERROR(machine_.send(parcel_.data(), parcel_host_.data(), rows_at + rows));
  TIERKV_RETURN_IF_ERROR(machine_.clear(out_.data(), flags));
  launch.codings = reinterpret_cast<const SideCoding*>(codings_there_.data());
  launch.guides = reinterpret_cast<const quant::GuideTables*>(guides_there_.data());
  launch.works = reinterpret_cast<const EncodeDesc*>(parcel_.data() + descs_at);
  launch.parts = reinterpret_cast<const EncodePart*>(parcel_.data() + parts_at);
  launch.num_parts = static_cast<uint32_t>(parts);
  launch.decodes = !blocks_.empty();
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

void EncodeBatch::encode(std::span<EncodeWork> blocks, const Executor& run, Tails* tails, Mirror* mirror) {
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
  if (!there.empty() && !send(there, run, tails, mirror).ok()) there.clear();
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
