// planned_testing.h — the launch of a scene: as a device's mirror would have it, but that bytes stay where they are if a device
// would have the same.
#pragma once

#include <gtest/gtest.h>

#include <list>
#include <map>
#include <utility>
#include <vector>

#include "cuda/plan/device_form.h"
#include "cuda/plan/fragments.h"
#include "cuda/plan/plan.h"
#include "cuda/plan/scene_testing.h"

namespace tierkv::cuda::testing {

struct Planned {
  std::vector<CodecDesc> codecs;
  std::vector<std::vector<Placed>> placed;
  std::list<std::vector<std::byte>> forms;     // of blocks with better rows
  std::list<std::vector<uint32_t>> fragments;  // of klt's tables (codec_tables.cc)
  std::vector<PlanTask> tasks;
  PlanInput input;
  Plan plan;
};

inline void plan_of(const Scene& scene, uint32_t ctas, bool tensor_cores, Planned& out) {
  std::map<std::pair<const quant::Codec*, const quant::Codec*>, uint32_t> known;
  out.placed.resize(scene.tasks());
  for (size_t t = 0; t < scene.tasks(); ++t) {
    for (const attn::BlockView& view : scene.views(t)) {
      const auto [at, fresh] = known.try_emplace({view.key_codec, view.value_codec}, static_cast<uint32_t>(known.size()));
      if (fresh) {
        CodecDesc desc;
        ASSERT_TRUE(readable(*view.key_codec, *view.value_codec, desc));
        if (tensor_cores && is_klt(fast_path(desc, 1))) {
          const std::vector<uint32_t>& tables = out.fragments.emplace_back(klt_device_tables(desc.key));
          if (!tables.empty()) desc.key_fragments = tables.data();
        }
        out.codecs.push_back(desc);
      }
      const CodecDesc& desc = out.codecs[at->second];
      const auto keys = device_form(*view.key_codec, desc.key, view.keys, out.forms.emplace_back());
      const auto values = device_form(*view.value_codec, desc.value, view.values, out.forms.emplace_back());
      out.placed[t].push_back(
          {reinterpret_cast<const uint8_t*>(keys.data()), reinterpret_cast<const uint8_t*>(values.data()), at->second});
    }
    const uint32_t group = scene.shape().group;
    out.tasks.push_back({scene.views(t), out.placed[t], scene.position(t), static_cast<uint32_t>(t) * group,
                         static_cast<uint32_t>(t % scene.shape().kv_heads) * group});
  }
  out.input = {out.codecs, out.tasks, scene.shape().params, scene.shape().group, ctas, tensor_cores};
  out.plan = make_plan(out.input);
}

}  // namespace tierkv::cuda::testing
