#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "attn/cpu_backend.h"
#include "cuda/device_attention.h"
#include "cuda/prompt/prompt_check_testing.h"
#include "cuda/twin_machine_testing.h"

namespace tierkv::cuda {
namespace {

using testing::kAlone;
using testing::PromptScene;
using testing::PromptShape;
using testing::TwinMachine;

TEST(Prompt, EveryHalfOfAKeyTileHasAPlaceOfItsOwn) {
  for (const uint32_t dim : {64u, 128u, 256u}) {
    std::set<uint32_t> keys, values;
    for (uint32_t row = 0; row < kKeyTile; ++row) {
      for (uint32_t c = 0; c < dim; ++c) keys.insert(key_at(row, c)), values.insert(value_at(dim, row, c));
    }
    for (const auto& places : {keys, values}) {
      EXPECT_EQ(places.size(), size_t{kKeyTile} * dim);
      EXPECT_EQ(*places.rbegin(), key_tile_side(dim) - 2);
    }
  }
}

// Sequences of views that know nothing but their positions.
struct Bare {
  std::vector<std::vector<attn::BlockView>> views;  // [task·heads + head]
  std::vector<std::vector<Placed>> placed;
  std::vector<std::vector<uint32_t>> queries;  // [task]: positions
  std::list<std::vector<uint32_t>> lists;
  std::vector<PromptHead> heads;
  std::vector<PromptTask> tasks;
  uint32_t kv_heads = 1;
  PromptPlanInput input;

