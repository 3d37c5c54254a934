// encode_testing.h — codecs and rows for tests of the encoders.
#pragma once

#include <cmath>
#include <cstdlib>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cuda/encode/encode_twin_testing.h"
#include "quant/table_testing.h"

namespace tierkv::cuda::testing {

// A codec that the encoders know, of every kind: name, and which side.
struct EncodeCase {
  std::string name;
  quant::Side side;
  quant::BlockShape shape;
  std::unique_ptr<quant::Codec> codec;
  quant::SideCoding coding;
};

inline std::vector<EncodeCase> encode_cases(quant::BlockShape shape) {
  std::vector<EncodeCase> cases;
  for (const char* name : {"fp16",
                           "bf16",
                           "int8",
                           "int8-g32",
                           "int8+had",
                           "kivi2",
                           "kivi3",
                           "kivi4",
                           "kivi8",
                           "kivi2-g32",
                           "kivi4-g64",
                           "kivi3-g16",
                           "kivi2+s8",
                           "kivi2+s4",
                           "kivi4-g48",
                           "kivi4+had",
                           "kivi2+center",
                           "mid2",
                           "mid3",
                           "mid4",
                           "mid6",
                           "rot2",
                           "rot3",
                           "rot4",
                           "rot8",
                           "even2",
                           "even3",
                           "even4",
                           "even5",
                           "even8",
                           "kivi4+had+center+s8",
                           "klt1.5",
                           "klt1.875",
                           "klt2.5",
                           "kltk2",
                           "kltk4",
                           "klt4"}) {
    for (const quant::Side side : {quant::Side::key, quant::Side::value}) {
      const auto parsed = quant::parse_codec(name);
      if (!parsed.ok()) std::abort();  // a name of this list that is none
      const quant::CodecSpec spec = *parsed;
      if (!quant::testing::has_side(*quant::find_codec_row(spec.id), side)) continue;
      auto codec = quant::testing::make_any_codec(spec, side, shape);
      if (!codec.ok()) continue;
      quant::SideCoding coding;
      if (!(*codec)->coding(coding) || !codable(coding)) continue;
      cases.push_back({name, side, shape, std::move(codec).value(), coding});
    }
  }
  return cases;
}

// Rows of many kinds: usual ones, and what a fit could stumble over. `kind` < kRowKinds.
inline constexpr uint32_t kRowKinds = 14;
inline std::vector<float> rows_of_kind(const EncodeCase& of, uint32_t kind, uint32_t position) {
  const quant::BlockShape shape = of.shape;
  std::vector<float> rows = quant::testing::random_rows(shape, 100 + kind);
  if (quant::testing::calibrated(*of.codec)) rows = quant::testing::TableModel::of(shape.head_dim).turned(rows, position);
  std::mt19937 rng(kind);
  std::uniform_int_distribution<size_t> any(0, rows.size() - 1);
  const auto all = [&](auto change) {
    for (size_t i = 0; i < rows.size(); ++i) rows[i] = change(rows[i], i);
  };
  switch (kind) {
    case 1: all([](float, size_t) { return 0.0f; }); break;
    case 2: all([](float, size_t) { return 0.421875f; }); break;
    case 3: all([](float x, size_t) { return 1e-38f * x; }); break;
    case 4: all([](float x, size_t) { return 1e-32f * x; }); break;
    case 5: all([](float x, size_t) { return 3e3f * x; }); break;
    case 6: all([](float x, size_t) { return 1e27f * x; }); break;
    case 7: all([&](float x, size_t i) { return i / shape.head_dim % 2 ? 0.0f : -x; }); break;
    case 8: all([&](float x, size_t i) { return i % shape.head_dim % 3 ? x : 0.0f; }); break;
    case 9: all([&](float x, size_t i) { return x * std::exp2(static_cast<float>(i / shape.head_dim % 24) - 12.0f); }); break;
    case 10: rows[any(rng)] = std::numeric_limits<float>::quiet_NaN(); break;
    case 11: rows[any(rng)] = -std::numeric_limits<float>::infinity(); break;
    case 12: rows[any(rng)] = 2e30f; break;
    case 13: all([](float x, size_t i) { return i % 7 == 3 ? -0.0f : std::round(4.0f * x) / 4.0f; }); break;
    default: break;
  }
  return rows;
}

}  // namespace tierkv::cuda::testing
