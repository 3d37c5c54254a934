// tierkv_encode_cuda [decode step in us] — what coding blocks costs on a device beside the processor: 8 KV heads of 128 channels.
//
// kernel: the launch alone, rows in the device's memory, of one sequence's blocks and of eight. trip: what a cache sees, rows from
// the processor's memory and bytes back in it, by four threads. processor: one thread. share: eight sequences' trips, per token, of
// a decode step of one layer (258 us: 8 sequences, 128K tokens, `balanced`). Bytes are compared with the processor's first; ends
// with 1 if they differ.
//
// Then blocks of 64 tokens into ones of 128, of eight sequences: the trip where the device has them, where their codes go there,
// and where the processor decodes and floats go.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>

#include "attn/cpu_backend.h"
#include "base/thread_pool.h"
#include "cuda/backend.h"
#include "cuda/encode/encode_batch.h"
#include "cuda/memory/codec_tables.h"
#include "quant/table_testing.h"

namespace tierkv::cuda {
namespace {

constexpr uint32_t kHeads = 8, kDim = 128, kSequences = 8, kRepeats = 30, kThreads = 4;

double median(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

double time_us(const std::function<void()>& work) {
  std::vector<double> times;
  for (uint32_t i = 0; i < kRepeats + 3; ++i) {
    const auto start = std::chrono::steady_clock::now();
    work();
    if (i >= 3) times.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
  }
  return median(times);
}

// The blocks of `sequences` sequences, one a head, keys and values.
struct Blocks {
  std::unique_ptr<quant::Codec> codecs[2], guide;  // guide: of the keys, or null
  std::vector<float> rows[2];
  std::vector<std::vector<std::byte>> bytes;
  std::vector<attn::EncodeWork> works;

  Blocks(const char* pair, quant::BlockShape shape, uint32_t sequences, bool guided) {
    const quant::CodecPair specs = quant::parse_codec_pair(pair).value();
    codecs[0] = quant::testing::make_any_codec(specs.key, quant::Side::key, shape).value();
    codecs[1] = quant::testing::make_any_codec(specs.value, quant::Side::value, shape).value();
    if (guided) guide = quant::testing::make_any_codec(quant::parse_codec("klt1.875").value(), quant::Side::key, shape).value();
    rows[0] = quant::testing::TableModel::of(kDim).turned(quant::testing::random_rows(shape, 3), 1000);
    rows[1] = quant::testing::random_rows(shape, 4);
    for (uint32_t i = 0; i < 2 * kHeads * sequences; ++i) bytes.emplace_back(codecs[i % 2]->bytes());
    for (uint32_t i = 0; i < bytes.size(); ++i)
      works.push_back({codecs[i % 2].get(), rows[i % 2].data(), {0, 0, 1000}, bytes[i], {}});
    for (attn::EncodeWork& work : works) work.ctx.guide = guide.get();
  }
};

// The launch alone; less than 0: the device has no encoder.
double kernel_us(const Blocks& blocks) {
  quant::SideCoding codings[2];
  if (!blocks.codecs[0]->coding(codings[0]) || !codable(codings[0])) return -1;
  if (!blocks.codecs[1]->coding(codings[1]) || !codable(codings[1])) return -1;
  std::vector<void*> memory;
  const auto put = [&](const void* from, size_t size) {
    void* there = nullptr;
    if (cudaMalloc(&there, size + 256) != cudaSuccess) std::abort();
    memory.push_back(there);
    if (from) cudaMemcpy(there, from, size, cudaMemcpyDefault);
    return there;
  };
  EncodeLaunch launch;
  quant::GuideTables guide;
  if (blocks.guide && blocks.guide->guide_tables(guide)) {
    guide.rows = static_cast<const float*>(put(guide.rows, size_t{4} * guide.count * kDim));
    guide.turns = static_cast<const float*>(put(guide.turns, size_t{8} * quant::kTurnDigits * quant::kTurnBase * guide.pairs));
    guide.turned = static_cast<const uint16_t*>(put(guide.turned, size_t{4} * guide.pairs));
    launch.guides = static_cast<const quant::GuideTables*>(put(&guide, sizeof guide));
  }
  for (quant::SideCoding& coding : codings) {
    const bool guided = launch.guides != nullptr && guidable(coding);
    launch.shared_bytes = std::max<uint32_t>(launch.shared_bytes, encode_floats(coding, guided) * sizeof(float));
    quant::SideLayout& side = coding.layout;
    if (side.kind != quant::LayoutKind::words) continue;
    coding.analysis = static_cast<const float*>(put(coding.analysis, size_t{4} * kDim * coding.padded));
    coding.shift = static_cast<const float*>(put(coding.shift, size_t{4} * coding.padded));
    side.turns = static_cast<const float*>(put(side.turns, size_t{8} * quant::kTurnDigits * quant::kTurnBase * side.pairs));
    side.turned = static_cast<const uint16_t*>(put(side.turned, size_t{4} * side.pairs));
  }
  const size_t row_bytes = blocks.rows[0].size() * sizeof(float);
  std::vector<EncodeDesc> works;
  std::vector<EncodePart> parts;
  auto* const flags = static_cast<uint32_t*>(put(nullptr, blocks.works.size() * 4));
  cudaMemset(flags, 0, blocks.works.size() * 4);
  for (uint32_t i = 0; i < blocks.works.size(); ++i) {
    auto* const out = static_cast<uint8_t*>(put(nullptr, blocks.bytes[i].size()));
    works.push_back({put(blocks.rows[i % 2].data(), row_bytes), out, flags + i, kDim, 1000, i % 2, RowType::f32,
                     launch.guides && i % 2 == 0 ? 0 : kNoGuide});
    for (uint32_t p = 0; p < encode_parts(codings[i % 2]); ++p) parts.push_back({i, p});
  }
  launch.codings = static_cast<const quant::SideCoding*>(put(codings, sizeof codings));
  launch.works = static_cast<const EncodeDesc*>(put(works.data(), works.size() * sizeof(EncodeDesc)));
  launch.parts = static_cast<const EncodePart*>(put(parts.data(), parts.size() * sizeof(EncodePart)));
  launch.num_parts = static_cast<uint32_t>(parts.size());
  launch.log8 = static_cast<const float*>(put(log8_table(), 1024));
  cudaEvent_t begin, end;
  cudaEventCreate(&begin), cudaEventCreate(&end);
  std::vector<double> times;
  for (uint32_t i = 0; i < kRepeats + 3; ++i) {
    cudaEventRecord(begin, nullptr);
    if (launch_encode(launch, nullptr) != 0) std::abort();
    cudaEventRecord(end, nullptr);
    if (cudaEventSynchronize(end) != cudaSuccess) std::abort();
    float ms = 0;
    cudaEventElapsedTime(&ms, begin, end);
    if (i >= 3) times.push_back(1e3 * static_cast<double>(ms));
  }
  cudaEventDestroy(begin), cudaEventDestroy(end);
  for (void* const at : memory) cudaFree(at);
  return median(times);
}

// Two blocks of each head and sequence that become one.
struct Demotions {
  std::unique_ptr<quant::Codec> from[2], to[2];
  std::vector<std::byte> sources[2];
  std::vector<attn::BlockRows> blocks;
  std::vector<std::vector<std::byte>> bytes;
  std::vector<attn::EncodeWork> works;

  Demotions(const char* warm, const char* archive) {
    const quant::CodecPair specs[] = {quant::parse_codec_pair(warm).value(), quant::parse_codec_pair(archive).value()};
    for (int v = 0; v < 2; ++v) {
      const quant::Side side = v ? quant::Side::value : quant::Side::key;
      from[v] = quant::testing::make_any_codec(v ? specs[0].value : specs[0].key, side, {64, kDim}).value();
      to[v] = quant::testing::make_any_codec(v ? specs[1].value : specs[1].key, side, {128, kDim}).value();
      sources[v].resize(from[v]->bytes());
      const auto rows = quant::testing::TableModel::of(kDim).turned(quant::testing::random_rows({64, kDim}, 3), 1000);
      if (!from[v]->encode(rows.data(), {0, 0, 1000}, sources[v]).ok()) std::abort();
    }
    const attn::BlockView view{from[0].get(), from[1].get(), sources[0], sources[1], {0, 0, 1000}, 64, 0x9E3779B97F4A7C15ull};
    blocks.assign(2, {view, 0, 64});
    for (uint32_t i = 0; i < 2 * kHeads * kSequences; ++i) bytes.emplace_back(to[i % 2]->bytes());
    for (uint32_t i = 0; i < bytes.size(); ++i) works.push_back({to[i % 2].get(), nullptr, {0, 0, 1000}, bytes[i], {}, {}, blocks});
  }
};

bool run_demotions(Machine& machine, const Executor& shared) {
  Bounce bounce(machine);
  Changes changes(machine);
  CodecTables tables(machine);
  Mirror mirror(machine, bounce, changes, 0);
  std::vector<std::unique_ptr<Demotions>> kept;  // the batch knows codecs by their address
  EncodeBatch batch(machine);
  bool same = true;
  std::printf("\n%-20s %9s %9s %9s %9s\n", "8 seqs", "there us", "codes us", "floats us", "cpu us");
  for (const auto& [warm, archive] : {std::pair{"even4", "klt1.875"}, {"even4", "kivi2"}, {"rot4", "rot2"}, {"kivi4", "kivi2"}}) {
    Demotions& one = *kept.emplace_back(std::make_unique<Demotions>(warm, archive));
    const auto codec = tables.find(*one.from[0], *one.from[1]);
    if (!codec.ok() || !mirror.place(one.blocks[0].block, tables.on_host()[*codec]).ok() || !machine.wait().ok()) return false;
    changes.end_call(true);
    attn::cpu_backend().encode(one.works, attn::in_turn());
    const auto wanted = one.bytes;
    const double cpu = time_us([&] { attn::cpu_backend().encode(one.works, attn::in_turn()); });
    std::vector<std::vector<float>> rows(one.works.size(), std::vector<float>(128 * kDim));
    std::vector<attn::EncodeWork> wide = one.works;
    for (size_t i = 0; i < wide.size(); ++i) wide[i].rows = rows[i].data();
    const std::function<void()> ways[] = {
        [&] { batch.encode(one.works, shared, nullptr, &mirror); }, [&] { batch.encode(one.works, shared); },
        [&] {
          shared(static_cast<uint32_t>(wide.size()),
                 [&](uint32_t i) { attn::decode_blocks(one.blocks, wide[i].codec->side(), rows[i].data()); });
          batch.encode(wide, shared);
        }};
    double times[3];
    for (int w = 0; w < 3; ++w) {
      for (auto& bytes : one.bytes) std::fill(bytes.begin(), bytes.end(), std::byte{0});
      times[w] = time_us(ways[w]);
      if (one.bytes != wanted) same = false, std::printf("%s to %s: other bytes than the processor's\n", warm, archive);
    }
    std::printf("%-20s %9.1f %9.1f %9.1f %9.1f\n", (std::string(warm) + " to " + archive).c_str(), times[0], times[1], times[2],
                cpu);
  }
  return same;
}

int run(double step_us) {
  auto machine = open_machine(0);
  if (!machine.ok() || !(*machine)->enter().ok()) return std::fprintf(stderr, "%s\n", machine.status().message().c_str()), 1;
  EncodeBatch batch(**machine);
  ThreadPool pool(kThreads);
  const Executor shared = [&](uint32_t count, const std::function<void(uint32_t)>& task) { pool.run(count, task); };
  std::printf("%-20s %6s %10s %12s %9s %9s %12s %8s\n", "codec", "tokens", "kernel us", "8 seqs, us", "trip us", "cpu us",
              "us a token", "share");
  bool same = true;
  const struct {
    const char* codec;
    uint32_t tokens;
    bool guided = false;
  } cases[] = {{"fp16", 64},        {"int8", 64},       {"kivi4-g64", 64},   {"rot4", 64},     {"even4", 64},
               {"even4", 64, true}, {"kivi4-g64", 128}, {"kivi2-g64", 128},  {"kivi3", 128},   {"rot3", 128},
               {"rot2", 128},       {"mid2", 128},      {"even4/mid2", 128}, {"klt1.875", 128}};
  std::vector<std::unique_ptr<Blocks>> kept;  // the batch knows codecs by their address
  for (const auto& of : cases) {
    Blocks& one = *kept.emplace_back(std::make_unique<Blocks>(of.codec, quant::BlockShape{of.tokens, kDim}, 1, of.guided));
    attn::cpu_backend().encode(one.works, attn::in_turn());
    const auto wanted = one.bytes;
    const uint64_t before = batch.encoded();
    batch.encode(one.works, attn::in_turn());
    const bool there = batch.encoded() - before == one.works.size();
    if (one.bytes != wanted) same = false, std::printf("%s: other bytes than the processor's\n", of.codec);
    const double trip = time_us([&] { batch.encode(one.works, shared); });
    const double cpu = time_us([&] { attn::cpu_backend().encode(one.works, attn::in_turn()); });
    const Blocks many(of.codec, {of.tokens, kDim}, kSequences, of.guided);
    const double a_token = kSequences * trip / of.tokens;
    const std::string name = std::string(of.codec) + (of.guided ? " guided" : "");
    std::printf("%-20s %6u %10.1f %12.1f %9.1f %9.1f %12.2f %7.1f%%%s\n", name.c_str(), of.tokens, kernel_us(one), kernel_us(many),
                trip, cpu, a_token, 100 * a_token / step_us, there ? "" : " (not all on the device)");
  }
  same = run_demotions(**machine, shared) && same;
  return same ? 0 : 1;
}

}  // namespace
}  // namespace tierkv::cuda

int main(int argc, char** argv) { return tierkv::cuda::run(argc > 1 ? std::atof(argv[1]) : 258.0); }
