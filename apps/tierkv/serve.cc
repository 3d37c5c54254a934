// serve.cc — `tierkv serve`: an HTTP server for OpenAI's and llama-server's clients.
#include <sys/resource.h>

#include <cctype>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <thread>

#include "commands.h"
#include "engine/clock.h"
#include "load_engine.h"
#include "number_range.h"
#include "print_config.h"
#include "serve/grpc_server.h"
#include "serve/service.h"
#include "serve_check.h"
#include "terminal.h"

namespace tierkv::cli {
namespace {

constexpr const char* kFooter =
    "Examples:\n"
    "  tierkv serve                                             SmolLM2 at http://127.0.0.1:8080\n"
    "  tierkv serve -m model.gguf -np 8 -c 8k --kv-budget 512MiB\n"
    "  tierkv serve --host 0.0.0.0 --api-key \"$KEY\"\n"
    "  tierkv serve --check                                     try everything, and say what is wrong\n"
    "\n"
    "  curl localhost:8080/v1/chat/completions -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'\n"
    "\n"
    "Every option may stand in config.toml under [serve], and in the environment: TIERKV_SERVE_KV_BUDGET is --kv-budget. The\n"
    "command line wins over the environment, and that over the file; --print-config shows what comes of it.\n"
    "SIGTERM and Ctrl-C let answers under way end; a second Ctrl-C does not.";

struct Request {
  Options options;
  serve::Settings settings;
  std::string budget;
  std::string store_size = "4GiB";
  bool no_store = false;
  bool metrics = false;       // they are always there
  bool check_only = false;    // --check
  bool print_config = false;  // --print-config
  const CLI::App* command = nullptr;
  const ConfigOrigins* origins = nullptr;
};

// "512MiB", "2G", "1000000": bytes.
uint64_t parse_bytes(const std::string& option, const std::string& text) {
  size_t used = 0;
  double number = 0.0;
  try {
    number = std::stod(text, &used);
  } catch (const std::exception&) {
    used = 0;
  }
  std::string unit = text.substr(used);
  for (char& c : unit) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const int shift = unit.empty() || unit == "b"                    ? 0
                    : unit == "k" || unit == "kib" || unit == "kb" ? 10
                    : unit == "m" || unit == "mib" || unit == "mb" ? 20
                    : unit == "g" || unit == "gib" || unit == "gb" ? 30
                                                                   : -1;
  const double bytes = shift < 0 ? 0.0 : number * static_cast<double>(uint64_t{1} << shift);
  if (used == 0 || shift < 0 || !(bytes >= 1.0 && bytes < 1e15)) {
    bad_input(option + " " + text + ": bytes are expected, such as 512MiB or 2G");
  }
  return static_cast<uint64_t>(bytes);
}

// A connection is an open file, and systems let a process have 1,024 unless it asks for more.
void allow_many_files() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &limit);
}

// Answers under way end by themselves, or when their time is over.
void drain(serve::Service& service) {
  service.scheduler().drain();
  const double until = now() + service.settings().drain_s;
  while (!service.scheduler().idle() && now() < until) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  // The last pieces are on their way to their clients.
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
}

int run(Request& request) {
  Options& options = request.options;
  serve::Settings& settings = request.settings;
  if (request.print_config) {
    std::printf("%s", effective_config(*request.command, *request.origins).c_str());
    return 0;
  }
  settle(options);
  if (options.kv.empty()) options.kv = {"balanced"};
  check_kv(options.kv);
  settings.kv = options.kv.front();
  if (!request.budget.empty()) settings.budget = parse_bytes("--kv-budget", request.budget);
  settings.store_bytes = parse_bytes("--store-size", request.store_size);
  if (settings.store_folder.empty()) settings.store_folder = llama::cache_folder() + "/prefixes";
  if (request.no_store) settings.store_folder.clear();
  if (request.check_only) return check_serve(options, settings);
  if (!settings.slot_folder.empty() && !std::filesystem::is_directory(settings.slot_folder)) {
    bad_input("--slot-save-path " + settings.slot_folder + ": there is no such folder");
  }
  serve::check_address(settings);
  allow_many_files();
  serve::HttpServer server(settings.http);
  const int port = server.bind();
  Engine engine = load_engine(options);
  serve::Service service(engine, settings);
  serve::add_routes(server, service);
  std::signal(SIGPIPE, SIG_IGN);  // a client that leaves is no reason to end
  std::unique_ptr<serve::GrpcServer> grpc;
  if (settings.grpc_port >= 0) grpc = std::make_unique<serve::GrpcServer>(service, settings.grpc_port);
  std::thread listener([&server] { server.serve(); });
  // A program that started this one reads the port here.
  std::printf("%s: listening on http://%s:%d\n", engine.title().c_str(), settings.http.host.c_str(), port);
  if (grpc) std::printf("gRPC: listening on %s:%d\n", settings.http.host.c_str(), grpc->port());
  std::fflush(stdout);
  while (!interrupted()) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  if (!options.quiet) remark("stopping: answers under way have " + human_seconds(settings.drain_s) + "\n");
  drain(service);
  if (grpc) grpc->stop();
  service.scheduler().stop();
  server.stop();
  listener.join();
  return 0;
}

}  // namespace

