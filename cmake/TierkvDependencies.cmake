# What the library is built from: four header-only libraries, used in .cc files alone, so that a consumer needs none of them.
# Eigen is for src/solve alone, and no other room's compiler finds it.
find_package(Threads REQUIRED)

find_path(TIERKV_TOMLPLUSPLUS_DIR toml++/toml.h)
find_path(TIERKV_NLOHMANN_JSON_DIR nlohmann/json.hpp)
find_path(TIERKV_XXHASH_DIR xxhash.h)
find_path(TIERKV_EIGEN_DIR Eigen/Dense PATH_SUFFIXES eigen3)
mark_as_advanced(TIERKV_TOMLPLUSPLUS_DIR TIERKV_NLOHMANN_JSON_DIR TIERKV_XXHASH_DIR TIERKV_EIGEN_DIR)

add_library(tierkv_headers_only INTERFACE)
foreach(dependency TOMLPLUSPLUS NLOHMANN_JSON XXHASH EIGEN)
  if(NOT TIERKV_${dependency}_DIR)
    message(FATAL_ERROR "The headers of ${dependency} are missing. `make deps` installs them; "
                        "or point TIERKV_${dependency}_DIR at the directory that holds them.")
  endif()
  if(NOT dependency STREQUAL EIGEN)
    target_include_directories(tierkv_headers_only SYSTEM INTERFACE ${TIERKV_${dependency}_DIR})
  endif()
endforeach()
