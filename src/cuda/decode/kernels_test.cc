// The kernels of attention themselves, on the processor (simt_machine.h), and double precision over the rows that blocks decode to.
//
// ctest: threads
#include <gtest/gtest.h>

#include <string>

#include "cuda/plan/planned_testing.h"
#include "cuda/plan/twin_testing.h"

// From here on nothing of the standard library: the kernels' language has names that it uses too.
#define TIERKV_SIMT
#include "cuda/decode/attend_kernels.cuh"

namespace tierkv::cuda {
namespace {

using simt::Machine;
using testing::Planned;
using testing::Scene;
using testing::SceneShape;

constexpr Machine::Order kBothOrders[] = {Machine::Order::first_to_last, Machine::Order::last_to_first};

void run(Machine& machine, const Launch& launch, const Plan& plan, Machine::Order order) {
  for_each_kernel(launch, plan.fast, [&](const KernelRow* row, uint32_t ctas) {
    ASSERT_TRUE(row) << "no kernel for path " << static_cast<int>(plan.fast);
    machine.run(ctas, row->threads, row->shared_bytes, order, [&] {
      if (const auto* const fast = std::get_if<void (*)(Launch, CtaFirsts)>(&row->kernel)) (*fast)(launch, plan.firsts);
      else std::get<void (*)(Launch)>(row->kernel)(launch);
    });
  });
}

// All of a scene's attention through the kernels. Returns the path of its fast thread blocks. Not `told`: as if the parameters had
// no room for codecs.
Path check(const SceneShape& shape, uint32_t seed, uint32_t ctas, bool told = true) {
  const Scene scene(shape, seed);
  EXPECT_TRUE(scene.status().ok()) << scene.status().message();
  Planned planned;
  testing::plan_of(scene, ctas, true, planned);
  if (!told) {
    for (CtaFirst& first : planned.plan.firsts.of) first.codec = kNoFirstCodec;
  }
  static Machine machine;
  for (const Machine::Order order : kBothOrders) {
    std::vector<float> out(scene.queries().size(), NAN), lse(scene.rows(), NAN);
    Launch launch = testing::launch_of(planned.input, planned.plan, scene.queries().data(), scene.sinks());
    const size_t states = size_t{planned.plan.partials} * launch.group;
    std::vector<float> values(states * launch.head_dim, NAN), tops(states, NAN), sums(states, NAN);
    std::vector<uint32_t> failed(scene.tasks()), arrived(scene.tasks()), given(2);
    launch.out = out.data(), launch.lse = lse.data(), launch.failed = failed.data(), launch.arrived = arrived.data();
    launch.given = given.data();
    launch.partial_out = values.data(), launch.partial_top = tops.data(), launch.partial_sum = sums.data();
    run(machine, launch, planned.plan, order);
    testing::expect_answers(scene, out, lse, scene.tolerance(), 3e-3);
    for (const uint32_t task : failed) EXPECT_EQ(task, 0u);
    for (const uint32_t task : arrived) EXPECT_EQ(task, 0u);  // as they were, for the next launch
    for (const uint32_t count : given) EXPECT_EQ(count, 0u);
  }
  return planned.plan.fast;
}

// What the kernels leave of a scene where results are of this type, as bits.
template <class Word>
std::vector<Word> results(const Scene& scene, const Planned& planned, DType type) {
  static Machine machine;
  std::vector<Word> out(scene.queries().size(), static_cast<Word>(0x7FC1));
  std::vector<float> lse(scene.rows());
  Launch launch = testing::launch_of(planned.input, planned.plan, scene.queries().data(), scene.sinks());
  const size_t states = size_t{planned.plan.partials} * launch.group;
  std::vector<float> values(states * launch.head_dim), tops(states), sums(states);
  std::vector<uint32_t> failed(scene.tasks()), arrived(scene.tasks()), given(2);
  launch.out = reinterpret_cast<float*>(out.data()), launch.out_type = static_cast<uint8_t>(type), launch.lse = lse.data();
  launch.failed = failed.data(), launch.arrived = arrived.data(), launch.given = given.data();
  launch.partial_out = values.data(), launch.partial_top = tops.data(), launch.partial_sum = sums.data();
  run(machine, launch, planned.plan, Machine::Order::first_to_last);
  return out;
}

// Segments of a path in a scene's launch.
size_t count(const SceneShape& shape, Path path) {
  Planned planned;
  testing::plan_of(Scene(shape, 1), 4, true, planned);
  size_t found = 0;
  for (const SegmentDesc& segment : planned.plan.segments) found += segment.path == path;
  return found;
}

// Sequences of whole blocks of 128 tokens in one codec, with sinks and hot rows around them.
SceneShape archive(const std::string& codec, uint32_t group, std::vector<uint32_t> lengths) {
  SceneShape shape;
  shape.codecs = {codec};
  shape.kv_heads = 1, shape.group = group;
  shape.lengths = std::move(lengths);
  shape.sinks = 4, shape.hot = 21;
  return shape;
}

TEST(Kernels, FastPaths) {
  EXPECT_EQ(check(archive("kivi2", 4, {1049, 300}), 1, 3), Path::whole22);
  EXPECT_EQ(check(archive("rot2", 3, {1049, 300}), 2, 3), Path::whole22);
  EXPECT_EQ(check(archive("kivi2", 8, {1049, 300}), 3, 3), Path::packed22);
  EXPECT_EQ(check(archive("rot2", 5, {1049, 300}), 4, 3), Path::packed22);
  EXPECT_EQ(check(archive("kivi4", 4, {1049, 300}), 5, 3), Path::packed44);
  EXPECT_EQ(check(archive("rot4", 8, {1049, 300}), 6, 3), Path::packed44);
  EXPECT_EQ(check(archive("kivi4/kivi2", 4, {1049, 300}), 7, 3), Path::packed42);
  for (const char* const codec : {"klt1.875", "klt1.25", "klt2", "kltk0.5/mid2"}) {  // values of 2 bits
    SCOPED_TRACE(codec);
    for (const uint32_t group : {1u, 2u, 4u}) EXPECT_EQ(check(archive(codec, group, {1049, 300}), 8, 3), Path::klt_whole);
    EXPECT_EQ(check(archive(codec, 7, {1049, 300}), 9, 3), Path::klt);
  }
  for (const char* const codec : {"klt0.5/mid3", "kltk2/mid4"}) {
    SCOPED_TRACE(codec);
    for (const uint32_t group : {4u, 7u}) EXPECT_EQ(check(archive(codec, group, {1049, 300}), 8 + group, 3), Path::klt);
  }
  for (const char* const codec : {"klt1.25+top4", "klt2+top3"}) {
    SCOPED_TRACE(codec);
    for (const uint32_t group : {4u, 7u}) EXPECT_EQ(check(archive(codec, group, {1049, 300}), 9 + group, 3), Path::klt_better);
  }
}

TEST(Kernels, CodecsThatParametersHaveNoRoomFor) {
  EXPECT_EQ(check(archive("kivi2", 4, {1049, 300}), 1, 3, false), Path::whole22);
  EXPECT_EQ(check(archive("klt1.875", 4, {1049, 300}), 2, 3, false), Path::klt_whole);
  EXPECT_EQ(check(archive("klt1.25+top4", 4, {1049, 300}), 3, 3, false), Path::klt_better);
}

TEST(Kernels, ManyStatesAreMergedInRounds) {
  // More thread blocks than a round of states has room for, and rows that need several rounds.
  SceneShape shape = archive("kivi2", 4, {21000});
  EXPECT_EQ(check(shape, 4, 150), Path::whole22);
}

TEST(Kernels, WarpsTakeBlockAfterBlock) {
  // A thread block has sixteen warps, each with a block, or with two of klt's: the second and third time they are asked for ahead.
  for (const uint32_t dim : {64u, 128u}) {
    for (const char* const codec : {"kivi2", "rot2", "rot4", "klt1.875", "klt1.25+top4"}) {
      for (const uint32_t group : {4u, 7u}) {
        SCOPED_TRACE(std::string(codec) + " " + std::to_string(group) + " " + std::to_string(dim));
        SceneShape shape = archive(codec, group, {70 * 128 + 4 + 21});
        shape.head_dim = dim;
        check(shape, group, 1);
      }
    }
  }
}

TEST(Kernels, BlocksOfKltWithValuesOfAllWidthsTakeOnePath) {
  SceneShape shape = archive("klt1.875", 4, {1049, 700});
  shape.codecs = {"klt1.875", "klt1.25/mid3"};
  EXPECT_EQ(check(shape, 3, 3), Path::klt);
  EXPECT_EQ(count(shape, Path::klt_whole), 0u);
}

TEST(Kernels, FastPathsOfHeadsOf64) {
  const auto narrow = [](const std::string& codec, uint32_t group) {
    SceneShape shape = archive(codec, group, {1049, 300});
    shape.head_dim = 64;
    return shape;
  };
  for (const uint32_t group : {1u, 3u, 4u, 7u, 8u}) {
    SCOPED_TRACE(group);
    for (const char* const codec : {"kivi2", "rot2"}) EXPECT_EQ(check(narrow(codec, group), group, 3), Path::packed22) << codec;
    for (const char* const codec : {"kivi4", "rot4"}) EXPECT_EQ(check(narrow(codec, group), group, 3), Path::packed44) << codec;
    EXPECT_EQ(check(narrow("kivi4/kivi2", group), group, 3), Path::packed42);
  }
  for (const char* const codec : {"klt1.875", "klt1.25", "kltk2/mid2"}) {  // values of 2 bits
    SCOPED_TRACE(codec);
    for (const uint32_t group : {1u, 3u}) EXPECT_EQ(check(narrow(codec, group), 8, 3), Path::klt_whole);
    EXPECT_EQ(check(narrow(codec, 7), 9, 3), Path::klt);
  }
  for (const char* const codec : {"klt0.5/mid3", "kltk2/mid4"}) {
    SCOPED_TRACE(codec);
    for (const uint32_t group : {3u, 7u}) EXPECT_EQ(check(narrow(codec, group), 8 + group, 3), Path::klt);
  }
  for (const char* const codec : {"klt1.25+top4", "klt2+top3"}) {
    SCOPED_TRACE(codec);
    for (const uint32_t group : {3u, 7u}) EXPECT_EQ(check(narrow(codec, group), 9 + group, 3), Path::klt_better);
  }
}

// The scenes that device tests have (for_shapes_of()). In halves alone the first was off by 1.8e-3, the second by 1.3e-3.
TEST(Kernels, FewHeadsOf64LoseNothingToHalves) {
  for (const char* const codec : {"squat2", "klt1.25+top4", "klt1", "kivi2", "kivi4/kivi2", "klt0.5/mid3"}) {
    SCOPED_TRACE(codec);
    for (const uint32_t group : {1u, 4u}) {
      for (const uint32_t seed : {11u, 12u}) {
        SceneShape shape;
        shape.head_dim = 64, shape.group = group, shape.kv_heads = 2;
        shape.codecs = {codec};
        shape.lengths = {660};
        shape.sinks = 4;
        check(shape, seed, 5);
      }
    }
  }
}

TEST(Kernels, WarmBlocks) {
  for (const char* const codec : {"even4", "rot4", "even4/kivi4", "even4/mid4", "rot4/kivi4+s8"}) {
    SCOPED_TRACE(codec);
    for (const uint32_t group : {1u, 4u, 5u, 8u}) {
      for (const uint32_t dim : {64u, 128u}) {
        SceneShape shape = archive(codec, group, {4 + 7 * 64 + 21, 90});
        shape.block = 64, shape.head_dim = dim;
        EXPECT_NE(count(shape, Path::warm), 0u);
        check(shape, group, 5);
      }
    }
  }
  // More blocks than places.
  SceneShape many = archive("even4", 4, {64 * 70 + 25, 64 * 9 + 3});
  many.block = 64;
  EXPECT_LT(count(many, Path::warm), 30u);
  check(many, 3, 1);
  // What it does not take is staged.
  SceneShape large = archive("even4", 9, {300});
  large.block = 64;
  EXPECT_EQ(count(large, Path::warm), 0u);
  SceneShape capped = archive("even4", 4, {300});
  capped.block = 64, capped.params.softcap = 30.0f;
  EXPECT_EQ(count(capped, Path::warm), 0u);
}

// Rows of halves are read as they are, whatever of them a query sees; other rows of 16 bits, and other heads, are staged.
TEST(Kernels, PlainRows) {
  for (const uint32_t dim : {64u, 128u}) {
    for (const uint32_t group : {1u, 4u, 8u, 11u}) {
      SCOPED_TRACE(std::to_string(dim) + " " + std::to_string(group));
      SceneShape shape = archive("kivi2", group, {400, 900, 3, 1});
      shape.head_dim = dim, shape.hot = 300;
      EXPECT_NE(count(shape, Path::plain), 0u);
      if (group <= 8) {  // the archive is staged without a fast path
        EXPECT_EQ(count(shape, Path::staged), 0u);
      }
      check(shape, group, 5);
      shape.params.softcap = 20.0f;
      check(shape, group, 5);
    }
  }
  SceneShape wide = archive("kivi2", 4, {400});
  wide.head_dim = 256;
  EXPECT_EQ(count(wide, Path::plain), 0u);
}

TEST(Kernels, ResultsOfSixteenBitsAreTheRoundedOnes) {
  SceneShape shape = archive("rot4/mid2", 4, {700, 90, 1});
  const Scene scene(shape, 3);
  Planned planned;
  testing::plan_of(scene, 3, true, planned);
  const std::vector<uint32_t> exact = results<uint32_t>(scene, planned, DType::f32);
  for (const DType type : {DType::f16, DType::bf16}) {
    const std::vector<uint16_t> rounded = results<uint16_t>(scene, planned, type);
    for (size_t i = 0; i < exact.size(); ++i) {
      const float x = __uint_as_float(exact[i]);
      ASSERT_EQ(rounded[i], type == DType::bf16 ? f32_to_bf16(x) : f32_to_f16(x)) << i;
    }
  }
}

TEST(Kernels, EveryCodecInOddPlaces) {
  testing::for_each_codec([](const SceneShape& shape) { check(shape, 7, 3); });
}

TEST(Kernels, RowsThatAQuerySees) {
  testing::for_random_scenes({32, 64, 96, 128, 256}, 16,
                             [](const SceneShape& shape, uint32_t seed, uint32_t ctas) { check(shape, seed, ctas); });
}

}  // namespace
}  // namespace tierkv::cuda
