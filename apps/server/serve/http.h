// http.h — an HTTP/1.1 server for routes that know nothing of sockets. cpp-httplib is behind it, in http.cc alone.
//
// A connection has a thread of its own, from a pool that grows to as many as are allowed; more connections wait until one is free.
// What a client may send is bounded in bytes and in time, so that slow, silent and flooding clients cost a thread for a while and
// nothing else.
//
// Errors:  a handler may throw ApiError or engine::Error; the client gets it as JSON. Anything else is a 500 that tells nothing.
// Threads: handlers run on many at a time. stop() any thread's, the rest the owner's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tierkv::serve {

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 8080;  // 0: any that is free
  size_t most_body = size_t{16} << 20;
  uint32_t connections = 1024;  // that are served at a time
  double idle_s = 10.0;         // a connection without a request is closed after this
  double request_s = 30.0;      // in which a request must have come whole
};

class HttpRequest {
 public:
  virtual ~HttpRequest() = default;
  virtual const std::string& method() const = 0;
  virtual const std::string& path() const = 0;
  virtual const std::string& body() const = 0;
  virtual const std::string& client() const = 0;                     // its address
  virtual std::string header(const std::string& name) const = 0;     // empty: there is none
  virtual std::string parameter(const std::string& name) const = 0;  // behind the '?'
  virtual std::string part(size_t group) const = 0;                  // of the path, as the route's pattern has groups
  virtual bool client_left() const = 0;                              // the connection is gone
  // The same for the connection that this thread serves, after the request: while its reply's pieces are sent.
  static std::function<bool()> left_check();
};

struct HttpReply {
  int status = 200;
  std::string type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;
  // Where it is set the body comes in pieces: called again and again for the next one, until it returns false. It waits for what
  // is not there yet.
  std::function<bool(std::string& piece)> stream;
  std::function<void()> on_end;  // after the last piece, or when the client left
};

class HttpServer {
 public:
  using Handler = std::function<void(const HttpRequest& request, HttpReply& reply)>;

  explicit HttpServer(const HttpOptions& options);
  ~HttpServer();

  // `pattern` is a regular expression for the whole path.
  void route(const std::string& method, const std::string& pattern, Handler handler);
  // Called before every route; throws ApiError to refuse. Headers of its reply go with every reply.
  void before(Handler handler);

  // Takes the port; its number. engine::Error, bad_input, when it cannot be had.
  int bind();
  // Serves until stop(). REQUIRES: bind().
  void serve();
  // Replies that are being sent are cut off: those that matter have ended before.
  void stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tierkv::serve
