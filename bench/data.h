// data.h — random rows with the shapes of trouble that keys and values have, and attention in double precision to measure against.
//
// Deterministic on every machine: the generator and the transforms are our own, not the standard library's distributions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tierkv::bench {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next();   // splitmix64
  double uniform();  // (0, 1)
  double normal();
  double student3();  // Student's t with 3 degrees of freedom, scaled to unit variance: single values far out

 private:
  uint64_t state_;
};

enum class Shape {
  gaussian,  // independent standard normal
  heavy,     // independent Student-t with 3 degrees of freedom
  outlier,   // what keys of real models look like: every channel has its own mean and width, a few are ten times wider and far from
             // 0
};
inline constexpr Shape kShapes[] = {Shape::gaussian, Shape::heavy, Shape::outlier};
const char* shape_name(Shape shape);

// tokens x dim, row-major. `channel_seed` picks the channels of the outlier shape: one model, many rows.
std::vector<float> make_rows(Shape shape, uint32_t tokens, uint32_t dim, uint64_t seed, uint64_t channel_seed = 7);

// Gaussian queries scaled so that q·k/sqrt(dim) has standard deviation `spread` over the given keys: 2 makes attention look at a
// few dozen of a thousand tokens.
std::vector<float> make_queries(std::span<const float> keys, uint32_t count, uint32_t dim, double spread, uint64_t seed);

// softmax(q·K^T/sqrt(dim))·V in double precision for `count` queries over `tokens` rows. The stride is between rows, in elements.
std::vector<double> attention_reference(const float* queries, uint32_t count, const float* keys, const float* values,
                                        uint32_t tokens, uint32_t dim, size_t stride);

// ||a - b|| / ||b||
double relative_error(std::span<const float> a, std::span<const double> b);

}  // namespace tierkv::bench
