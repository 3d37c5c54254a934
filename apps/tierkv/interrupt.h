// interrupt.h — Ctrl-C: the first requests a cancellation that all work looks at, the second ends the process at once.
//
// Threads: cancellation() and interrupted() any thread's; the rest is the main thread's.
#pragma once

#include "engine/cancellation.h"

namespace tierkv::cli {

void install_interrupt_handler();
const engine::Cancellation* cancellation();
bool interrupted();
void clear_interrupt();  // a command that survives the first (chat) starts anew

}  // namespace tierkv::cli
