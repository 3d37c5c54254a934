// routes_llama.cc — what llama-server's clients use beside OpenAI's routes.
#include <nlohmann/json.hpp>

#include "engine/error.h"
#include "serve/json_input.h"
#include "serve/service.h"
#include "serve/slot_files.h"

namespace tierkv::serve {
namespace {

using nlohmann::json;

void health(Service& service, HttpReply& reply) {
  const bool draining = service.scheduler().draining();
  reply.status = draining ? 503 : 200;
  reply.body = to_text({{"status", draining ? "stopping" : "ok"}});
}

json props(Service& service) {
  const SchedulerOptions& options = service.scheduler().options();
  const char* chat_template = llama_model_chat_template(service.engine().model(), nullptr);
  return {{"default_generation_settings",
           {{"n_ctx", options.context},
            {"params", {{"temperature", 0.8}, {"top_k", 40}, {"top_p", 0.95}, {"min_p", 0.05}, {"n_predict", -1}}}}},
          {"total_slots", options.slots},
          {"model_alias", service.model_name()},
          {"model_path", service.engine().path()},
          {"model_title", service.engine().title()},
          {"chat_template", chat_template == nullptr ? "" : chat_template},
          {"modalities", {{"vision", false}, {"audio", false}}},
          {"kv", service.settings().kv},
          {"build_info", std::string("tierkv ") + TIERKV_VERSION}};
}

json tokenize(Service& service, const json& body) {
  const Fields fields(body);
  const engine::Tokenizer& tokenizer = service.engine().tokenizer();
  const Tokens tokens =
      tokenizer.encode(fields.text("content"), fields.flag("add_special", false), fields.flag("parse_special", true));
  if (!fields.flag("with_pieces", false)) return {{"tokens", tokens}};
  json list = json::array();
  for (const llama_token token : tokens) list.push_back({{"id", token}, {"piece", tokenizer.piece(token)}});
  return {{"tokens", list}};
}

json detokenize(Service& service, const json& body) {
  const json* list = Fields(body).find("tokens");
  if (list == nullptr) throw ApiError(400, "tokens are missing", "tokens");
  return {{"content", service.engine().tokenizer().decode(parse_tokens(*list, "tokens", service.engine()))}};
}

json slot_json(const SlotView& slot, const SchedulerOptions& options) {
  return {{"id", slot.id},
          {"id_task", slot.task},
          {"n_ctx", options.context},
          {"is_processing", slot.busy},
          {"n_prompt_tokens", slot.prompt_tokens},
          {"n_prompt_tokens_cached", slot.cached_tokens},
          {"n_decoded", slot.written_tokens},
          {"n_tokens", slot.tokens},
          {"parked", slot.parked}};
}

json slots(Service& service) {
  json list = json::array();
  service.scheduler().on_thread([&] {
    for (const SlotView& slot : service.scheduler().slots()) list.push_back(slot_json(slot, service.scheduler().options()));
  });
  return list;
}

json slot_action(Service& service, const HttpRequest& request) {
  const std::string text = request.part(1);
  const uint32_t slots = service.scheduler().options().slots;
  if (text.size() > 6 || std::stoul(text) >= slots) throw ApiError(400, "there is no slot " + text.substr(0, 20), "id_slot");
  const auto slot = static_cast<uint32_t>(std::stoul(text));
  const std::string action = request.parameter("action");
  if (action == "erase") return erase_slot(service, slot);
  if (action != "save" && action != "restore") throw ApiError(400, "action must be save, restore or erase", "action");
  const std::string file = Fields(parse_object(request.body())).text("filename");
  return action == "save" ? save_slot(service, slot, file) : restore_slot(service, slot, file);
}

}  // namespace

void add_llama_routes(HttpServer& server, Service& service) {
  const auto get = [&](const char* path, auto value) {
    server.route("GET", path, [&service, value](const HttpRequest&, HttpReply& reply) { reply.body = to_text(value(service)); });
  };
  const auto post = [&](const char* path, auto value) {
    server.route("POST", path, [&service, value](const HttpRequest& request, HttpReply& reply) {
      reply.body = to_text(value(service, parse_object(request.body())));
    });
  };
  for (const char* path : {"/health", "/v1/health", "/ready"}) {
    server.route("GET", path, [&service](const HttpRequest&, HttpReply& reply) { health(service, reply); });
  }
  get("/props", props);
  get("/slots", slots);
  post("/tokenize", tokenize);
  post("/detokenize", detokenize);
  post("/apply-template", [](Service& of, const json& body) { return json{{"prompt", apply_template(body, of.engine())}}; });
  server.route("POST", "/slots/(\\d+)",
               [&service](const HttpRequest& request, HttpReply& reply) { reply.body = to_text(slot_action(service, request)); });
}

}  // namespace tierkv::serve
