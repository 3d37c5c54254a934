// encode_batch.h — blocks that a device encodes for a cache: rows go there, bytes come back, the same bits that the processor
// makes.
//
// Rows of a tail that the device has (tails.h) are read where they are there; others go in 16 bits, and only what was decoded as
// floats. It works aside (machine.h): nothing that a caller has asked for is waited for.
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
#include "cuda/encode.h"
#include "cuda/machine.h"
#include "cuda/tails.h"

namespace tierkv::cuda {

class EncodeBatch {
 public:
  explicit EncodeBatch(Machine& machine);
  ~EncodeBatch();
  EncodeBatch(const EncodeBatch&) = delete;
  EncodeBatch& operator=(const EncodeBatch&) = delete;

  // As attn::Backend::encode(). `tails`: or null.
  void encode(std::span<attn::EncodeWork> blocks, const Executor& run, Tails* tails = nullptr);

  uint64_t bytes() const { return codings_there_.size() + guides_there_.size() + parcel_.size() + out_.size() + table_bytes_; }
  uint64_t encoded() const { return encoded_; }        // sides of blocks that the device made
  uint64_t bytes_sent() const { return bytes_sent_; }  // of rows

 private:
  static constexpr uint32_t kNotHere = 0xFFFFFFFFu;

  // The coding of a work's codec, as the device has it; kNotHere: this work is the processor's.
  uint32_t coding_of(const attn::EncodeWork& work);
  Result<quant::SideCoding> copy_tables(const quant::SideCoding& from);
  // The same of who guides the work; kNoGuide: nobody.
  Result<uint32_t> guide_of(const attn::EncodeWork& work);
  Result<const uint8_t*> copied(const void* from, size_t bytes);
  Status send(std::span<attn::EncodeWork* const> works, const Executor& run, Tails* tails);
  Status send_tables();
  // Where the rows of works are: on the device already, or in the parcel from `first` on. How many bytes go there.
  size_t place_rows(std::span<attn::EncodeWork* const> works, Tails* tails);
  Status fetch(std::span<attn::EncodeWork* const> works);

  Machine& machine_;
  std::map<const quant::Codec*, uint32_t> known_, known_guides_;
  std::vector<quant::SideCoding> codings_;  // with pointers of the device
  std::vector<quant::GuideTables> guides_;
  std::map<const void*, uint8_t*> copies_;  // of host memory that never changes
  uint64_t table_bytes_ = 0, encoded_ = 0, bytes_sent_ = 0;
  size_t codings_sent_ = 0, guides_sent_ = 0;
  DeviceMemory codings_there_, guides_there_, parcel_, out_;
  Staging parcel_host_, out_host_;
  std::vector<uint32_t> coding_, guide_;  // of each work of the call under way
  std::vector<size_t> at_;                // where its bytes are in out_
  struct Source {
    const uint8_t* there = nullptr;  // rows that the device has; null: they are in the parcel
    size_t at = 0, bytes = 0;        // of the parcel's rows
    RowType type = RowType::f32;
  };
  std::vector<Source> sources_;
  size_t out_bytes_ = 0;
};

}  // namespace tierkv::cuda
