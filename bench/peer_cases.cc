// Attention over one layer of a whole cache beside the peer's, in one run: decode steps and prefill by setting, shape, length and
// threads.
//
// All settings, the peer's types and a plain read of memory take turns (turns.h). A row compares one setting with one type; `ratio`
// is the peer's median over ours, `gbps` the bytes of our cache over our median, `ceiling_fraction` that over the plain read's
// rate. Below 1 this is what the kernel leaves unused of the memory; prefill reads the cache once for many queries, so it stays far
// below. graduate rows: what appending a token costs, its share of encoding blocks included, next to a decode step on the same
// cache.
#include <algorithm>

#include "base/status_macros.h"
#include "bench/harness.h"
#include "bench/stage.h"

namespace tierkv::bench {
namespace {

constexpr AttentionShape kShapes[] = {{32, 8, 128}, {9, 3, 64}, {32, 32, 128}, {32, 4, 128}, {4, 1, 256}};
constexpr uint32_t kPrefill = 512, kGraduated = 128;
// Single precision over many terms; kernels on integer dot products quantize the query to 8 bits on top.
constexpr double kOurTolerance =
    6e-2;  // long 2-bit archives are read coarsely (src/quant/codec.h); ggml's f16 is as far off at 128K
// The peer sums f16 values in f16, whose error grows with the length, and takes the query in 8 bits for quantized keys.
constexpr double kPeerTolerance = 1e-1;

struct Point {
  AttentionShape shape;
  uint32_t threads, kilo;

  // A smoke test runs the 4K points, shortened.
  uint32_t tokens(const Settings& settings) const { return settings.quick ? 1024 : kilo * 1024; }
  std::string row(const std::string& setting, const std::string& op) const {
    return "cache/" + setting + "/" + op + "/" + std::to_string(kilo) + "Kx" + shape.name() + "_t" + std::to_string(threads);
  }
};

// The stage of the cases that run now; the one before is freed first.
class Stages {
 public:
  Stage& at(const Point& point, const Settings& settings) {
    if (!stage_ || !(stage_->shape() == point.shape) || stage_->threads() != point.threads) {
      stage_.reset();
      stage_ = std::make_unique<Stage>(point.shape, point.threads, settings.quick);
    }
    return *stage_;
  }

