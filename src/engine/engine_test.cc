#include "engine/engine.h"

#include <algorithm>

#include "engine/generate.h"
#include "engine/session_file.h"
#include "engine/testing.h"

namespace tierkv::engine {
namespace {

EngineOptions tiny(const std::string& kind = "llama") {
  EngineOptions options;
  options.model = tiny_model(kind);
  options.threads = 2;
  return options;
}

Tokens some_tokens(const Engine& engine, size_t count, uint32_t seed) {
  Tokens tokens;
  uint32_t state = seed * 2654435761u + 1;
  for (size_t i = 0; i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    tokens.push_back(static_cast<llama_token>((state >> 10) % engine.tokenizer().size()));
  }
  return tokens;
}

std::vector<float> logits_after(Session& session, const Tokens& tokens) {
  session.feed(tokens, Want::last);
  return {session.last_logits().begin(), session.last_logits().end()};
}

TEST(Engine, EveryErrorHasAKindAndASentence) {
  std::string sentence;
  EngineOptions options = tiny();
  options.model = "nowhere.gguf";
  EXPECT_EQ(kind_thrown([&] { Engine engine(options); }, &sentence), ErrorKind::bad_input);
  EXPECT_NE(sentence.find("nowhere.gguf"), std::string::npos);
  Engine recurrent(tiny("mamba"));
  EXPECT_EQ(kind_thrown([&] { (void)recurrent.shape(); }, &sentence), ErrorKind::bad_input);
  Engine engine(tiny());
  EXPECT_EQ(kind_thrown([&] { (void)engine.open_session("ballanced"); }, &sentence), ErrorKind::bad_input);
  EXPECT_EQ(kind_thrown([&] { (void)engine.check_context(1u << 20); }, &sentence), ErrorKind::bad_input);
  EXPECT_EQ(kind_thrown([&] { check({StatusCode::resource_exhausted, "full"}, "here"); }, &sentence), ErrorKind::no_room);
  EXPECT_EQ(sentence, "here: full");
  EXPECT_EQ(kind_thrown([&] { check({StatusCode::internal, "oops"}); }, &sentence), ErrorKind::failed);
  EXPECT_STREQ(error_kind_name(ErrorKind::no_room), "no_room");
}

TEST(Engine, TextComesBackFromItsTokens) {
  Engine engine(tiny());
  const std::string text = "that river sees the north";
  const Tokens plain = engine.tokenizer().encode(text, false), special = engine.tokenizer().encode(text, true);
  std::string back = engine.tokenizer().decode(plain);
  back.erase(0, back.find_first_not_of(' '));
  EXPECT_EQ(back, text);
  const llama_token first = engine.tokenizer().first_token();
  EXPECT_EQ(special.size(), plain.size() + (first != LLAMA_TOKEN_NULL));
  if (first != LLAMA_TOKEN_NULL) {
    EXPECT_EQ(special.front(), first);
  }
}

TEST(ChatTemplate, ModelsWithoutOneGetAPlainForm) {
  const ChatTemplate none("a template that libllama has never seen");
  EXPECT_FALSE(none.known());
  EXPECT_EQ(none.apply({{"system", "Be kind."}, {"user", "Hi"}}, true), "Be kind.\nUser: Hi\nAssistant:");
  const ChatTemplate chatml("chatml");
  ASSERT_TRUE(chatml.known());
  EXPECT_EQ(chatml.apply({{"user", "Hi"}}, true), "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
}

TEST(Session, ChunksDoNotChangeWhatIsPredicted) {
  Engine engine(tiny());
  const Tokens tokens = some_tokens(engine, 150, 1);
  const auto one = engine.open_session("fp16"), two = engine.open_session("fp16");
  size_t rows = 0;
  one->feed(
      tokens, Want::all, [&](uint32_t i, std::span<const float>) { EXPECT_EQ(i, rows++); }, 7);
  two->feed(tokens, Want::last);
  EXPECT_EQ(rows, tokens.size());
  ASSERT_EQ(one->last_logits().size(), engine.tokenizer().size());
  for (size_t i = 0; i < one->last_logits().size(); ++i) EXPECT_NEAR(one->last_logits()[i], two->last_logits()[i], 2e-3) << i;
  EXPECT_EQ(one->length(), 150u);
  EXPECT_EQ(one->times().prefill_tokens, 150u);
}

TEST(Session, ACancellationStopsItAndItGoesOnAfterwards) {
  Cancellation stop;
  EngineOptions options = tiny();
  options.cancel = &stop;
  Engine engine(options);
  const auto session = engine.open_session("balanced");
  const Tokens tokens = some_tokens(engine, 600, 2);
  auto stop_at_some = [&](uint32_t done) {
    if (done >= 128) stop.request();
  };
  EXPECT_EQ(kind_thrown([&] { session->feed(tokens, Want::last, {}, 32, stop_at_some); }), ErrorKind::cancelled);
  EXPECT_EQ(session->length(), 128u);
  Sampler sampler(SamplerOptions{}, 0);
  EXPECT_EQ(generate(engine, *session, sampler, {}).stop, "interrupted");
  stop.clear();
  session->feed(std::span(tokens).subspan(128), Want::last);
  EXPECT_EQ(session->length(), 600u);
}

// However many threads a token gets, what is predicted is the same.
TEST(Session, ThreadsThatFollowTheLoadChangeNothing) {
  EngineOptions following = tiny();
  following.fewer_threads = true;
  Engine engine(tiny()), other(following);
  EXPECT_EQ(engine.step_threads().most(), 1u);
  EXPECT_EQ(other.step_threads().most(), 2u);
  const auto one = engine.open_session("balanced"), two = other.open_session("balanced");
  const Tokens tokens = some_tokens(engine, 60, 8);
  one->feed(std::span(tokens).first(20));
  two->feed(std::span(tokens).first(20));
  for (size_t i = 20; i < tokens.size(); ++i) {
    one->feed(std::span(tokens).subspan(i, 1), Want::last);
    two->feed(std::span(tokens).subspan(i, 1), Want::last);
    ASSERT_TRUE(std::ranges::equal(one->last_logits(), two->last_logits())) << i;
  }
}

TEST(Session, LoadingIsCancelledToo) {
  Cancellation stop;
  stop.request();
  EngineOptions options = tiny();
  options.cancel = &stop;
  EXPECT_EQ(kind_thrown([&] { Engine engine(options); }), ErrorKind::cancelled);
}

TEST(Session, AFullContextIsRefusedBeforeAnythingIsFed) {
  Engine engine(tiny());
  const auto session = engine.open_session("fp16", {.ctx = 64});
  EXPECT_EQ(kind_thrown([&] { session->feed(some_tokens(engine, 65, 3)); }), ErrorKind::bad_input);
  EXPECT_EQ(session->length(), 0u);
}

TEST(TieredContext, SequencesDoNotDisturbEachOther) {
  Engine engine(tiny());
  const Tokens a = some_tokens(engine, 200, 4), b = some_tokens(engine, 90, 5);
  const auto alone_a = engine.open_session("balanced"), alone_b = engine.open_session("balanced");
  const auto expected_a = logits_after(*alone_a, a), expected_b = logits_after(*alone_b, b);

  const auto context = engine.open_context("balanced", {.slots = 2});
  const auto one = context->open_session(), two = context->open_session();
  EXPECT_NE(one->slot(), two->slot());
  EXPECT_EQ(logits_after(*one, a), expected_a);
  EXPECT_EQ(logits_after(*two, b), expected_b);
  EXPECT_EQ(one->length(), 200u);
}

TEST(TieredContext, OneBatchServesSeveralSequences) {
  Engine engine(tiny());
  const auto context = engine.open_context("fp16", {.slots = 2});
  const auto one = context->open_session(), two = context->open_session();
  one->feed(some_tokens(engine, 40, 6));
  two->feed(some_tokens(engine, 25, 7));
  Batch batch(2);
  batch.add(11, one->length(), one->slot(), true);
  batch.add(12, two->length(), two->slot(), true);
  ASSERT_TRUE(context->decode(batch).ok());
  one->advanced(1);
  two->advanced(1);
  const auto alone = engine.open_session("fp16");
  Tokens text = some_tokens(engine, 25, 7);
  text.push_back(12);
  const std::vector<float> expected = logits_after(*alone, text);
  const float* row = llama_get_logits_ith(context->get(), 1);
  ASSERT_NE(row, nullptr);
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(row[i], expected[i], 2e-3) << i;
  EXPECT_EQ(two->length(), 26u);
  two->feed(Tokens{13});  // and it goes on by itself
  EXPECT_EQ(two->length(), 27u);
}

TEST(TieredContext, ASlotIsFreeAgainWhenItsSessionEnds) {
  Engine engine(tiny());
  const auto context = engine.open_context("fp16", {.slots = 1});
  auto session = context->open_session();
  session->feed(some_tokens(engine, 300, 8));
  const uint64_t before = context->cache().memory_usage().tier[static_cast<int>(Tier::hot)].tokens;
  EXPECT_GT(before, 0u);
  EXPECT_EQ(kind_thrown([&] { (void)context->open_session(); }), ErrorKind::no_room);
  session.reset();
  EXPECT_EQ(context->cache().memory_usage().tier[static_cast<int>(Tier::hot)].tokens, 0u);
  session = context->open_session();
  EXPECT_EQ(session->length(), 0u);
}

TEST(SessionFile, AResumedSessionPredictsTheSameBits) {
  Engine engine(tiny());
  const TestFolder folder;
  const Tokens tokens = some_tokens(engine, 700, 9);
  const auto session = engine.open_session("balanced");
  session->feed(tokens);
  write_session(folder.file("s.tkv"), capture(engine, *session, tokens));
  const auto resumed = resume(engine, read_session(folder.file("s.tkv")), folder.file("s.tkv"));
  EXPECT_EQ(resumed->length(), session->length());
  EXPECT_EQ(logits_after(*resumed, {5}), logits_after(*session, {5}));
  Engine other(tiny("qwen2"));
  EXPECT_EQ(kind_thrown([&] { (void)resume(other, read_session(folder.file("s.tkv")), "s.tkv"); }), ErrorKind::bad_input);
}

TEST(StockSession, PredictsWhatOurFp16Predicts) {
  Engine engine(tiny());
  const Tokens tokens = some_tokens(engine, 120, 10);
  const auto stock = engine.open_stock_session(parse_stock("f16")), ours = engine.open_session("fp16");
  const auto expected = logits_after(*stock, tokens), got = logits_after(*ours, tokens);
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(got[i], expected[i], 5e-2) << i;
  stock->truncate(60);
  EXPECT_EQ(stock->length(), 60u);
  EXPECT_EQ(kind_thrown([&] { (void)stock->sequence(); }), ErrorKind::failed);
  EXPECT_EQ(kind_thrown([] { (void)parse_stock("q5_1"); }), ErrorKind::bad_input);
}

}  // namespace
}  // namespace tierkv::engine
