#include "calib/rope_fit.h"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <utility>

#include "base/status_macros.h"

namespace tierkv::calib {
namespace {

constexpr double kSame = 1e-4;  // of the larger of two angles

// The pairs that turn, the smaller channel first, in the order of those.
Rope canonical(const Rope& rope) {
  Rope out;
  for (RopePair pair : rope) {
    if (pair.angle == 0.0) continue;
    if (pair.a > pair.b) {
      std::swap(pair.a, pair.b);
      pair.angle = -pair.angle;
    }
    out.push_back(pair);
  }
  std::sort(out.begin(), out.end(), [](const RopePair& x, const RopePair& y) { return x.a < y.a; });
  return out;
}

double difference(double a, double b) {
  const double larger = std::max(std::fabs(a), std::fabs(b));
  return larger > 0.0 ? std::fabs(a - b) / larger : 0.0;
}

bool same_channels(const Rope& a, const Rope& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const RopePair& x, const RopePair& y) { return x.a == y.a && x.b == y.b; });
}

std::string channels_text(const Rope& rope) {
  if (rope.empty()) return "turns none";
  std::ostringstream text;
  text << "pairs " << rope.front().a << " with " << rope.front().b << " (" << rope.size() << " pairs)";
  return text.str();
}

}  // namespace

RopeFit compare(const Rope& made, const Rope& model) {
  const Rope a = canonical(made), b = canonical(model);
  if (!same_channels(a, b)) return RopeFit::pairs;
  for (size_t p = 0; p < a.size(); ++p) {
    if (!(difference(a[p].angle, b[p].angle) <= kSame)) return RopeFit::angles;
  }
  return RopeFit::same;
}

RopeFit compare(const std::vector<Rope>& made, const std::vector<Rope>& model) {
  if (made.size() != model.size()) return RopeFit::pairs;
  RopeFit worst = RopeFit::same;
  for (size_t l = 0; l < made.size(); ++l) worst = std::max(worst, compare(made[l], model[l]));
  return worst;
}

std::string describe_difference(const std::vector<Rope>& made, const std::vector<Rope>& model) {
  std::ostringstream text;
  if (made.size() != model.size()) {
    text << "RoPE of " << made.size() << " layers against " << model.size();
    return text.str();
  }
  size_t others = 0, all = 0, layer = 0;
  RopePair there, here;
  double worst = 0.0;
  for (size_t l = 0; l < made.size(); ++l) {
    const Rope a = canonical(made[l]), b = canonical(model[l]);
    if (!same_channels(a, b)) {
      text << "in layer " << l << " it " << channels_text(a) << ", and the model " << channels_text(b);
      return text.str();
    }
    for (size_t p = 0; p < a.size(); ++p, ++all) {
      const double off = difference(a[p].angle, b[p].angle);
      others += off > kSame;
      if (off <= worst) continue;
      worst = off, layer = l, there = a[p], here = b[p];
    }
  }
  text << "in layer " << layer << " channels " << there.a << " and " << there.b << " turn by " << there.angle
       << " a position there and by " << here.angle << " here, and " << others << " of " << all << " pairs differ";
  return text.str();
}

Status check_ropes(const std::vector<Rope>& made, const std::vector<Rope>& model) {
  const RopeFit fit = compare(made, model);
  if (fit == RopeFit::same) return {};
  const std::string what = describe_difference(made, model);
  if (fit == RopeFit::pairs) {
    return error(StatusCode::invalid_argument, "the calibration's keys have their channels in another order: ", what,
                 "; a calibration serves the side it was made on (libllama's neighbours or torch's halves): make one there");
  }
  return error(
      StatusCode::invalid_argument, "the calibration was made with another RoPE: ", what,
      "; with_ropes() gives its tables the model's, and `tierkv calibrate` with the same --rope options makes better ones");
}

}  // namespace tierkv::calib
