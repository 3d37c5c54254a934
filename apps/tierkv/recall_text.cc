// recall_text.cc — a small grammar of village life, and the needles.
#include "recall_text.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <set>
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

std::string_view pick(const Words& words, std::mt19937& random) { return words[random() % words.size()]; }

std::string sentence(std::mt19937& random) {
  auto take = [&](const Words& words) { return std::string(pick(words, random)); };
  std::string text;
  switch (random() % 7) {
    case 0: text = take(kPeople) + " " + take(kDeeds) + " " + take(kThings) + " " + take(kPlaces); break;
    case 1: text = take(kTimes) + ", " + take(kPeople) + " " + take(kDeeds) + " " + take(kThings) + ", " + take(kThoughts); break;
    case 2: text = take(kWeather) + ", and " + take(kPeople) + " stood " + take(kPlaces) + " with " + take(kThings); break;
    case 3:
      text = take(kPlaces) + ", where " + take(kPeople) + " had once " + "met " + take(kPeople) + ", " + take(kWeather);
      break;
    case 4: text = take(kPeople) + " told " + take(kPeople) + " about " + take(kThings) + " " + take(kTimes); break;
    case 5: text = take(kTimes) + " " + take(kWeather) + "; " + take(kPeople) + " " + take(kDeeds) + " " + take(kThings); break;
    default:
      text = "it was said that " + take(kPeople) + " " + take(kDeeds) + " " + take(kThings) + " " + take(kTimes) + ", " +
             take(kThoughts);
  }
  text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
  return text + ".";
}

constexpr std::array kColours = {"amber",  "crimson", "silver", "golden", "scarlet", "violet", "ivory",
                                 "copper", "emerald", "indigo", "pearl",  "bronze",  "azure",  "olive",
                                 "coral",  "jade",    "maroon", "navy",   "ruby",    "white"};
constexpr std::array kAnimals = {"falcon", "otter", "badger", "heron", "fox",  "salmon", "raven", "hare", "stag",  "wolf",
                                 "owl",    "lynx",  "seal",   "crane", "boar", "swan",   "toad",  "mole", "moose", "bear"};

std::string number(std::mt19937& random) { return std::to_string(10000 + random() % 90000); }

}  // namespace

const char* const kPasskeyIntroduction =
    "There is a pass key hidden in the following text. Find it and remember it. There will be a question about the pass key at the "
    "end.\n\n";
const char* const kLinesIntroduction =
    "There are several notes hidden in the following text. Each note gives the number of one animal. Remember all of them. There "
    "will be a "
    "question about one of the numbers at the end.\n\n";

std::string generate_prose(size_t words, uint32_t seed) {
  std::mt19937 random(seed);
  std::string text;
  size_t count = 0, in_paragraph = 0;
  while (count < words) {
    const std::string next = sentence(random);
    count += static_cast<size_t>(std::count(next.begin(), next.end(), ' ')) + 1;
    text += next;
    text += ++in_paragraph % 6 == 0 ? "\n\n" : " ";
  }
  return text;
}

Needle make_passkey(std::mt19937& random) {
  const std::string key = number(random);
  return {"\n\nThe pass key is " + key + ". Remember it. " + key + " is the pass key.\n\n",
          "\n\nWhat is the pass key? The pass key is", key};
}

std::vector<Needle> make_lines(size_t count, std::mt19937& random) {
  std::vector<std::string> names;
  for (const char* colour : kColours) {
    for (const char* animal : kAnimals) names.push_back(std::string(colour) + " " + animal);
  }
  for (size_t i = names.size() - 1; i > 0; --i) std::swap(names[i], names[random() % (i + 1)]);
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

}  // namespace tierkv::cli
