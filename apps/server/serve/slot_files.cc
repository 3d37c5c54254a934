#include "serve/slot_files.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/clock.h"
#include "engine/error.h"
#include "engine/session_file.h"
#include "serve/api_error.h"

namespace tierkv::serve {
namespace {

using engine::now;
using nlohmann::json;

std::string path_of(const Service& service, const std::string& file) {
  const std::string& folder = service.settings().slot_folder;
  if (folder.empty()) throw ApiError(501, "slots are not saved: start the server with --slot-save-path FOLDER");
  if (!is_plain_name(file)) {
    throw ApiError(400, "filename must be letters, digits, '-', '_' and '.', without a folder", "filename");
  }
  return (std::filesystem::path(folder) / file).string();
}

// A disk that is full or gone is no fault of whoever asked. The folder's own path is nobody's business.
uint64_t write(const std::string& path, const std::string& file, const engine::SessionFile& saved) {
  try {
    return engine::write_session(path, saved);
  } catch (const engine::Error& error) {
    std::string reason = error.what();
    const size_t at = reason.find(path);
    if (at != std::string::npos) reason.replace(at, path.size(), file);
    throw ApiError(500, reason, "filename");
  }
}

double since(double start) { return 1e3 * (now() - start); }

}  // namespace

bool is_plain_name(const std::string& name) {
  const auto plain = [](unsigned char c) { return std::isalnum(c) || c == '-' || c == '_' || c == '.'; };
  return !name.empty() && name.size() <= 128 && name.front() != '.' && std::all_of(name.begin(), name.end(), plain);
}

json save_slot(Service& service, uint32_t slot, const std::string& file) {
  const std::string path = path_of(service, file);
  const double start = now();
  engine::SessionFile saved;
  saved.model = service.engine().name();
  saved.fingerprint = service.engine().fingerprint();
  saved.kv = service.settings().kv;
  service.scheduler().on_thread([&] {
    const int32_t place = service.scheduler().idle_place(slot);
    if (place < 0) throw ApiError(400, "slot " + std::to_string(slot) + " is empty", "id_slot");
    AdaptiveKVCache& cache = service.context().cache();
    saved.config = cache.config();
    saved.tokens = service.scheduler().shelf().at(place).tokens;
    saved.snapshot = engine::take(cache.freeze(engine::take(service.context().host().sequence(place))));
  });
  const uint64_t bytes = write(path, file, saved);
  return {{"id_slot", slot},
          {"filename", file},
          {"n_saved", saved.tokens.size()},
          {"n_written", bytes},
          {"timings", {{"save_ms", since(start)}}}};
}

json restore_slot(Service& service, uint32_t slot, const std::string& file) {
  const std::string path = path_of(service, file);
  const double start = now();
  if (!std::filesystem::exists(path)) throw ApiError(404, "there is no file " + file, "filename");
  engine::SessionFile saved;
  try {
    saved = engine::read_session(path);
  } catch (const engine::Error&) {
    throw ApiError(400, file + " is not a session, or it is damaged", "filename");
  }
  if (saved.fingerprint != service.engine().fingerprint()) {
    throw ApiError(400, file + " is a session of another model, or of this one with another RoPE", "filename");
  }
  service.scheduler().on_thread([&] {
    Shelf& shelf = service.scheduler().shelf();
    int32_t place = service.scheduler().idle_place(slot);
    AdaptiveKVCache& cache = service.context().cache();
    const SeqId id = engine::take(cache.unfreeze(saved.snapshot), file);
    const bool whole = engine::take(cache.length(id)) == saved.tokens.size() && !saved.tokens.empty();
    if (place < 0) place = shelf.free_place();
    if (!whole || place < 0 || !shelf.put(place, id, saved.tokens).ok()) {
      (void)cache.remove(id).ok();
      throw ApiError(whole ? 429 : 400, whole ? "there is no place for another conversation" : file + " is damaged", "filename");
    }
    service.scheduler().show(slot, place);
  });
  return {{"id_slot", slot},
          {"filename", file},
          {"n_restored", saved.tokens.size()},
          {"n_read", std::filesystem::file_size(path)},
          {"timings", {{"restore_ms", since(start)}}}};
}

json erase_slot(Service& service, uint32_t slot) {
  size_t erased = 0;
  service.scheduler().on_thread([&] {
    const int32_t place = service.scheduler().idle_place(slot);
    if (place < 0) return;
    erased = service.scheduler().shelf().at(place).tokens.size();
    service.scheduler().shelf().remove(place);
    service.scheduler().show(slot, -1);
  });
  return {{"id_slot", slot}, {"n_erased", erased}};
}

}  // namespace tierkv::serve
