// graph_hook.h — the callbacks that put the cache's attention into libllama's graph.
//
// Path::overwrite: the scheduler asks about every node; we want the attention nodes, and overwrite each result when it is there.
// Path::patch: when asked about an attention node we turn it into a GGML_OP_CUSTOM and say that we do not want it. The node keeps
// its sources, its place and its memory; only `op` and `op_params` change, the latter copied from a custom node that ggml itself
// made. libllama reuses graphs, so a node may come back already patched. Every layer has one record that a patched node points to.
//
// The callbacks that the params had are called after ours.
#pragma once

#include <ggml-backend.h>
#include <llama.h>

#include <map>
#include <vector>

#include "llama/layer_server.h"
#include "llama/residual_tap.h"
#include "tierkv/llama.h"

namespace tierkv::llama {

class GraphHook {
 public:
  GraphHook(const ModelShape& shape, LayerServer& server);
  // What it wants to see of the graph beside attention; outlives the hook.
  void set_tap(ResidualTap* tap) { tap_ = tap; }
  GraphHook(const GraphHook&) = delete;
  GraphHook& operator=(const GraphHook&) = delete;

  // The context that these params lead to calls back here.
  void install(llama_context_params& params, Path path);
  Path path() const { return path_; }
  // From here on nodes are libllama's again, patched ones too.
  void detach() { attached_ = false; }
  bool attached() const { return attached_; }

 private:
  struct Layer {
    LayerServer* server = nullptr;
    uint32_t index = 0;
    OpParams stock{};  // what a patched node had
    OpParams patched{};
  };

  static void custom_op(ggml_tensor* node, int ith, int nth, void* user);
  static bool on_node(ggml_tensor* node, bool asking, void* user);
  static bool on_abort(void* user);

  void prepare_patches();
  bool ask(ggml_tensor* node);
  void patch(ggml_tensor* node);
  void unpatch(ggml_tensor* node);
  void overwrite(const ggml_tensor* node);
  Layer* find_layer(const ggml_tensor* node);

  LayerServer& server_;
  Path path_ = Path::overwrite;
  bool attached_ = true;
  std::vector<Layer> layers_;                // never resized: patched nodes point into it
  std::map<int32_t, uint32_t> layer_index_;  // by libllama's number

  ggml_abort_callback next_abort_ = nullptr;
  void* next_abort_data_ = nullptr;
  ggml_backend_sched_eval_callback next_eval_ = nullptr;
  void* next_eval_data_ = nullptr;
  bool next_wants_ = false;
  ResidualTap* tap_ = nullptr;  // or null
};

}  // namespace tierkv::llama
