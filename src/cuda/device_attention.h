// device_attention.h — attn::Backend on a machine (machine.h): what is decided and sent for a call. Host code.
//
// A call is: blocks and hot rows that are not there yet to the device, descriptors of what is not settled and queries in one
// parcel, one launch, results back, one wait. What is settled (attn/backend.h) costs no time again: its descriptors are there
// (standing.h), hot rows are sent once (tails.h), and how work was shared out is remembered (plan.h). Works of more than
// kMostQueries queries go another way from there (device_prompts.cc, prompt_attention.h).
//
// Queries that are in the device's memory stay there, and so do results: everything is asked for on the caller's stream, and the
// call returns, but for a prompt's, which waits. Parcels lie in memory that stays until they are gone (slots.h), and so do the
// flags of rows that failed, which a later call looks at (look_back()).
//
// Where host memory does not keep what the device has (Options::keep_on_host), views of blocks may be away(): the copies are held
// for as long as such blocks are, and what the processor reads of them is fetched (device_far.cc).
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "cuda/backend.h"
#include "cuda/encode/encode_batch.h"
#include "cuda/mass/mass_beside.h"
#include "cuda/memory/slots.h"
#include "cuda/memory/standing.h"
#include "cuda/memory/tails.h"
#include "cuda/plan/mass_plan.h"
#include "cuda/prompt/prompt_attention.h"

namespace tierkv::cuda {

class DeviceStep;

class DeviceAttention final : public DeviceBackend, private FarBytes {
 public:
  // `few_rows`: of a head, up to which the processor adds up what they receive; 0: the device says all of it.
  DeviceAttention(std::unique_ptr<Machine> machine, uint64_t byte_limit, size_t few_rows = kFewRows, bool keep_on_host = true);

  const FarBytes* far() const override { return keep_on_host_ ? nullptr : this; }
  bool remembers() const override { return true; }
  uint32_t heads_at_once() const override { return 128; }
  Status accepts(const RowsView& rows, const char* what) const override;
  void encode(std::span<attn::EncodeWork> blocks, const Executor& run) const override;
  void decode(std::span<const attn::DecodeWork> blocks, const Executor& run) const override;
  void attend(std::span<attn::AttendWork> works, const Executor& run) const override;
  Result<std::shared_ptr<const void>> bring(std::span<RowsView> rows) const override;
  Status put(const void* from, size_t bytes, void* to, void* ready) const override;
  Result<std::shared_ptr<const attn::Arrival>> take(std::span<attn::TakeWork> works, bool attended = false) const override;
  void settle() const noexcept override;
  Result<std::unique_ptr<attn::StepCalls>> record() const override;
  Status make_ready(std::span<attn::AttendWork> works, attn::StepCalls& step) const override;
  Usage usage() const override;
  Status check() const override;

  // What calls did, for tests and measurements.
  struct Counts {
    uint64_t areas_made = 0;     // descriptors of settled views that were made
    uint64_t rows_sent = 0;      // hot rows of a head that strips got
    uint64_t loose_rows = 0;     // hot rows of a head that were sent with their call
    uint64_t rows_taken = 0;     // hot rows of a sequence that came from the device's own memory
    uint64_t parcel_bytes = 0;   // of the last call
    uint64_t listed_views = 0;   // of the last call, that were not settled
    uint64_t planned_again = 0;  // because a parcel needed more room
    uint64_t encoded = 0;        // sides of blocks that the device made
    uint64_t encode_bytes = 0;   // of rows and codes that went there for it
    uint64_t kept_alone = 0;     // blocks that left host memory
    uint64_t fetched = 0;        // blocks of these that somebody wanted to read there
    uint64_t weighed_rows = 0;   // of a query and a head, that the device said the mass of
  };
  Counts counts() const;

