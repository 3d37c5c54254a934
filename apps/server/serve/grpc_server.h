// grpc_server.h — tierkv.v1.KvMetrics (proto/tierkv/v1/kv_metrics.proto) on a port of its own, beside HTTP.
//
// Who may ask is as over HTTP: with keys, `authorization: Bearer KEY` or `x-api-key` among the call's metadata. Reflection, which
// tells what may be asked and nothing else, needs none. There is no TLS.
//
// Errors:  of calls: UNAUTHENTICATED, INVALID_ARGUMENT, RESOURCE_EXHAUSTED past 64 watchers, UNAVAILABLE while the server stops.
// Threads: stop() any; the rest the owner's.
#pragma once

#include <memory>

#include "serve/service.h"

namespace tierkv::serve {

class GrpcServer {
 public:
  // Whether the program was built with gRPC.
  static bool there();

  // Serves from here on. Port 0: any that is free. engine::Error, bad_input, when it cannot be had, or without gRPC.
  // The service outlives it.
  GrpcServer(Service& service, int port);
  ~GrpcServer();
  int port() const;
  // Ends those who watch.
  void stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tierkv::serve
