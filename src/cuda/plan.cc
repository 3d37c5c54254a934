#include "cuda/plan.h"

#include <algorithm>
#include <array>

#include "cuda/reading.h"

namespace tierkv::cuda {
namespace {

using quant::LayoutKind;
using quant::MetaKind;
using quant::SideLayout;

// Costs in bytes of a fast path, measured on an H200 (docs/use/performance.md): what a view of the general path takes beside and for
// each row, and what a segment takes to begin and to end.
constexpr uint64_t kGeneralView = 20000, kGeneralRow = 1000, kSegment = 40000;

// Values of one scale a token that the tensor-core paths unpack.
bool fast_values(const SideLayout& value) {
  return value.kind == LayoutKind::packed && !value.by_channel && value.groups == 1 && !value.has_levels && value.mean_at == 0 &&
         value.tokens == kTileRows && value.head_dim == kTileRows && value.bits >= 2 && value.bits <= 4 &&
         (value.meta == MetaKind::f16_pair || value.meta == MetaKind::log8_scale || value.meta == MetaKind::log8_pair ||
          value.meta == MetaKind::log4_pair);
}

// Pair p of a rope is (p, p + pairs) and every channel turns: what the tensor-core path of klt has its query turned by.
bool turns_halves(const SideLayout& key) {
  if (key.pairs * 2 != key.head_dim) return false;
  for (uint32_t p = 0; p < key.pairs; ++p) {
    if (key.turned[2 * p] != p || key.turned[2 * p + 1] != p + key.pairs) return false;
  }
  return true;
}

// Rows that a query at `position` may see, as the processor has it (attention.cc).
bool sees(const attn::AttendParams& params, uint64_t position, uint64_t key) {
  return key != attn::kDeadPosition && !(params.causal && key > position) && !(params.window && key + params.window <= position);
}

class Planner {
 public:
  explicit Planner(const PlanInput& input) : input_(input) {}

  Plan make() {
    choose_path();
    size_t total = 0;
    for (const PlanTask& task : input_.tasks) total += task.views.size();
    plan_.views.reserve(total);
    keys_.reserve(total);
    for (uint32_t t = 0; t < input_.tasks.size(); ++t) add_task(t);
    cut();
    return std::move(plan_);
  }

 private:
  struct Line {
    uint32_t task;
    Path path;
    uint8_t hadamard;
    uint64_t cost;
  };

  void choose_path() {
    paths_.resize(input_.codecs.size(), Path::general);
    if (!input_.tensor_cores || input_.params.softcap > 0.0f) return;
    std::vector<uint64_t> bytes(input_.codecs.size());
    for (const PlanTask& task : input_.tasks) {
      for (size_t v = 0; v < task.views.size(); ++v) {
        if (task.views[v].rows == kTileRows) bytes[task.placed[v].codec] += kTileRows;
      }
    }
    std::array<uint64_t, 8> by_path{};
    for (size_t c = 0; c < input_.codecs.size(); ++c) {
      paths_[c] = fast_path(input_.codecs[c], input_.group);
      if (paths_[c] == Path::klt && !input_.codecs[c].key_fragments) paths_[c] = Path::general;
      by_path[static_cast<size_t>(paths_[c])] += bytes[c] * (input_.codecs[c].key.bytes + input_.codecs[c].value.bytes);
    }
    by_path[0] = 0;
    plan_.fast = static_cast<Path>(std::max_element(by_path.begin(), by_path.end()) - by_path.begin());
    for (Path& path : paths_) {
      if (path != plan_.fast) path = Path::general;
    }
  }

  void add_task(uint32_t index) {
    const PlanTask& task = input_.tasks[index];
    for (size_t v = 0; v < task.views.size(); ++v) add_view(index, task, task.views[v], task.placed[v]);
    plan_.tasks.push_back({task.first_row, task.first_head, 0, 0});
  }

  void add_view(uint32_t index, const PlanTask& task, const attn::BlockView& view, const Placed& placed) {
    ViewDesc desc;
    desc.keys = placed.keys, desc.values = placed.values;
    desc.first_position = view.ctx.first_position;
    desc.codec = placed.codec;
    if (!limit(task, view, desc)) return;
    const CodecDesc& codec = input_.codecs[placed.codec];
    const bool whole = desc.begin == 0 && desc.end == kTileRows && desc.mask == kNoMask;
    const bool aligned = (reinterpret_cast<uintptr_t>(desc.keys) | reinterpret_cast<uintptr_t>(desc.values)) % 16 == 0;
    const Path path = whole && aligned ? paths_[placed.codec] : Path::general;
    const uint64_t bytes = static_cast<uint64_t>(codec.key.bytes + codec.value.bytes) * view.rows / codec.key.tokens;
    const uint64_t cost = path == Path::general ? kGeneralView + kGeneralRow * (desc.end - desc.begin) : bytes;
    plan_.bytes += bytes;
    plan_.views.push_back(desc);
    keys_.push_back({index, path, codec.value.hadamard, cost});
  }

