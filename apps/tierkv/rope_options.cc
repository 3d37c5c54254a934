// rope_options.cc — --rope-... and --yarn-...: llama.cpp's options for a model that runs past the length it was made for.
#include "rope_options.h"

#include <llama.h>

#include <CLI/CLI.hpp>
#include <cmath>

namespace tierkv::cli {
namespace {

// A number that libllama would take for one that says nothing, or for no number, is refused.
CLI::Validator number_from(double least, bool itself) {
  const std::string above = (itself ? "from " : "above ") + std::string(least == 0.0 ? "0" : "1");
  return CLI::Validator(
      [=](const std::string& text) {
        char* end = nullptr;
        const double value = std::strtod(text.c_str(), &end);
        const bool good = end != text.c_str() && *end == '\0' && std::isfinite(value) && value < 1e12 &&
                          (itself ? value >= least : value > least);
        return good ? std::string() : "must be a number " + above + ", not " + text;
      },
      "");
}

}  // namespace

void add_rope_options(CLI::App& app, RopeOptions& rope) {
  const auto add = [&](const char* name, auto& value, const char* type, const char* help) {
    return app.add_option(name, value, help)->type_name(type)->group("RoPE, for texts longer than the model was made for");
  };
  const CLI::Validator positive = number_from(0.0, false), not_negative = number_from(0.0, true);
  add("--rope-scaling", rope.scaling, "KIND", "how positions are stretched: none, linear, yarn (default: as the model has it)")
      ->check(CLI::IsMember({"none", "linear", "yarn"}));
  add("--rope-scale", rope.scale, "X", "stretch the context so many times: --rope-scaling yarn --rope-scale 4")->check(positive);
  add("--rope-freq-base", rope.freq_base, "X", "what frequencies are powers of (default: the model's)")
      ->check(number_from(1.0, false));
  add("--rope-freq-scale", rope.freq_scale, "X", "what frequencies are multiplied with: 0.25 is --rope-scale 4")->check(positive);
  add("--yarn-orig-ctx", rope.orig_ctx, "N", "YaRN: the context the model was made for (default: the model's)")
      ->check(CLI::Range(1u, 1u << 30));
  add("--yarn-ext-factor", rope.ext_factor, "X", "YaRN: how much of the fast channels stays as it is, 0 to 1")->check(not_negative);
  add("--yarn-attn-factor", rope.attn_factor, "X", "YaRN: what attention is sharpened with")->check(positive);
  add("--yarn-beta-slow", rope.beta_slow, "X", "YaRN: channels that turn fewer times in the context are stretched whole")
      ->check(not_negative);
  add("--yarn-beta-fast", rope.beta_fast, "X", "YaRN: channels that turn more times in the context are not stretched")
      ->check(not_negative);
}

llama::RopeSettings rope_settings(const RopeOptions& rope) {
  if (rope.scale != 0.0f && rope.freq_scale != 0.0f)
    bad_input("--rope-scale and --rope-freq-scale say the same in two ways: give one of them");
  if (rope.scaling == "none" && (rope.scale != 0.0f || rope.freq_scale != 0.0f))
    bad_input("--rope-scaling none stretches nothing, so there is no scale: leave out one of the two");
  llama::RopeSettings settings;
  if (rope.scaling == "none") settings.scaling = LLAMA_ROPE_SCALING_TYPE_NONE;
  if (rope.scaling == "linear") settings.scaling = LLAMA_ROPE_SCALING_TYPE_LINEAR;
  if (rope.scaling == "yarn") settings.scaling = LLAMA_ROPE_SCALING_TYPE_YARN;
  settings.freq_base = rope.freq_base;
  settings.freq_scale = rope.scale != 0.0f ? 1.0f / rope.scale : rope.freq_scale;
  settings.yarn_ext_factor = rope.ext_factor;
  settings.yarn_attn_factor = rope.attn_factor;
  settings.yarn_beta_slow = rope.beta_slow;
  settings.yarn_beta_fast = rope.beta_fast;
  settings.yarn_orig_ctx = rope.orig_ctx;
  return settings;
}

}  // namespace tierkv::cli
