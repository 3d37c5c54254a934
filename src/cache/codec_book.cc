#include "cache/codec_book.h"

#include "base/status_macros.h"

namespace tierkv::cache {

Result<const CodecEntry*> CodecBook::get(const quant::CodecPair& pair, uint32_t tokens) {
  std::lock_guard lock(mutex_);
  for (const CodecEntry& entry : entries_) {
    if (entry.pair == pair && entry.tokens == tokens) return &entry;
  }
  const quant::BlockShape shape{tokens, head_dim_};
  CodecEntry entry{pair, tokens, nullptr, nullptr};
  TIERKV_ASSIGN_OR_RETURN(entry.key, quant::make_codec(pair.key, quant::Side::key, shape));
  TIERKV_ASSIGN_OR_RETURN(entry.value, quant::make_codec(pair.value, quant::Side::value, shape));
  entries_.push_back(std::move(entry));
  return &entries_.back();
}

}  // namespace tierkv::cache
