// Books of a device's memory: which copies of blocks stay, and where areas of descriptors lie.
#include "cuda/memory/standing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "cuda/twin_machine_testing.h"
#include "quant/table_testing.h"

namespace tierkv::cuda {
namespace {

// Slabs that nobody reads.
Places::MoreMemory memory(uint64_t slabs = UINT64_MAX) {
  return [left = slabs, next = uintptr_t{1} << 40](size_t bytes) mutable -> Result<uint8_t*> {
    if (left == 0) return error(StatusCode::resource_exhausted, "no more");
    --left;
    return reinterpret_cast<uint8_t*>(next += bytes);
  };
}

constexpr size_t kMiB = size_t{1} << 20;

TEST(Places, ABlockIsFoundByItsChecksumAndItsBytes) {
  Places places(0, memory());
  places.begin_call();
  Places::Entry* const there = *places.add(7, 1000, 500);
  EXPECT_EQ(there->values - there->keys, 1024);
  EXPECT_EQ(places.find(7, 1000, 500), there);
  EXPECT_EQ(places.find(8, 1000, 500), nullptr);
  EXPECT_EQ(places.find(7, 4000, 500), nullptr);
}

TEST(Places, TheLongestUnusedGoFirstAndTheCallsOwnStay) {
  Places places(32 * kMiB, memory());
  for (uint64_t block = 1; block <= 4; ++block) {
    places.begin_call();
    ASSERT_TRUE(places.add(block, 4 * kMiB, 4 * kMiB).ok());
  }
  places.begin_call();
  EXPECT_NE(places.find(1, 4 * kMiB, 4 * kMiB), nullptr);
  ASSERT_TRUE(places.add(5, 4 * kMiB, 4 * kMiB).ok());
  EXPECT_EQ(places.find(2, 4 * kMiB, 4 * kMiB), nullptr);
  for (const uint64_t block : {3, 4}) EXPECT_NE(places.find(block, 4 * kMiB, 4 * kMiB), nullptr);
  const auto refused = places.add(6, 4 * kMiB, 4 * kMiB);
  EXPECT_EQ(refused.status().code(), StatusCode::resource_exhausted);
  EXPECT_EQ(places.blocks(), 4u);
}

TEST(Places, WhatIsHeldStaysUntilItIsLetGo) {
  Places places(0, memory(4));
  places.begin_call();
  std::vector<Places::Entry*> held;
  for (uint64_t block = 1; block <= 4; ++block) {
    held.push_back(*places.add(block, 4 * kMiB, 4 * kMiB));
    places.hold(held.back());
  }
  places.hold(held[2]);
  places.begin_call();
  EXPECT_EQ(places.add(5, 4 * kMiB, 4 * kMiB).status().code(), StatusCode::resource_exhausted);
  places.let_go(held[2]);
  EXPECT_EQ(places.add(5, 4 * kMiB, 4 * kMiB).status().code(), StatusCode::resource_exhausted);
  places.let_go(held[2]);
  const auto fresh = places.add(5, 4 * kMiB, 4 * kMiB);
  ASSERT_TRUE(fresh.ok());
  EXPECT_EQ(places.find(3, 4 * kMiB, 4 * kMiB), nullptr);
  EXPECT_EQ(places.find(1, 4 * kMiB, 4 * kMiB), held[0]);
}

TEST(Places, WhatIsReplacedMakesRoomAtOnceUnlessSomebodyElseHoldsIt) {
  Places places(0, memory());
  places.begin_call();
  Places::Entry* const first = *places.add(1, 1000, 500);
  Places::Entry* const second = *places.add(2, 1000, 500);
  uint8_t* const at = first->keys;
  places.hold(first), places.hold(second), places.hold(second);
  places.replaced(second);
  EXPECT_EQ(places.find(2, 1000, 500), second);
  places.begin_call();
  places.replaced(first);
  EXPECT_EQ(places.find(1, 1000, 500), nullptr);
  EXPECT_EQ((*places.add(3, 1000, 500))->keys, at);
  places.keep(*places.add(4, 1000, 500));
  places.begin_call();
  places.give_up(places.find(4, 1000, 500));
  EXPECT_NE(places.find(4, 1000, 500), nullptr) << "this call has asked for it";
}

TEST(Places, TakeLittleMoreThanTheirBlocks) {
  Places places(0, memory());
  places.begin_call();
  EXPECT_EQ((*places.add(1, 8579, 4243))->values - places.find(1, 8579, 4243)->keys, 8608);
  uint64_t bytes = 12864;
  for (uint64_t block = 2; bytes < 1500 * kMiB; ++block, bytes += 12864) ASSERT_TRUE(places.add(block, 8579, 4243).ok());
  EXPECT_LE(places.bytes(), bytes + bytes / 100);
  Places few(0, memory());
  ASSERT_TRUE(few.add(1, 1000, 500).ok());
  EXPECT_EQ(few.bytes(), 4 * kMiB);
}

TEST(Places, ALimitIsUsedToItsEnd) {
  Places places(7 * kMiB, memory());
  places.begin_call();
  for (uint64_t block = 1; block <= 7; ++block) ASSERT_TRUE(places.add(block, kMiB / 2, kMiB / 2).ok()) << block;
  EXPECT_EQ(places.add(8, kMiB / 2, kMiB / 2).status().code(), StatusCode::resource_exhausted);
  EXPECT_EQ(places.bytes(), 7 * kMiB);
}

TEST(AreaRoom, AreasNeverOverlapAndWhatIsGivenBackIsUsedAgain) {
  std::mt19937 rng(3);
  AreaRoom room;
  std::vector<uint8_t> taken;
  std::vector<std::pair<uint32_t, uint32_t>> areas;
  for (int i = 0; i < 4000; ++i) {
    if (!areas.empty() && rng() % 2) {
      const size_t which = rng() % areas.size();
      const auto [first, views] = areas[which];
      for (uint32_t v = first; v < first + views; ++v) taken[v] = 0;
      room.give(first, views);
      areas.erase(areas.begin() + static_cast<ptrdiff_t>(which));
      continue;
    }
    const uint32_t views = 1 + rng() % 50;
    uint32_t first = room.take(views);
    if (first == UINT32_MAX) {
      room.grow(views + rng() % 100);
      taken.resize(room.size());
      first = room.take(views);
    }
    ASSERT_LE(first + views, room.size());
    for (uint32_t v = first; v < first + views; ++v) {
      ASSERT_FALSE(taken[v]) << "step " << i;
      taken[v] = 1;
    }
    areas.emplace_back(first, views);
  }
  for (const auto& [first, views] : areas) room.give(first, views);
  EXPECT_EQ(room.take(room.size()), 0u);  // one piece again
}

// Views of three kinds, as a stream has them: a few of plain rows, whole archive blocks, whole warm ones.
class Stream {
 public:
  Stream() {
    for (const auto& [name, tokens] : {std::pair{"fp16", 16u}, {"kivi2", kTileRows}, {"even4", kWarmTokens}}) {
      const quant::CodecSpec spec = quant::parse_codec(name).value();
      Kind& kind = kinds_.emplace_back();
      kind.key = quant::testing::make_any_codec(spec, quant::Side::key, {tokens, 64}).value();
      kind.value = quant::testing::make_any_codec(spec, quant::Side::value, {tokens, 64}).value();
      kind.keys.resize(kind.key->bytes()), kind.values.resize(kind.value->bytes());
    }
  }
  attn::BlockView view(uint32_t kind, uint32_t position) {
    const Kind& of = kinds_[kind];
    const uint32_t rows = of.key->shape().tokens;
    return {of.key.get(), of.value.get(), of.keys, of.values, {0, 0, position}, rows, ++sealed_};
  }

