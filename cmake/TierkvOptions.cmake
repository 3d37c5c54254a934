# tierkv_options: the compiler flags of everything in this repository. They stay private: a consumer sees none of them.
add_library(tierkv_options INTERFACE)
target_compile_features(tierkv_options INTERFACE cxx_std_20)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_EXTENSIONS OFF)

# No fused multiply-add behind our back: codes, scores and snapshots are the same bits on every machine.
target_compile_options(tierkv_options INTERFACE -Wall -Wextra -ffp-contract=off)
# GCC 12 sees overlapping copies in "text" + std::string where there are none (its bug 105651).
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(tierkv_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
endif()
if(TIERKV_WERROR)
  target_compile_options(tierkv_options INTERFACE -Werror)
endif()

# Sanitizers must be in every object and every link, test programs included, so they are set for the directory.
if(TIERKV_SANITIZE)
  set(TIERKV_SANITIZE_FLAGS -fsanitize=${TIERKV_SANITIZE} -fno-omit-frame-pointer)
  if(TIERKV_SANITIZE MATCHES "undefined")
    list(APPEND TIERKV_SANITIZE_FLAGS -fsanitize=float-cast-overflow -fno-sanitize-recover=all)
  endif()
  add_compile_options(${TIERKV_SANITIZE_FLAGS})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # The checks hide from GCC that both sides of a variant are set; the release build, which it can see through, keeps it.
    target_compile_options(tierkv_options INTERFACE -Wno-maybe-uninitialized)
  endif()
  add_link_options(${TIERKV_SANITIZE_FLAGS})
endif()
