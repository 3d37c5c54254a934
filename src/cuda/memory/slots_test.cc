// Staging memory of calls: what somebody holds or the device still reads is not given out again.
#include "cuda/memory/slots.h"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "cuda/twin_machine_testing.h"

namespace tierkv::cuda {
namespace {

using testing::TwinMachine;

std::shared_ptr<Slot> taken(Slots& slots) {
  Result<std::shared_ptr<Slot>> slot = slots.take(64);
  EXPECT_TRUE(slot.ok()) << slot.status().message();
  return *slot;
}

TEST(CudaSlots, OneThatIsHeldIsNotGivenOut) {
  Slots slots(std::make_shared<TwinMachine>());
  std::shared_ptr<Slot> first = taken(slots);
  const uint8_t* const memory = first->data();
  ASSERT_TRUE(slots.end_call().ok());
  EXPECT_NE(taken(slots)->data(), memory);
  ASSERT_TRUE(slots.end_call().ok());
  first.reset();
  EXPECT_EQ(slots.size(), 2u);
  bool again = false;
  for (int call = 0; call < 2; ++call) {
    again = again || taken(slots)->data() == memory;
    ASSERT_TRUE(slots.end_call().ok());
  }
  EXPECT_TRUE(again);
  EXPECT_EQ(slots.size(), 2u);
}

TEST(CudaSlots, OneOfACallUnderWayIsNotGivenOut) {
  Slots slots(std::make_shared<TwinMachine>());
  const uint8_t* const memory = taken(slots)->data();  // let go of at once
  EXPECT_NE(taken(slots)->data(), memory);
}

TEST(CudaSlots, OneThatTheDeviceReadsIsNotGivenOut) {
  auto machine = std::make_shared<TwinMachine>(MachineFacts{7, true}, 0, true);
  Slots slots(machine);
  uint8_t there[8] = {};
  const uint8_t* memory;
  {
    const std::shared_ptr<Slot> slot = taken(slots);
    memory = slot->data();
    std::memset(slot->data(), 7, sizeof(there));
    ASSERT_TRUE(machine->send(there, slot->data(), sizeof(there)).ok());
  }
  ASSERT_TRUE(slots.end_call().ok());
  const std::shared_ptr<Slot> second = taken(slots);
  EXPECT_NE(second->data(), memory);
  std::memset(second->data(), 9, sizeof(there));
  ASSERT_TRUE(slots.end_call().ok());
  ASSERT_TRUE(machine->wait().ok());
  EXPECT_EQ(there[0], 7);
  EXPECT_EQ(taken(slots)->data(), memory);
  ASSERT_TRUE(slots.end_call().ok());
}

// Under ThreadSanitizer: what the last holder read happened before the next call writes.
TEST(CudaSlots, AnotherThreadMayLetGo) {
  Slots slots(std::make_shared<TwinMachine>());
  uint64_t sum = 0, want = 0;
  for (int call = 0; call < 200; ++call) {
    std::shared_ptr<Slot> slot = taken(slots);
    std::memset(slot->data(), call, 64);
    want += static_cast<uint64_t>(call);
    ASSERT_TRUE(slots.end_call().ok());
    std::atomic<bool> gone{false};
    std::thread reader([&, held = std::move(slot)]() mutable {
      sum += held->data()[63];
      held.reset();
      gone.store(true, std::memory_order_relaxed);  // orders nothing: the slot itself must
    });
    while (!gone.load(std::memory_order_relaxed)) std::this_thread::yield();
    const std::shared_ptr<Slot> next = taken(slots);
    std::memset(next->data(), 255, 64);
    ASSERT_TRUE(slots.end_call().ok());
    reader.join();
  }
  EXPECT_EQ(sum, want);
  EXPECT_EQ(slots.size(), 1u);
}

}  // namespace
}  // namespace tierkv::cuda
