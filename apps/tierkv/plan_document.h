// plan_document.h — the memory tables of ADR-004, computed anew.
//
// The document's formula is right and its numbers mostly are not: each row shows what it printed, what its own formula gives,
// and what a real cache with the document's tiers takes, all metadata counted.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace tierkv::cli {

// Prints the tables when `print`, and gives them back as JSON.
nlohmann::json document_tables(bool print);

}  // namespace tierkv::cli
