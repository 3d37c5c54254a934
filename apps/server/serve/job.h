// job.h — one text being written, between the thread of its client and the scheduler's.
//
// The client's thread makes jobs and a mailbox for them, hands them to the scheduler and takes events until each job has its
// outcome. Whoever no longer waits says so (abandoned); the scheduler then forgets the job at its next step.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "serve/api_error.h"
#include "serve/ask.h"
#include "serve/probabilities.h"

namespace tierkv::serve {

enum class Finish {
  stop,    // the model ended the text, or a stop string did
  length,  // as many tokens as were asked for, or as the context has room for
};
const char* finish_name(Finish finish);

// How it went.
struct Outcome {
  Finish finish = Finish::stop;
  std::optional<ApiError> error;  // it did not go well
  uint32_t prompt_tokens = 0;
  uint32_t cached_tokens = 0;  // of the prompt, that were not read again
  uint32_t written_tokens = 0;
  double prompt_s = 0.0;  // from its turn to the first token
  double write_s = 0.0;   // from there to the last
};

struct Event {
  uint32_t index = 0;  // of the job within its request
  std::string text;    // whole characters
  std::optional<Outcome> outcome;
  std::vector<TokenProbability> tokens;  // those of the text, where they are asked for
};

// Events of the jobs of one request. Threads: any.
class Mailbox {
 public:
  void put(Event event) {
    {
      const std::lock_guard lock(mutex_);
      events_.push_back(std::move(event));
    }
    ready_.notify_one();
  }
  // The next event, or none when none came in that time.
  std::optional<Event> take(std::chrono::milliseconds wait) {
    std::unique_lock lock(mutex_);
    if (!ready_.wait_for(lock, wait, [this] { return !events_.empty(); })) return std::nullopt;
    Event event = std::move(events_.front());
    events_.pop_front();
    return event;
  }

 private:
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<Event> events_;
};

struct Job {
  Ask ask;
  uint32_t index = 0;
  std::string client;     // whose it is: turns are shared out between clients
  double arrived = 0.0;   // engine::now()
  double deadline = 0.0;  // 0: none
  std::shared_ptr<Mailbox> mailbox;
  std::shared_ptr<Job> after;            // has the same prompt and reads it first; or null
  std::atomic<bool> prompt_read{false};  // or it has ended
  std::atomic<bool> abandoned{false};
};
using JobPtr = std::shared_ptr<Job>;

}  // namespace tierkv::serve
