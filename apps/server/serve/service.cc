#include "serve/service.h"

#include <chrono>
#include <filesystem>

#include "engine/error.h"
#include "serve/access.h"

namespace tierkv::serve {
namespace {

constexpr uint32_t kMicroBatch = 256;

std::string name_of(const engine::Engine& engine, const std::string& alias) {
  return alias.empty() ? std::filesystem::path(engine.path()).stem().string() : alias;
}

bool is_loopback(const std::string& host) { return host == "localhost" || host == "::1" || host.starts_with("127."); }

}  // namespace

Service::Service(engine::Engine& engine, const Settings& settings)
    : engine_(engine),
      settings_(settings),
      name_(name_of(engine, settings.alias)),
      created_(std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count()) {
  CacheConfig config = engine.config(settings.kv);
  if (settings.budget > 0) config.byte_budget = settings.budget;
  engine::SessionOptions options;
  options.ctx = settings.context;
  options.micro_batch = kMicroBatch;
  options.chunk = settings.piece;
  options.slots = settings.slots;
  options.cancel = &abort_;
  options.learning = engine::Learning::in_passing;
  context_ = engine.open_context(settings.kv, config, options);
  SchedulerOptions scheduling;
  scheduling.slots = settings.slots;
  scheduling.queue = settings.queue;
  scheduling.conversations = settings.conversations;
  scheduling.context = engine.check_context(settings.context);
  scheduling.piece = settings.piece;
  if (!settings.store_folder.empty()) {
    scheduling.store.emplace();
    scheduling.store->folder = settings.store_folder;
    scheduling.store->most_bytes = settings.store_bytes;
  }
  scheduler_ = std::make_unique<Scheduler>(engine, *context_, scheduling, abort_, metrics_);
}

RequestLimits Service::limits() const {
  RequestLimits limits;
  limits.context = scheduler_->options().context;
  limits.most_asks = std::max(1u, std::min(settings_.slots + settings_.queue, 64u));
  return limits;
}

void check_address(const Settings& settings) {
  for (const std::string& origin : settings.cors) {
    if (!is_origin(origin)) engine::bad_input("--cors " + origin + ": an origin is expected, such as https://example.com, or *");
    if (origin == "*" && settings.keys.empty())
      engine::bad_input("--cors '*' lets every page use the server: give it an --api-key");
  }
  if (is_loopback(settings.http.host) || !settings.keys.empty() || settings.any_address) return;
  engine::bad_input("--host " + settings.http.host +
                    " lets others reach the server: give it an --api-key, or say --no-api-key if that is what you want");
}

void add_routes(HttpServer& server, Service& service) {
  add_access(server, service);
  add_openai_routes(server, service);
  add_llama_routes(server, service);
  add_kv_routes(server, service);
  add_page(server);
}

}  // namespace tierkv::serve
