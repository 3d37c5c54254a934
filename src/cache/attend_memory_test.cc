// The first attention of a thread, and any other, with each of its allocations refused in turn.
#include <gtest/gtest.h>

#include <thread>

#include "base/failing_memory.h"
#include "cache/attend_testing.h"

namespace tierkv::cache {
namespace {

using namespace cache::testing;
using tierkv::testing::FailingMemory;

// Fails allocation after allocation until a call gets through. Every call is made by a thread of its own.
void refuse_each(const std::string& spec, uint32_t queries, bool with_mass) {
  SCOPED_TRACE(spec + ", queries " + std::to_string(queries));
  auto cache = make_cache(spec);
  const SeqId a = add_filled(*cache, 1500, 1), b = add_filled(*cache, 40, 2);
  const std::vector<float> rows = random_rows(queries, kHeads, 3);
  std::vector<float> expected(rows.size()), out[2] = {expected, expected};
  AttentionOptions options;
  options.observe = false;
  MassReport expected_mass;
  if (with_mass) options.mass = &expected_mass;  // whoever observes is not split
  ASSERT_TRUE(cache->attention(a, 0, query_view(rows), expected.data(), options).ok());
  options.mass = nullptr;
  int refused = 0;
  for (bool through = false; !through; ++refused) {
    ASSERT_LT(refused, 1000);
    std::thread([&] {
      MassReport mass;
      AttentionItem items[] = {{a, query_view(rows), out[0].data()}, {b, query_view(rows), out[1].data()}};
      if (with_mass) items[0].mass = &mass;
      const FailingMemory::Scope inside(true);
      FailingMemory::arm(refused + 1, FailingMemory::Mode::once, FailingMemory::Where::inside);
      const Status status = cache->attention(0, items, options);
      through = !FailingMemory::disarm();  // not one was refused
      EXPECT_EQ(status.code(), through ? StatusCode::ok : StatusCode::resource_exhausted) << refused << ": " << status.to_string();
      // Either item may have got through while the other did not.
      for (const AttentionItem& item : items) EXPECT_TRUE(item.status.ok() || item.status.code() == StatusCode::resource_exhausted);
      if (items[0].status.ok()) {
        EXPECT_EQ(out[0], expected);
      }
    }).join();
  }
  EXPECT_GT(refused, 10) << "nothing was refused";
  EXPECT_TRUE(cache->verify(a).ok());
}

TEST(AttendMemory, RefusedMemoryIsAnErrorAndTheNextCallWorks) {
  for (const char* spec : {"fp16", "hot=32,warm=64,archive=rot2", "hot=32,warm=64,archive=kivi2"}) {
    refuse_each(spec, 1, false);
    refuse_each(spec, 30, false);
    refuse_each(spec, 3, true);
  }
}

}  // namespace
}  // namespace tierkv::cache
