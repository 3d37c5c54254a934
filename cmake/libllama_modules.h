// libllama_modules.h — put before every C++ file of ggml when LlamaBuild.cmake builds it: where ggml looks for its kernels.
//
// ggml takes the folder of its modules as GGML_BACKEND_DIR, a path that is fixed when it is built. What is installed may be moved,
// so the folder is ggml/ beside libggml itself.
#pragma once

#include <dlfcn.h>

#include <string>

static inline std::string tierkv_module_folder() {
  Dl_info here{};
  if (dladdr(reinterpret_cast<const void*>(&tierkv_module_folder), &here) == 0 || here.dli_fname == nullptr) return "ggml";
  const std::string file = here.dli_fname;
  const size_t slash = file.rfind('/');
  return (slash == std::string::npos ? std::string(".") : file.substr(0, slash)) + "/ggml";
}

#define GGML_BACKEND_DIR tierkv_module_folder()
