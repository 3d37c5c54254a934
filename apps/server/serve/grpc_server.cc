// grpc_server.cc — calls are answered on gRPC's own threads. A report is the JSON of kv_report.h, read as a message: the two cannot
// come to differ, for a field that one lacks is an error.
#include "serve/grpc_server.h"

#include <google/protobuf/util/json_util.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <nlohmann/json.hpp>

#include "engine/error.h"
#include "serve/access.h"
#include "serve/api_error.h"
#include "serve/json_input.h"
#include "serve/kv_report.h"
#include "tierkv/v1/kv_metrics.grpc.pb.h"

namespace tierkv::serve {
namespace {

using grpc::ServerContext;
using grpc::StatusCode;

constexpr uint32_t kMostWatchers = 64, kLeastInterval = 100, kMostInterval = 60000, kInterval = 1000;
constexpr int kMostMessage = 64 << 10;

std::string metadata(const ServerContext& context, const char* name) {
  const auto found = context.client_metadata().find(name);
  return found == context.client_metadata().end() ? "" : std::string(found->second.data(), found->second.size());
}

class KvMetrics final : public v1::KvMetrics::Service {
 public:
  explicit KvMetrics(serve::Service& service) : service_(service) {}

  grpc::Status Get(ServerContext* context, const v1::GetRequest*, v1::Report* report) override {
    if (!may_ask(*context)) return no_key();
    return fill(*report);
  }

  grpc::Status Watch(ServerContext* context, const v1::WatchRequest* request, grpc::ServerWriter<v1::Report>* writer) override {
    if (!may_ask(*context)) return no_key();
    const uint32_t interval = request->interval_ms() == 0 ? kInterval : request->interval_ms();
    if (interval < kLeastInterval || interval > kMostInterval) {
      return {StatusCode::INVALID_ARGUMENT, "interval_ms must be from 100 to 60000, or 0"};
    }
    {
      const std::lock_guard lock(mutex_);
      if (watchers_ >= kMostWatchers) return {StatusCode::RESOURCE_EXHAUSTED, "64 watch already"};
      ++watchers_;
    }
    const grpc::Status status = watch(*context, std::chrono::milliseconds(interval), *writer);
    const std::lock_guard lock(mutex_);
    --watchers_;
    return status;
  }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
  }

 private:
  bool may_ask(const ServerContext& context) const {
    const auto& keys = service_.settings().keys;
    const std::string bearer = bearer_key(metadata(context, "authorization"));
    return keys.empty() || is_known_key(bearer.empty() ? metadata(context, "x-api-key") : bearer, keys);
  }
  static grpc::Status no_key() { return {StatusCode::UNAUTHENTICATED, "a key is needed: authorization: Bearer KEY"}; }

  grpc::Status fill(v1::Report& report) {
    try {
      const auto read = google::protobuf::util::JsonStringToMessage(to_text(kv_report(service_)), &report);
      return read.ok() ? grpc::Status::OK : grpc::Status(StatusCode::INTERNAL, read.ToString());
    } catch (const ApiError& error) {
      return {error.status() == 503 ? StatusCode::UNAVAILABLE : StatusCode::INTERNAL, error.what()};
    } catch (const std::exception&) {
      return {StatusCode::INTERNAL, "the server failed"};
    }
  }

  grpc::Status watch(const ServerContext& context, std::chrono::milliseconds interval, grpc::ServerWriter<v1::Report>& writer) {
    auto next = std::chrono::steady_clock::now();
    for (;;) {
      v1::Report report;
      if (const grpc::Status status = fill(report); !status.ok()) return status;
      if (!writer.Write(report)) return grpc::Status::CANCELLED;
      next += interval;
      std::unique_lock lock(mutex_);
      // In small steps: nobody tells that a client left.
      while (!stopping_ && std::chrono::steady_clock::now() < next) {
        wake_.wait_until(lock, std::min(next, std::chrono::steady_clock::now() + std::chrono::milliseconds(kLeastInterval)));
        if (context.IsCancelled()) return grpc::Status::CANCELLED;
      }
      if (stopping_) return {StatusCode::UNAVAILABLE, "the server is being stopped"};
    }
  }

  serve::Service& service_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  uint32_t watchers_ = 0;
};

}  // namespace

struct GrpcServer::Impl {
  explicit Impl(Service& service) : metrics(service) {}
  KvMetrics metrics;
  int port = 0;
  std::unique_ptr<grpc::Server> server;
};

bool GrpcServer::there() { return true; }

GrpcServer::GrpcServer(Service& service, int port) : impl_(std::make_unique<Impl>(service)) {
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  const std::string host = service.settings().http.host;
  const std::string address = (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" + std::to_string(port);
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &impl_->port);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // a second server must not share the port unseen
  builder.SetMaxReceiveMessageSize(kMostMessage);
  grpc::ResourceQuota quota;
  quota.SetMaxThreads(2 * kMostWatchers);
  builder.SetResourceQuota(quota);
  builder.RegisterService(&impl_->metrics);
  impl_->server = builder.BuildAndStart();
  if (impl_->server == nullptr || impl_->port == 0) {
    engine::bad_input("cannot listen on " + address + " for gRPC: another program has it, or it is no address of this machine");
  }
}

GrpcServer::~GrpcServer() { stop(); }

int GrpcServer::port() const { return impl_->port; }

void GrpcServer::stop() {
  if (impl_ == nullptr || impl_->server == nullptr) return;
  impl_->metrics.stop();
  impl_->server->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));
  impl_->server->Wait();
  impl_->server.reset();
}

}  // namespace tierkv::serve