 private:
  struct Kind {
    std::unique_ptr<quant::Codec> key, value;
    std::vector<std::byte> keys, values;
  };
  std::vector<Kind> kinds_;
  uint64_t sealed_ = 100;
};

// All that makes a list on a device.
struct Lists {
  testing::TwinMachine machine{MachineFacts{8, true}};
  Bounce bounce{machine};
  Changes changes{machine};
  CodecTables tables{machine};
  Mirror mirror{machine, bounce, changes, 0};
  Standing standing{machine, bounce, mirror, tables};

  const Standing::Area* area(const attn::Settled& settled, std::span<const attn::BlockView> views) {
    mirror.places().begin_call();
    standing.begin_call();
    const auto made = standing.area(settled, views, 4);
    EXPECT_TRUE(made.ok()) << made.status().message();
    EXPECT_TRUE(standing.send_areas().ok());
    EXPECT_TRUE(machine.wait().ok());
    return made.ok() ? *made : nullptr;
  }
  // What the device has of an area: positions, run by run.
  std::vector<std::vector<uint32_t>> there(const Standing::Area& area) const {
    std::vector<std::vector<uint32_t>> out;
    const auto* const list = reinterpret_cast<const ViewDesc*>(standing.data()) + standing.base();
    for (const SettledRun& run : area.runs) {
      auto& positions = out.emplace_back();
      for (uint32_t v = 0; v < run.views; ++v) {
        EXPECT_EQ(run.descs[v].keys, list[run.first + v].keys);
        positions.push_back(list[run.first + v].first_position);
      }
    }
    std::sort(out.begin(), out.end());
    return out;
  }
};

// An owner says what stayed, another only what there is, and a third is seen for the first time: the device has the same of each.
TEST(Standing, WhatAnOwnerSaysStayedIsNotListedAgain) {
  std::mt19937 rng(5);
  Stream stream;
  Lists lists;
  std::vector<attn::BlockView> views{stream.view(0, 0)};
  uint64_t version = 1;
  attn::Settled told{&views, version, 1, 0};
  for (int step = 0; step < 300; ++step) {
    const Standing::Area* const area = lists.area(told, views);
    ASSERT_TRUE(area);
    int other = 0;
    const Standing::Area* const compared = lists.area({&views[0], version, told.views, 0}, views);
    const Standing::Area* const fresh = lists.area({&other, version, told.views, 0}, views);
    ASSERT_TRUE(compared && fresh);
    const auto wanted = lists.there(*fresh);
    ASSERT_EQ(lists.there(*area), wanted) << step;
    ASSERT_EQ(lists.there(*compared), wanted) << step;
    EXPECT_EQ(area->last_position, fresh->last_position);
    for (size_t r = 0; r < area->runs.size(); ++r) {
      const auto same = std::find_if(fresh->runs.begin(), fresh->runs.end(),
                                     [&](const SettledRun& run) { return run.codec == area->runs[r].codec; });
      ASSERT_NE(same, fresh->runs.end());
      EXPECT_EQ(area->runs[r].bytes, same->bytes);
      EXPECT_EQ(area->runs[r].path, same->path);
    }
    // A warm block comes; two of them become one of the archive; or the stream is cut.
    size_t stays = views.size();
    const auto warm = std::find_if(views.begin(), views.end(), [](const attn::BlockView& v) { return v.rows == kWarmTokens; });
    if (const uint32_t what = rng() % 16; what == 0 && views.size() > 4) {
      stays = views.size() / 2;
      views.resize(stays);
    } else if (what < 6 && views.end() - warm >= 4) {
      stays = static_cast<size_t>(warm - views.begin());
      *warm = stream.view(1, warm->ctx.first_position);
      views.erase(warm + 1);
    } else {
      views.push_back(stream.view(2, static_cast<uint32_t>(1000 + 64 * step)));
    }
    told = {&views, version + 1, static_cast<uint32_t>(views.size()),
            0,      version,     static_cast<uint32_t>(std::min(stays, views.size()))};
    ++version;
  }
}

// A block more of a long stream costs its own descriptor.
TEST(Standing, ALongStreamIsNotSentAgainForABlockMore) {
  Stream stream;
  Lists lists;
  std::vector<attn::BlockView> views;
  for (uint32_t i = 0; i < 1000; ++i) views.push_back(stream.view(1, 128 * i));
  for (uint32_t i = 0; i < 7; ++i) views.push_back(stream.view(2, 128000 + 64 * i));
  ASSERT_TRUE(lists.area({&views, 1, 1007, 0}, views));
  const attn::BlockView more = stream.view(1, 128000);
  views.erase(views.begin() + 1000, views.begin() + 1002);
  views.insert(views.begin() + 1000, more);
  const uint64_t before = lists.machine.sent;
  const Standing::Area* const area = lists.area({&views, 2, 1006, 0, 1, 1000}, views);
  ASSERT_TRUE(area);
  EXPECT_EQ(area->runs[0].views, 1001u);
  const uint64_t block = more.keys.size() + more.values.size();
  EXPECT_LE(lists.machine.sent - before, block + 7 * sizeof(ViewDesc));
}

}  // namespace
}  // namespace tierkv::cuda
