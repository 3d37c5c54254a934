// rope_settings.cc — what a context's params say of RoPE, taken out of them, put into others, and in words.
#include <llama.h>

#include <cstdio>

#include "tierkv/llama.h"

namespace tierkv::llama {
namespace {

const char* name_of(int32_t scaling) {
  switch (scaling) {
    case LLAMA_ROPE_SCALING_TYPE_NONE: return "none";
    case LLAMA_ROPE_SCALING_TYPE_LINEAR: return "linear";
    case LLAMA_ROPE_SCALING_TYPE_YARN: return "yarn";
    default: return "other";
  }
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

}  // namespace

RopeSettings RopeSettings::of(const llama_context_params& params) {
  RopeSettings settings;
  settings.scaling = params.rope_scaling_type;
  settings.freq_base = params.rope_freq_base;
  settings.freq_scale = params.rope_freq_scale;
  settings.yarn_ext_factor = params.yarn_ext_factor;
  settings.yarn_attn_factor = params.yarn_attn_factor;
  settings.yarn_beta_fast = params.yarn_beta_fast;
  settings.yarn_beta_slow = params.yarn_beta_slow;
  settings.yarn_orig_ctx = params.yarn_orig_ctx;
  return settings;
}

void RopeSettings::apply(llama_context_params& params) const {
  params.rope_scaling_type = static_cast<llama_rope_scaling_type>(scaling);
  params.rope_freq_base = freq_base;
  params.rope_freq_scale = freq_scale;
  params.yarn_ext_factor = yarn_ext_factor;
  params.yarn_attn_factor = yarn_attn_factor;
  params.yarn_beta_fast = yarn_beta_fast;
  params.yarn_beta_slow = yarn_beta_slow;
  params.yarn_orig_ctx = yarn_orig_ctx;
}

std::string RopeSettings::text() const {
  const RopeSettings unset;
  std::string text;
  const auto add = [&](const char* option, const std::string& value) {
    text += (text.empty() ? "--" : " --") + std::string(option) + " " + value;
  };
  if (scaling != unset.scaling) add("rope-scaling", name_of(scaling));
  if (freq_base != unset.freq_base) add("rope-freq-base", number(freq_base));
  if (freq_scale != unset.freq_scale) add("rope-freq-scale", number(freq_scale));
  if (yarn_orig_ctx != unset.yarn_orig_ctx) add("yarn-orig-ctx", number(yarn_orig_ctx));
  if (yarn_ext_factor != unset.yarn_ext_factor) add("yarn-ext-factor", number(yarn_ext_factor));
  if (yarn_attn_factor != unset.yarn_attn_factor) add("yarn-attn-factor", number(yarn_attn_factor));
  if (yarn_beta_slow != unset.yarn_beta_slow) add("yarn-beta-slow", number(yarn_beta_slow));
  if (yarn_beta_fast != unset.yarn_beta_fast) add("yarn-beta-fast", number(yarn_beta_fast));
  return text;
}

}  // namespace tierkv::llama
