#include "cuda/prompt/prompt_attention.h"

#include <algorithm>
#include <cstring>

#include "tierkv/cache.h"

namespace tierkv::cuda {
namespace {

size_t element_bytes(uint32_t type) { return static_cast<DType>(type) == DType::f32 ? 4 : 2; }

// `rows` from a token on.
PromptRows behind(const PromptRows& rows, uint32_t token, uint32_t head_dim) {
  PromptRows out = rows;
  out.queries = static_cast<const uint8_t*>(rows.queries) +
                static_cast<int64_t>(token) * rows.token_stride * static_cast<int64_t>(element_bytes(rows.type));
  const size_t first = static_cast<size_t>(token) * rows.query_heads;
  out.out = rows.out + first * head_dim;
  if (rows.lse) out.lse = rows.lse + first;
  return out;
}

}  // namespace

// Queries that are attended to together.
struct PromptAttention::Pass {
  std::vector<PromptTask> tasks;
  std::vector<PromptRows> rows;
};

Status PromptAttention::attend(const PromptCall& call) {
  Pass pass;
  uint64_t rows = 0;
  bool first = true;
  const auto end_pass = [&]() -> Status {
    if (pass.tasks.empty()) return {};
    if (!std::exchange(first, false)) TIERKV_RETURN_IF_ERROR(machine_.wait());  // for the parcel
    TIERKV_RETURN_IF_ERROR(run(call, pass));
    pass = {}, rows = 0;
    return {};
  };
  for (uint32_t w = 0; w < call.works.size(); ++w) {
    const PromptWork& work = call.works[w];
    const auto tokens = static_cast<uint32_t>(work.positions.size());
    for (uint32_t at = 0; at < tokens;) {
      const uint64_t room = rows < most_rows_ ? (most_rows_ - rows) / work.rows.query_heads : 0;
      if (room == 0 && rows != 0) {
        TIERKV_RETURN_IF_ERROR(end_pass());
        continue;
      }
      const auto n = static_cast<uint32_t>(std::min<uint64_t>(tokens - at, std::max<uint64_t>(room, 1)));
      pass.tasks.push_back({work.heads, work.positions.subspan(at, n), w});
      pass.rows.push_back(behind(work.rows, at, call.params.head_dim));
      pass.rows.back().work = w;
      rows += static_cast<uint64_t>(n) * work.rows.query_heads, at += n;
    }
  }
  return end_pass();
}

Status PromptAttention::run(const PromptCall& call, const Pass& pass) {
  PromptLaunch launch;
  launch.head_dim = call.params.head_dim, launch.group = call.group;
  for (uint32_t c = 0; c < launch.head_dim; ++c) launch.minus[c / 32] |= frame_sign(launch.head_dim, c) < 0.0f ? 1u << (c % 32) : 0;
  launch.scale = call.params.scale, launch.softcap = call.params.softcap;
  launch.causal = call.params.causal, launch.window = call.params.window;
  launch.failed = call.failed;
  PromptPlan plan;
  TIERKV_RETURN_IF_ERROR(make_room(pass, call, plan, launch));
  TIERKV_RETURN_IF_ERROR(send(plan, pass, call, launch));
  const PromptView* const views = launch.views;
  const PromptItem* const items = launch.items;
  const KeyTileDesc* const key_tiles = launch.key_tiles;
  for (const PromptRound& round : plan.rounds) {
    launch.views = views + round.first_view, launch.view_count = round.views, launch.tile_views = round.tile_views;
    launch.items = items + round.first_item, launch.item_count = round.items;
    launch.key_tiles = key_tiles + round.first_key_tile;
    if (round.items == 0) continue;
    TIERKV_RETURN_IF_ERROR(machine_.prompt(launch, PromptStep::unpack));
    TIERKV_RETURN_IF_ERROR(machine_.prompt(launch, PromptStep::attend));
    ++rounds_;
  }
  return machine_.prompt(launch, PromptStep::merge);
}

// A plan whose scratch there is memory for.
Status PromptAttention::make_room(const Pass& pass, const PromptCall& call, PromptPlan& plan, PromptLaunch& launch) {
  const uint32_t dim = prompt_dim(call.params.head_dim);
  const size_t tile_bytes = key_tile_bytes(dim) + kKeyTile * sizeof(uint32_t);
  constexpr uint32_t kLeastTiles = 4;
  auto tiles = static_cast<uint32_t>(std::max<size_t>(scratch_bytes_ / key_tile_bytes(dim), kLeastTiles));
  for (Status room;; tiles = std::max(tiles / 2, kLeastTiles)) {
    plan = make_prompt_plan({pass.tasks, call.params, call.group, machine_.facts().multiprocessors, tables_.on_host(), tiles});
    const size_t states = static_cast<size_t>(plan.slot_count) * kQueryTile;
    room = scratch_.reserve(plan.most_key_tiles * tile_bytes);
    if (room.ok()) room = states_.reserve(states * (call.params.head_dim + 2) * sizeof(float));
    if (!room.ok() && (room.code() != StatusCode::resource_exhausted || tiles == kLeastTiles)) return room;
    if (!room.ok()) continue;
    launch.value_frame = plan.value_frame;
    launch.scratch = scratch_.data();
    launch.key_positions = reinterpret_cast<uint32_t*>(scratch_.data() + size_t{plan.most_key_tiles} * key_tile_bytes(dim));
    launch.state_out = reinterpret_cast<float*>(states_.data());
    launch.state_top = launch.state_out + states * call.params.head_dim;
    launch.state_sum = launch.state_top + states;
    return {};
  }
}

Status PromptAttention::send(const PromptPlan& plan, const Pass& pass, const PromptCall& call, PromptLaunch& launch) {
  std::vector<PromptRows> rows = pass.rows;
  for (size_t t = 0; t < rows.size(); ++t) rows[t].first_position = plan.first_positions[t];
  std::vector<std::pair<size_t, std::span<const std::byte>>> parts;
  size_t bytes = 0;
  const auto add = [&](const auto& from) {
    const std::span<const std::byte> part = std::as_bytes(std::span(from));
    const size_t at = line_rounded(bytes);
    parts.emplace_back(at, part);
    bytes = at + part.size();
    return at;
  };
  const size_t codecs = add(tables_.on_device()), views = add(plan.views), positions = add(plan.positions),
               key_tiles = add(plan.key_tiles), items = add(plan.items), tiles = add(plan.tiles), sources = add(rows),
               asked = add(plan.query_positions), slots = add(plan.slots),
               sinks = call.sink_logits ? add(std::span(call.sink_logits, rows.front().query_heads)) : 0;
  TIERKV_RETURN_IF_ERROR(parcel_.reserve(bytes));
  TIERKV_RETURN_IF_ERROR(parcel_host_.reserve(bytes));
  for (const auto& [at, part] : parts) {
    if (!part.empty()) std::memcpy(parcel_host_.data() + at, part.data(), part.size());
  }
  const uint8_t* const at = parcel_.data();
  launch.codecs = reinterpret_cast<const CodecDesc*>(at + codecs);
  launch.views = reinterpret_cast<const PromptView*>(at + views);
  launch.positions = reinterpret_cast<const uint32_t*>(at + positions);
  launch.key_tiles = reinterpret_cast<const KeyTileDesc*>(at + key_tiles);
  launch.items = reinterpret_cast<const PromptItem*>(at + items);
  launch.tiles = reinterpret_cast<const QueryTileDesc*>(at + tiles);
  launch.rows = reinterpret_cast<const PromptRows*>(at + sources);
  launch.query_positions = reinterpret_cast<const uint32_t*>(at + asked);
  launch.slots = reinterpret_cast<const uint32_t*>(at + slots);
  if (call.sink_logits) launch.sink_logits = reinterpret_cast<const float*>(at + sinks);
  launch.tile_count = static_cast<uint32_t>(plan.tiles.size());
  return machine_.send(parcel_.data(), parcel_host_.data(), bytes);
}

}  // namespace tierkv::cuda
