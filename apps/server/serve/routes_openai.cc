// routes_openai.cc — /v1/completions, /v1/chat/completions, /v1/models.
#include <nlohmann/json.hpp>

#include "engine/clock.h"
#include "serve/access.h"
#include "serve/json_input.h"
#include "serve/openai_reply.h"
#include "serve/service.h"

namespace tierkv::serve {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

constexpr milliseconds kLookUp{100};  // how often somebody looks whether the client is still there

// A request whose answers are being written. Whoever lets go of it before the end abandons them.
class Exchange {
 public:
  Exchange(Service& service, const Request& request, const std::string& client)
      : reply_(request, service.model_name()), mailbox_(std::make_shared<Mailbox>()) {
    const double arrived = engine::now();
    for (size_t i = 0; i < request.asks.size(); ++i) {
      auto job = std::make_shared<Job>();
      job->ask = request.asks[i];
      job->index = static_cast<uint32_t>(i);
      job->client = client;
      job->arrived = arrived;
      job->deadline = service.settings().timeout_s > 0 ? arrived + service.settings().timeout_s : 0.0;
      job->mailbox = mailbox_;
      if (i % request.choices != 0 && job->ask.reuse) job->after = jobs_[i - i % request.choices];
      jobs_.push_back(std::move(job));
    }
    service.scheduler().submit(jobs_);
  }
  ~Exchange() { abandon(); }

  void abandon() {
    for (const JobPtr& job : jobs_) job->abandoned = true;
  }
  // The next event. `gone` is asked now and then; ApiError 499 when it says yes.
  Event next(const std::function<bool()>& gone) {
    for (;;) {
      auto event = mailbox_->take(kLookUp);
      // Also while tokens come faster than that: nobody would notice that they are for nobody.
      if (!event || engine::now() > looked_ + kLookUp.count() / 1e3) {
        if (gone()) throw ApiError(499, "the client left");
        looked_ = engine::now();
      }
      if (event) return std::move(*event);
    }
  }
  OpenAiReply& reply() { return reply_; }

 private:
  OpenAiReply reply_;
  std::shared_ptr<Mailbox> mailbox_;
  std::vector<JobPtr> jobs_;
  double looked_ = 0.0;  // when somebody looked after the client
};

// The pieces of a streamed answer. The first event is there already: had it been an error, the status would have said so.
void stream(const std::shared_ptr<Exchange>& exchange, Event first, HttpReply& reply, const std::function<bool()>& gone) {
  reply.type = "text/event-stream";
  reply.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
  auto held = std::make_shared<std::optional<Event>>(std::move(first));
  reply.stream = [exchange, held, gone](std::string& piece) {
    const bool opening = held->has_value();
    const Event event = opening ? std::move(**held) : exchange->next(gone);
    held->reset();
    if (event.outcome && event.outcome->error) {
      piece = error_event(*event.outcome->error);
      return false;
    }
    if (opening) piece = exchange->reply().opening();
    piece += exchange->reply().add(event);
    if (!exchange->reply().complete()) return true;
    piece += exchange->reply().closing();
    return false;
  };
  reply.on_end = [exchange] { exchange->abandon(); };
}

void answer(Service& service, const Request& request, const HttpRequest& http, HttpReply& reply) {
  const std::string key = bearer_key(http.header("Authorization"));
  auto exchange = std::make_shared<Exchange>(service, request, key.empty() ? http.client() : key);
  const auto gone = [&http] { return http.client_left(); };
  Event event = exchange->next(gone);
  if (event.outcome && event.outcome->error) throw ApiError(*event.outcome->error);
  // The request lives until the last piece has been sent, on the same thread.
  if (request.stream) return stream(exchange, std::move(event), reply, HttpRequest::left_check());
  for (;;) {
    (void)exchange->reply().add(event);
    if (exchange->reply().complete()) break;
    event = exchange->next(gone);
    if (event.outcome && event.outcome->error) throw ApiError(*event.outcome->error);
  }
  reply.body = to_text(exchange->reply().whole());
}

json model_json(Service& service) {
  const llama_model* model = service.engine().model();
  return {{"id", service.model_name()},
          {"object", "model"},
          {"created", service.created()},
          {"owned_by", "tierkv"},
          {"meta",
           {{"n_ctx_train", llama_model_n_ctx_train(model)},
            {"n_ctx", service.scheduler().options().context},
            {"n_vocab", service.engine().tokenizer().size()},
            {"n_embd", llama_model_n_embd(model)},
            {"n_params", llama_model_n_params(model)},
            {"size", llama_model_size(model)}}}};
}

}  // namespace

void add_openai_routes(HttpServer& server, Service& service) {
  for (const char* prefix : {"/v1", ""}) {
    const std::string root = prefix;
    server.route("POST", root + "/completions", [&service](const HttpRequest& request, HttpReply& reply) {
      answer(service, parse_completion(parse_object(request.body()), service.engine(), service.limits()), request, reply);
    });
    server.route("POST", root + "/chat/completions", [&service](const HttpRequest& request, HttpReply& reply) {
      answer(service, parse_chat(parse_object(request.body()), service.engine(), service.limits()), request, reply);
    });
    server.route("GET", root + "/models", [&service](const HttpRequest&, HttpReply& reply) {
      reply.body = to_text({{"object", "list"}, {"data", json::array({model_json(service)})}});
    });
    server.route("GET", root + "/models/(.+)", [&service](const HttpRequest& request, HttpReply& reply) {
      if (request.part(1) != service.model_name())
        throw ApiError(404, "there is no model of this name", "model", "model_not_found");
      reply.body = to_text(model_json(service));
    });
  }
}

}  // namespace tierkv::serve