 private:
  using Works = std::vector<attn::AttendWork*>;
  // Views of a head that are listed in this call, and where they are.
  struct Listed {
    std::vector<attn::BlockView> views;
    std::vector<Placed> placed;
    const Standing::Area* area = nullptr;  // of the others
    uint32_t behind = 0;                   // views that lie before the tail's
  };
  // What travels in one copy, to the front of the device's list of views, and where in it.
  struct Parcel {
    size_t bytes = 0;
    size_t masks = 0, segments = 0, tasks = 0, ctas = 0, rows = 0, sinks = 0;  // views lie at 0; sinks: 0, none
    std::vector<std::pair<size_t, std::span<const std::byte>>> parts;
    size_t add(size_t size) {
      const size_t at = line_rounded(bytes);
      bytes = at + size;
      return at;
    }
    void write(uint8_t* to) const;
    void point(const uint8_t* at, Launch& launch) const;
  };

  // Of a call that did not wait: what its tasks say of their rows, in staging memory.
  struct Late {
    std::shared_ptr<Slot> slot;
    const uint32_t* failed = nullptr;
    size_t tasks = 0;
    uint32_t layer = 0;
  };
  // Where results go, of the call under way.
  struct Rows {
    bool there = false;         // queries and results are in the device's memory
    std::vector<size_t> first;  // of each work
    size_t count = 0;
    float* out = nullptr;  // all results in one piece of the caller's; null: they go to results_ first
  };

  // Rows that were taken and are not moved yet, because attention to them comes next: its call moves them with its own, or whoever
  // comes in between does, or who waits for them. The machine follows their stream meanwhile.
  struct Gate {
    std::atomic<bool> open{true};  // they are not asked for
    Status status;                 // of that, afterwards
  };
  struct Pending {
    std::shared_ptr<Gate> gate;  // null: there is nothing
    std::vector<RowMove> moves;
    std::vector<const void*> owners;
    StreamName stream;
    uint32_t head_dim = 0;
  };
  class PendingArrival;
  // REQUIRES, of all: mutex_ is held. `leave`: the stream too.
  void ask_for_pending(bool leave) const noexcept;
  void pending_is_asked_for(Status status) const noexcept;
  std::unique_lock<std::mutex> alone() const noexcept {
    std::unique_lock lock(mutex_);
    ask_for_pending(true);
    return lock;
  }

  // FarBytes, device_far.cc.
  void* hold(const Name& name) const noexcept override;
  void let_go(void* held) const noexcept override;
  Status read(const void* held, std::span<std::byte> keys, std::span<std::byte> values) const override;
  uint64_t held_bytes() const noexcept override;
  uint64_t refusals() const noexcept override;
  void look_at_gone() const noexcept;
  // Views of a work with all bytes in host memory, for as long as it lives.
  struct Near {
    std::vector<std::vector<attn::BlockView>> views;
    std::vector<std::byte> bytes;
  };
  Status bring_near(attn::AttendWork& work, Near& near) const;
  // By the processor, whose queries and results are in host memory.
  void attend_near(attn::AttendWork& work, const Executor& run) const;
  Status add_mass_near(const attn::AttendWork& work, const float* lse, const Executor& run) const;

  bool serves(const attn::AttendWork& work) const;
  // What calls that did not wait have to say, those that are done, or after waiting for all. Each is said once.
  Status look_back(bool all) const;
  static Status out_of_its_range(uint32_t layer);
  void on_processor(attn::AttendWork& work, const Executor& run) const;
  void again_on_processor(attn::AttendWork& work, const Executor& run) const;
  Status land_if_read(const attn::AttendWork& work, bool served) const;
  Result<std::shared_ptr<const attn::Arrival>> take_rows(std::span<attn::TakeWork> works, bool attended) const;
  Status land(const attn::AttendWork& work) const;
  Result<std::shared_ptr<Slot>> brought(std::span<RowsView> rows) const;
  Status send_results(const void* from, size_t bytes, void* to) const;
  void attend_batch(Works& batch, const Executor& run) const;
  Status on_device(const Works& batch, const Executor& run) const;
  Status list_views(const Works& batch) const;
  Status list_head(const attn::AttendWork& work, size_t head, Listed& out) const;
  Status place_tails(const Works& batch) const;
  Status place_loose_rows() const;
  void place_rows(const Works& batch) const;
  Status collect(const Works& batch) const;
  Plan plan_for(const attn::AttendWork& first, uint32_t settled_base) const;
  Launch launch_of(const Plan& plan, const attn::AttendWork& first) const;
  Parcel parcel_of(const Plan& plan, const attn::AttendWork& first) const;
  Status send(const Plan& plan, const attn::AttendWork& first, Launch& launch) const;
  Status reserve_room(const Plan& plan, size_t rows, const Launch& launch) const;
  void use_room(const Plan& plan, size_t rows, float* out, Launch& launch) const;
  Status make_room(const Plan& plan, size_t rows, Launch& launch) const;
  Status take_results(const Works& batch, size_t tasks, const Launch& launch, const Executor& run) const;
  Status leave_results(const Works& batch, const Launch& launch, const Executor& run) const;
  Status bring_sums(const Works& batch, const Launch& launch, const Executor& run) const;

