// interrupt.cc — signal handlers.
#include "interrupt.h"

#include <unistd.h>

#include <csignal>

#include "exit_codes.h"

namespace tierkv::cli {
namespace {

volatile std::sig_atomic_t interrupts = 0;
engine::Cancellation stop;

void on_interrupt(int) {
  if (interrupts != 0) {
    constexpr char kText[] = "\ninterrupted twice: stopping at once\n";
    (void)!write(STDERR_FILENO, kText, sizeof(kText) - 1);
    _exit(kInterrupted);
  }
  interrupts = 1;
  stop.request();
}

}  // namespace

void install_interrupt_handler() {
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  action.sa_flags = SA_RESTART;  // what is being printed is printed whole; readers wait in poll(), which returns all the same
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  std::signal(SIGPIPE, SIG_DFL);  // `tierkv ... | head` ends quietly
  std::signal(SIGXFSZ, SIG_IGN);  // a limit on file sizes is a full disk: an error to report
}

const engine::Cancellation* cancellation() { return &stop; }
bool interrupted() { return stop.requested(); }

void clear_interrupt() {
  interrupts = 0;
  stop.clear();
}

}  // namespace tierkv::cli
