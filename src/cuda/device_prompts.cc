// device_prompts.cc — DeviceAttention's calls of more than kMostQueries queries (prompt_attention.h).
#include <cstring>

#include "attn/rows.h"
#include "cuda/device_attention.h"
#include "cuda/mass/mass_beside.h"

namespace tierkv::cuda {

using attn::AttendWork;

namespace {

size_t query_bytes(const AttendWork& work) {
  return static_cast<size_t>(work.queries.tokens) * work.queries.heads * work.params.head_dim * element_bytes(work.queries.type);
}

bool there(const AttendWork& work) { return work.queries.place == MemoryPlace::device; }

// Results that go straight to where the caller wants them.
bool goes_straight(const AttendWork& work) { return there(work) && work.out_type == DType::f32; }

size_t result_rows(const AttendWork& work) { return static_cast<size_t>(work.queries.tokens) * work.queries.heads; }

// [tokens][heads][head_dim], in the caller's type.
void copy_dense(const RowsView& rows, uint8_t* to) {
  const size_t size = element_bytes(rows.type), bytes = rows.head_dim * size;
  for (uint32_t t = 0; t < rows.tokens; ++t) {
    for (uint32_t h = 0; h < rows.heads; ++h, to += bytes) {
      std::memcpy(to, static_cast<const uint8_t*>(rows.data) + attn::offset_of(rows, t, h) * static_cast<ptrdiff_t>(size), bytes);
    }
  }
}

}  // namespace

// All views of a head: what is settled is known by its descriptors, the rest as in list_head().
Status DeviceAttention::list_prompt_head(const AttendWork& work, size_t head, Listed& out) const {
  const std::span<const attn::BlockView> views = work.heads[head];
  const uint32_t group = work.queries.heads / static_cast<uint32_t>(work.heads.size());
  const Standing::Area* area = nullptr;
  out.behind = head < work.settled.size() ? work.settled[head].views : 0;
  if (out.behind != 0 && work.settled[head].version != 0 && work.params.window == 0) {
    TIERKV_ASSIGN_OR_RETURN(area, standing_.area(work.settled[head], views, group));
  }
  out.views.assign(views.begin(), views.end());
  out.placed.assign(views.size(), Placed());
  for (size_t v = 0; v < views.size(); ++v) {
    Placed& placed = out.placed[v];
    if (area && v < area->seen.size() && area->seen[v].held) {
      const ViewDesc& desc = area->seen[v].desc;
      placed = {desc.keys, desc.values, desc.codec};
      continue;
    }
    TIERKV_ASSIGN_OR_RETURN(placed.codec, tables_.find(*views[v].key_codec, *views[v].value_codec));
    if (views[v].sealed == 0) continue;
    TIERKV_ASSIGN_OR_RETURN(const Places::Entry* const entry, standing_.place(views[v], tables_.on_host()[placed.codec]));
    placed.keys = entry->keys, placed.values = entry->values;
  }
  return {};
}

Status DeviceAttention::prompts_on_device(const Works& batch, const Executor& run) const {
  mirror_.places().begin_call();
  standing_.begin_call();
  size_t heads = 0, at = 0;
  for (const AttendWork* work : batch) heads += work->heads.size();
  listed_.resize(heads);
  for (Listed& listed : listed_) listed.area = nullptr;
  for (const AttendWork* work : batch) {
    for (size_t h = 0; h < work->heads.size(); ++h) TIERKV_RETURN_IF_ERROR(list_prompt_head(*work, h, listed_[at++]));
  }
  TIERKV_RETURN_IF_ERROR(place_tails(batch));
  TIERKV_RETURN_IF_ERROR(place_loose_rows());
  std::vector<PromptHead> lists;
  for (const Listed& listed : listed_) lists.push_back({listed.views, listed.placed});

  PromptResults results;
  TIERKV_RETURN_IF_ERROR(send_prompt_queries(batch, results));
  std::vector<PromptWork> works;
  const uint8_t* queries = prompt_queries_.data();
  size_t first = 0, list = 0;
  const AttendWork& shape = *batch.front();
  const uint32_t d = shape.params.head_dim;
  for (const AttendWork* work : batch) {
    PromptWork& one = works.emplace_back();
    one.heads = std::span(lists).subspan(list, work->heads.size());
    one.positions = {work->positions, work->queries.tokens};
    one.rows.lse = results.lse + first;
    one.rows.type = static_cast<uint32_t>(work->queries.type), one.rows.query_heads = work->queries.heads;
    one.rows.out = goes_straight(*work) ? work->out : results.out + first * d;
    if (there(*work)) {  // read where the caller has them
      one.rows.queries = work->queries.data;
      one.rows.token_stride = work->queries.token_stride, one.rows.head_stride = work->queries.head_stride;
    } else {
      one.rows.queries = queries;
      one.rows.token_stride = static_cast<int64_t>(work->queries.heads) * d, one.rows.head_stride = d;
      queries += line_rounded(query_bytes(*work));
    }
    first += result_rows(*work), list += work->heads.size();
  }
  const uint32_t group = shape.queries.heads / static_cast<uint32_t>(shape.heads.size());
  ++launches_;
  TIERKV_RETURN_IF_ERROR(prompts_.attend({works, shape.params, group, shape.sink_logits, results.failed}));
  if (there(shape) && !goes_straight(shape)) {
    moves_.clear();
    for (size_t w = 0; w < batch.size(); ++w) {
      const RowsView rows = RowsView::f32(works[w].rows.out, batch[w]->queries.tokens, batch[w]->queries.heads, d);
      moves_.push_back(move_dense(rows, batch[w]->out, batch[w]->out_type));
    }
    TIERKV_RETURN_IF_ERROR(machine_->move_rows(moves_, d));
  }
  return take_prompt_results(batch, results, run);
}

// All works of a batch have their queries in one memory.
Status DeviceAttention::send_prompt_queries(const Works& batch, PromptResults& results) const {
  size_t bytes = 0, rows = 0;
  for (const AttendWork* work : batch) bytes += line_rounded(query_bytes(*work)), rows += result_rows(*work);
  const size_t d = batch.front()->params.head_dim;
  results.rows = rows, results.works = batch.size();
  if (!there(*batch.front())) {
    TIERKV_RETURN_IF_ERROR(prompt_queries_.reserve(bytes));
    TIERKV_RETURN_IF_ERROR(prompt_host_.reserve(bytes));
    uint8_t* to = prompt_host_.data();
    for (const AttendWork* work : batch) {
      copy_dense(work->queries, to);
      to += line_rounded(query_bytes(*work));
    }
    TIERKV_RETURN_IF_ERROR(machine_->send(prompt_queries_.data(), prompt_host_.data(), bytes));
  }
  TIERKV_RETURN_IF_ERROR(results_.reserve(results.bytes(d)));
  results.out = reinterpret_cast<float*>(results_.data());
  results.lse = results.out + rows * d;
  results.failed = reinterpret_cast<uint32_t*>(results.lse + rows);
  return machine_->clear(reinterpret_cast<uint8_t*>(results.failed), batch.size() * sizeof(uint32_t));
}

Status DeviceAttention::take_prompt_results(const Works& batch, const PromptResults& results, const Executor& run) const {
  const size_t d = batch.front()->params.head_dim, bytes = results.bytes(d);
  const bool stay = there(*batch.front());  // results are where they belong: sums and flags come down
  const size_t from = stay ? results.rows * d * sizeof(float) : 0;
  TIERKV_RETURN_IF_ERROR(results_host_.reserve(bytes));
  TIERKV_RETURN_IF_ERROR(machine_->fetch(results_host_.data() + from, results_.data() + from, bytes - from));
  TIERKV_RETURN_IF_ERROR(machine_->wait());
  const auto* out = reinterpret_cast<const float*>(results_host_.data());
  const float* lse = out + results.rows * d;
  const auto* failed = reinterpret_cast<const uint32_t*>(lse + results.rows);
  for (AttendWork* work : batch) {
    const size_t rows = result_rows(*work);
    if (!stay) std::memcpy(work->out, out, rows * d * sizeof(float));
    if (work->lse) std::memcpy(work->lse, lse, rows * sizeof(float));
    work->status = *failed++ ? error(StatusCode::out_of_range, "rows or scores left the range of the device's numbers") : Status();
    if (!work->mass.empty() && work->status.ok()) work->status = add_prompt_mass(*work, lse, run);
    out += rows * d, lse += rows;
  }
  return {};
}

// The processor adds it up, and reads the queries.
Status DeviceAttention::add_prompt_mass(AttendWork& work, const float* lse, const Executor& run) const {
  if (!there(work)) return add_mass_near(work, lse, run);
  const RowsView queries = work.queries;
  TIERKV_ASSIGN_OR_RETURN(const std::shared_ptr<Slot> slot, brought({&work.queries, 1}));
  Status status = add_mass_near(work, lse, run);
  work.queries = queries;
  return status;
}

}  // namespace tierkv::cuda
