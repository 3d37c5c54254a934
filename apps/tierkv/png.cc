// png.cc — runs rsvg-convert.
#include "png.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;

namespace tierkv::cli {

bool convert_to_png(const std::string& svg, const std::string& png) {
  const char* const words[] = {"rsvg-convert", "--zoom=2", "--output", png.c_str(), svg.c_str(), nullptr};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
  pid_t child = 0;
  const int problem = posix_spawnp(&child, words[0], &actions, nullptr, const_cast<char* const*>(words), environ);
  posix_spawn_file_actions_destroy(&actions);
  int status = 0;
  if (problem != 0) return false;
  if (waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0) return true;
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 127) unlink(png.c_str());  // half a picture; 127: there is no such program
  return false;
}

}  // namespace tierkv::cli