 private:
  std::unique_ptr<Stage> stage_;
};

Contestant reader(Stage& stage) {
  return {"reading memory", [&] { return stage.ceiling().read(); }, {}};
}

double read_gbps(Stage& stage, const Timing& timing) { return static_cast<double>(stage.ceiling().bytes()) / timing.median_ns; }

Row attention_row(const std::string& name, const OurCache& ours, uint32_t threads, const Timing& timing, double ceiling) {
  const double gbps = static_cast<double>(ours.bytes) / timing.median_ns;
  Row row(name);
  row.attention(threads, timing).number("tokens", ours.tokens).number("ns_per_token", timing.median_ns / ours.tokens);
  row.number("gbps", gbps).number("ceiling_gbps", ceiling).number("ceiling_fraction", gbps / ceiling).number("bits", ours.bits);
  return row;
}

Status run_attention(Stage& stage, const Point& point, const std::string& op, uint32_t count,
                     const std::vector<std::string>& settings_to_run, const Settings& settings, const Emit& emit) {
  const AttentionShape& shape = point.shape;
  const uint32_t tokens = point.tokens(settings);
  const std::vector<float> queries = make_source_queries(stage.rows(), count);
  std::vector<std::string> chosen = settings_to_run;
  std::erase_if(chosen, [&](const std::string& setting) { return !settings.wants(point.row(setting, op)); });
  struct Rival {
    std::string name;
    Peer* peer;
  };
  std::vector<Rival> rivals;
  for (const PeerLayout layout : {PeerLayout::by_head, PeerLayout::by_token}) {
    // Everywhere the layout that suits the peer best; libllama's own for the decode steps of the first shape.
    const bool best = layout == PeerLayout::by_head;
    if (!best && (op != "decode" || !(shape == kShapes[0]))) continue;
    for (const std::string& type : Peer::types()) {
      TIERKV_ASSIGN_OR_RETURN(Peer* const peer, stage.peer(type, layout, tokens));
      TIERKV_RETURN_IF_ERROR(peer->set_queries(queries, count));
      rivals.push_back({"ggml " + type + (best ? "" : " by token"), peer});
    }
  }

  std::vector<OurCache*> ours;
  std::vector<std::vector<float>> outs(chosen.size(), std::vector<float>(queries.size()));
  std::vector<Contestant> contestants = {reader(stage)};
  for (size_t i = 0; i < chosen.size(); ++i) {
    TIERKV_ASSIGN_OR_RETURN(OurCache* const cache, stage.ours(chosen[i], tokens));
    ours.push_back(cache);
    contestants.push_back({chosen[i], [&, i, cache] { return cache->attend(queries, count, outs[i]); },
                           [&, i, cache] { return error_of_ours(*cache, shape, queries, count, outs[i]); }, kOurTolerance});
  }
  for (const auto& [name, peer] : rivals) {
    contestants.push_back({name, [peer = peer] { return peer->compute(); },
                           [&, peer = peer] { return error_of_peer(*peer, tokens, queries, count); }, kPeerTolerance});
  }
  TIERKV_RETURN_IF_ERROR(take_turns(settings, contestants));

  const double ceiling = read_gbps(stage, contestants[0].timing);
  for (size_t i = 0; i < chosen.size(); ++i) {
    const Timing& timing = contestants[1 + i].timing;
    const auto emit_row = [&](const std::string& peer, const Contestant* theirs) {
      Row row = attention_row(point.row(chosen[i], op), *ours[i], point.threads, timing, ceiling);
      row.number("ceiling_waited", contestants[0].timing.waited)
          .number("queries", count)
          .number("error", contestants[1 + i].error)
          .text("peer", peer);
      if (theirs) {
        const Timing& t = theirs->timing;
        row.text("peer_isa", Peer::isa()).number("peer_median_ms", t.median_ns / 1e6);
        row.number("peer_min_ms", t.min_ns / 1e6)
            .number("peer_samples", t.samples)
            .number("peer_waited", t.waited)
            .number("peer_error", theirs->error);
        row.number("ratio", t.median_ns / timing.median_ns);
      }
      emit(row);
    };
    for (size_t k = 0; k < rivals.size(); ++k) emit_row(rivals[k].name, &contestants[1 + chosen.size() + k]);
    if (rivals.empty()) emit_row("", nullptr);
  }
  return {};
}

// Tokens one by one onto a fork of the sequence, as many as an archive block holds, so that every call carries one block all the
// way.
Status run_graduate(Stage& stage, const Point& point, const std::string& setting, const Settings& settings, const Emit& emit) {
  const uint32_t tokens = point.tokens(settings);
  const std::vector<float> queries = make_source_queries(stage.rows(), 1);
  TIERKV_ASSIGN_OR_RETURN(OurCache* const ours, stage.ours(setting, tokens));
  TIERKV_ASSIGN_OR_RETURN(const SeqId fork, ours->cache->fork(ours->seq));
  std::vector<float> out(queries.size());
  uint32_t length = tokens;
  std::vector<Contestant> contestants = {
      reader(stage),
      {setting, [&] { return ours->attend(queries, 1, out); }, [&] { return error_of_ours(*ours, point.shape, queries, 1, out); },
       kOurTolerance},
      {"append",
       [&] {
         TIERKV_RETURN_IF_ERROR(append_source(*ours->cache, fork, stage.rows(), length, kGraduated, 1));
         length += kGraduated;
         return Status();
       },
       {}}};
  TIERKV_RETURN_IF_ERROR(take_turns(settings, contestants));
  TIERKV_ASSIGN_OR_RETURN(const uint32_t grown, ours->cache->length(fork));
  TIERKV_RETURN_IF_ERROR(ours->cache->verify(fork));
  TIERKV_RETURN_IF_ERROR(ours->cache->remove(fork));
  if (grown != length) return error(StatusCode::internal, length, " tokens were appended, the cache has ", grown);

  const double decode = contestants[1].timing.median_ns;
  const Timing& block = contestants[2].timing;
  const Timing each{block.median_ns / kGraduated, block.min_ns / kGraduated, block.samples, block.waited};
  Row row(point.row(setting, "graduate"));
  row.attention(point.threads, each)
      .number("tokens", tokens)
      .number("decode_ms", decode / 1e6)
      .number("share", each.median_ns / decode);
  row.number("gbps", 2.0 * 2.0 * static_cast<double>(point.shape.row()) / each.median_ns)
      .number("bits", ours->bits)
      .text("peer", "");
  emit(row);
  return {};
}

Status run_ceiling(const std::string& name, uint32_t threads, const Settings& settings, const Emit& emit) {
  ReadCeiling ceiling(settings.quick ? size_t{16} << 20 : size_t{512} << 20, threads);
  std::vector<Contestant> contestants = {{"reading memory", [&] { return ceiling.read(); }, {}}};
  TIERKV_RETURN_IF_ERROR(take_turns(settings, contestants));
  const Timing& timing = contestants[0].timing;
  Row row(name);
  row.attention(threads, timing).number("bytes", static_cast<double>(ceiling.bytes()));
  row.number("gbps", static_cast<double>(ceiling.bytes()) / timing.median_ns)
      .number("best_gbps", static_cast<double>(ceiling.bytes()) / timing.min_ns);
  emit(row.text("peer", ""));
  return {};
}

void add_point(std::vector<Case>& cases, const std::shared_ptr<Stages>& stages, const Point& point, bool grid) {
  const auto add = [&](const std::string& op, const std::vector<std::string>& chosen, bool in_grid, auto run) {
    Case c{point.row("*", op), {}, {}, in_grid};
    for (const std::string& setting : chosen) c.rows.push_back(point.row(setting, op));
    c.run = [=](const Settings& settings, const Emit& emit) -> Status {
      if (settings.quick && point.kilo > 4) return {};
      return run(stages->at(point, settings), chosen, settings, emit);
    };
    cases.push_back(std::move(c));
  };
  std::vector<std::string> decoded = {"fp16", "int8", "kivi4", "kivi2", "balanced"};
  // The default archive of a calibrated model beside the one without, where models are: head_dim 128 and 64.
  if (point.shape == kShapes[0] || point.shape == kShapes[1]) {
    decoded.insert(decoded.end(), {"rot2", "klt"});
    if (!grid) decoded.insert(decoded.end(), {"klt1.5", "klt1.5+top4"});  // what better rows cost
  }
  add("decode", decoded, grid, [=](Stage& stage, const auto& chosen, const Settings& settings, const Emit& emit) {
    return run_attention(stage, point, "decode", 1, chosen, settings, emit);
  });
  const bool standard = point.shape == kShapes[0];
  if (point.kilo == 32 && standard) {
    for (const char* setting : {"int8", "kivi4", "kivi2", "balanced"}) {
      add("graduate", {setting}, grid, [=](Stage& stage, const auto&, const Settings& settings, const Emit& emit) {
        return run_graduate(stage, point, setting, settings, emit);
      });
    }
  }
  // The peer takes half a minute for one prefill of 512 on 32K tokens in q4_0: one thread only where it is asked for most.
  if ((point.kilo == 4 || point.kilo == 32) && (point.threads == 2 || standard)) {
    const bool slow = grid || point.kilo > 4 || point.threads == 1;
    add("prefill512", {"fp16", "int8", "kivi4", "balanced"}, slow,
        [=](Stage& stage, const auto& chosen, const Settings& settings, const Emit& emit) {
          return run_attention(stage, point, "prefill512", settings.quick ? 64 : kPrefill, chosen, settings, emit);
        });
  }
}

}  // namespace

void add_peer_cases(std::vector<Case>& cases) {
  for (const uint32_t threads : {1u, 2u}) {
    const std::string name = "base/memory/read/512M_t" + std::to_string(threads);
    cases.push_back({name, [=](const Settings& settings, const Emit& emit) { return run_ceiling(name, threads, settings, emit); }});
  }
  const auto stages = std::make_shared<Stages>();
  for (const AttentionShape& shape : kShapes) {
    for (const uint32_t threads : {1u, 2u}) {
      for (const uint32_t kilo : {4u, 16u, 32u, 128u}) {
        const bool everyday = shape == kShapes[0] && (kilo == 4 || kilo == 32);
        add_point(cases, stages, {shape, threads, kilo}, !everyday);
      }
    }
  }
}

}  // namespace tierkv::bench