  explicit Bare(uint32_t seed) {
    std::mt19937 rng(seed);
    const auto pick = [&](uint32_t n) { return static_cast<uint32_t>(rng() % n); };
    kv_heads = 1 + pick(3);
    const uint32_t sequences = 1 + pick(3);
    for (uint32_t s = 0; s < sequences; ++s) {
      const uint32_t length = 1 + pick(900), tokens = 1 + pick(40);
      auto& positions = queries.emplace_back();
      for (uint32_t q = 0; q < tokens; ++q) positions.push_back(length < tokens ? q : length - tokens + q);
      for (uint32_t h = 0; h < kv_heads; ++h) {
        auto& list = views.emplace_back();
        for (uint32_t at = 0; at < length;) {
          attn::BlockView view;
          view.rows = std::min(1 + pick(attn::kMaxViewRows), length - at), view.ctx.first_position = at;
          if (pick(3) == 0) {
            auto& of = lists.emplace_back(view.rows);
            for (uint32_t r = 0; r < view.rows; ++r) of[r] = pick(4) == 0 ? attn::kDeadPosition : at + r;
            view.ctx.positions = of.data();
          }
          at += view.rows;
          list.push_back(view);
        }
      }
    }
    for (size_t l = 0; l < views.size(); ++l) {
      auto& list = placed.emplace_back(views[l].size());
      // An address that says which view it is.
      for (size_t v = 0; v < list.size(); ++v) list[v].keys = reinterpret_cast<const uint8_t*>((l << 20) + v + 1);
    }
    for (size_t l = 0; l < views.size(); ++l) heads.push_back({views[l], placed[l]});
    for (uint32_t s = 0; s < sequences; ++s)
      tasks.push_back({std::span(heads).subspan(size_t{s} * kv_heads, kv_heads), queries[s], s});
    input.tasks = tasks;
    input.group = 1 + pick(16), input.multiprocessors = 1 + pick(40);
    input.scratch_tiles = pick(2) ? 4 + pick(6) : 2048;
    input.params.causal = pick(4) != 0, input.params.window = pick(3) == 0 ? 1 + pick(600) : 0;
  }
};

bool sees(const attn::AttendParams& params, uint64_t at, uint64_t position) {
  return position != attn::kDeadPosition && !(params.causal && position > at) && !(params.window && position + params.window <= at);
}

// Of each scratch row of a round: its list, view and row, written by exactly one view.
struct Origin {
  size_t list = SIZE_MAX, view = 0;
  uint32_t row = UINT32_MAX;
};

TEST(PromptPlan, EveryQueryMeetsEveryRowThatItSeesOnce) {
  for (uint32_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    const Bare bare(seed);
    const PromptPlan plan = make_prompt_plan(bare.input);
    const uint32_t group = bare.input.group;
    // [list][query row][position in the list's rows]
    std::vector<std::map<std::pair<uint32_t, uint64_t>, int>> met(bare.views.size());
    std::set<uint32_t> begun;
    for (const PromptRound& round : plan.rounds) {
      ASSERT_LE(round.key_tiles, bare.input.scratch_tiles);
      std::vector<Origin> rows(size_t{round.key_tiles} * kKeyTile);
      std::vector<int> written(rows.size());
      for (uint32_t v = 0; v < round.views; ++v) {
        const PromptView& view = plan.views[round.first_view + v];
        const auto name = reinterpret_cast<size_t>(view.keys);
        ASSERT_EQ(view.to % kUnpackRows, 0u);
        for (uint32_t r = 0; r < view.filled; ++r) {
          ++written[view.to + r];
          rows[view.to + r] = {name >> 20, (name & 0xFFFFF) - 1, r < view.rows ? r : UINT32_MAX};
          if (r >= view.rows) continue;
          const attn::BlockView& of = bare.views[name >> 20][(name & 0xFFFFF) - 1];
          EXPECT_EQ(view.positions == kNoPositions ? view.first_position + r : plan.positions[view.positions + r], of.position(r));
        }
      }
      EXPECT_EQ(std::count(written.begin(), written.end(), 1), static_cast<ptrdiff_t>(written.size()));
      for (uint32_t i = 0; i < round.items; ++i) {
        const PromptItem& item = plan.items[round.first_item + i];
        const QueryTileDesc& tile = plan.tiles[item.tile];
        EXPECT_EQ(item.continues != 0, !begun.insert(item.slot).second);
        const auto* const slots = plan.slots.data() + tile.first_slot;
        EXPECT_EQ(std::count(slots, slots + tile.slots, item.slot), 1);
        const size_t list = size_t{tile.rows_of} * bare.kv_heads + tile.first_head / group;
        EXPECT_EQ(item.first_plain % 2, 1u);
        EXPECT_EQ(item.plain % 2, 0u);
        EXPECT_TRUE(item.plain == 0 || item.first_plain + item.plain <= item.keys);
        for (uint32_t k = item.first_key * kKeyTile; k < (item.first_key + item.keys) * kKeyTile; ++k) {
          ASSERT_EQ(rows[k].list, list);
          const KeyTileDesc& keys = plan.key_tiles[round.first_key_tile + k / kKeyTile];
          const bool live =
              rows[k].row != UINT32_MAX && bare.views[list][rows[k].view].position(rows[k].row) != attn::kDeadPosition;
          EXPECT_TRUE(live || !keys.whole);
          // And the one before: rows have maxima then.
          const bool plain = item.plain != 0 && k / kKeyTile - item.first_key - item.first_plain + 1 < item.plain + 1;
          EXPECT_TRUE(live || !plain);
          if (!live) continue;
          const uint32_t position = bare.views[list][rows[k].view].position(rows[k].row);
          EXPECT_TRUE(keys.low <= position && position <= keys.high);
          for (uint32_t r = 0; r < tile.rows; ++r) {
            const uint32_t at = bare.queries[tile.rows_of][(tile.first + r) / group];
            EXPECT_TRUE(tile.low <= at && at <= tile.high);
            EXPECT_TRUE(!plain || sees(bare.input.params, at, position));
            if (sees(bare.input.params, at, position)) {
              ++met[list][{tile.first + r, uint64_t{rows[k].view} << 32 | rows[k].row}];
            }
          }
        }
      }
    }
    for (size_t l = 0; l < bare.views.size(); ++l) {
      size_t pairs = 0;
      const auto& queries = bare.queries[l / bare.kv_heads];
      for (uint32_t q = 0; q < queries.size() * group; ++q) {
        for (const attn::BlockView& view : bare.views[l]) {
          for (uint32_t r = 0; r < view.rows; ++r) pairs += sees(bare.input.params, queries[q / group], view.position(r));
        }
      }
      EXPECT_EQ(met[l].size(), pairs);
      for (const auto& [pair, count] : met[l]) ASSERT_EQ(count, 1);
    }
  }
}

TEST(PromptPlan, FewQueriesKeepEveryMultiprocessorBusy) {
  std::vector<attn::BlockView> views(1024);
  std::vector<Placed> placed(views.size());
  for (uint32_t v = 0; v < views.size(); ++v) views[v].rows = 128, views[v].ctx.first_position = v * 128;
  const PromptHead head{views, placed};
  const std::vector<PromptHead> heads(8, head);
  std::vector<uint32_t> positions(32);
  for (uint32_t q = 0; q < 32; ++q) positions[q] = 1024 * 128 - 32 + q;
  const PromptTask task{heads, positions, 0};
  attn::AttendParams params;
  const PromptPlan plan = make_prompt_plan({{&task, 1}, params, 4, 132, {}, 2080});
  EXPECT_EQ(plan.rounds.size(), 4u);  // two heads each
  for (const PromptRound& round : plan.rounds) {
    uint32_t most = 0;
    for (uint32_t i = 0; i < round.items; ++i) most = std::max(most, plan.items[round.first_item + i].keys);
    EXPECT_GE(round.items, 120u);
    EXPECT_LE(most, 18u);  // of 2,048 tiles
  }
}

// Tiles that need no mask are found, as far as they follow one another: of a past in whole blocks nearly all.
TEST(PromptPlan, WholeTilesOfThePastArePlain) {
  constexpr uint32_t kBlocks = 300, kTokens = 256;
  for (const uint32_t window : {0u, 20'000u}) {
    for (const bool holes : {false, true}) {
      std::vector<attn::BlockView> views;
      for (uint32_t at = 0; at < kBlocks * 128; at += 128) {
        attn::BlockView& view = views.emplace_back();
        view.rows = 128, view.ctx.first_position = at;
        if (holes && at == 128 * 150) view.rows = 100;
      }
      const std::vector<Placed> placed(views.size());
      const PromptHead head{views, placed};
      std::vector<uint32_t> positions(kTokens);
      for (uint32_t q = 0; q < kTokens; ++q) positions[q] = kBlocks * 128 - kTokens + q;
      const PromptTask task{{&head, 1}, positions, 0};
      attn::AttendParams params;
      params.window = window;
      const PromptPlan plan = make_prompt_plan({{&task, 1}, params, 1, 2, {}, 2080});
      ASSERT_EQ(plan.items.size(), 2u);
      for (const PromptItem& item : plan.items) {
        // The first one is not; the last two hold tokens that are newer than some queries. A window begins in the first two.
        const uint32_t tiles = window ? 156 : kBlocks - 2;
        EXPECT_GE(item.keys, tiles);
        if (holes) EXPECT_LE(item.plain, 150u);
        else EXPECT_GE(item.plain, tiles - 4);
      }
    }
  }
}

// The first head of a scene, with the newest queries of its sequence.
struct OneHead {
  PromptPlan plan;
  std::vector<CodecDesc> codecs;  // by view
};
OneHead plan_one_head(testing::SceneShape shape) {
  shape.kv_heads = 1;
  TwinMachine machine;
  CodecTables tables(machine);
  const testing::Scene scene(shape, 6);
  EXPECT_TRUE(scene.status().ok());
  std::vector<Placed> placed;
  for (const attn::BlockView& view : scene.views(0))
    placed.push_back({nullptr, nullptr, *tables.find(*view.key_codec, *view.value_codec)});
  const PromptHead head{scene.views(0), placed};
  const std::vector<uint32_t> positions(20, shape.lengths[0] - 1);
  const PromptTask task{{&head, 1}, positions, 0};
  OneHead out;
  out.plan = make_prompt_plan({{&task, 1}, scene.shape().params, 4, 8, tables.on_host(), 64});
  EXPECT_EQ(out.plan.rounds.size(), 1u);
  for (const PromptView& view : out.plan.views) out.codecs.push_back(tables.on_host()[view.codec]);
  return out;
}

// Whole blocks in codes of one plane, and klt's, are unpacked a tile at a time; they are listed first and fill a tile.
TEST(PromptPlan, BlocksThatFillATileComeFirst) {
  for (const auto& [name, by_tile] : {std::pair<std::string, bool>{"klt1.25+top4", true},
                                      {"kivi2", true},
                                      {"mid4", true},
                                      {"rot4", false},
                                      {"even4", false},
                                      {"kivi3", false}}) {
    SCOPED_TRACE(name);
    testing::SceneShape shape;
    shape.codecs = {name}, shape.lengths = {1200}, shape.sinks = 4, shape.cut = true;
    const auto [plan, codecs] = plan_one_head(shape);
    uint32_t whole = 0;
    for (uint32_t v = 0; v < plan.views.size(); ++v) {
      const bool fits = unpacks_by_tile(codecs[v]) && plan.views[v].rows == kKeyTile;
      whole += fits;
      EXPECT_TRUE(!fits || (plan.views[v].to % kKeyTile == 0 && plan.views[v].filled == kKeyTile));
      EXPECT_EQ(fits, v < plan.rounds[0].tile_views);
    }
    EXPECT_EQ(whole != 0, by_tile);
    EXPECT_LT(whole, plan.views.size());
  }
}

// And values that have to enter the frame go the general way.
TEST(PromptPlan, FewerRowsChangeTheFrameOfValues) {
  using Names = std::vector<std::string>;
  struct Case {
    Names names;
    uint32_t blocks;
    bool rotated;
  };
  // 20 queries of a group of 4: 80 rows of results.
  for (const auto& [names, blocks, rotated] : {Case{{"kivi2"}, 9, false},
                                               {{"klt1.875"}, 9, true},
                                               {{"klt1.875"}, 1, true},
                                               {{"mid2", "kivi2", "mid2"}, 9, true},
                                               {{"mid2", "kivi2"}, 8, false},
                                               {{"kivi2", "mid2", "kivi2"}, 9, false}}) {
    SCOPED_TRACE(names[0] + ", " + std::to_string(names.size()));
    testing::SceneShape shape;
    shape.codecs = names, shape.lengths = {128 * blocks + 16};
    const auto [plan, codecs] = plan_one_head(shape);
    EXPECT_EQ(plan.value_frame, rotated);
    for (uint32_t v = 0; v < plan.views.size(); ++v) {
      const bool enters = rotated && codecs[v].value.hadamard == 0;
      EXPECT_EQ(!enters && plan.views[v].rows == kKeyTile, v < plan.rounds[0].tile_views);
    }
  }
  testing::SceneShape few;  // of which there are fewer than results
  few.codecs = {"mid2"}, few.block = 64, few.lengths = {64 + 16};
  EXPECT_FALSE(plan_one_head(few).plan.value_frame);
}

std::shared_ptr<DeviceAttention> twin(uint64_t memory = 0) {
  return std::make_shared<DeviceAttention>(std::make_unique<TwinMachine>(MachineFacts{7, true}, memory), 0);
}

void check(const DeviceAttention& device, const PromptShape& shape, uint32_t seed) {
  double worst = 0.0;
  testing::check_prompt(device, shape, seed, 3, worst);
}

TEST(PromptTwin, ReadsEveryCodec) {
  const auto device = twin();
  uint32_t i = 0;
  for (const std::string& name : testing::readable_codecs()) {
    SCOPED_TRACE(name);
    PromptShape shape;
    shape.scene.head_dim = std::vector<uint32_t>{128, 64, 256}[i++ % 3], shape.scene.group = 2, shape.scene.kv_heads = 1;
    shape.scene.codecs = {name};
    shape.scene.lengths = {128 * 2 + 40}, shape.scene.sinks = 4, shape.tokens = {20};
    check(*device, shape, 11);
  }
}

TEST(PromptTwin, RandomShapesAndRaggedBatches) {
  const auto device = twin();
  const std::vector<std::string> names = testing::readable_codecs();
  for (uint32_t seed = 1; seed <= 25; ++seed) {
    SCOPED_TRACE(seed);
    check(*device, testing::random_prompt(seed, names, true), seed);
  }
}

TEST(PromptTwin, AnySizeOfQueriesIsServed) {
  const auto device = twin();
  for (const float size : {1e-20f, 1e-6f, 1e6f, 1e20f}) {
    SCOPED_TRACE(size);
    PromptShape shape;
    shape.scene.codecs = {"kivi4"}, shape.scene.lengths = {300}, shape.tokens = {17}, shape.size = size;
    check(*device, shape, 3);
  }
}

// Rows that halves cannot hold.
TEST(PromptTwin, RowsBeyondTheRangeOfHalvesAreTheProcessors) {
  const auto spec = quant::parse_codec_pair("bf16");
  const auto key = quant::testing::make_any_codec(spec->key, quant::Side::key, {32, 64});
  const auto value = quant::testing::make_any_codec(spec->value, quant::Side::value, {32, 64});
  const std::vector<float> keys = quant::testing::random_rows({32, 64}, 1);
  std::vector<float> values = quant::testing::random_rows({32, 64}, 2);
  values[70] = 1e6f;
  std::vector<std::byte> key_bytes((*key)->bytes()), value_bytes((*value)->bytes());
  ASSERT_TRUE((*key)->encode(keys.data(), {}, key_bytes).ok() && (*value)->encode(values.data(), {}, value_bytes).ok());
  attn::BlockView view;
  view.key_codec = key->get(), view.value_codec = value->get(), view.keys = key_bytes, view.values = value_bytes, view.rows = 32;
  std::vector<float> out(20 * 64, NAN), queries(20 * 64, 0.0f);
  std::vector<uint32_t> positions(20, 31);
  std::vector<attn::AttendWork> works(1);
  works[0].heads = {{&view, 1}};
  works[0].queries = RowsView::f32(queries.data(), 20, 1, 64);
  works[0].positions = positions.data(), works[0].out = out.data(), works[0].params.head_dim = 64;
  const auto device = twin();
  device->attend(works, kAlone);
  ASSERT_TRUE(works[0].status.ok()) << works[0].status.message();
  EXPECT_EQ(device->usage().on_processor, 1u);
  EXPECT_NEAR(out[6], 1e6f / 32, 1e6f / 32 * 1e-2);
}

// Rows that halves can hold as they are, and not in the frame of the values beside them.
TEST(PromptTwin, RowsThatTheFrameMakesTooLargeAreTheProcessors) {
  PromptShape shape;
  shape.scene.codecs = {"mid2"}, shape.scene.lengths = {128 * 4 + 16}, shape.scene.kv_heads = 1, shape.scene.group = 1;
  shape.tokens = {20};
  PromptScene scene(shape, 9);
  std::vector<attn::AttendWork> works = scene.works();
  const std::span<const attn::BlockView> views = works[0].heads[0];
  std::vector<attn::BlockView> list(views.begin(), views.end());
  attn::BlockView& hot = list.back();
  std::vector<float> rows(size_t{hot.rows} * 128, 60000.0f);  // out of the frame's signs comes up to √128 times as much
  for (size_t i = 0; i < rows.size(); ++i) rows[i] *= frame_sign(128, static_cast<uint32_t>(i % 128));
  std::vector<std::byte> bytes(hot.values.size());
  ASSERT_TRUE(hot.value_codec->encode(rows.data(), hot.ctx, bytes).ok());
  hot.values = bytes, hot.sealed = 0;
  works[0].heads[0] = list;
  std::vector<float> want(20 * 128), out(want.size());
  works[0].out = want.data();
  attn::cpu_backend().attend(works, kAlone);
  works[0].out = out.data();
  const auto device = twin();
  device->attend(works, kAlone);
  ASSERT_TRUE(works[0].status.ok()) << works[0].status.message();
  EXPECT_EQ(device->usage().on_processor, 1u);
  EXPECT_EQ(out, want);  // to the bit: it is the processor's
}

// Blocks of the processor's memory, which is the twin's.
TEST(PromptTwin, RoundsAndPassesChangeNothing) {
  testing::SceneShape shape;
  shape.codecs = {"kivi4", "rot4"}, shape.lengths = {1500, 900}, shape.group = 3, shape.head_dim = 64;
  const testing::Scene scene(shape, 5);
  ASSERT_TRUE(scene.status().ok());
  TwinMachine machine;
  CodecTables tables(machine);
  std::vector<std::vector<Placed>> placed(scene.tasks());
  std::vector<PromptHead> heads;
  for (size_t t = 0; t < scene.tasks(); ++t) {
    for (const attn::BlockView& view : scene.views(t)) {
      placed[t].push_back({reinterpret_cast<const uint8_t*>(view.keys.data()), reinterpret_cast<const uint8_t*>(view.values.data()),
                           *tables.find(*view.key_codec, *view.value_codec)});
    }
    heads.push_back({scene.views(t), placed[t]});
  }
  const uint32_t query_heads = shape.kv_heads * shape.group, tokens = 50;
  std::vector<float> queries(size_t{tokens} * query_heads * shape.head_dim);
  std::mt19937 rng(9);
  for (float& x : queries) x = std::normal_distribution<float>()(rng);
  std::vector<float> first_out, first_lse;
  uint64_t least = 0;
  for (const auto& [scratch, rows] : {std::pair<size_t, uint32_t>{PromptAttention::kScratchBytes, PromptAttention::kMostRows},
                                      {1, PromptAttention::kMostRows},
                                      {10 * key_tile_bytes(64), 130},
                                      {PromptAttention::kScratchBytes, 1}}) {
    PromptAttention prompts(machine, tables);
    prompts.set_limits(scratch, rows);
    std::vector<float> out(2 * queries.size(), NAN), lse(out.size() / shape.head_dim, NAN);
    std::vector<uint32_t> failed(2), positions[2];
    std::vector<PromptWork> works(2);
    for (size_t s = 0; s < 2; ++s) {
      for (uint32_t q = 0; q < tokens; ++q) positions[s].push_back(shape.lengths[s] - tokens + q);
      PromptRows& to = works[s].rows;
      works[s].heads = std::span(heads).subspan(s * shape.kv_heads, shape.kv_heads), works[s].positions = positions[s];
      to.queries = queries.data(), to.token_stride = query_heads * shape.head_dim, to.head_stride = shape.head_dim;
      to.query_heads = query_heads, to.out = out.data() + s * queries.size();
      to.lse = lse.data() + s * size_t{tokens} * query_heads;
    }
    ASSERT_TRUE(prompts.attend({works, scene.shape().params, shape.group, nullptr, failed.data()}).ok());
    if (first_out.empty()) {
      first_out = out, first_lse = lse, least = prompts.rounds();
      continue;
    }
    EXPECT_GT(prompts.rounds(), least);
    for (size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], first_out[i], 1e-5) << i;
    for (size_t i = 0; i < lse.size(); ++i) ASSERT_NEAR(lse[i], first_lse[i], 1e-5) << i;
  }
}

TEST(PromptTwin, LessMemoryMeansMoreRounds) {
  PromptShape shape;
  shape.scene.codecs = {"kivi4"}, shape.scene.lengths = {6000}, shape.scene.kv_heads = 4, shape.scene.group = 1,
  shape.tokens = {40};
  PromptScene scene(shape, 4);
  std::vector<attn::AttendWork> works = scene.works();
  // What blocks need, a slab, and not the 25 MB that all heads would have as halves.
  const auto device = twin(uint64_t{32 + 18} << 20);
  device->attend(works, kAlone);
  ASSERT_TRUE(works[0].status.ok()) << works[0].status.message();
  EXPECT_EQ(device->usage().on_processor, 0u);
  EXPECT_LT(scene.error(10), 1e-3);
}

}  // namespace
}  // namespace tierkv::cuda
