// Attention for many sequences at once: the same bits as one by one, and nobody suffers for another.
#include <gtest/gtest.h>

#include <limits>
#include <thread>

#include "base/f16.h"
#include "cache/attend_testing.h"
#include "snapshot/deep_testing.h"

namespace tierkv::cache {
namespace {

using namespace cache::testing;

// Sequences of ragged lengths with ragged numbers of queries: decoding, small and large prompts, over no split and over several.
struct Ragged {
  std::unique_ptr<AdaptiveKVCache> cache;
  std::vector<SeqId> seqs;
  std::vector<std::vector<float>> queries, out;
  std::vector<AttentionItem> items;

  explicit Ragged(const std::string& spec, uint32_t threads = 3, uint32_t most_queries = 70) : cache(make_cache(spec, threads)) {
    const std::pair<uint32_t, uint32_t> shapes[] = {{1, 1}, {64, 1}, {300, 3}, {1500, 1}, {2600, 5}, {90, 70}, {7, 7}, {513, 2}};
    for (const auto& [tokens, count] : shapes) {
      const auto seed = static_cast<uint32_t>(seqs.size()) + 1;
      seqs.push_back(add_filled(*cache, tokens, seed));
      queries.push_back(random_rows(std::min(count, most_queries), kHeads, 1000 + seed, 2.0f));
      out.emplace_back(queries.back().size(), std::numeric_limits<float>::quiet_NaN());
    }
    for (size_t i = seqs.size(); i-- > 0;) items.push_back({seqs[i], query_view(queries[i]), out[i].data()});  // not by id
  }
  std::vector<float> alone(size_t i, const AttentionOptions& options) {
    std::vector<float> result(queries[i].size());
    const Status status = cache->attention(seqs[i], 0, query_view(queries[i]), result.data(), options);
    EXPECT_TRUE(status.ok()) << status.to_string();
    return result;
  }
};

TEST(AttendBatch, GivesTheBitsOfSingleCalls) {
  for (const char* spec : {"fp16", "hot=32,warm=64,archive=rot2", "hot=32,warm=64,archive=kivi2,window=400"}) {
    SCOPED_TRACE(spec);
    Ragged ragged(spec, 3, /*most_queries=*/20);
    AttentionOptions options;
    options.softcap = 20.0f;
    const std::vector<float> sinks(kHeads, 0.5f);
    options.sink_logits = sinks.data();
    const Status status = ragged.cache->attention(0, ragged.items, options);
    ASSERT_TRUE(status.ok()) << status.to_string();
    for (size_t i = 0; i < ragged.seqs.size(); ++i) EXPECT_EQ(ragged.out[i], ragged.alone(i, options)) << "sequence " << i;
  }
}

TEST(AttendBatch, ResultsOfSixteenBitsAreTheRoundedOnes) {
  Ragged ragged("hot=32,warm=64,archive=rot2", 3, /*most_queries=*/20);
  std::vector<std::vector<uint16_t>> halves;
  for (const std::vector<float>& out : ragged.out) halves.emplace_back(out.size());
  for (size_t i = 0; i < halves.size(); ++i) {
    AttentionItem& item = ragged.items[halves.size() - 1 - i];
    item.out_type = i % 3 == 0 ? DType::f32 : i % 3 == 1 ? DType::f16 : DType::bf16;
    if (i % 3 != 0) item.out = reinterpret_cast<float*>(halves[i].data());
  }
  ASSERT_TRUE(ragged.cache->attention(0, ragged.items).ok());
  for (size_t i = 0; i < halves.size(); ++i) {
    const std::vector<float> exact = ragged.alone(i, {});
    if (i % 3 == 0) {
      EXPECT_EQ(ragged.out[i], exact);
    }
    for (size_t c = 0; c < exact.size() && i % 3 != 0; ++c) {
      ASSERT_EQ(halves[i][c], i % 3 == 1 ? f32_to_f16(exact[c]) : f32_to_bf16(exact[c])) << "sequence " << i;
    }
  }
}

TEST(AttendBatch, AnItemHasItsOwnFirstPosition) {
  Ragged ragged("fp16");
  ragged.items.resize(1);
  ragged.items[0].first_position = 100;  // of 513 tokens
  ASSERT_TRUE(ragged.cache->attention(0, ragged.items).ok());
  AttentionOptions options;
  options.first_position = 100;
  EXPECT_EQ(ragged.out[7], ragged.alone(7, options));
  options.first_position = -1;
  EXPECT_NE(ragged.out[7], ragged.alone(7, options));
}

TEST(AttendBatch, AFailingItemDoesNotDisturbTheOthers) {
  Ragged ragged("hot=32,warm=64,archive=rot2");
  const auto item = [&](size_t i) -> AttentionItem& { return ragged.items[ragged.items.size() - 1 - i]; };
  item(0).seq = 999;
  ragged.queries[2][5] = std::numeric_limits<float>::quiet_NaN();
  item(4).out = nullptr;
  item(5).first_position = std::numeric_limits<int64_t>::max();
  item(6).queries.head_dim = 64;
  ASSERT_TRUE(ragged.cache->remove(ragged.seqs[7]).ok());
  const Status status = ragged.cache->attention(0, ragged.items);
  EXPECT_EQ(status.code(), StatusCode::not_found) << "that of the first item, sequence 7: " << status.to_string();
  EXPECT_EQ(item(0).status.code(), StatusCode::not_found);
  EXPECT_EQ(item(2).status.code(), StatusCode::invalid_argument);
  EXPECT_EQ(item(4).status.code(), StatusCode::invalid_argument);
  EXPECT_EQ(item(5).status.code(), StatusCode::out_of_range);
  EXPECT_EQ(item(6).status.code(), StatusCode::invalid_argument);
  EXPECT_EQ(item(7).status.code(), StatusCode::not_found);
  for (const size_t i : {1u, 3u}) {
    EXPECT_TRUE(item(i).status.ok()) << item(i).status.to_string();
    EXPECT_EQ(ragged.out[i], ragged.alone(i, {})) << "sequence " << i;
  }
}

TEST(AttendBatch, AParkedSequenceSaysSoAlone) {
  namespace made_up = snapshot::testing::made_up;
  auto filled = snapshot::testing::filled("hot=32,warm=64,archive=rot4", 500);
  const SeqId idle = filled.seq, busy = filled.cache->fork(idle).value();
  ASSERT_TRUE(filled.cache->remove(busy).ok());
  const SeqId other = filled.cache->add_sequence().value();
  const std::vector<float> rows(made_up::kHeads * made_up::kDim, 1.0f);
  const RowsView row = RowsView::f32(rows.data(), 1, made_up::kHeads, made_up::kDim);
  ASSERT_TRUE(filled.cache->append(other, 0, row, row).ok());
  ASSERT_TRUE(filled.cache->park(idle, snapshot::testing::at_ratio(12)).ok());
  const std::vector<float> queries(2 * made_up::kHeads * made_up::kDim, 0.1f);
  std::vector<float> out[2] = {queries, queries};
  const RowsView view = RowsView::f32(queries.data(), 1, 2 * made_up::kHeads, made_up::kDim);
  AttentionItem items[] = {{idle, view, out[0].data()}, {other, view, out[1].data()}};
  EXPECT_EQ(filled.cache->attention(0, items).code(), StatusCode::failed_precondition);
  EXPECT_EQ(items[0].status.code(), StatusCode::failed_precondition);
  EXPECT_TRUE(items[1].status.ok());
  EXPECT_EQ(out[1], std::vector<float>(queries.size(), 1.0f)) << "the only value there is";
}

TEST(AttendBatch, WhatIsWrongWithTheWholeCallIsEveryItems) {
  Ragged ragged("fp16");
  const auto refused = [&](uint32_t layer, const AttentionOptions& options, StatusCode code) {
    EXPECT_EQ(ragged.cache->attention(layer, ragged.items, options).code(), code);
    for (const AttentionItem& item : ragged.items) EXPECT_EQ(item.status.code(), code);
    EXPECT_TRUE(std::isnan(ragged.out[1][0])) << "no output is written";
  };
  refused(1, {}, StatusCode::out_of_range);
  AttentionOptions options;
  options.scale = -1.0f;
  refused(0, options, StatusCode::invalid_argument);
  MassReport mass;
  options = {};
  options.mass = &mass;
  refused(0, options, StatusCode::invalid_argument);
  options = {};
  options.first_position = 3;
  refused(0, options, StatusCode::invalid_argument);
  ragged.items[2].seq = ragged.items[5].seq;
  refused(0, {}, StatusCode::invalid_argument);
  EXPECT_TRUE(ragged.cache->attention(0, std::span<AttentionItem>()).ok());
}

TEST(AttendBatch, PoliciesLearnAndMassIsReportedAsInSingleCalls) {
  const char* spec = "hot=32,warm=64,archive=rot2,eviction.policy=h2o,max_seq_len=4000";
  Ragged together(spec, 3, 20), one_by_one(spec, 3, 20);
  std::vector<MassReport> mass(together.seqs.size());
  for (size_t i = 0; i < mass.size(); ++i) {
    mass[i].want_tokens = true;
    together.items[i].mass = &mass[together.seqs.size() - 1 - i];
  }
  ASSERT_TRUE(together.cache->attention(0, together.items).ok());
  for (size_t i = 0; i < mass.size(); ++i) {
    MassReport alone;
    alone.want_tokens = true;
    AttentionOptions options;
    options.mass = &alone;
    EXPECT_EQ(together.out[i], one_by_one.alone(i, options));
    EXPECT_EQ(mass[i].tokens, alone.tokens);
    ASSERT_EQ(mass[i].blocks.size(), alone.blocks.size());
    for (size_t b = 0; b < alone.blocks.size(); ++b) EXPECT_EQ(mass[i].blocks[b].mass, alone.blocks[b].mass);
    for (Ragged* ragged : {&together, &one_by_one}) ASSERT_TRUE(ragged->cache->evict(ragged->seqs[i], 40).ok());
    for (uint32_t h = 0; h < kKvHeads; ++h) {
      EXPECT_EQ(together.cache->positions(together.seqs[i], 0, h).value(),
                one_by_one.cache->positions(one_by_one.seqs[i], 0, h).value());
    }
  }
}

TEST(AttendBatch, TakesTheCallersThreads) {
  Ragged ragged("fp16", 1);
  uint32_t tasks = 0;
  const Executor executor = [&](uint32_t count, const std::function<void(uint32_t)>& task) {
    tasks += count;
    for (uint32_t i = count; i-- > 0;) task(i);  // in any order
  };
  AttentionOptions options;
  options.executor = &executor;
  ASSERT_TRUE(ragged.cache->attention(0, ragged.items, options).ok());
  EXPECT_GE(tasks, kKvHeads * ragged.seqs.size()) << "all sequences' tasks go out together";
  for (size_t i = 0; i < ragged.seqs.size(); ++i) EXPECT_EQ(ragged.out[i], ragged.alone(i, {}));
}

TEST(AttendBatch, BatchesInOppositeOrdersAndAppendsDoNotBlockEachOther) {
  auto cache = make_cache("hot=32,warm=64,archive=rot2", 2);
  std::vector<SeqId> seqs;
  for (uint32_t i = 0; i < 4; ++i) seqs.push_back(add_filled(*cache, 50 + 30 * i, i + 1));
  const std::vector<float> query = random_rows(1, kHeads, 5), row = random_rows(1, kKvHeads, 6);
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::vector<std::vector<float>> out(seqs.size(), std::vector<float>(query.size()));
      for (int round = 0; round < 60; ++round) {
        std::vector<AttentionItem> items;
        for (size_t i = 0; i < seqs.size(); ++i) {
          const size_t s = t % 2 == 0 ? i : seqs.size() - 1 - i;
          items.push_back({seqs[s], query_view(query), out[s].data()});
        }
        const Status status = cache->attention(0, items);
        EXPECT_TRUE(status.ok()) << status.to_string();
        if (t == 3) {
          EXPECT_TRUE(append_rows(*cache, seqs[static_cast<size_t>(round) % 4], 1, row, row).ok());
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(cache->length(seqs[0]).value(), 65u);
}

}  // namespace
}  // namespace tierkv::cache
