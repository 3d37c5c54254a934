// policies.h — the factories the registry lists; each lives in the file of its name, with the idea it implements.
#pragma once

#include <memory>

#include "policy/policy.h"

namespace tierkv::policy {

std::unique_ptr<EvictionPolicy> make_h2o(const EvictionConfig& config);
std::unique_ptr<EvictionPolicy> make_sliding_window(const EvictionConfig& config);
std::unique_ptr<EvictionPolicy> make_streaming_llm(const EvictionConfig& config);
std::unique_ptr<EvictionPolicy> make_tova(const EvictionConfig& config);
std::unique_ptr<EvictionPolicy> make_snapkv(const EvictionConfig& config);
std::unique_ptr<EvictionPolicy> make_scissorhands(const EvictionConfig& config);
std::unique_ptr<EvictionPolicy> make_pyramidkv(const EvictionConfig& config);
std::unique_ptr<EvictionPolicy> make_pyramidkv_linear(const EvictionConfig& config);
std::unique_ptr<EvictionPolicy> make_akv(const EvictionConfig& config);

}  // namespace tierkv::policy
