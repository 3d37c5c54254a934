// encode_batch.h — blocks that a device encodes for a cache: rows go there, bytes come back, the same bits that the processor
// makes.
//
// Rows of a tail that the device has (tails.h) are read where they are there; others go in 16 bits. Rows of blocks are decoded
// there, from the copies that it has (mirror.h), or from the codes, which go then. What it cannot decode goes as floats. It works
// aside (machine.h): nothing that a caller has asked for is waited for.
//
// What the device has no encoder for (encode.h), and calls of a few blocks, are the processor's; so is everything when the device
// fails or has no memory. Both work at the same time.
// Threads:  none: the caller's lock protects it.
// REQUIRES: codecs outlive it.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "attn/backend.h"
#include "cuda/launch/encode.h"
#include "cuda/memory/machine.h"
#include "cuda/memory/mirror.h"
#include "cuda/memory/tails.h"

namespace tierkv::cuda {

class EncodeBatch {
 public:
  explicit EncodeBatch(Machine& machine);
  ~EncodeBatch();
  EncodeBatch(const EncodeBatch&) = delete;
  EncodeBatch& operator=(const EncodeBatch&) = delete;

  // As attn::Backend::encode(). `tails`, `mirror`: or null.
  void encode(std::span<attn::EncodeWork> blocks, const Executor& run, Tails* tails = nullptr, Mirror* mirror = nullptr);

  uint64_t bytes() const { return codings_there_.size() + guides_there_.size() + parcel_.size() + out_.size() + table_bytes_; }
  uint64_t encoded() const { return encoded_; }        // sides of blocks that the device made
  uint64_t bytes_sent() const { return bytes_sent_; }  // of rows, and of codes that rows are decoded from

 private:
  static constexpr uint32_t kNotHere = 0xFFFFFFFFu;

  // The coding of a work's codec, as the device has it; kNotHere: this work is the processor's.
  uint32_t coding_of(const attn::EncodeWork& work);
  Result<quant::SideCoding> copy_tables(const quant::SideCoding& from);
  // The same of a codec that rows are decoded from; kNotHere: they are decoded by the processor.
  uint32_t source_of(const quant::Codec& codec);
  // The same of who guides the work; kNoGuide: nobody.
  Result<uint32_t> guide_of(const attn::EncodeWork& work);
  Result<const uint8_t*> copied(const void* from, size_t bytes);
  Status send(std::span<attn::EncodeWork* const> works, const Executor& run, Tails* tails, Mirror* mirror);
  Status send_tables();
  // Where the rows of works, or the blocks they are in, are: on the device already, or among the parcel's.
  struct Source {
    const uint8_t* there = nullptr;  // what the device has; null: it is in the parcel
    size_t at = 0, bytes = 0;        // of the parcel's rows
    RowType type = RowType::f32;
    size_t first_block = 0, blocks = 0;  // of blocks_: the rows are theirs
  };
  struct BlockSource {
    Source source;
    const std::byte* from = nullptr;
    DecodeDesc desc;  // but for where its bytes are
  };
  void place_rows(std::span<attn::EncodeWork* const> works, Tails* tails, Mirror* mirror);
  // False: the rows of this work are not decoded there.
  bool place_blocks(const attn::EncodeWork& work, uint32_t coding, Mirror* mirror, Source& source);
  void into_parcel(Source& source, size_t bytes);
  Status fill_rows(std::span<attn::EncodeWork* const> works, const Executor& run, uint8_t* rows) const;
  Status fetch(std::span<attn::EncodeWork* const> works);

  Machine& machine_;
  std::map<const quant::Codec*, uint32_t> known_, known_guides_, known_sources_;
  std::vector<quant::SideCoding> codings_;  // with pointers of the device
  std::vector<quant::GuideTables> guides_;
  std::map<const void*, uint8_t*> copies_;  // of host memory that never changes
  uint64_t table_bytes_ = 0, encoded_ = 0, bytes_sent_ = 0;
  size_t codings_sent_ = 0, guides_sent_ = 0;
  DeviceMemory codings_there_, guides_there_, parcel_, out_;
  Staging parcel_host_, out_host_;
  std::vector<uint32_t> coding_, guide_;  // of each work of the call under way
  std::vector<size_t> at_;                // where its bytes are in out_
  std::vector<Source> sources_;           // of each work
  std::vector<BlockSource> blocks_;
  size_t parcel_rows_ = 0, out_bytes_ = 0;  // bytes
};

}  // namespace tierkv::cuda
