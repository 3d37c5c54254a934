// klt_basis.h — a head's tables of calib/klt.h as the codec reads them: for the bits that its components have, with steps folded
// into rows and channels outermost, so that no sum runs across a register.
//
// Threads:  read by any number at a time; what a device asks for is made once, by the first.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "calib/calibration.h"
#include "quant/kernels.h"

namespace tierkv::quant {

struct KltBasis {
  // with_errors: tables of the error frame too, for better rows (Codec::error_channels()).
  KltBasis(const calib::KltHead& head, const calib::KltWords& words, uint32_t head_dim, bool with_errors);

  // f(component, bits, word, shift) for every component, in the order they are packed: widest first.
  template <class F>
  void for_each_code(const F& f) const {
    uint32_t j = 0;
    size_t word = 0;
    for (int w = calib::kKltWidths - 1; w >= 0; --w) {
      const uint32_t bits = calib::kKltBits[w];
      for (uint32_t n = 0; n < words.words[w]; ++n, ++word) {
        for (uint32_t k = 0; k < 32 / bits; ++k, ++j) f(j, bits, word, k % 4 * 8 + k / 4 * bits);
      }
    }
  }

  // What the vectors take; device_rows() and device_analysis() are left out: a device copies them into its own memory.
  size_t bytes() const;

  // rows of the components that have bits as a device reads them, fp16 [padded][d], made when one asks.
  const uint16_t* device_rows() const;
  // analysis in units of the steps, of these components, likewise: floats [d][padded].
  const float* device_analysis() const;

  const uint32_t head_dim;
  WordCounts words;
  uint32_t components = 0, padded = 0;  // in use; to whole vectors
  uint32_t known = 0;                   // in the tables below: padded, or more where errors are coded too
  std::vector<float> mean;              // [d]
  std::vector<float> weights;           // of the first components: what directions() gives is these times rows of analysis
  float floor = 0.0f;                   // of directions()
  std::vector<uint16_t> analysis;       // fp16 [d][known]
  std::vector<float> step;              // [known]: of the components; 1 for those that have no bits
  std::vector<float> shift;             // [known]: what a code is beside (analysis / step) · key
  std::vector<float> middle;            // [padded]: of the codes
  std::vector<uint16_t> rows;           // fp16 [d][known]: a step of each component
  std::vector<float> pair_units;        // [known]: what 1 is of each column of rows in 16-bit integers
  // [known] where errors are coded too: what 1 of the error frame is, in steps; and on a query's way there.
  std::vector<float> unit, into_errors;

 private:
  void build(const calib::KltHead& head, bool with_errors);
  uint32_t components_of_errors(const calib::KltHead& head) const;
  void weigh_directions(const calib::KltHead& head);
  void build_errors(const calib::KltHead& head);
  void measure_columns();

  mutable std::vector<uint16_t> device_rows_;
  mutable std::vector<float> device_analysis_;
  mutable std::once_flag device_rows_made_, device_analysis_made_;
};

// Brings n floats to kPairLength; 0 where there is nothing to bring.
float scale_to_pairs(const float* x, uint32_t n);

}  // namespace tierkv::quant
