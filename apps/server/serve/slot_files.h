// slot_files.h — a slot's conversation to a file of the slot folder and back.
//
// Errors:  ApiError: 501 without a folder, 400 for a name that could leave it, a slot that is busy or empty, a file that is another
//          model's or damaged; 404 for one that is not there; 500 for one that cannot be written.
// Threads: any; the scheduler's thread is asked for what touches the cache, files are read and written on the caller's.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "serve/service.h"

namespace tierkv::serve {

// Letters, digits, '-', '_' and '.', not at the beginning: nothing that could be a way out of a folder.
bool is_plain_name(const std::string& name);

nlohmann::json save_slot(Service& service, uint32_t slot, const std::string& file);
nlohmann::json restore_slot(Service& service, uint32_t slot, const std::string& file);
nlohmann::json erase_slot(Service& service, uint32_t slot);

}  // namespace tierkv::serve
