// Blocks that go to a machine to be encoded, on the tests' one: rows as floats and as a tail has them, beside what callers asked
// for.
#include "cuda/encode/encode_batch.h"

#include <gtest/gtest.h>

#include "attn/cpu_backend.h"
#include "base/f16.h"
#include "cuda/encode/encode_failing_testing.h"
#include "cuda/encode/encode_testing.h"
#include "cuda/twin_machine_testing.h"

namespace tierkv::cuda {
namespace {

using testing::EncodeCase;
using testing::TwinMachine;

// Every codec that the encoders know, each with rows of three kinds: floats, fp16 and bf16 of a tail.
class Works {
 public:
  Works() : cases_(testing::encode_cases({16, 64})) {
    for (const EncodeCase& of : cases_) {
      for (const int kind : {0, 1, 2}) {
        rows_.push_back(testing::rows_of_kind(of, static_cast<uint32_t>(kind), 131));
        std::vector<uint16_t>& halves = halves_.emplace_back();
        for (const float x : rows_.back()) halves.push_back(kind == 2 ? f32_to_bf16(x) : f32_to_f16(x));
      }
    }
    for (size_t i = 0; i < rows_.size(); ++i) {
      const EncodeCase& of = cases_[i / 3];
      made_.emplace_back(of.codec->bytes()), wanted_.emplace_back(of.codec->bytes());
      attn::EncodeWork work{of.codec.get(), i % 3 == 0 ? rows_[i].data() : nullptr, {0, 0, 131}, made_.back(), {}};
      if (i % 3 != 0) work.tail = {halves_[i].data(), i % 3 == 2, nullptr, 0, 0, false};
      works.push_back(work);
      work.out = wanted_.back();
      reference_.push_back(work);
    }
    attn::cpu_backend().encode(reference_, attn::in_turn());
  }
  void check() {
    for (size_t i = 0; i < works.size(); ++i) {
      ASSERT_EQ(works[i].status.ok(), reference_[i].status.ok()) << cases_[i / 3].name;
      if (!works[i].status.ok()) continue;
      ASSERT_EQ(made_[i], wanted_[i]) << cases_[i / 3].name << " " << i % 3;
      std::fill(made_[i].begin(), made_[i].end(), std::byte{0});
    }
  }
  std::vector<attn::EncodeWork> works;

 private:
  std::vector<EncodeCase> cases_;
  std::vector<std::vector<float>> rows_;
  std::vector<std::vector<uint16_t>> halves_;
  std::vector<std::vector<std::byte>> made_, wanted_;
  std::vector<attn::EncodeWork> reference_;
};

TEST(EncodeBatch, RowsOfATailMakeTheBytesOfTheirFloats) {
  for (const bool lazy : {false, true}) {
    TwinMachine machine({7, true}, 0, lazy);
    EncodeBatch batch(machine);
    Works all;
    for (int round = 0; round < 2; ++round) {
      batch.encode(all.works, attn::in_turn());
      all.check();
    }
    EXPECT_GT(batch.encoded(), all.works.size());
    EXPECT_EQ(machine.encodes, 2u);
  }
}

TEST(EncodeBatch, WaitsForNothingThatOthersAskedFor) {
  TwinMachine machine({7, true}, 0, true);
  EncodeBatch batch(machine);
  Works all;
  batch.encode(all.works, attn::in_turn());  // it has its memory now
  uint8_t* const there = *machine.allocate(4);
  ASSERT_TRUE(machine.wait().ok());
  const uint32_t word = 77;
  ASSERT_TRUE(machine.send(there, &word, sizeof word).ok());
  const uint64_t waits = machine.waits;
  batch.encode(all.works, attn::in_turn());
  all.check();
  EXPECT_EQ(machine.waits, waits);
  EXPECT_EQ(machine.waits_aside, 2u);
  EXPECT_EQ(*reinterpret_cast<uint32_t*>(there), 0u) << "on its way still";
  ASSERT_TRUE(machine.wait().ok());
  EXPECT_EQ(*reinterpret_cast<uint32_t*>(there), 77u) << "what comes after is asked for where it was before";
  machine.release(there);
}

TEST(EncodeBatch, WhatFailsThereIsTheProcessors) {
  testing::for_failing_sends([] { return Works(); });
}

}  // namespace
}  // namespace tierkv::cuda
