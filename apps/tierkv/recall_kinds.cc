// recall_kinds.cc — small grammars: village life, a program, a conversation, a dictionary, tables of a weather station.
#include "recall_kinds.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <random>
#include <string_view>

namespace tierkv::cli {
namespace {

using Words = std::vector<std::string_view>;

const Words kPeople = {"the baker",           "the old miller", "a fisherman",    "the schoolteacher", "her sister",
                       "the carpenter",       "a young clerk",  "the gardener",   "the ferryman",      "his neighbour",
                       "the librarian",       "a shepherd",     "the blacksmith", "the doctor",        "the watchmaker",
                       "a travelling tailor", "the innkeeper",  "the postman",    "her uncle",         "the organist"};
const Words kPlaces = {"by the river",         "in the market square",   "behind the church",     "at the edge of the forest",
                       "near the harbour",     "on the stone bridge",    "in the long meadow",    "under the lime trees",
                       "beside the mill pond", "at the top of the hill", "in the narrow street",  "outside the inn",
                       "along the canal",      "in the walled garden",   "below the castle ruins"};
const Words kTimes = {"in the early morning", "after the rain",     "before supper",   "late in the autumn", "on a quiet afternoon",
                      "when the bells rang",  "during the harvest", "all summer long", "towards evening",    "at the first frost",
                      "when the fog lifted",  "once a week",        "in spring",       "on market days",     "long ago"};
const Words kThings = {"a basket of pears", "an old map",       "a wooden chair",   "a bundle of letters", "the broken lantern",
                       "a jar of honey",    "a coil of rope",   "the painted sign", "a pair of boots",     "a sack of flour",
                       "a silver thimble",  "the garden gate",  "a book of songs",  "a copper kettle",     "the blue curtains",
                       "a cart of hay",     "a small clay pot", "an umbrella"};
const Words kDeeds = {"carried", "mended",     "painted",   "lost",    "found",      "sold",   "borrowed", "described",
                      "admired", "wrapped up", "gave away", "cleaned", "looked for", "forgot", "returned", "hid"};
const Words kWeather = {"the wind turned to the west",   "the sky was pale and clear",   "clouds gathered over the hills",
                        "the air smelled of apples",     "a light snow was falling",     "the leaves had begun to turn",
                        "swallows crossed the fields",   "the river ran high and brown", "smoke rose from the chimneys",
                        "the lamps were lit one by one", "the dogs barked at nothing",   "everything was still"};
const Words kThoughts = {"nobody could say why",
                         "which surprised no one",
                         "and that was the end of it",
                         "though it made little difference",
                         "as people still remember",
                         "and the children laughed about it",
                         "because there was nothing else to do",
                         "and then went home by the usual way",
                         "without saying a word about it",
                         "while the others waited patiently",
                         "as had been agreed beforehand",
                         "and felt better for it"};
const Words kFunctions = {"load_page",   "find_orchard", "merge_rows",  "close_gate",   "trim_label",  "sort_baskets",
                          "write_index", "read_channel", "copy_window", "check_ticket", "drain_queue", "split_parcel"};
const Words kNames = {"basket", "window", "buffer",  "parcel", "ticket", "channel",
                      "label",  "record", "orchard", "total",  "offset", "limit"};
const Words kTypes = {"int", "bool", "size_t", "double", "Record", "Parcel", "const char*", "Window"};
const Words kComments = {"The caller keeps the lock until the last row is gone.",
                         "Empty input is fine and gives an empty result.",
                         "Never called twice for the same parcel.",
                         "The order of rows is not kept.",
                         "Slow, but it runs once a day.",
                         "Rounds down, as the old version did."};
const Words kSpeakers = {"ANNA", "BORIS", "CLARA", "DAVID", "ELSA", "FELIX"};
const Words kOpeners = {"Well, ", "I thought that ", "You know, ", "No, listen: ", "To be honest, ", "Wait, ", "As I said, ", ""};
const Words kReplies = {
    "Are you sure about that?",       "I would never have guessed.", "Tell me more.",       "That is not how I remember it.",
    "Why did nobody tell me?",        "Let us talk about it later.", "What happened then?", "You always say so.",
    "And you believed every word...", "Good. Then it is settled.",   "Please, not again!",  "I will ask them myself."};
const Words kHeadStarts = {"bar", "cal", "dor",  "fen", "gal",  "hol", "lam", "mer",
                           "nor", "pel", "quil", "ros", "sten", "tur", "wen"};
const Words kHeadMiddles = {"a", "e", "i", "o", "u", "an", "er", "il", "on", "ur"};
const Words kHeadEnds = {"ble", "dock", "ding", "ley", "mast", "net", "ram", "ster", "tle", "wick", "zel", "dow"};
const Words kClasses = {"noun", "noun", "verb", "adjective", "noun, dialect", "verb, old use"};
const Words kMeanings = {"a tool for cutting reeds",      "the last hour before a storm",    "to walk slowly with something heavy",
                         "of a pale and dusty colour",    "a room above a stable",           "to tie two ropes together",
                         "a small fee paid at a bridge",  "easily bent but hard to break",   "a song that is sung while rowing",
                         "to put off a promise politely", "a cloth used for straining milk", "the sound of wet gravel"};
const Words kStations = {"North Ridge", "Mill Weir", "Old Harbour", "Lime Hill", "Castle Moor", "Long Meadow"};
const Words kPatterns = {"{P} {D} {T} {W}",
                         "{t}, {P} {D} {T}, {h}",
                         "{w}, and {P} stood {W} with {T}",
                         "{W}, where {P} had once met {P}, {w}",
                         "{P} told {P} about {T} {t}",
                         "{t} {w}; {P} {D} {T}",
                         "it was said that {P} {D} {T} {t}, {h}"};

const std::map<char, const Words*> kLists = {
    {'P', &kPeople},   {'W', &kPlaces},    {'t', &kTimes},      {'T', &kThings},      {'D', &kDeeds},    {'w', &kWeather},
    {'h', &kThoughts}, {'f', &kFunctions}, {'n', &kNames},      {'y', &kTypes},       {'c', &kComments}, {'S', &kSpeakers},
    {'o', &kOpeners},  {'r', &kReplies},   {'1', &kHeadStarts}, {'2', &kHeadMiddles}, {'3', &kHeadEnds}, {'C', &kClasses},
    {'m', &kMeanings}, {'s', &kStations},  {'p', &kPatterns}};

std::string_view pick(const Words& words, std::mt19937& random) { return words[random() % words.size()]; }

// Writes a pattern from left to right: "{P}" is a word of the list P. Lists may hold patterns.
std::string expand(std::string_view pattern, std::mt19937& random) {
  std::string text;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '{' || i + 2 >= pattern.size() || pattern[i + 2] != '}') {
      text += pattern[i];
      continue;
    }
    text += expand(pick(*kLists.at(pattern[i + 1]), random), random);
    i += 2;
  }
  return text;
}

