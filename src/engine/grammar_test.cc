#include "engine/grammar.h"

#include <gtest/gtest.h>

#include "engine/engine.h"
#include "engine/grammar_check.h"
#include "engine/sampler.h"
#include "engine/testing.h"

namespace tierkv::engine {
namespace {

// Why it is refused; empty: it is not.
std::string refusal(const std::string& text) {
  try {
    check_grammar(text);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::bad_input);
    return error.what();
  }
  return "";
}

TEST(Grammar, GrammarsPass) {
  for (const char* text :
       {"root ::= \"yes\" | \"no\"", "root ::= [a-z]+ \".\"", "root ::= item{2,5}\nitem ::= \"- \" [^\\n]+ \"\\n\"",
        "# a comment\nroot ::= (\n  a |\n  b\n)*\na ::= \"\\x41\"\nb ::= . [\\u0400-\\U000004ff\\]-]",
        "root ::= \"(\" root \")\" | \"\"", "root ::= a\r\na ::= \"x\" {3}", "root ::= \"a\" | # or\n  \"b\"", kJsonGrammar}) {
    EXPECT_EQ(refusal(text), "") << text;
  }
}

TEST(Grammar, MistakesAreNamedWithTheirLine) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "no rule root"},
      {"start ::= \"a\"", "no rule root"},
      {"root ::= \"a\"\nnext = \"b\"", "line 2: ::= is expected"},
      {"root ::= \"a", "closing \" is missing"},
      {"root ::= [a", "closing ] is missing"},
      {"root ::= (\"a\"", "closing ) is missing"},
      {"root ::= \"a\"{2", "closing } is missing"},
      {"root ::= \"a\"{5,2}", "more at least than at most"},
      {"root ::= *", "nothing before *"},
      {"root ::= \"\\q\"", "escape"},
      {"root ::= \"\\x4\"", "2 hexadecimal digits"},
      {"root ::= other", "not there: other"},
      {"root ::= <think>", "tokens"},
      {"root ::= \"\xff\"", "UTF-8"},
      {"root ::= [\xc3]", "UTF-8"},
      {"root ::= \"a\" )", "new line is expected"},
      {"root ::= \"a\"{100000}", "too many repetitions"},
      {std::string("root ::= \"a\0\"", 13), "zero byte"},
      {"root ::= " + std::string(100, '(') + "\"a\"" + std::string(100, ')'), "nested deeper"},
      {"root ::= \"" + std::string(70000, 'a') + "\"", "longer than 64 KiB"},
  };
  for (const auto& [text, reason] : cases)
    EXPECT_NE(refusal(text).find(reason), std::string::npos) << text << ": " << refusal(text);
}

TEST(Grammar, ManySmallRepetitionsAreBoundedToo) {
  std::string text = "root ::=";
  for (int i = 0; i < 3000; ++i) text += " \"a\"{0,1900}";
  EXPECT_NE(refusal(text), "");
}

TEST(Grammar, ARuleThatMayBeginWithItselfIsRefused) {
  for (const char* text : {"root ::= root \"a\" | \"b\"", "root ::= a\na ::= b \"x\"\nb ::= a | \"y\"",
                           // libllama does not see that b may be empty, and would never end.
                           "root ::= b root \"x\" | \"y\"\nb ::= c\nc ::= \"\" | \"z\"", "root ::= (\"a\"? root \"b\")"}) {
    EXPECT_NE(refusal(text).find("begin with itself"), std::string::npos) << text;
  }
}

class GrammarOnAModel : public testing::Test {
 protected:
  // What sampling of changing logits writes, 60 tokens at most. `loved`: a text whose tokens are far likelier than all others.
  std::string write(const std::string& grammar, uint32_t seed, const std::string& loved = "") {
    const llama_vocab* vocab = llama_model_get_vocab(engine_.model());
    SamplerOptions options;
    options.temperature = 1.0f;
    options.grammar = std::make_shared<Grammar>(grammar, vocab);
    Sampler sampler(options, seed);
    std::vector<float> logits(engine_.tokenizer().size());
    std::string text;
    for (uint32_t i = 0; i < 60; ++i) {
      for (size_t j = 0; j < logits.size(); ++j) logits[j] = static_cast<float>((j * 2654435761u + i * 40503u + seed) % 1000) / 100;
      for (const llama_token one : engine_.tokenizer().encode(loved, false)) logits[static_cast<size_t>(one)] = 100.0f;
      const llama_token token = sampler.pick(logits);
      if (token == LLAMA_TOKEN_NULL || engine_.tokenizer().is_end(token)) {
        ended_ = true;
        return text;
      }
      text += engine_.tokenizer().piece(token);
    }
    ended_ = false;
    return text;
  }

  static EngineOptions tiny() {
    EngineOptions options;
    options.model = tiny_model("llama");
    return options;
  }

  Engine engine_{tiny()};
  bool ended_ = false;
};

TEST_F(GrammarOnAModel, OnlyWhatFitsIsPicked) {
  for (uint32_t seed = 0; seed < 8; ++seed) {
    const std::string word = write("root ::= \"yes\" | \"no\"", seed);
    EXPECT_TRUE(ended_);
    EXPECT_TRUE(word == "yes" || word == "no") << word;
    const std::string digits = write("root ::= [0-9]{3} \"-\" [a-f]+", seed);
    EXPECT_EQ(digits.find_first_not_of("0123456789"), 3u) << digits;
    EXPECT_EQ(digits.find_first_not_of("abcdef", 4), std::string::npos) << digits;
  }
}

TEST_F(GrammarOnAModel, AGrammarThatLeadsNowhereEndsTheText) {
  EXPECT_EQ(write("root ::= \"\"", 1), "");
  EXPECT_TRUE(ended_);
}

TEST_F(GrammarOnAModel, OneWithTooManyReadingsIsGivenUp) {
  EXPECT_THROW((void)write("root ::= \"a\" root \"b\" | \"a\" root \"c\" | \"d\"", 3, "aa"), Error);
}

}  // namespace
}  // namespace tierkv::engine
