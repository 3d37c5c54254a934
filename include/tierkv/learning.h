// learning.h — a cache that learns its model in passing: the tables of a calibration (tierkv/calibration.h), from the rows that it
// sees anyway.
//
//   cache->learn({name, fingerprint, ropes, {}}, {8192, "model.tkc"});   // before the first token
//   ... append() and attention() as ever ...
//   cache->learning().sentence                                          // "learning this model: 3,100 of 8,192 tokens; …"
//
// While it learns, tokens that are due for an "auto" archive stay in the warm tier. When enough tokens went by, the tables are
// solved by one thread of low priority, checked, written to `path` and used from then on: what waited is archived as sequences
// grow, and in flush(). Where nothing can be learned the uncalibrated archive takes over.
//
// What is kept: sums over many tokens, and until the tables are there a sample of keys and values. Never text or tokens.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tierkv/rope.h"

namespace tierkv {

// What a host knows of its model. The shape and the windows are the cache's.
struct LearningModel {
  std::string name;
  uint64_t fingerprint = 0;               // of its weights: goes into the file, so that no other model uses it
  std::vector<calib::Rope> ropes;         // of each layer; empty ones where a layer has none
  std::vector<std::vector<float>> grams;  // of each layer: W_O'W_O of each query head, [query heads][head_dim][head_dim].
                                          // Empty, or an empty layer: not known, errors of heads are weighed alike
};

struct LearningOptions {
  uint64_t tokens = 8192;  // to see before tables are solved
  // Where the tables go, and beside it, with ".sums" at the end, the sums of a run that saw too little for tables: the next one
  // goes on from there. Folders are made. Empty: nothing is read or written.
  std::string path;
};

enum class LearningPhase : uint8_t {
  off = 0,        // nobody asked, or tables came from elsewhere
  gathering = 1,  // tokens go by
  solving = 2,    // enough have: the tables are being made
  done = 3,       // they are there
  refused = 4,    // there will be none: the sentence says why
};

struct LearningReport {
  LearningPhase phase = LearningPhase::off;
  uint64_t tokens = 0;   // seen, those of earlier runs included
  uint64_t wanted = 0;   // to be seen
  std::string sentence;  // for people: what the archive is, and why
  uint64_t bytes = 0;    // that learning holds now, beside the cache's own
  double seconds = 0.0;  // that solving took
  bool waiting = false;  // tokens that are due for the archive stay in the warm tier
};

}  // namespace tierkv
