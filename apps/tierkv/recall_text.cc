// recall_text.cc — what is hidden, how it is asked for, and how an answer is judged.
#include "recall_text.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <iterator>
#include <map>
#include <set>
#include <sstream>

namespace tierkv::cli {
namespace {

constexpr std::array kColours = {"amber",  "crimson", "silver", "golden", "scarlet", "violet", "ivory",
                                 "copper", "emerald", "indigo", "pearl",  "bronze",  "azure",  "olive",
                                 "coral",  "jade",    "maroon", "navy",   "ruby",    "white"};
constexpr std::array kAnimals = {"falcon", "otter", "badger", "heron", "fox",  "salmon", "raven", "hare", "stag",  "wolf",
                                 "owl",    "lynx",  "seal",   "crane", "boar", "swan",   "toad",  "mole", "moose", "bear"};

// Sentences to be quoted: words that no kind of text has in this order.
constexpr std::array kCounts = {"Seven", "Nine", "Eleven", "Twelve", "Thirteen", "Twenty", "Forty", "Sixty", "Eighty", "Ninety"};
constexpr std::array kMoods = {"tired",  "cheerful", "silent",  "clumsy",  "famous",
                               "hungry", "polite",   "nervous", "wealthy", "stubborn"};
constexpr std::array kActors = {"sailors", "painters", "nurses", "pilots", "dancers",
                                "lawyers", "miners",   "cooks",  "judges", "soldiers"};
constexpr std::array kActs = {"carried",  "dragged", "pushed",   "rolled",   "lifted",
                              "followed", "guarded", "polished", "measured", "photographed"};
constexpr std::array kLooks = {"heavy", "yellow", "frozen", "hollow", "crooked", "shiny", "narrow", "dusty", "purple", "giant"};
constexpr std::array kObjects = {"bell",   "piano",  "statue", "wardrobe", "telescope",
                                 "barrel", "carpet", "engine", "mirror",   "balloon"};
constexpr std::array kRoads = {"across the desert", "through the tunnel", "past the airport", "around the stadium",
                               "over the glacier",  "along the railway",  "into the theatre", "up the staircase",
                               "down the avenue",   "towards the volcano"};
constexpr std::array kWitnesses = {"girl",     "tourist", "monk", "reporter", "beggar",
                                   "princess", "dentist", "twin", "widow",    "robot"};
constexpr std::array kWitnessActs = {"counted every step", "hummed a march", "ate cold soup",   "took careful notes",
                                     "laughed out loud",   "shook her head", "held the ladder", "asked for silence",
                                     "looked away",        "fell asleep"};
constexpr std::array kEnds = {"wrote the total on her sleeve",        "promised to return before midnight",
                              "paid for the broken window",           "forgot the name of the captain",
                              "burned the letter without reading it", "sold both horses to a stranger",
                              "telephoned the mayor about the noise", "hid the receipt under a stone",
                              "drew a small map on the wall",         "waited for the orchestra to finish"};

// N and n: how many, M: mood, A: who, V: did, L: look, O: object, R: way, I: witness, J: what that one did, E: end.
constexpr std::array kSentences = {
    "{N} {M} {A} {V} the {L} {O} {R} while a {M} {I} {J} and then {E}.",
    "The {L} {O} was {V} {R} by {n} {M} {A}, but when the {I} {J}, everybody else {E} and went home by tram.",
    "Because a {M} {I} {J}, {n} {A} {E}, although the {L} {O} had never been {V} {R} before.",
    "Nobody who {V} the {L} {O} {R} expected that {n} {M} {A} would meet the {I} who {J} or {E}.",
    "My {M} {I}, whose {A} once {V} the {L} {O} {R}, {E} exactly {n} days after somebody {J}."};

constexpr size_t kGiven = 4;  // words of a sentence that the question gives

std::string number(std::mt19937& random) { return std::to_string(10000 + random() % 90000); }

template <class T>
void shuffle(std::vector<T>& values, std::mt19937& random) {
  for (size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[random() % i]);
}

}  // namespace

std::string introduction(bool passkeys, bool quotes) {
  std::string text;
  if (passkeys) text += "There is a pass key hidden in the following text. Find it and remember it. ";
  if (quotes) text += "There is a sentence in the following text that must be remembered word for word. ";
  return text + "There will be a question about it at the end.\n\n";
}

const char* const kLinesIntroduction =
    "There are several notes hidden in the following text. Each note gives the number of one animal. Remember all of them. There "
    "will be a "
    "question about one of the numbers at the end.\n\n";

Needle make_passkey(std::mt19937& random) {
  const std::string key = number(random);
  return {"\n\nThe pass key is " + key + ". Remember it. " + key + " is the pass key.\n\n",
          "\n\nWhat is the pass key? The pass key is", key};
}

std::vector<std::string> quote_sentences(size_t count, std::mt19937& random) {
  std::map<char, std::vector<std::string>> words;
  const auto fill = [&](char letter, const auto& list) {
    words[letter].assign(list.begin(), list.end());
    shuffle(words[letter], random);
  };
  fill('N', kCounts), fill('M', kMoods), fill('A', kActors), fill('V', kActs), fill('L', kLooks), fill('O', kObjects);
  fill('R', kRoads), fill('I', kWitnesses), fill('J', kWitnessActs), fill('E', kEnds);
  std::vector<std::string> patterns(kSentences.begin(), kSentences.end());
  shuffle(patterns, random);
  patterns.resize(std::min(count, patterns.size()));
  for (std::string& text : patterns) {
    for (size_t at = text.find('{'); at != std::string::npos; at = text.find('{')) {
      const bool small = text[at + 1] == 'n';
      std::vector<std::string>& left = words[small ? 'N' : text[at + 1]];
      std::string word = left.back();
      left.pop_back();  // no word serves twice: a copy that jumps to another sentence is a miss that can be seen
      if (small) word[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(word[0])));
      text.replace(at, 3, word);
    }
  }
  return patterns;
}

