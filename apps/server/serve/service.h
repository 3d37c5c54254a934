// service.h — everything behind the routes: model, context, scheduler, counts.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "serve/http.h"
#include "serve/metrics.h"
#include "serve/scheduler.h"

namespace tierkv::serve {

struct Settings {
  HttpOptions http;
  int grpc_port = -1;             // of gRPC; 0: any that is free, -1: none
  std::vector<std::string> keys;  // none: everybody may ask
  bool any_address = false;       // other addresses than this machine's own without a key
  std::vector<std::string> cors;  // origins whose pages may ask; "*": any, which needs a key
  std::string alias;              // what the model is called; empty: by its file
  std::string kv = "balanced";
  uint32_t slots = 4;
  uint32_t context = 0;  // of a conversation; 0: the model's
  // Rows of a prompt that are served at a time: the least that a prompt takes of others' steps. A step of a quiet server takes
  // many.
  uint32_t piece = 4;
  uint32_t queue = 64;
  uint32_t conversations = 64;
  uint64_t budget = 0;       // bytes of all conversations together; 0: none
  double timeout_s = 600.0;  // of a request; 0: none
  double drain_s = 30.0;     // that answers under way have when the server is stopped
  std::string slot_folder;   // where slots are saved; empty: nowhere
  std::string store_folder;  // the prefix store's; empty: there is none
  uint64_t store_bytes = uint64_t{4} << 30;
};

class Service {
 public:
  // Errors: engine::Error, for settings that do not fit the model.
  Service(engine::Engine& engine, const Settings& settings);

  engine::Engine& engine() { return engine_; }
  const Settings& settings() const { return settings_; }
  engine::TieredContext& context() { return *context_; }
  Scheduler& scheduler() { return *scheduler_; }
  Metrics& metrics() { return metrics_; }
  const std::string& model_name() const { return name_; }
  int64_t created() const { return created_; }
  RequestLimits limits() const;

 private:
  engine::Engine& engine_;
  const Settings settings_;
  std::string name_;
  int64_t created_;
  engine::Cancellation abort_;
  Metrics metrics_;
  std::shared_ptr<engine::TieredContext> context_;
  std::unique_ptr<Scheduler> scheduler_;
};

// Refuses settings that would let strangers in: an address that others reach, without a key.
void check_address(const Settings& settings);

// All routes. The service outlives the server.
void add_routes(HttpServer& server, Service& service);
void add_access(HttpServer& server, Service& service);         // keys, and pages of other origins
void add_openai_routes(HttpServer& server, Service& service);  // /v1/completions, /v1/chat/completions, /v1/models
void add_llama_routes(HttpServer& server, Service& service);   // /health, /props, /tokenize, /slots, …
void add_page(HttpServer& server);                             // /
void add_kv_routes(HttpServer& server, Service& service);      // /metrics, /v1/kv/…

}  // namespace tierkv::serve
