// asked_testing.h — a piece of attention that is also asked what rows receive, for tests of this room.
#pragma once

#include "attn/backend.h"
#include "cuda/plan/scene_testing.h"

namespace tierkv::cuda::testing {

// The first sequence of a scene, asked for the mass of its last views.
struct Asked {
  Asked(const Scene& scene, uint32_t last, std::span<const attn::MassLane> lanes) {
    const SceneShape& shape = scene.shape();
    const uint32_t heads = shape.kv_heads * shape.group;
    out.resize(static_cast<size_t>(heads) * shape.head_dim), lse.resize(heads);
    position = scene.position(0);
    work.queries = RowsView::f32(scene.queries().data(), 1, heads, shape.head_dim);
    work.positions = &position, work.out = out.data(), work.lse = lse.data();
    work.sink_logits = scene.sinks(), work.params = shape.params;
    sums.resize(shape.kv_heads);
    for (uint32_t h = 0; h < shape.kv_heads; ++h) {
      work.heads.push_back(scene.views(h));
      attn::HeadMass mass;
      mass.from = static_cast<uint32_t>(scene.views(h).size()) - last;
      for (const attn::BlockView& view : scene.views(h).subspan(mass.from)) mass.rows += view.rows;
      mass.lanes = lanes;
      sums[h].assign(mass.rows * mass.num_lanes(), 0.25f);  // written over
      mass.sums = sums[h].data();
      work.mass.push_back(mass);
    }
  }
  uint32_t position = 0;
  std::vector<float> out, lse;
  std::vector<std::vector<float>> sums;
  attn::AttendWork work;
};

}  // namespace tierkv::cuda::testing
