// learning.cc — tierkv/c.h: learning a model in passing.
#include <cstdio>

#include "capi/guard.h"
#include "capi/handles.h"
#include "capi/structs.h"

using tierkv::LearningModel;
using tierkv::LearningOptions;
using tierkv::LearningPhase;
using tierkv::Status;
using tierkv::StatusCode;
using tierkv::capi::guarded;

static_assert(TIERKV_LEARNING_DONE == static_cast<int>(LearningPhase::done) &&
              TIERKV_LEARNING_REFUSED == static_cast<int>(LearningPhase::refused));

namespace tierkv::capi {
namespace {

Result<LearningModel> model_of(const tierkv_learning_model* given, const CacheConfig& config) {
  tierkv_learning_model all{};
  TIERKV_RETURN_IF_ERROR(sized_in(given, offsetof(tierkv_learning_model, grams), "model", all));
  TIERKV_NOT_NULL(all.ropes);
  TIERKV_NOT_NULL(all.rope_pairs);
  LearningModel model;
  if (all.name) model.name = all.name;
  model.fingerprint = all.fingerprint;
  const size_t gram = static_cast<size_t>(config.query_heads()) * config.head_dim * config.head_dim;
  for (uint32_t l = 0; l < config.num_layers; ++l) {
    if (all.rope_pairs[l] > config.head_dim / 2 || (all.rope_pairs[l] && !all.ropes[l])) {
      return error(StatusCode::invalid_argument, "layer ", l, " has ", all.rope_pairs[l], " pairs of channels",
                   all.ropes[l] ? "" : " and no list of them", "; there are ", config.head_dim, " channels");
    }
    calib::Rope& rope = model.ropes.emplace_back();
    for (uint32_t p = 0; p < all.rope_pairs[l]; ++p) rope.push_back({all.ropes[l][p].a, all.ropes[l][p].b, all.ropes[l][p].angle});
    if (!all.grams) continue;
    model.grams.emplace_back();
    if (all.grams[l]) model.grams.back().assign(all.grams[l], all.grams[l] + gram);
  }
  return model;
}

}  // namespace
}  // namespace tierkv::capi

using namespace tierkv::capi;

extern "C" {

tierkv_status tierkv_learn(tierkv_cache* cache, const tierkv_learning_model* model, uint64_t tokens, const char* path) {
  return guarded([&]() -> Status {
    TIERKV_NOT_NULL(cache);
    TIERKV_NOT_NULL(model);
    TIERKV_ASSIGN_OR_RETURN(LearningModel known, model_of(model, cache->value->config()));
    LearningOptions options;
    if (tokens) options.tokens = tokens;
    if (path) options.path = path;
    return cache->value->learn(std::move(known), std::move(options));
  });
}

tierkv_status tierkv_learn_residual(tierkv_cache* cache, uint32_t layer, double mean_square) {
  return guarded([&]() -> Status {
    TIERKV_NOT_NULL(cache);
    cache->value->set_residual(layer, mean_square);
    return {};
  });
}

tierkv_status tierkv_learning(const tierkv_cache* cache, tierkv_learning_report* report, char* sentence, size_t sentence_size) {
  return guarded([&]() -> Status {
    TIERKV_NOT_NULL(cache);
    if (sentence_size && !sentence) return null_argument("sentence");
    const tierkv::LearningReport now = cache->value->learning();
    if (report) {
      const tierkv_learning_report full = {
          0, static_cast<int>(now.phase), now.waiting ? 1 : 0, now.tokens, now.wanted, now.bytes, now.seconds};
      TIERKV_RETURN_IF_ERROR(sized_out(full, report, "report"));
    }
    if (sentence_size) std::snprintf(sentence, sentence_size, "%s", now.sentence.c_str());
    return {};
  });
}

}  // extern "C"
