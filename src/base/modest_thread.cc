#include "base/modest_thread.h"

#include <pthread.h>
#include <signal.h>

#ifdef __linux__
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace tierkv {

void be_modest(int niceness) {
  sigset_t all;
  sigfillset(&all);
  (void)pthread_sigmask(SIG_BLOCK, &all, nullptr);
#ifdef __linux__
  // Linux keeps priorities by thread: the thread's own number is needed, since 0 would be the whole process elsewhere.
  (void)setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), niceness);
#else
  (void)niceness;
#endif
}

}  // namespace tierkv