std::vector<Needle> make_quotes(size_t count, std::mt19937& random) {
  std::vector<Needle> needles;
  for (const std::string& sentence : quote_sentences(count, random)) {
    std::string given, rest;
    const std::vector<std::string> words = split_words(sentence);
    for (size_t i = 0; i < words.size(); ++i) {
      std::string& part = i < kGiven ? given : rest;
      part += (part.empty() ? "" : " ") + words[i];
    }
    rest.pop_back();  // the full stop is not asked for: it may be one token with what follows
    needles.push_back({"\n\nRemember this sentence: \"" + sentence + "\" Once more, word for word: \"" + sentence + "\"\n\n",
                       "\n\nThe sentence to remember was: \"" + given, rest});
  }
  return needles;
}

std::vector<Needle> make_lines(size_t count, std::mt19937& random) {
  std::vector<std::string> names;
  for (const char* colour : kColours) {
    for (const char* animal : kAnimals) names.push_back(std::string(colour) + " " + animal);
  }
  shuffle(names, random);
  std::vector<Needle> lines;
  std::set<std::string> numbers;
  while (lines.size() < std::min(count, names.size())) {
    const std::string& name = names[lines.size()];
    const std::string value = number(random);
    if (!numbers.insert(value).second) continue;
    lines.push_back({"\n\nNote: the number of the " + name + " is " + value + ".\n\n",
                     "\n\nWhat is the number of the " + name + "? The number of the " + name + " is", value});
  }
  return lines;
}

bool answers(const std::string& generated, const std::string& answer) {
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  const auto first = std::find_if(generated.begin(), generated.end(), digit);
  const auto last = std::find_if_not(first, generated.end(), digit);
  return std::string(first, last) == answer;
}

std::string until_number_ends(const std::string& said) {
  const size_t first = said.find_first_of("0123456789");
  if (first == std::string::npos) return said;
  return said.substr(0, said.find_first_not_of("0123456789", first));
}

std::vector<std::string> split_words(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), {}};
}

size_t leading_words(const std::string& said, const std::string& answer) {
  const std::vector<std::string> wanted = split_words(answer);
  std::vector<std::string> got = split_words(said);
  size_t same = 0;
  while (same < wanted.size() && same < got.size()) {
    // Behind the last word a full stop or a quotation mark may follow, but no letter.
    if (same + 1 == wanted.size() && got[same].starts_with(wanted[same])) {
      const size_t end = wanted[same].size();
      if (end == got[same].size() || !std::isalnum(static_cast<unsigned char>(got[same][end]))) got[same].resize(end);
    }
    if (got[same] != wanted[same]) break;
    ++same;
  }
  return same;
}

}  // namespace tierkv::cli
