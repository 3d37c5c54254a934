// modest_thread.h — what a background thread does first: step back behind whoever waits for a token, and leave signals to the
// program's own threads.
#pragma once

namespace tierkv {

// Of the calling thread alone. `niceness`: 0 as the others .. 19 only when nothing else runs. Where a system has no priorities of
// single threads, only signals change.
void be_modest(int niceness);

}  // namespace tierkv
