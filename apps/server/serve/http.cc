// http.cc — cpp-httplib, with connections of our own: it cannot tell a handler that the client left, and bounds neither the time
// nor the number of a request's headers.
#include "serve/http.h"

#include <httplib.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "engine/clock.h"
#include "engine/error.h"
#include "serve/api_error.h"
#include "serve/connection_threads.h"
#include "serve/json_input.h"

namespace tierkv::serve {
namespace {

constexpr size_t kMostHeaderBytes = 64 << 10;
constexpr int kBacklog = 512;
constexpr size_t kMostPath = 512;  // httplib matches paths by recursion

bool wait_for(int socket, short events, double seconds) {
  pollfd wanted{socket, events, 0};
  const int milliseconds = static_cast<int>(std::clamp(1000.0 * seconds, 0.0, 1e9));
  int ready;
  do ready = poll(&wanted, 1, milliseconds);
  while (ready < 0 && errno == EINTR);
  return ready > 0;
}

bool has_left(int socket) {
  char byte;
  const ssize_t got = recv(socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

// One client. A request may take so many bytes and so much time, and no more.
class Connection final : public httplib::Stream {
 public:
  // It waits for its client only while `listener` is open.
  Connection(int socket, const HttpOptions& options, const std::atomic<socket_t>& listener)
      : socket_(socket), options_(options), listener_(listener) {}

  bool wait_for_request() const { return wait_to_read(engine::now() + options_.idle_s); }
  void begin_request() {
    allowed_ = options_.most_body + kMostHeaderBytes;
    until_ = engine::now() + options_.request_s;
  }

  bool is_readable() const override { return wait_to_read(until_); }
  bool is_writable() const override { return !has_left(socket_) && wait_for(socket_, POLLOUT, options_.request_s); }
  ssize_t read(char* out, size_t size) override {
    if (at_ == held_) {
      if (allowed_ == 0 || !is_readable()) return -1;
      const ssize_t got = recv(socket_, buffer_, std::min(sizeof(buffer_), allowed_), 0);
      if (got <= 0) return got;
      at_ = 0;
      held_ = static_cast<size_t>(got);
      allowed_ -= held_;
    }
    const size_t count = std::min(size, held_ - at_);
    std::copy_n(buffer_ + at_, count, out);
    at_ += count;
    return static_cast<ssize_t>(count);
  }
  ssize_t write(const char* data, size_t size) override {
    if (!wait_for(socket_, POLLOUT, options_.request_s)) return -1;
    return send(socket_, data, size, MSG_NOSIGNAL);
  }
  void get_remote_ip_and_port(std::string& ip, int& port) const override { address(getpeername, ip, port); }
  void get_local_ip_and_port(std::string& ip, int& port) const override { address(getsockname, ip, port); }
  // httplib only asks whether select() could take it. poll() above takes any.
  socket_t socket() const override { return 0; }

 private:
  template <class Get>
  void address(Get get, std::string& ip, int& port) const {
    sockaddr_storage storage{};
    socklen_t size = sizeof(storage);
    char name[NI_MAXHOST], service[NI_MAXSERV];
    auto* generic = reinterpret_cast<sockaddr*>(&storage);
    if (get(socket_, generic, &size) != 0) return;
    if (getnameinfo(generic, size, name, sizeof(name), service, sizeof(service), NI_NUMERICHOST | NI_NUMERICSERV) != 0) return;
    ip = name;
    port = std::atoi(service);
  }

  bool wait_to_read(double until) const {
    if (at_ < held_) return true;
    while (listener_ != INVALID_SOCKET && engine::now() < until) {
      if (wait_for(socket_, POLLIN, std::min(0.1, until - engine::now()))) return true;
    }
    return false;
  }

  const int socket_;
  const HttpOptions& options_;
  const std::atomic<socket_t>& listener_;
  char buffer_[4096];
  size_t at_ = 0, held_ = 0;
  size_t allowed_ = 0;  // bytes that the request may still have
  double until_ = 0.0;  // when it must have come
};

// The connection that this thread serves, and whether it ends with this request: what is left of a request that was refused half
// read must not be taken for the next one.
thread_local int current_socket = -1;
thread_local bool current_ends = false;

// Lets a client that still sends read why it was refused: closing at once would throw the answer away.
void linger(int socket) {
  (void)::shutdown(socket, SHUT_WR);
  char buffer[4096];
  const double until = engine::now() + 1.0;
  while (wait_for(socket, POLLIN, until - engine::now()) && recv(socket, buffer, sizeof(buffer), MSG_DONTWAIT) > 0) {
  }
}

class Threads final : public httplib::TaskQueue {
 public:
  explicit Threads(size_t most) : threads_(most) {}
  void enqueue(std::function<void()> work) override { threads_.enqueue(std::move(work)); }
  void shutdown() override { threads_.shutdown(); }

 private:
  ConnectionThreads threads_;
};

class Connections final : public httplib::Server {
 public:
  explicit Connections(const HttpOptions& options) : options_(options) {}

 private:
  bool process_and_close_socket(socket_t socket) override {
    const int on = 1;
    (void)setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    current_socket = socket;
    Connection connection(socket, options_, svr_sock_);
    current_ends = false;
    bool good = true, closed = false;
    while (good && !closed && !current_ends && svr_sock_ != INVALID_SOCKET && connection.wait_for_request()) {
      connection.begin_request();
      good = process_request(connection, false, closed, nullptr);
    }
    current_socket = -1;
    if (current_ends) linger(socket);
    (void)::shutdown(socket, SHUT_RDWR);
    (void)::close(socket);
    return good;
  }

  const HttpOptions options_;
};

class HttplibRequest final : public HttpRequest {
 public:
  explicit HttplibRequest(const httplib::Request& request) : request_(request) {}
  const std::string& method() const override { return request_.method; }
  const std::string& path() const override { return request_.path; }
  const std::string& body() const override { return request_.body; }
  const std::string& client() const override { return request_.remote_addr; }
  std::string header(const std::string& name) const override { return request_.get_header_value(name); }
  std::string parameter(const std::string& name) const override { return request_.get_param_value(name); }
  std::string part(size_t group) const override { return group < request_.matches.size() ? request_.matches[group].str() : ""; }
  bool client_left() const override { return current_socket >= 0 && has_left(current_socket); }

 private:
  const httplib::Request& request_;
};

void close_after(httplib::Response& response) {
  current_ends = true;
  response.set_header("Connection", "close");
}

void write_error(const ApiError& error, httplib::Response& response) {
  response.status = error.status();
  if (error.retry_after > 0) response.set_header("Retry-After", std::to_string(error.retry_after));
  response.set_content(to_text(error_json(error)), "application/json");
}

ApiError as_api_error(const engine::Error& error) {
  switch (error.kind()) {
    case engine::ErrorKind::bad_input: return ApiError(400, error.what());
    case engine::ErrorKind::no_room: return ApiError(429, error.what());
    case engine::ErrorKind::cancelled: return ApiError(503, error.what());
    case engine::ErrorKind::failed: break;
  }
  return ApiError(500, error.what());
}

void send_pieces(httplib::Response& response, HttpReply reply) {
  auto shared = std::make_shared<HttpReply>(std::move(reply));
  const auto provide = [shared](size_t, httplib::DataSink& sink) {
    std::string piece;
    bool more = false;
    try {
      more = shared->stream(piece);
    } catch (const std::exception&) {
      return false;
    }
    if (!piece.empty() && !sink.write(piece.data(), piece.size())) return false;
    if (!more) sink.done();
    return true;
  };
  response.set_chunked_content_provider(shared->type, provide, [shared](bool) {
    if (shared->on_end) shared->on_end();
  });
}

void answer(const HttpServer::Handler& handler, const httplib::Request& request, httplib::Response& response) {
  try {
    HttpReply reply;
    handler(HttplibRequest(request), reply);
    response.status = reply.status;
    for (const auto& [name, value] : reply.headers) response.set_header(name, value);
    if (reply.stream) send_pieces(response, std::move(reply));
    else response.set_content(reply.body, reply.type);
  } catch (const ApiError& error) {
    write_error(error, response);
  } catch (const engine::Error& error) {
    write_error(as_api_error(error), response);
  } catch (const std::exception&) {
    write_error(ApiError(500, "the server failed"), response);
  }
}

}  // namespace

std::function<bool()> HttpRequest::left_check() {
  return [] { return current_socket >= 0 && has_left(current_socket); };
}

struct HttpServer::Impl {
  explicit Impl(const HttpOptions& given) : options(given), server(given) {}
  HttpOptions options;
  Connections server;
  int listener = -1;
  std::atomic<bool> stopping{false};
};

HttpServer::HttpServer(const HttpOptions& options) : impl_(std::make_unique<Impl>(options)) {
  Connections& server = impl_->server;
  server.new_task_queue = [most = options.connections] { return new Threads(most); };
  server.set_payload_max_length(options.most_body);
  server.set_keep_alive_timeout(static_cast<time_t>(options.idle_s));  // for the header that says so
  server.set_keep_alive_max_count(1000000);
  // Without SO_REUSEPORT, which httplib would set: a second server must not share the port unseen.
  server.set_socket_options([this](socket_t socket) {
    const int on = 1;
    (void)setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    impl_->listener = socket;
  });
  // What httplib refuses itself: no such route, a body that is too long, a request that is none.
  server.set_error_handler([](const httplib::Request& request, httplib::Response& response) {
    if (!response.body.empty() || response.content_provider_) return;
    const int status = response.status;
    if (status != 404) close_after(response);
    const std::string sentence = status == 404   ? "there is nothing at " + request.method + " " + request.path
                                 : status == 413 ? "the body is longer than this server takes"
                                                 : "the request cannot be understood";
    write_error(ApiError(status, sentence), response);
  });
}

HttpServer::~HttpServer() = default;

void HttpServer::route(const std::string& method, const std::string& pattern, Handler handler) {
  const auto call = [handler = std::move(handler)](const httplib::Request& request, httplib::Response& response) {
    answer(handler, request, response);
  };
  Connections& server = impl_->server;
  if (method == "GET") server.Get(pattern, call);
  else if (method == "POST") server.Post(pattern, call);
  else if (method == "PUT") server.Put(pattern, call);
  else if (method == "OPTIONS") server.Options(pattern, call);
  else engine::fail("no route can have the method " + method);
}

void HttpServer::before(Handler handler) {
  impl_->server.set_pre_routing_handler(
      [handler = std::move(handler)](const httplib::Request& request, httplib::Response& response) {
        HttpReply reply;
        try {
          if (request.path.size() > kMostPath) throw ApiError(414, "the path is too long");
          // httplib would unpack it, to whatever length.
          if (request.has_header("Content-Encoding")) throw ApiError(415, "packed bodies are not taken");
          handler(HttplibRequest(request), reply);
          for (const auto& [name, value] : reply.headers) response.set_header(name, value);
          return httplib::Server::HandlerResponse::Unhandled;
        } catch (const ApiError& error) {
          for (const auto& [name, value] : reply.headers) response.set_header(name, value);
          write_error(error, response);
          close_after(response);
          return httplib::Server::HandlerResponse::Handled;
        }
      });
}

int HttpServer::bind() {
  const HttpOptions& options = impl_->options;
  const int port = options.port == 0                                        ? impl_->server.bind_to_any_port(options.host)
                   : impl_->server.bind_to_port(options.host, options.port) ? options.port
                                                                            : -1;
  if (port < 0) {
    engine::bad_input("cannot listen on " + options.host + " port " + std::to_string(options.port) +
                      ": another program has it, or it is no address of this machine");
  }
  (void)::listen(impl_->listener, kBacklog);  // httplib lets five connections wait
  impl_->options.port = port;
  return port;
}

// httplib gives its socket up when a connection cannot be accepted for a reason it does not know. Another one is opened then.
void HttpServer::serve() {
  while (!impl_->server.listen_after_bind() && !impl_->stopping) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    if (impl_->server.bind_to_port(impl_->options.host, impl_->options.port)) (void)::listen(impl_->listener, kBacklog);
  }
}

void HttpServer::stop() {
  impl_->stopping = true;
  impl_->server.stop();
}

}  // namespace tierkv::serve
