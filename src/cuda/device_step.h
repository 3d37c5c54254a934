// device_step.h — the calls of a step that is launched as a graph (attn/backend.h: StepCalls), on DeviceAttention.
//
// An ordinary call sends its parcel, moves rows and launches. A step's call has its places in the graph (graph.h) and says what
// they do: what has to be there before any of them, blocks, areas, the parcels of all calls one behind the other in the front of
// the device's list, is asked for on the stream on which the graph is launched next, and so comes behind the launch before it.
// That is why a layer is not appended to once it was attended to: a step has one area a head.
//
// Rows:    come to host memory by the launch. They have arrived when Progress says so. Where the launch never comes, or comes
//          twice, they are lost, and whoever waits for them is told.
// Results: flags of rows that failed stay in one place, and are looked at when a launch is done.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "cuda/device_attention.h"
#include "cuda/memory/graph.h"

namespace tierkv::cuda {

// What lives as long as somebody waits for rows of a step.
struct StepState {
  StepState(std::shared_ptr<Machine> of, std::unique_ptr<Graph> places)
      : machine(std::move(of)), memory(*machine), flags(*machine), graph(std::move(places)) {}
  ~StepState() { (void)graph->wait(); }
  Progress& progress() const { return *reinterpret_cast<Progress*>(memory.data()); }

  const std::shared_ptr<Machine> machine;
  Staging memory, flags;
  const std::unique_ptr<Graph> graph;
};

class DeviceStep final : public attn::StepCalls {
 public:
  DeviceStep(const DeviceAttention& device, std::shared_ptr<StepState> state);
  ~DeviceStep() override;
  static DeviceStep* of(attn::StepCalls* step) { return static_cast<DeviceStep*>(step); }

  Result<bool> captures(void* stream) override;
  Status add_append(std::span<const AppendItem> items) override;
  Status add_attention(std::span<const AttentionItem> items, uint32_t kv_heads) override;
  Status end() override;
  Status begin(void* exec, void* stream) override;
  Result<bool> finish() override;
  void give_up() noexcept override;

  // REQUIRES, of all: the device's lock is held, and the step has begun.
  StreamName stream() const { return {true, stream_}; }
  // What an append's place does.
  Status move_rows(uint32_t call, std::span<const RowMove> moves, uint32_t head_dim);
  // Of rows that come to this slot, which stays until they are there.
  std::shared_ptr<const attn::Arrival> arrival(std::shared_ptr<Slot> slot);

 private:
  friend class DeviceAttention;
  // Places of one call: of rows, or of queries, attention and results.
  struct Call {
    bool attends = false;
    uint32_t moves = 0, attend = 0, results = 0;
    bool has_results = false;  // it moves them
    uint32_t first_flag = 0, flags = 0, layer = 0;
  };
  // An attention call of the step under way.
  struct Planned {
    uint32_t call = 0;
    Plan plan;
    Launch launch;
    DeviceAttention::Parcel parcel;  // without its parts
    size_t at = 0;                   // where it lies in the front
    std::vector<RowMove> queries, results;
    const uint8_t *query_rows = nullptr, *result_rows = nullptr;  // what these were made for
    size_t rows = 0;
    float* out = nullptr;
  };

  // The processor is so many launches ahead at most.
  static constexpr size_t kMostAhead = 4;

  void forget_plans();
  Status keep_near();

  const DeviceAttention& device_;
  const std::shared_ptr<StepState> state_;
  std::vector<Call> calls_;
  uint32_t moves_ = 0, attends_ = 0, flags_ = 0;  // places so far
  bool ended_ = false;

  uint64_t number_ = 1;     // of the next launch
  uint64_t looked_at_ = 0;  // launch whose flags were
  void* stream_ = nullptr;
  std::deque<std::pair<uint64_t, std::shared_ptr<Slot>>> slots_;  // where rows of launches arrive
  std::deque<std::unique_ptr<Mark>> marks_;                       // of each step behind the launch before it
  // Of the step under way, whose stream is followed from its begin to its end.
  std::vector<Planned> planned_;
  std::vector<uint8_t> front_;
  bool moved_ = false;   // the front had to grow
  uint64_t others_ = 0;  // DeviceAttention's, when the first was planned
};

}  // namespace tierkv::cuda
