#include "deep/archive.h"

#include <gtest/gtest.h>

#include "base/checksum.h"
#include "deep/testing.h"
#include "quant/isa.h"

namespace tierkv::deep {
namespace {

using namespace tierkv::deep::testing;
using Bytes = std::vector<std::byte>;

EncodeOptions at_ratio(double ratio) {
  EncodeOptions options;
  options.ratio = ratio;
  return options;
}

Bytes encoded(const Text& text, const EncodeOptions& options, EncodeReport* report = nullptr, uint64_t id = 42) {
  auto bytes = encode(model().model_tables(id), text.first, text.tokens, text.reader(), options, report);
  EXPECT_TRUE(bytes.ok()) << bytes.status().to_string();
  return bytes.ok() ? std::move(*bytes) : Bytes{};
}

void reseal(Bytes& bytes) {
  const uint64_t length = bytes.size();
  std::memcpy(bytes.data() + 16, &length, sizeof length);
  const uint64_t sum = checksum(std::span<const std::byte>(bytes).first(bytes.size() - 8));
  std::memcpy(bytes.data() + bytes.size() - 8, &sum, sizeof sum);
}

TEST(DeepArchive, SolvesAMadeUpModel) { ASSERT_TRUE(model().status().ok()) << model().status().to_string(); }

TEST(DeepArchive, MeetsRatiosWithinTwoPercent) {
  const Text text = model().text(1100);
  double last = 0.0;
  for (const double ratio : {8.0, 16.0, 24.0}) {
    EncodeReport report;
    const Bytes bytes = encoded(text, at_ratio(ratio), &report);
    EXPECT_GE(report.ratio, ratio * 0.999);
    EXPECT_LE(report.ratio, ratio * 1.02);
    EXPECT_EQ(report.bytes, bytes.size());
    const Decoded back = decoded(bytes, model().model_tables(), text.tokens);
    ASSERT_TRUE(back.status.ok()) << back.status.to_string();
    const double error = relative_error(text, back.text);
    EXPECT_GT(error, last);  // less room, more error
    EXPECT_LT(error, 0.5);
    last = error;
    EXPECT_EQ(report.raw, 0u);
  }
}

TEST(DeepArchive, MeetsQuality) {
  const Text text = model().text(700);
  for (const double quality : {0.9, 0.99, 0.999}) {
    EncodeOptions options;
    options.quality = quality;
    EncodeReport report;
    (void)encoded(text, options, &report);
    EXPECT_GE(report.quality, quality);
    EXPECT_LE(1.0 - report.quality, 1.0 - quality);
    EXPECT_GE(1.0 - report.quality, 0.8 * (1.0 - quality));
  }
}

TEST(DeepArchive, PredictionPays) {
  const Text text = model().text(600);
  EncodeReport report;
  EncodeOptions options;
  options.quality = 0.995;
  (void)encoded(text, options, &report);
  EXPECT_EQ(report.predicted + report.plain, kLayers * 10u);
  EXPECT_GE(report.predicted, (kLayers - 1) * 10u / 2);  // the first layer has nothing to be predicted from
}

TEST(DeepArchive, TakesRunsOfAnyLength) {
  for (const uint32_t tokens : {1u, 2u, 63u, 64u, 65u, 511u, 512u, 513u}) {
    const Text text = model().text(tokens, 100);
    EncodeOptions options;
    options.quality = 0.98;
    const Bytes bytes = encoded(text, options);
    const Decoded back = decoded(bytes, model().model_tables(), tokens);
    ASSERT_TRUE(back.status.ok()) << tokens << ": " << back.status.to_string();
    EXPECT_LT(relative_error(text, back.text), 0.2) << tokens;
    const auto info = inspect(bytes);
    ASSERT_TRUE(info.ok());
    EXPECT_EQ(info->tokens, tokens);
    EXPECT_EQ(info->first_position, 100u);
  }
}

TEST(DeepArchive, EveryInstructionSetAndThreadCountGivesTheSameBits) {
  const Text text = model().text(700);
  const std::string_view active = quant::active_isa();
  Bytes written;
  std::vector<Decoded> results;
  for (const std::string_view isa : quant::available_isas()) {
    ASSERT_TRUE(quant::set_active_isa(isa));
    const Bytes bytes = encoded(text, at_ratio(16));
    if (written.empty()) written = bytes;
    for (const uint32_t threads : {1u, 3u}) {
      results.push_back(decoded(written, model().model_tables(), text.tokens, threads));
      ASSERT_TRUE(results.back().status.ok()) << isa << ": " << results.back().status.to_string();
      EXPECT_EQ(results.back().text.keys, results[0].text.keys) << isa;
      EXPECT_EQ(results.back().text.values, results[0].text.values) << isa;
    }
    // And what it wrote itself is read by the first.
    ASSERT_TRUE(quant::set_active_isa(quant::available_isas().front()));
    EXPECT_TRUE(decoded(bytes, model().model_tables(), text.tokens).status.ok()) << isa;
  }
  ASSERT_TRUE(quant::set_active_isa(active));
}

TEST(DeepArchive, MattersMoreMeansBetter) {
  const Text text = model().text(512);
  std::vector<float> weights(kLayers * 512, 1.0f);
  for (uint32_t l = 0; l < kLayers; ++l) {
    for (uint32_t t = 0; t < 512; t += 8) weights[l * 512 + t] = 16.0f;
  }
  EncodeOptions options = at_ratio(16);
  options.weights = weights;
  options.weight_power = 1.0;
  const Decoded back = decoded(encoded(text, options), model().model_tables(), 512);
  ASSERT_TRUE(back.status.ok());
  double heavy = 0.0, light = 0.0;
  const size_t width = static_cast<size_t>(kHeads) * kDim;
  for (uint32_t l = 0; l < kLayers; ++l) {
    for (size_t i = 0; i < text.keys[l].size(); ++i) {
      const double e = text.keys[l][i] - back.text.keys[l][i];
      (i / width % 8 == 0 ? heavy : light) += e * e / (i / width % 8 == 0 ? 1.0 : 7.0);
    }
  }
  EXPECT_LT(2.0 * heavy, light);
}

TEST(DeepArchive, NothingBlowsUp) {
  std::mt19937 rng(3);
  std::normal_distribution<float> normal;
  const Text plain = model().text(200);
  const auto check = [&](const char* what, const Text& text, double worst) {
    EncodeReport report;
    const Bytes bytes = encoded(text, at_ratio(16), &report);
    const Decoded back = decoded(bytes, model().model_tables(), text.tokens);
    ASSERT_TRUE(back.status.ok()) << what << ": " << back.status.to_string();
    EXPECT_LT(relative_error(text, back.text), worst) << what;
    EXPECT_LT(bytes.size(), 2 * 4ull * text.tokens * kLayers * kHeads * kDim + 1000) << what;
  };
  Text spikes = plain;
  for (uint32_t l = 0; l < kLayers; ++l) {
    for (int i = 0; i < 20; ++i) spikes.keys[l][rng() % spikes.keys[l].size()] = (i % 2 ? 1.0f : -1.0f) * 3000.0f;
  }
  check("spikes", spikes, 1.0);
  Text huge = plain;
  for (auto* side : {&huge.keys, &huge.values}) {
    for (auto& layer : *side) {
      for (float& x : layer) x *= 10000.0f;
    }
  }
  check("huge", huge, 1.0);
  Text constant = plain;
  for (auto* side : {&constant.keys, &constant.values}) {
    for (auto& layer : *side) std::fill(layer.begin(), layer.end(), 0.5f);
  }
  check("constant", constant, 1.26);
  Text noise = plain;
  for (auto* side : {&noise.keys, &noise.values}) {
    for (auto& layer : *side) {
      for (float& x : layer) x = normal(rng);
    }
  }
  check("noise", noise, 1.26);
  Text zeros = plain;
  for (auto* side : {&zeros.keys, &zeros.values}) {
    for (auto& layer : *side) std::fill(layer.begin(), layer.end(), 0.0f);
  }
  const Decoded back = decoded(encoded(zeros, at_ratio(16)), model().model_tables(), zeros.tokens);
  ASSERT_TRUE(back.status.ok());
}

TEST(DeepArchive, RefusesWhatIsNotFinite) {
  Text text = model().text(100);
  text.values[2][777] = std::numeric_limits<float>::quiet_NaN();
  const auto bytes = encode(model().model_tables(), 4, 100, text.reader(), at_ratio(16));
  ASSERT_FALSE(bytes.ok());
  EXPECT_EQ(bytes.status().code(), StatusCode::invalid_argument);
}

TEST(DeepArchive, RefusesBadTargets) {
  const Text text = model().text(64);
  EncodeOptions options;
  for (const auto& [ratio, quality] : {std::pair{0.0, 0.0}, {16.0, 0.9}, {1.0, 0.0}, {1e9, 0.0}, {0.0, 1.0}}) {
    options.ratio = ratio;
    options.quality = quality;
    EXPECT_EQ(encode(model().model_tables(), 4, 64, text.reader(), options).status().code(), StatusCode::invalid_argument);
  }
}

TEST(DeepArchive, RefusesAnotherCalibration) {
  const Text text = model().text(64);
  const Bytes bytes = encoded(text, at_ratio(10));
  EXPECT_EQ(decoded(bytes, model().model_tables(43), 64).status.code(), StatusCode::failed_precondition);
}

TEST(DeepArchive, RefusesEveryFlippedBitAndEveryTruncation) {
  const Text text = model().text(70);
  const Bytes good = encoded(text, at_ratio(20));
  for (size_t at = 0; at < good.size(); ++at) {
    Bytes bad = good;
    bad[at] ^= static_cast<std::byte>(1u << (at % 8));
    ASSERT_FALSE(decoded(bad, model().model_tables(), 70).status.ok()) << at;
    ASSERT_FALSE(inspect(std::span(good).first(at)).ok()) << at;
  }
}

TEST(DeepArchive, SurvivesDamageThatItsChecksumDoesNotSee) {
  const Text text = model().text(130);
  const Bytes good = encoded(text, at_ratio(20));
  std::mt19937 rng(5);
  int refused = 0, rounds = 0;
  for (size_t at = 8; at + 8 < good.size(); at += at < 200 ? 1 : 1 + rng() % 40) {
    Bytes bad = good;
    bad[at] ^= static_cast<std::byte>(1u + rng() % 255);
    reseal(bad);
    refused += !decoded(bad, model().model_tables(), 130).status.ok();
    ++rounds;
  }
  EXPECT_GE(refused, rounds - 30);  // the check of rebuilt rows sees all but positions and centroids that no level uses
  for (size_t cut = 1; cut < good.size() - 100; cut += 97) {
    Bytes bad(good.begin(), good.end() - static_cast<ptrdiff_t>(cut));
    reseal(bad);
    ASSERT_FALSE(decoded(bad, model().model_tables(), 130).status.ok()) << cut;
  }
}

TEST(DeepTables, AreTheSameFromTheirFile) {
  ByteWriter out;
  model().tables().write(out);
  ByteReader in(out.bytes());
  auto read = calib::DeepTables::read(in, model().statistics().model);
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  EXPECT_TRUE(in.at_end());
  ByteWriter again;
  read->write(again);
  EXPECT_EQ(out.bytes(), again.bytes());
  for (size_t cut = 0; cut < out.bytes().size(); cut += 1 + out.bytes().size() / 200) {
    ByteReader part(std::span<const std::byte>(out.bytes()).first(cut));
    EXPECT_FALSE(calib::DeepTables::read(part, model().statistics().model).ok()) << cut;
  }
}

TEST(DeepTables, WeighTokensAgainstTheOrdinaryOneOfTheirLayer) {
  const calib::Statistics& s = model().statistics();
  const calib::DeepTables& tables = model().tables();
  const size_t width = static_cast<size_t>(kHeads) * kDim;
  for (const calib::DeepLayer& layer : tables.coded) {
    std::vector<float> logs, x(2 * width), centred(2 * width);
    double a = 0.0, b = 0.0, aa = 0.0, bb = 0.0, ab = 0.0;
    for (uint32_t i = 0; i < s.sampled(); ++i) {
      for (size_t c = 0; c < width; ++c) {
        x[c] = f16_to_f32(s.layers[layer.layer].keys[i * width + c]);
        x[width + c] = f16_to_f32(s.layers[layer.layer].values[i * width + c]);
      }
      model().model_tables().turner(layer.layer).turn(x.data(), kHeads, -static_cast<int64_t>(s.positions[i]), x.data());
      for (size_t c = 0; c < 2 * width; ++c) centred[c] = x[c] - layer.mean[c];
      double truth = 0.0;
      for (uint32_t h = 0; h < kHeads; ++h) truth += std::exp(x[h * kDim]);
      const double ours = tables.log_weight(layer, x.data(), centred.data()), true_log = std::log(truth);
      logs.push_back(static_cast<float>(ours));
      a += ours, b += true_log, aa += ours * ours, bb += true_log * true_log, ab += ours * true_log;
    }
    const double n = s.sampled(), correlation = (ab - a * b / n) / std::sqrt((aa - a * a / n) * (bb - b * b / n));
    EXPECT_GT(correlation, 0.8) << layer.layer;
    std::nth_element(logs.begin(), logs.begin() + static_cast<ptrdiff_t>(logs.size() / 2), logs.end());
    EXPECT_NEAR(logs[logs.size() / 2], 0.0, 0.2) << layer.layer;
  }
}

TEST(DeepTables, RefuseSumsThatOverflow) {
  calib::DeepTables tables = model().tables();
  tables.coded[1].predict.assign(tables.coded[1].predict.size(), 20000);
  ByteWriter out;
  tables.write(out);
  ByteReader in(out.bytes());
  EXPECT_FALSE(calib::DeepTables::read(in, model().statistics().model).ok());
}

TEST(DeepTables, RefuseStatisticsThatSayNothing) {
  calib::Statistics s = model().statistics();
  for (calib::PairSums& p : s.pairs) p.key_plain.assign(p.key_plain.size(), 0.0);
  EXPECT_EQ(solve::solve_deep(s, {}).status().code(), StatusCode::invalid_argument);
  s = model().statistics();
  s.pairs[0].value[3] = std::numeric_limits<double>::infinity();
  EXPECT_EQ(solve::solve_deep(s, {}).status().code(), StatusCode::invalid_argument);
  s = model().statistics();
  s.positions.resize(100);
  EXPECT_EQ(solve::solve_deep(s, {}).status().code(), StatusCode::invalid_argument);
}

}  // namespace
}  // namespace tierkv::deep
