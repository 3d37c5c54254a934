// codec_tables.h — the codecs of a cache as a device reads them: their layouts with pointers of the device, each codec's tables
// copied once.
#pragma once

#include <map>
#include <vector>

#include "cuda/memory/machine.h"
#include "cuda/plan/plan.h"

namespace tierkv::cuda {

class CodecTables {
 public:
  explicit CodecTables(Machine& machine) : machine_(machine) {}
  ~CodecTables();
  CodecTables(const CodecTables&) = delete;
  CodecTables& operator=(const CodecTables&) = delete;

  // The index of a pair of codecs; unsupported: a device cannot read them. REQUIRES: the codecs outlive this.
  Result<uint32_t> find(const quant::Codec& key, const quant::Codec& value);

  const std::vector<CodecDesc>& on_host() const { return host_; }      // pointers of the host: for plans
  const std::vector<CodecDesc>& on_device() const { return device_; }  // the same with pointers of the device
  // The list of all of these in the device's memory. What is new goes there, in the order of the machine's stream; an address that
  // was given stays good.
  Result<const CodecDesc*> there();
  uint64_t bytes() const { return bytes_; }

 private:
  Status copy_tables(CodecDesc& desc);
  Result<uint8_t*> allocate(size_t bytes);  // of the device, until this goes
  // The device's copy of host memory that never changes.
  Result<const uint8_t*> copied(const void* from, size_t bytes);

  using Pair = std::pair<const quant::Codec*, const quant::Codec*>;
  Machine& machine_;
  std::map<Pair, uint32_t> known_;
  Pair last_;  // that was found, since neighbours are of one codec
  uint32_t last_index_ = 0;
  std::vector<CodecDesc> host_, device_;
  std::map<const void*, const uint8_t*> copies_;
  std::vector<uint8_t*> memory_;
  uint8_t* list_ = nullptr;
  size_t listed_ = 0, room_ = 0;  // codecs
  uint64_t bytes_ = 0;
};

}  // namespace tierkv::cuda
