#include "cuda/mirror.h"

#include "base/status_macros.h"

namespace tierkv::cuda {

Mirror::Mirror(uint64_t byte_limit)
    : places_(byte_limit, [this](size_t bytes) -> Result<uint8_t*> {
        auto slab = std::make_unique<Buffer>();
        TIERKV_RETURN_IF_ERROR(slab->reserve(bytes));
        slabs_.push_back(std::move(slab));
        return slabs_.back()->data();
      }) {}

std::optional<Mirror::Place> Mirror::find(uint64_t sealed, size_t key_bytes, size_t value_bytes) {
  const Places::Entry* const there = places_.find(sealed, key_bytes, value_bytes);
  if (!there) return std::nullopt;
  return Place{there->keys, there->values};
}

Result<Mirror::Place> Mirror::place(uint64_t sealed, std::span<const std::byte> keys, std::span<const std::byte> values,
                                    cudaStream_t stream) {
  TIERKV_ASSIGN_OR_RETURN(Places::Entry* const entry, places_.add(sealed, keys.size(), values.size()));
  for (const auto& [from, to] : {std::pair{keys, entry->keys}, std::pair{values, entry->values}}) {
    const cudaError_t copied = cudaMemcpyAsync(to, from.data(), from.size(), cudaMemcpyHostToDevice, stream);
    if (copied != cudaSuccess) {
      places_.forget(entry);
      return status_of(copied, "copying a block");
    }
  }
  ++uploads_;
  return Place{entry->keys, entry->values};
}

}  // namespace tierkv::cuda