  // Steps that are launched as graphs (device_step.h).
  friend class DeviceStep;
  void attend_in_step(std::span<attn::AttendWork> works) const;
  Status plan_in_step(const Works& batch, DeviceStep& step) const;
  void move_results(const Works& batch, const float* from, uint32_t head_dim) const;
  Result<bool> finish_step(DeviceStep& step) const;
  Status look_back_at_steps() const;

  // What rows receive, of the call under way.
  struct Mass {
    bool there = false;         // the device is to add it up
    bool asked = false;         // and was asked to: behind a wait it is in mass_host_
    std::vector<size_t> first;  // task of each work
    MassPlan plan;
  };
  void place_weighed(const Listed& listed, size_t from, size_t views, std::vector<Placed>& out) const;
  Status ask_mass(const Works& batch, const Launch& attention) const;
  Status launch_mass(const Launch& attention) const;
  Status tell_mass(const attn::AttendWork& work, size_t index, const float* lse, const Executor& run) const;

  // Of a batch of prompts, on the device.
  struct PromptResults {
    size_t rows = 0, works = 0;
    float *out = nullptr, *lse = nullptr;  // [rows][head_dim], [rows]
    uint32_t* failed = nullptr;            // [works]
    size_t bytes(size_t head_dim) const { return (rows * (head_dim + 1) + works) * sizeof(float); }
  };
  Status prompts_on_device(const Works& batch, const Executor& run) const;
  Status list_prompt_head(const attn::AttendWork& work, size_t head, Listed& out) const;
  Status send_prompt_queries(const Works& batch, PromptResults& results) const;
  Status take_prompt_results(const Works& batch, const PromptResults& results, const Executor& run) const;
  Status add_prompt_mass(attn::AttendWork& work, const float* lse, const Executor& run) const;

  const std::shared_ptr<Machine> machine_;
  const MachineFacts facts_;
  const size_t few_rows_;
  const bool keep_on_host_;
  mutable std::mutex mutex_;  // guards all below: one call at a time
  mutable Slots slots_;
  mutable Bounce bounce_;
  mutable CodecTables tables_;
  mutable Changes changes_;
  mutable Mirror mirror_;
  mutable Standing standing_;
  mutable Tails tails_;
  mutable Sharings sharings_;
  mutable EncodeBatch encoder_;
  mutable DeviceMemory hot_, results_, partials_, counters_, query_rows_;
  mutable Staging results_host_;
  mutable DeviceMemory mass_list_, mass_rows_;
  mutable Staging mass_host_;
  mutable std::deque<Late> late_;  // oldest first
  mutable std::vector<DeviceStep*> steps_;
  mutable uint64_t others_ = 0;  // calls that were not a step's
  mutable PromptAttention prompts_;
  mutable DeviceMemory prompt_queries_;
  mutable Staging prompt_host_;
  // Of the call under way.
  mutable std::vector<Listed> listed_;
  mutable std::vector<PlanTask> tasks_;
  mutable std::vector<float> queries_;  // that come from host memory
  mutable std::vector<RowMove> moves_;
  mutable Pending pending_;
  mutable Rows rows_;
  mutable Mass mass_;
  mutable std::vector<std::byte> form_;  // of the rows at hand
  mutable Counts counts_;
  mutable uint64_t launches_ = 0, on_processor_ = 0;
  mutable std::atomic<uint64_t> kept_bytes_ = 0, refusals_ = 0;  // what the mirror's books said last
  mutable std::mutex gone_mutex_;                                // a leaf
  mutable Places::Entry* gone_ = nullptr;
};

}  // namespace tierkv::cuda
