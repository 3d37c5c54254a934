// chat_template.cc — libllama's matcher of templates, and a plain form for models without one.
#include "engine/chat_template.h"

#include <llama.h>

#include <cstdint>

namespace tierkv::engine {
namespace {

// What libllama's matcher of templates makes of the messages, or nothing.
std::string libllama_template(const std::string& text, const std::vector<ChatMessage>& messages, bool open_reply) {
  std::vector<llama_chat_message> chat;
  size_t size = 256;
  for (const ChatMessage& message : messages) {
    chat.push_back({message.role.c_str(), message.content.c_str()});
    size += 2 * message.content.size() + 64;
  }
  std::string out(size, '\0');
  for (int attempt = 0; attempt < 2; ++attempt) {
    const int32_t length =
        llama_chat_apply_template(text.c_str(), chat.data(), chat.size(), open_reply, out.data(), static_cast<int32_t>(out.size()));
    if (length < 0) return "";
    const bool fits = static_cast<size_t>(length) <= out.size();
    out.resize(static_cast<size_t>(length));
    if (fits) return out;
  }
  return "";
}

}  // namespace

ChatTemplate::ChatTemplate(const std::string& text)
    : text_(text), known_(!libllama_template(text, {{"user", "x"}}, true).empty()) {}

std::string ChatTemplate::apply(const std::vector<ChatMessage>& messages, bool open_reply) const {
  if (known_) return libllama_template(text_, messages, open_reply);
  std::string text;
  for (const ChatMessage& message : messages) {
    const std::string who = message.role == "system" ? "" : message.role == "user" ? "User: " : "Assistant: ";
    text += who + message.content + "\n";
  }
  return text + (open_reply ? "Assistant:" : "");
}

}  // namespace tierkv::engine
