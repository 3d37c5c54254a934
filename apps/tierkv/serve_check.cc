#include "serve_check.h"

#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>

#include "exit_codes.h"
#include "files.h"
#include "load_engine.h"
#include "plan_measure.h"
#include "serve/grpc_server.h"
#include "terminal.h"
#include "tierkv/file.h"

namespace tierkv::cli {
namespace {

namespace fs = std::filesystem;

class Checks {
 public:
  // `check` says what it found, or throws Error.
  void run(const char* name, const std::function<std::string()>& check) {
    try {
      say("ok   ", name, check());
    } catch (const std::exception& problem) {
      wrong_ = true;
      say("wrong", name, problem.what());
    }
  }
  bool wrong() const { return wrong_; }

 private:
  static void say(const char* verdict, const char* name, const std::string& sentence) {
    std::printf("%s  %-12s %s\n", verdict, name, sentence.c_str());
    std::fflush(stdout);
  }
  bool wrong_ = false;
};

// A file is written there and taken away again.
std::string try_folder(const std::string& folder) {
  if (!fs::is_directory(folder)) bad_input("there is no folder " + folder);
  const std::string path = (fs::path(folder) / (".tierkv-check-" + std::to_string(::getpid()))).string();
  check(replace_file(path, [](const ByteSink& sink) { return sink({}); }), "cannot write to " + folder);
  std::error_code ignored;
  fs::remove(path, ignored);
  return folder + " can be written to, " + human_bytes(static_cast<double>(fs::space(folder).available)) + " are free";
}

std::string try_address(const serve::Settings& settings) {
  serve::check_address(settings);
  if (!settings.keys.empty()) return settings.http.host + ", with a key";
  return settings.http.host + (settings.any_address ? ", without a key, as --no-api-key says" : ": this machine alone");
}

std::string try_port(const serve::Settings& settings) {
  serve::HttpServer server(settings.http);
  return "port " + std::to_string(server.bind()) + " is free";
}

std::string try_calibration(Engine& engine, const CacheConfig& config) {
  if (engine.calibration(config) != nullptr) return "one is there";
  if (!engine.calibration_note().empty()) return engine.calibration_note();
  return "none: the cache learns the model while it serves; `tierkv calibrate` does it once for all";
}

std::string try_budget(Engine& engine, const CacheConfig& config, const serve::Settings& settings) {
  const uint32_t context = engine.check_context(settings.context);
  const double one = measure_sequence(config, context, engine.calibration(config)).total_bytes;
  const std::string each = "a conversation of " + std::to_string(context) + " tokens takes " + human_bytes(one);
  if (settings.budget == 0) return "no limit; " + each;
  if (one > static_cast<double>(settings.budget)) {
    bad_input(each + ", more than --kv-budget " + human_bytes(static_cast<double>(settings.budget)));
  }
  return human_bytes(static_cast<double>(settings.budget)) + ", " +
         std::to_string(static_cast<uint64_t>(static_cast<double>(settings.budget) / one)) + " whole ones; " + each;
}

}  // namespace

int check_serve(const Options& options, const serve::Settings& settings) {
  Checks checks;
  checks.run("address", [&] { return try_address(settings); });
  checks.run("port", [&] { return try_port(settings); });
  if (!settings.slot_folder.empty()) checks.run("slots", [&] { return try_folder(settings.slot_folder); });
  if (!settings.store_folder.empty()) {
    checks.run("store", [&] {
      std::error_code ignored;
      fs::create_directories(settings.store_folder, ignored);  // as the server would
      return try_folder(settings.store_folder);
    });
  }
  std::unique_ptr<Engine> engine;
  checks.run("model", [&] {
    engine.reset(new Engine(load_engine(options)));
    (void)engine->shape();  // refuses what the cache does not serve
    return engine->title() + ", context " + std::to_string(engine->check_context(settings.context));
  });
  if (engine == nullptr) return kBadInput;
  CacheConfig config;
  checks.run("cache", [&] {
    config = engine->config(settings.kv);
    check(validate(config));
    return "--kv " + settings.kv;
  });
  if (!checks.wrong()) {
    checks.run("calibration", [&] { return try_calibration(*engine, config); });
    checks.run("budget", [&] { return try_budget(*engine, config, settings); });
    checks.run("start", [&] {
      serve::Service service(*engine, settings);
      if (settings.grpc_port >= 0) serve::GrpcServer grpc(service, settings.grpc_port);
      return std::to_string(settings.slots) + " slots";
    });
  }
  return checks.wrong() ? kBadInput : 0;
}

}  // namespace tierkv::cli
