// chat_template.h — a conversation as the text that a model was trained to see.
//
// Threads: any number at a time.
#pragma once

#include <string>
#include <vector>

namespace tierkv::engine {

struct ChatMessage {
  std::string role, content;
};

class ChatTemplate {
 public:
  ChatTemplate() = default;
  // `text` is the template of a GGUF. One that libllama does not know counts as none.
  explicit ChatTemplate(const std::string& text);

  // open_reply: the text ends where the assistant's next words begin. Without a template a plain "User: / Assistant:" form.
  std::string apply(const std::vector<ChatMessage>& messages, bool open_reply) const;
  bool known() const { return known_; }

 private:
  std::string text_;
  bool known_ = false;
};

}  // namespace tierkv::engine