std::string capital(std::string text) {
  if (!text.empty()) text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
  return text;
}

std::string prose(std::mt19937& random, size_t part) {
  return capital(expand("{p}", random)) + "." + (part % 6 == 5 ? "\n\n" : " ");
}

std::string code(std::mt19937& random, size_t) {
  std::string text = expand("// {c}\n{y} {f}({y} {n}, {y} {n}) {\n", random);
  for (size_t lines = 2 + random() % 4; lines > 0; --lines) {
    switch (random() % 5) {
      case 0: text += expand("  if ({n} < {n}.size()) return {f}({n}, {n});\n", random); break;
      case 1: text += expand("  for (size_t i = 0; i < {n}; ++i) {n}[i] += {f}({n});\n", random); break;
      case 2: text += expand("  const {y} {n} = {f}({n}, {n} - 1);\n", random); break;
      case 3: text += expand("  while (!{n}.empty()) {n} = {f}({n});\n", random); break;
      default: text += expand("  {n}.push_back({f}({n}));  // {c}\n", random);
    }
  }
  return text + expand("  return {n};\n", random) + "}\n\n";
}

std::string dialogue(std::mt19937& random, size_t part) {
  const std::string speaker = std::string(kSpeakers[(part * 2 + random() % 2) % kSpeakers.size()]) + ": ";
  if (random() % 3 == 0) return speaker + expand("{r}\n", random);
  return speaker + capital(expand("{o}{p}", random)) + ". " + (random() % 2 ? expand("{r}\n", random) : "\n");
}

std::string dictionary(std::mt19937& random, size_t) {
  const std::string word = expand("{1}{2}{3}", random);
  std::string text = word + expand(" ({C}): {m}; also, {m}. \"", random) + capital(expand("{P} {D} {T} {W}.\"", random));
  if (random() % 3 == 0) text += expand(" See also {1}{2}{3}.", random);
  return text + "\n";
}

// Up to four digits a number, so that none is a pass key.
std::string table(std::mt19937& random, size_t part) {
  std::string text;
  if (part % 24 == 0) text = std::string("\n") + expand("Station {s}", random) + "\nday, rain, wind, pressure, flow, visitors\n";
  text += std::to_string(part % 24 + 1);
  constexpr uint32_t kTops[] = {900, 400, 1100, 9000, 700};
  for (const uint32_t top : kTops) {
    const uint32_t whole = random() % top;
    text += ", " + std::to_string(whole);
    if (top < 1000) text += "." + std::to_string(random() % 10);
  }
  return text + "\n";
}

using Writer = std::string (*)(std::mt19937& random, size_t part);
struct Kind {
  const char* name;
  Writer write;
};
constexpr Kind kKinds[] = {{"prose", prose}, {"code", code}, {"dialogue", dialogue}, {"dictionary", dictionary}, {"table", table}};

}  // namespace

const std::vector<std::string>& text_kinds() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const Kind& kind : kKinds) all.emplace_back(kind.name);
    return all;
  }();
  return names;
}

std::string generate_text(const std::string& kind, size_t words, uint32_t seed) {
  const auto found = std::find_if(std::begin(kKinds), std::end(kKinds), [&](const Kind& k) { return k.name == kind; });
  std::string text;
  if (found == std::end(kKinds)) return text;
  std::mt19937 random(seed);
  size_t count = 0;
  for (size_t part = 0; count < words; ++part) {
    const std::string next = found->write(random, part);
    count += static_cast<size_t>(std::count_if(next.begin(), next.end(), [](char c) { return c == ' ' || c == '\n'; }));
    text += next;
  }
  return text;
}

}  // namespace tierkv::cli
