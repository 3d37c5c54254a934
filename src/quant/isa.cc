#include "quant/isa.h"

#include <atomic>
#include <cmath>
#include <cstring>

#include "base/cpu.h"
#include "base/f16.h"
#include "quant/lanes.h"

namespace tierkv::quant {

#if defined(TIERKV_KERNELS_X86)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
extern const Kernels kAvx512VnniKernels;
#elif defined(TIERKV_KERNELS_NEON)
extern const Kernels kNeonKernels;
extern const Kernels kNeonDotprodKernels;
#endif

namespace {

std::vector<const Kernels*> find_kernels() {
  std::vector<const Kernels*> found;
  [[maybe_unused]] const CpuFeatures& cpu = cpu_features();
#if defined(TIERKV_KERNELS_X86)
  if (cpu.avx512vnni) found.push_back(&kAvx512VnniKernels);
  if (cpu.avx512) found.push_back(&kAvx512Kernels);
  if (cpu.avx2) found.push_back(&kAvx2Kernels);
#elif defined(TIERKV_KERNELS_NEON)
  if (cpu.neon_dotprod) found.push_back(&kNeonDotprodKernels);
  if (cpu.neon) found.push_back(&kNeonKernels);
#endif
  std::erase_if(found, [](const Kernels* k) { return !kernels_work(*k); });
  return found;
}

const std::vector<const Kernels*>& all_kernels() {
  static const std::vector<const Kernels*> found = find_kernels();
  return found;
}

const Kernels* find(std::string_view name) {
  for (const Kernels* k : all_kernels()) {
    if (name == k->isa) return k;
  }
  return nullptr;
}

std::atomic<const Kernels*>& active() {
  static std::atomic<const Kernels*> kernels = [] {
    if (forced_isa() == "scalar") return static_cast<const Kernels*>(nullptr);
    if (const Kernels* k = find(forced_isa())) return k;
    return all_kernels().empty() ? nullptr : all_kernels().front();
  }();
  return kernels;
}

bool near(double a, double b, double tolerance) { return std::fabs(a - b) <= tolerance; }

bool rows_work(const Kernels& k) {
  constexpr uint32_t d = 32, n = 20;
  uint16_t rows[n * d];
  float q[2 * d], scores[2 * n], scratch[16 * d], acc[2 * d] = {};
  for (uint32_t i = 0; i < n * d; ++i) rows[i] = f32_to_f16(static_cast<float>(static_cast<int>(i * 37 % 41) - 20) / 8.0f);
  for (uint32_t i = 0; i < 2 * d; ++i) q[i] = static_cast<float>(static_cast<int>(i * 29 % 31) - 15) / 4.0f;
  k.half_scores(rows, false, d, q, 2, n, scores, n, scratch, {});
  k.half_accumulate(rows, false, d, scores, n, 2, n, acc, {});
  for (uint32_t i = 0; i < 2; ++i) {
    double sums[d] = {};
    for (uint32_t t = 0; t < n; ++t) {
      double want = 0;
      for (uint32_t c = 0; c < d; ++c) want += static_cast<double>(q[i * d + c]) * f16_to_f32(rows[t * d + c]);
      if (!near(scores[i * n + t], want, 1e-3)) return false;
      for (uint32_t c = 0; c < d; ++c) sums[c] += static_cast<double>(scores[i * n + t]) * f16_to_f32(rows[t * d + c]);
    }
    for (uint32_t c = 0; c < d; ++c) {
      if (!near(acc[i * d + c], sums[c], 1e-3 * (1 + std::fabs(sums[c])))) return false;
    }
  }
  float matrix[d * 48], products[2 * 48];
  for (uint32_t i = 0; i < d * 48; ++i) matrix[i] = static_cast<float>(static_cast<int>(i * 23 % 29) - 14) / 8.0f;
  k.multiply(matrix, 48, q, d, 2, products);
  for (uint32_t i = 0; i < 2 * 48; ++i) {
    double want = 0;
    for (uint32_t c = 0; c < d; ++c) want += static_cast<double>(q[i / 48 * d + c]) * matrix[c * 48 + i % 48];
    if (!near(products[i], want, 1e-3)) return false;
  }
  float scales[34], units[32];
  int32_t pairs[n / 2 * 32];
  for (uint32_t c = 0; c < 32; ++c) scales[c] = 1024.0f, units[c] = 1.0f / 1024.0f;
  scales[32] = 64.0f, scales[33] = 0.0f;  // of the rows
  k.pair_rows(rows, n - 4, 32, scales, pairs);
  k.multiply_pairs(pairs, units, 32, q, scales + 32, n - 4, 2, products);
  for (uint32_t i = 0; i < 2 * 32; ++i) {
    double want = 0;
    for (uint32_t c = 0; c < n - 4; ++c) want += static_cast<double>(q[c]) * f16_to_f32(rows[c * 32 + i % 32]);
    if (!near(products[i], i < 32 ? want : 0.0, 1e-3)) return false;
  }
  float x[16], sum = 0.0f;
  for (int i = 0; i < 16; ++i) x[i] = -static_cast<float>(i * i) / 2.0f;
  if (k.largest(x, 16) != 0.0f) return false;
  sum = k.exp_sum(x, 16, 0.0f);
  double want = 0;
  for (int i = 0; i < 16; ++i) {
    const double e = i * i / 2.0 < 87 ? std::exp(-i * i / 2.0) : 0.0;
    if (!near(x[i], e, 1e-6 * e)) return false;
    want += e;
  }
  return near(sum, want, 1e-5);
}

bool kept_weights_work(const Kernels& k) {
  float x[32], sums[19] = {}, stats[19];
  uint16_t kept[32];
  for (uint32_t i = 0; i < 32; ++i) x[i] = -static_cast<float>(i) / 8.0f;
  std::fill_n(stats, 19, 8.0f);
  const float shares[2] = {0.25f / kKeptUnit, 0.5f / kKeptUnit};
  double total = 0.0;
  const float sum = k.exp_sum_kept(x, 32, 0.0f, kept);
  for (const float weight : x) total += weight;
  k.sum_kept(kept, 16, shares, 2, 13, true, sums);
  k.fade_add(stats, 0.5f, sums, 19);
  for (uint32_t t = 0; t < 19; ++t) {
    const double want = t < 13 ? 0.25 * x[t] + 0.5 * x[16 + t] : 0.0;
    if (!near(sums[t], want, 1e-3) || !near(stats[t], 4.0 + want, 1e-3)) return false;
  }
  return near(sum, total, 1e-3) && near(x[8], std::exp(-1.0), 1e-5);
}

bool three_bits_work(const Kernels& k) {
  constexpr uint32_t d = 48, n = 5, count = 3;
  std::byte bytes[1 + n * d * 3 / 8], indices[n], steps[n];
  for (uint32_t i = 0; i < sizeof bytes; ++i) bytes[i] = static_cast<std::byte>(i * 2654435761u >> 24);
  for (uint32_t t = 0; t < n; ++t) indices[t] = std::byte(t), steps[t] = std::byte{0x78};  // of 1
  const auto value = [&](uint32_t t, uint32_t c) {
    const std::byte* at = bytes + 1 + (t * d + c) / 8 * 3;
    const uint32_t packed =
        std::to_integer<uint32_t>(at[0]) | std::to_integer<uint32_t>(at[1]) << 8 | std::to_integer<uint32_t>(at[2]) << 16;
    return static_cast<float>(packed >> 3 * (c % 8) & 7u) - 3.5f;
  };
  float q[count * d], scores[count * n] = {}, acc[count * d] = {};
  for (uint32_t i = 0; i < count * d; ++i) q[i] = static_cast<float>(static_cast<int>(i * 29 % 31) - 15) / 4.0f;
  const BetterRows better{indices, steps, bytes + 1, n, d};
  float products[count * n];
  k.better_products(better, q, nullptr, 0, count, products);
  k.add_products(better, products, count, n, scores, n);
  k.better_sums(better, scores, n, count, acc);
  for (uint32_t i = 0; i < count; ++i) {
    double sums[d] = {};
    for (uint32_t t = 0; t < n; ++t) {
      double want = 0;
      for (uint32_t c = 0; c < d; ++c) want += q[i * d + c] * value(t, c);
      if (!near(scores[i * n + t], want, 1e-3)) return false;
      for (uint32_t c = 0; c < d; ++c) sums[c] += want * value(t, c);
    }
    for (uint32_t c = 0; c < d; ++c) {
      if (!near(acc[i * d + c], sums[c], 1e-3 * (1 + std::fabs(sums[c])))) return false;
    }
  }
  return true;
}

bool boxes_work(const Kernels& k) {
  constexpr uint32_t d = 48, count = 5, runs = d / kBoxRun;
  std::byte box[4 * runs + 2 * d];
  for (uint32_t i = 0; i < sizeof box; ++i) box[i] = static_cast<std::byte>(i * 2654435761u >> 24);
  const uint16_t steps[2 * runs] = {0x3F80, 0x3F00, 0x3E80, 0x3F00, 0x3F80, 0x3D00};  // 1, 1/2, 1/4; 1/2, 1, 1/32
  std::memcpy(box, steps, sizeof steps);
  float q[count * d], found[3 * count];
  for (uint32_t i = 0; i < count * d; ++i) q[i] = static_cast<float>(static_cast<int>(i * 29 % 31) - 15) / 4.0f;
  k.box_scores(box, d, q, count, found);
  for (uint32_t i = 0; i < count; ++i) {
    double middle = 0, reach = 0, squares = 0;
    for (uint32_t c = 0; c < d; ++c) {
      const double m = bf16_to_f32(steps[c / kBoxRun]) * (std::to_integer<int>(box[4 * runs + c]) - 128);
      const double wide =
          std::fabs(q[i * d + c]) * bf16_to_f32(steps[runs + c / kBoxRun]) * std::to_integer<int>(box[4 * runs + d + c]);
      middle += q[i * d + c] * m, reach += wide, squares += wide * wide;
    }
    if (!near(found[3 * i], middle, 1e-2) || !near(found[3 * i + 1], reach, 1e-5 * reach) ||
        !near(found[3 * i + 2], squares, 1e-5 * squares))
      return false;
  }
  return true;
}

bool codes_work(const Kernels& k) {
  constexpr uint32_t d = 32, n = 16;
  for (const uint32_t bits : {2u, 3u, 4u, 8u}) {
    const Lanes lanes(n, d, bits);
    std::vector<uint16_t> codes(n * d);
    for (uint32_t i = 0; i < n * d; ++i) codes[i] = static_cast<uint16_t>((i * 2654435761u >> 16) & ((1u << bits) - 1u));
    std::vector<std::byte> packed(lanes.bytes());
    lanes.pack(codes.data(), d, 1, packed.data());
    PackedSide side = lanes.packed_side();
    side.group = d, side.across = n, side.factor_planes = 2;
    std::vector<int8_t> bytes(kernel_bytes(d, 1));
    std::vector<float> floats(kernel_floats(d, 1, 1)), scales(n, 0.5f), offsets(n, -1.0f);
    float q[d], out[n];
    for (uint32_t c = 0; c < d; ++c) q[c] = static_cast<float>(static_cast<int>(c * 29 % 31) - 15) / 4.0f;
    int8_t factors[2 * d];
    RoundedRow terms;
    k.round_queries(q, 1, d, d, 2, factors, &terms);
    k.scores_by_token(side, packed.data(), scales.data(), offsets.data(), factors, &terms, 1, n, out, n,
                      {bytes.data(), floats.data(), {}});
    for (uint32_t t = 0; t < n; ++t) {
      double want = 0, size = 0;
      for (uint32_t c = 0; c < d; ++c) want += q[c] * (0.5 * codes[t * d + c] - 1.0), size += std::fabs(q[c]) * (1u << bits);
      if (!near(out[t], want, 2e-4 * size)) return false;
    }
  }
  return true;
}

// A tile of keys there and back: fitted, coded and packed to the bits of the scalar code, and read as what those bits say.
bool blocks_work(const Kernels& k) {
  constexpr uint32_t d = 32, n = 16, levels = 8;
  float rows[n * d], tile[n * d], scales[n], offsets[n], back[n * d];
  for (uint32_t i = 0; i < n * d; ++i) rows[i] = static_cast<float>(static_cast<int>(i * 2654435761u >> 20) - 2048) / 97.0f;
  const Lanes lanes(n, d, 3);
  PackedSide side = lanes.packed_side();
  side.group = d, side.across = n;
  uint16_t codes[n * d];
  LaneFits fits = {};
  k.transpose_tile(rows, d, d, tile);
  k.fit_lanes(FitKind::midrise, tile, 16, d, levels, midrise_centre(levels), fits);
  for (uint32_t t = 0; t < n; ++t) {
    const GroupFit fit = fit_group(FitKind::midrise, rows + t * d, d, levels);
    if (fits.lo[t] != fit.lo || fits.hi[t] != fit.hi || fits.scale[t] != fit.scale || fits.step[t] != fit.step) return false;
    scales[t] = fit.step, offsets[t] = -3.5f * fit.step;
    code_group(rows + t * d, d, scales[t], offsets[t], levels, codes + t * d);
  }
  std::vector<std::byte> fast(lanes.bytes()), plain(lanes.bytes());
  uint8_t bytes[16 * d];
  LaneGrids grids;
  grids.per_lane = true, grids.scales = scales, grids.offsets = offsets;
  k.encode_tile(side, grids, 0, tile, 16, fast.data(), bytes);
  lanes.pack(codes, d, 1, plain.data());
  if (fast != plain) return false;
  k.decode_rows(side, grids, 0, plain.data(), back, d, bytes);
  for (uint32_t i = 0; i < n * d; ++i) {
    if (back[i] != offsets[i / d] + scales[i / d] * static_cast<float>(codes[i])) return false;
  }
  return k.within(rows, n * d, 22.0f) && !k.within(rows, n * d, 20.0f);
}

}  // namespace

bool kernels_work(const Kernels& kernels) {
  return rows_work(kernels) && kept_weights_work(kernels) && three_bits_work(kernels) && boxes_work(kernels) &&
         codes_work(kernels) && blocks_work(kernels);
}

const Kernels* active_kernels() { return active().load(std::memory_order_relaxed); }

std::string_view active_isa() {
  const Kernels* k = active_kernels();
  return k ? k->isa : "scalar";
}

std::vector<std::string_view> available_isas() {
  std::vector<std::string_view> names;
  for (const Kernels* k : all_kernels()) names.push_back(k->isa);
  names.push_back("scalar");
  return names;
}

bool set_active_isa(std::string_view name) {
  const Kernels* k = find(name);
  if (!k && name != "scalar") return false;
  active().store(k, std::memory_order_relaxed);
  return true;
}

}  // namespace tierkv::quant