  // False: the query sees none of its rows.
  bool limit(const PlanTask& task, const attn::BlockView& view, ViewDesc& desc) {
    const attn::AttendParams& params = input_.params;
    uint32_t begin = 0, end = view.rows;
    if (view.ctx.positions == nullptr) {
      const uint64_t first = view.ctx.first_position, at = task.position;
      if (params.causal) end = static_cast<uint32_t>(std::min<uint64_t>(end, at >= first ? at - first + 1 : 0));
      if (params.window && first + params.window <= at) {
        begin = static_cast<uint32_t>(std::min<uint64_t>(end, at - params.window - first + 1));
      }
    } else {
      uint32_t words[kMaskWords] = {};
      uint32_t seen = 0;
      begin = view.rows, end = 0;
      for (uint32_t row = 0; row < view.rows; ++row) {
        if (!sees(params, task.position, view.position(row))) continue;
        words[row / 32] |= 1u << (row % 32);
        begin = std::min(begin, row), end = row + 1, ++seen;
      }
      if (seen != 0 && seen != end - begin) {
        desc.mask = static_cast<uint32_t>(plan_.masks.size() / kMaskWords);
        plan_.masks.insert(plan_.masks.end(), words, words + kMaskWords);
      }
    }
    desc.begin = static_cast<uint16_t>(begin), desc.end = static_cast<uint16_t>(end);
    return begin < end;
  }

  bool same_segment(size_t a, size_t b) const {
    const Line &x = keys_[a], &y = keys_[b];
    if (x.task != y.task || x.path != y.path || x.hadamard != y.hadamard) return false;
    return x.path == Path::general || plan_.views[a].codec == plan_.views[b].codec;
  }

  // A piece ends where the costs so far pass the next multiple of the mean; what a segment costs counts where it begins.
  void cut() {
    uint64_t total = 0;
    for (size_t i = 0; i < keys_.size(); ++i) total += keys_[i].cost + (i == 0 || !same_segment(i - 1, i) ? kSegment : 0);
    const uint64_t ctas = std::max<uint64_t>(1, std::min<uint64_t>(input_.ctas, keys_.size()));
    plan_.cta_begin.push_back(0);
    uint64_t so_far = 0;
    bool fresh = true;
    for (size_t i = 0; i < keys_.size(); ++i) {
      const bool next = i == 0 || fresh || !same_segment(i - 1, i);
      if (next) begin_segment(i);
      if (i == 0 || !same_segment(i - 1, i)) so_far += kSegment;
      ++plan_.segments.back().views;
      so_far += keys_[i].cost;
      fresh = so_far * ctas >= total * plan_.cta_begin.size();
      if (fresh && plan_.cta_begin.size() < ctas) plan_.cta_begin.push_back(static_cast<uint32_t>(plan_.segments.size()));
      else fresh = false;
    }
    plan_.cta_begin.push_back(static_cast<uint32_t>(plan_.segments.size()));
    number_partials();
  }

  void begin_segment(size_t view) {
    SegmentDesc& segment = plan_.segments.emplace_back();
    segment.task = keys_[view].task;
    segment.first_view = static_cast<uint32_t>(view);
    segment.path = keys_[view].path;
    segment.hadamard = keys_[view].hadamard;
  }

  // Segments are in the order of tasks, so a task's partials are neighbours. A task that sees nothing has an empty segment, so that
  // somebody writes its zeros.
  void number_partials() {
    for (uint32_t i = 0; i < plan_.segments.size(); ++i) {
      TaskDesc& task = plan_.tasks[plan_.segments[i].task];
      if (task.partials++ == 0) task.first_partial = i;
      plan_.segments[i].partial = i;
    }
    for (uint32_t t = 0; t < plan_.tasks.size(); ++t) {
      if (plan_.tasks[t].partials != 0) continue;
      const auto at = static_cast<uint32_t>(plan_.segments.size());
      plan_.segments.push_back({t, 0, 0, at, Path::general, 0, 0});
      plan_.tasks[t].first_partial = at, plan_.tasks[t].partials = 1;
    }
    plan_.cta_begin.back() = plan_.partials = static_cast<uint32_t>(plan_.segments.size());
  }

  const PlanInput& input_;
  Plan plan_;
  std::vector<Path> paths_;  // by codec
  std::vector<Line> keys_;   // by view
};

}  // namespace

bool readable(const quant::Codec& key, const quant::Codec& value, CodecDesc& out) {
  return key.layout(out.key) && value.layout(out.value) && out.value.kind != LayoutKind::words;
}

Path fast_path(const CodecDesc& codec, uint32_t group) {
  const SideLayout &key = codec.key, &value = codec.value;
  if (group > 8 || !fast_values(value) || key.tokens != kTileRows || key.head_dim != kTileRows) return Path::general;
  if (key.kind == LayoutKind::words) {
    const uint32_t words = key.words[0] + key.words[1] + key.words[2];
    return turns_halves(key) && words >= 1 && words <= kMostKltWords && klt_steps(key) <= kMostKltSteps ? Path::klt : Path::general;
  }
  if (key.kind != LayoutKind::packed || key.has_levels || key.even || key.groups != 1) return Path::general;
  if (key.by_channel ? key.meta != MetaKind::f16_pair || key.mean_at != 0 : key.meta != MetaKind::log8_scale) return Path::general;
  if (key.bits == 2 && value.bits == 2) return Path::packed22;
  if (key.bits == 4 && value.bits == 4) return Path::packed44;
  if (key.bits == 4 && value.bits == 2) return Path::packed42;
  return Path::general;
}

Plan make_plan(const PlanInput& input) { return Planner(input).make(); }

}  // namespace tierkv::cuda
