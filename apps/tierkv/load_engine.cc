#include "load_engine.h"

#include <filesystem>

#include "interrupt.h"
#include "rope_options.h"
#include "terminal.h"

namespace tierkv::cli {

Engine load_engine(const Options& options) {
  Progress progress("loading " + std::filesystem::path(options.model).filename().string(), 100, options.quiet);
  EngineOptions engine;
  engine.model = options.model;
  engine.threads = options.threads;
  engine.fewer_threads = options.threads_by_machine;
  engine.rope = rope_settings(options.rope);
  engine.cancel = cancellation();
  engine.on_progress = [&](float share) { progress.update(static_cast<uint64_t>(share * 100.0f)); };
  return Engine(engine);
}

}  // namespace tierkv::cli
