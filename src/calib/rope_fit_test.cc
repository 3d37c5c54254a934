#include "calib/rope_fit.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "calib/calibration.h"
#include "solve/testing.h"

namespace tierkv::calib {
namespace {

Rope rope(uint32_t dim, bool halves, double base, double scale = 1.0) {
  Rope out;
  const auto pairs = static_cast<uint16_t>(dim / 2);
  for (uint16_t p = 0; p < pairs; ++p) {
    const auto a = static_cast<uint16_t>(halves ? p : 2 * p), b = static_cast<uint16_t>(halves ? p + pairs : 2 * p + 1);
    out.push_back({a, b, scale * std::pow(base, -static_cast<double>(p) / pairs)});
  }
  return out;
}

TEST(RopeFit, RoundingAndTheOrderOfAListChangeNothing) {
  const Rope one = rope(64, false, 1e4);
  Rope other(one.rbegin(), one.rend());
  for (RopePair& pair : other) {
    std::swap(pair.a, pair.b);
    pair.angle *= -1.00001;
  }
  other.push_back({70, 71, 0.0});  // does not turn
  EXPECT_EQ(compare(one, other), RopeFit::same);
  EXPECT_TRUE(check_ropes({one, one}, {one, other}).ok());
}

TEST(RopeFit, StretchedByAHundredthIsAnother) {
  const Rope own = rope(64, true, 1e4);
  EXPECT_EQ(compare(own, rope(64, true, 1e4, 1.01)), RopeFit::angles);
  EXPECT_EQ(compare(own, rope(64, true, 1.02e4)), RopeFit::angles);
  Rope broken = own;
  broken[3].angle = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(compare(own, broken), RopeFit::angles);
}

TEST(RopeFit, OtherPairsAreOtherKeys) {
  const Rope halves = rope(64, true, 1e4), neighbours = rope(64, false, 1e4), part = rope(32, false, 1e4);
  EXPECT_EQ(compare(halves, neighbours), RopeFit::pairs);
  EXPECT_EQ(compare(neighbours, part), RopeFit::pairs);
  EXPECT_EQ(compare(neighbours, {}), RopeFit::pairs);
  EXPECT_EQ(compare({neighbours}, {neighbours, neighbours}), RopeFit::pairs);
  EXPECT_EQ(compare(std::vector{neighbours, neighbours, neighbours}, {neighbours, halves, neighbours}), RopeFit::pairs);
}

TEST(RopeFit, RefusalsNameChannelsAnglesAndWhatToDo) {
  const Rope own = rope(64, false, 1e4);
  Rope slow = own;
  slow[31].angle /= 4;
  const Status angles = check_ropes({own, own}, {own, slow});
  EXPECT_EQ(angles.code(), StatusCode::invalid_argument);
  for (const char* part :
       {"layer 1", "channels 62 and 63", "0.000133352", "3.3338e-05", "1 of 64 pairs", "with_ropes()", "calibrate"})
    EXPECT_NE(angles.message().find(part), std::string::npos) << part << " in " << angles.message();
  const Status pairs = check_ropes({rope(64, true, 1e4)}, {own});
  for (const char* part : {"another order", "layer 0", "pairs 0 with 32", "pairs 0 with 1"})
    EXPECT_NE(pairs.message().find(part), std::string::npos) << part << " in " << pairs.message();
  EXPECT_NE(check_ropes({own}, {{}}).message().find("the model turns none"), std::string::npos);
}

TEST(RopeFit, ACalibrationIsComparedWhereTheModelsRopesAreKnown) {
  const CalibrationPtr calibration = solve::klt_calibration(SyntheticModel({}).statistics()).value();
  CalibrationInfo model = describe(*calibration);
  EXPECT_TRUE(check_fit(*calibration, model).ok());
  for (Rope& of : model.ropes) {
    for (RopePair& pair : of) pair.angle /= 4;
  }
  const Status status = check_fit(*calibration, model);
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_NE(status.message().find("another RoPE"), std::string::npos) << status.message();
  model.ropes.clear();
  EXPECT_TRUE(check_fit(*calibration, model).ok());
}

TEST(WithRopes, HasTheSameTablesAndAnIdOfItsOwn) {
  const CalibrationPtr own = solve::klt_calibration(SyntheticModel({}).statistics()).value();
  CalibrationInfo model = describe(*own);
  for (Rope& of : model.ropes) {
    for (RopePair& pair : of) pair.angle /= 4;
  }
  const auto copy = with_ropes(own, model.ropes);
  ASSERT_TRUE(copy.ok()) << copy.status().to_string();
  EXPECT_TRUE(check_fit(**copy, model).ok());
  EXPECT_FALSE(check_fit(**copy, describe(*own)).ok());
  EXPECT_NE((*copy)->id(), own->id());
  EXPECT_EQ((*copy)->id(), with_ropes(own, model.ropes).value()->id());
  EXPECT_EQ(describe(**copy).codecs, describe(*own).codecs);
  EXPECT_EQ((*copy)->turner(0).rope(), model.ropes[0]);
  EXPECT_EQ((*copy)->klt->heads[0].analysis, own->klt->heads[0].analysis);
  // A file of it is that one again. So is a copy of a calibration whose tables are still in their bytes.
  const std::vector<std::byte> bytes = (*copy)->serialize();
  EXPECT_EQ(Calibration::parse(bytes, "copy").value()->id(), (*copy)->id());
  const std::vector<std::byte> plain = own->serialize();
  const CalibrationPtr lazy = Calibration::parse(plain, "lazy", /*bytes_stay=*/true).value();
  ASSERT_EQ(lazy->klt, nullptr);
  EXPECT_EQ(with_ropes(lazy, model.ropes).value()->id(), (*copy)->id());
}

TEST(WithRopes, RefusesOtherPairsAndWhatIsNoNumber) {
  const CalibrationPtr own = solve::klt_calibration(SyntheticModel({}).statistics()).value();
  std::vector<Rope> ropes = own->ropes;
  ASSERT_FALSE(ropes[0].empty());
  EXPECT_EQ(with_ropes(nullptr, ropes).status().code(), StatusCode::invalid_argument);
  ropes[0][0].angle = std::numeric_limits<double>::infinity();
  EXPECT_EQ(with_ropes(own, ropes).status().code(), StatusCode::invalid_argument);
  ropes[0].pop_back();
  EXPECT_EQ(with_ropes(own, ropes).status().code(), StatusCode::invalid_argument);
  ropes.pop_back();
  EXPECT_EQ(with_ropes(own, ropes).status().code(), StatusCode::invalid_argument);
}

}  // namespace
}  // namespace tierkv::calib
