// brief_waits.h — lets the threads of libllama wait for each other briefly and then sleep.
//
// They meet after every operation of a token. GCC's OpenMP, which libllama waits by, polls for milliseconds before it sleeps. That
// keeps a core from whoever the others wait for, as soon as the machine does anything else: a token then takes as long as fifty.
#pragma once

namespace tierkv::cli {

// Where others compute at this moment. On a machine of our own polling is best, and nothing is changed. OpenMP takes its settings
// from the environment, when a program is loaded: so the program is started again, as the same process and with the same arguments.
// Whoever has set OMP_WAIT_POLICY or GOMP_SPINCOUNT keeps what they set. Where a program cannot be started again, this one goes on.
// REQUIRES: nothing has been read from stdin.
void wait_briefly_beside_others(char** arguments);

}  // namespace tierkv::cli
