// demote_testing.h — blocks whose rows become blocks of another codec, for tests of who decodes them: of every warm codec into
// every archive one, whole blocks, and runs of rows that cuts and evictions leave.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "attn/backend.h"
#include "cuda/encode/encode_testing.h"

namespace tierkv::cuda::testing {

// 4-bit ones and what else falls out of how they are laid out: every kind of metadata, frame and plane.
inline const std::vector<std::string> kDecodable = {"even4",
                                                    "rot4",
                                                    "kivi4",
                                                    "kivi4-g32",
                                                    "mid4",
                                                    "int8",
                                                    "kivi8-g16",
                                                    "kivi4+had+center",
                                                    "kivi4+center+s8",
                                                    "kivi3+s8",
                                                    "kivi2+s4",
                                                    "kivi4-g48",
                                                    "even3",
                                                    "turbo4",
                                                    "turbo3",
                                                    "kivi12",
                                                    "fp16",
                                                    "bf16"};

class Demotions {
 public:
  static constexpr uint32_t kBlocks = 3, kCuts = 4, kPosition = 131;

  // Blocks of `shape` become ones of twice as many tokens.
  Demotions(const std::vector<std::string>& from, const std::vector<std::string>& to, quant::BlockShape shape) {
    const quant::BlockShape twice{2 * shape.tokens, shape.head_dim};
    for (const std::string& name : to) {
      for (const quant::Side side : {quant::Side::key, quant::Side::value}) {
        auto codec = make(name, side, twice);
        if (codec) targets_.push_back({name, std::move(codec)});
      }
    }
    for (const std::string& name : from) add_blocks(name, shape);
    for (const Blocks& blocks : sources_) {
      for (const Named& target : targets_) {
        for (uint32_t cut = 0; cut < kCuts; ++cut) add_work(blocks, target, cut);
      }
    }
    for (size_t i = 0; i < lists_.size(); ++i) works[i].blocks = lists_[i], works[i].out = made_[i];
  }

  // Forgets what was made.
  void check() {
    for (size_t i = 0; i < works.size(); ++i) {
      SCOPED_TRACE(names_[i]);
      ASSERT_EQ(works[i].status.ok(), taken_[i]) << works[i].status.message();
      if (!taken_[i]) continue;
      ASSERT_EQ(made_[i], wanted_[i]);
      std::fill(made_[i].begin(), made_[i].end(), std::byte{0xEE});
    }
  }
  uint64_t taken() const { return static_cast<uint64_t>(std::count(taken_.begin(), taken_.end(), true)); }

  std::vector<attn::EncodeWork> works;
  std::vector<attn::BlockView> views;  // of all blocks
  uint64_t floats = 0;                 // that the rows of all works are

 private:
  struct Named {
    std::string name;
    std::unique_ptr<quant::Codec> codec;
  };
  struct Blocks {
    Named key, value;
    size_t first_view;
  };

  static std::unique_ptr<quant::Codec> make(const std::string& name, quant::Side side, quant::BlockShape shape) {
    const auto spec = quant::parse_codec(name);
    if (!spec.ok()) std::abort();  // a name of a list that is none
    if (!quant::testing::has_side(*quant::find_codec_row(spec->id), side)) return nullptr;
    auto codec = quant::testing::make_any_codec(*spec, side, shape);
    return codec.ok() ? std::move(codec).value() : nullptr;
  }

  void add_blocks(const std::string& name, quant::BlockShape shape) {
    Blocks blocks{{name, make(name, quant::Side::key, shape)}, {name, make(name, quant::Side::value, shape)}, views.size()};
    if (!blocks.key.codec || !blocks.value.codec) return;
    for (uint32_t b = 0; b < kBlocks; ++b) {
      attn::BlockView view{blocks.key.codec.get(), blocks.value.codec.get(), {}, {}, {}, shape.tokens, seals_()};
      view.ctx.first_position = kPosition + b * shape.tokens;
      const auto rows =
          quant::testing::TableModel::of(shape.head_dim).turned(quant::testing::random_rows(shape, 7 + b), view.ctx.first_position);
      for (const bool keys : {true, false}) {
        const quant::Codec& codec = keys ? *view.key_codec : *view.value_codec;
        std::vector<std::byte>& bytes = *bytes_.emplace_back(std::make_unique<std::vector<std::byte>>(codec.bytes()));
        EXPECT_TRUE(codec.encode(rows.data(), view.ctx, bytes).ok()) << name;
        (keys ? view.keys : view.values) = bytes;
      }
      views.push_back(view);
    }
    sources_.push_back(std::move(blocks));
  }

  // The first is of two whole blocks, the others of runs.
  std::vector<attn::BlockRows> runs_of(const Blocks& blocks, uint32_t rows, uint32_t cut) {
    std::vector<attn::BlockRows> runs;
    for (uint32_t left = rows, b = 0; left != 0; ++b) {
      const attn::BlockView& view = views[blocks.first_view + (cut == 0 ? b : rng_() % kBlocks)];
      const uint32_t first = cut == 0 ? 0 : static_cast<uint32_t>(rng_() % view.rows);
      const uint32_t most = std::min(left, view.rows - first);
      const uint32_t count = cut == 0 ? most : 1 + static_cast<uint32_t>(rng_() % most);
      runs.push_back({view, first, count});
      left -= count;
    }
    return runs;
  }

  void add_work(const Blocks& blocks, const Named& target, uint32_t cut) {
    const quant::Codec& codec = *target.codec;
    const quant::BlockShape shape = codec.shape();
    const bool keys = codec.side() == quant::Side::key;
    lists_.push_back(runs_of(blocks, shape.tokens, cut));
    std::vector<float> rows;
    for (const attn::BlockRows& run : lists_.back()) {
      std::vector<float> some(size_t{run.count} * shape.head_dim);
      const quant::Codec& from = keys ? *run.block.key_codec : *run.block.value_codec;
      from.decode(keys ? run.block.keys : run.block.values, run.block.ctx, run.first, run.count, some.data());
      rows.insert(rows.end(), some.begin(), some.end());
    }
    floats += rows.size();
    made_.emplace_back(codec.bytes()), wanted_.emplace_back(codec.bytes());
    const quant::BlockContext ctx{0, 0, kPosition, nullptr};
    taken_.push_back(codec.encode(rows.data(), ctx, wanted_.back()).ok());
    works.push_back({&codec, nullptr, ctx, {}, {}, {}, {}});
    names_.push_back((keys ? blocks.key.name : blocks.value.name) + " to " + target.name + (keys ? " keys" : " values") + ", cut " +
                     std::to_string(cut));
  }

  std::mt19937 rng_{5};
  std::mt19937_64 seals_{9};  // as checksums are, apart
  std::vector<Named> targets_;
  std::vector<Blocks> sources_;
  std::vector<std::unique_ptr<std::vector<std::byte>>> bytes_;
  std::vector<std::vector<attn::BlockRows>> lists_;
  std::vector<std::vector<std::byte>> made_, wanted_;
  std::vector<bool> taken_;
  std::vector<std::string> names_;
};

}  // namespace tierkv::cuda::testing
