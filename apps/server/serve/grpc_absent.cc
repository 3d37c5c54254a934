// grpc_absent.cc — a program that was built without gRPC.
#include "engine/error.h"
#include "serve/grpc_server.h"

namespace tierkv::serve {

struct GrpcServer::Impl {};

bool GrpcServer::there() { return false; }
GrpcServer::GrpcServer(Service&, int) {
  engine::bad_input("--grpc-port: this program was built without gRPC (Debian: libgrpc++-dev, protobuf-compiler-grpc)");
}
GrpcServer::~GrpcServer() = default;
int GrpcServer::port() const { return 0; }
void GrpcServer::stop() {}

}  // namespace tierkv::serve
