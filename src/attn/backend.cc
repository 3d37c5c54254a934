#include "attn/backend.h"

#include <functional>
#include <utility>

#include "base/status_macros.h"

namespace tierkv::attn {

const Executor& in_turn() {
  static const Executor executor = [](uint32_t count, const std::function<void(uint32_t)>& task) {
    for (uint32_t i = 0; i < count; ++i) task(i);
  };
  return executor;
}

void decode_blocks(std::span<const BlockRows> blocks, quant::Side side, float* out) {
  for (const BlockRows& rows : blocks) {
    const BlockView& block = rows.block;
    const quant::Codec& codec = side == quant::Side::key ? *block.key_codec : *block.value_codec;
    codec.decode(side == quant::Side::key ? block.keys : block.values, block.ctx, rows.first, rows.count, out);
    out += static_cast<size_t>(rows.count) * codec.shape().head_dim;
  }
}

AttendWork mass_alone(const AttendWork& done, std::vector<HeadMass> wanted, const float* lse) {
  AttendWork work;
  for (size_t h = 0; h < done.heads.size(); ++h) work.heads.push_back(done.heads[h].subspan(std::exchange(wanted[h].from, 0)));
  work.mass = std::move(wanted);
  work.queries = done.queries;
  work.positions = done.positions;
  work.whole = lse;
  work.params = done.params;
  work.params.weigh_only = true;
  return work;
}

Result<std::shared_ptr<const void>> Backend::bring(std::span<RowsView>) const {
  return error(StatusCode::unsupported, "this cache works in host memory");
}
Status Backend::put(const void*, size_t, void*, void*) const {
  return error(StatusCode::unsupported, "this cache works in host memory");
}

Result<std::shared_ptr<const Arrival>> Backend::take(std::span<TakeWork>, bool) const { return std::shared_ptr<const Arrival>(); }

Result<std::unique_ptr<StepCalls>> Backend::record() const {
  return error(StatusCode::unsupported, "this cache works on the processor, which has no graphs");
}
Status Backend::make_ready(std::span<AttendWork>, StepCalls&) const {
  return error(StatusCode::unsupported, "this cache works on the processor, which has no graphs");
}

}  // namespace tierkv::attn
