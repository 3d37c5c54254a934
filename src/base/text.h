// text.h — helpers for messages that quote what a user wrote.
// Threads: pure functions.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace tierkv {

// At most `limit` bytes of the text, with control bytes and broken UTF-8 as \xNN: a hostile name cannot drive a terminal.
std::string printable(std::string_view text, size_t limit);
// The same in single quotes, at most 80 bytes.
std::string quote(std::string_view text);

bool valid_utf8(std::string_view text);

// Edits (insert, delete, replace, swap neighbours) from one to the other; texts past 64 bytes count as 64 edits apart.
int edit_distance(std::string_view a, std::string_view b);

// The candidate a typo most likely meant (at most a third of its length away, the first among equals), or -1.
int nearest(std::string_view text, std::span<const std::string> candidates);

std::string join(std::span<const std::string> parts, std::string_view separator = ", ");

}  // namespace tierkv
