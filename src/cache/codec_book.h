// codec_book.h — the codec objects a cache uses, made once per (keys, values, block tokens) and never moved.
//
// Threads: get() may be called from anywhere; entries are immutable and live as long as the book.
#pragma once

#include <deque>
#include <memory>
#include <mutex>

#include "quant/registry.h"

namespace tierkv::cache {

struct CodecEntry {
  quant::CodecPair pair;
  uint32_t tokens = 0;  // rows of a block
  std::unique_ptr<quant::Codec> key;
  std::unique_ptr<quant::Codec> value;
};

class CodecBook {
 public:
  explicit CodecBook(uint32_t head_dim) : head_dim_(head_dim) {}
  Result<const CodecEntry*> get(const quant::CodecPair& pair, uint32_t tokens);

 private:
  const uint32_t head_dim_;
  std::mutex mutex_;
  std::deque<CodecEntry> entries_;
};

}  // namespace tierkv::cache