void add_serve(CLI::App& app, Action& action, const ConfigOrigins& origins) {
  const auto [command, request] = add_command<Request>(
      app, action, "serve", "Serve OpenAI's API: many long conversations at once, in little memory", kFooter, run);
  serve::Settings& settings = request->settings;
  request->command = command;
  request->origins = &origins;
  command->add_option("--host", settings.http.host, "the address to listen on")->type_name("ADDRESS")->capture_default_str();
  command->add_option("--port", settings.http.port, "the port; 0: any that is free")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  command
      ->add_option("--grpc-port", settings.grpc_port, "a port for gRPC's tierkv.v1.KvMetrics; 0: any that is free (default: none)")
      ->check(CLI::Range(0, 65535));
  command->add_option("--api-key", settings.keys, "a key that clients must send; may be repeated")
      ->type_name("KEY")
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command->add_flag("--no-api-key", settings.any_address, "let others than this machine ask without a key");
  command->add_option("-a,--alias", settings.alias, "what the model is called (default: its file's name)")->type_name("NAME");
  command->add_option("--parallel", settings.slots, "answers that are written at a time (-np)")
      ->check(CLI::Range(1u, 64u))
      ->capture_default_str();
  command->add_option("-c,--ctx", settings.context, "tokens of one conversation (default: the model's)")->type_name("N");
  command->add_option("--queue", settings.queue, "answers that may wait for their turn")
      ->check(CLI::Range(0u, 65536u))
      ->capture_default_str();
  command->add_option("--conversations", settings.conversations, "conversations in memory, idle ones included")
      ->check(CLI::Range(1u, 65536u))
      ->capture_default_str();
  command->add_option("--kv-budget", request->budget, "bytes for all conversations: 512MiB, 2G (default: no limit)")
      ->type_name("BYTES");
  command
      ->add_option("--store", settings.store_folder, "the folder that remembers prompts (default: prefixes, in the cache folder)")
      ->type_name("FOLDER");
  command->add_option("--store-size", request->store_size, "bytes that it may have")->type_name("BYTES")->capture_default_str();
  command->add_flag("--no-store", request->no_store, "remember nothing on disk");
  command->add_option("--prompt-piece", settings.piece, "tokens of a prompt that a step takes beside answers, at least")
      ->check(CLI::Range(1u, 256u))
      ->capture_default_str();
  command->add_option("--timeout", settings.timeout_s, "seconds a request may take; 0: any number")
      ->check(number_range(0.0, 1e6))
      ->capture_default_str();
  command->add_option("--drain", settings.drain_s, "seconds that answers under way have when the server is stopped")
      ->check(number_range(0.0, 1e5))
      ->capture_default_str();
  command->add_option("--max-body", settings.http.most_body, "bytes that a request may have")
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--slot-save-path", settings.slot_folder, "the folder where slots are saved")->type_name("FOLDER");
  command->add_option("--cors", settings.cors, "an origin whose pages may use the server: https://example.com; may be repeated")
      ->type_name("ORIGIN")
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command->add_flag("--check", request->check_only, "try everything that a start needs, say what is wrong, and end");
  command->add_flag("--print-config", request->print_config, "print the settings with where each comes from, and end");
  command->add_flag("--metrics", request->metrics)->group("");  // llama-server's switch for what is always there
  add_model_option(*command, request->options);
  add_kv_option(*command, request->options, "balanced", false);
  command->add_flag("-q,--quiet", request->options.quiet, "no progress bars and no remarks");
}

}  // namespace tierkv::cli
