# The kernels for CUDA devices and the host code beside them (src/cuda/runtime/*.cu), compiled with nvcc as custom commands: a
# toolkit's, or the one that tools/fetch_nvcc.sh gets from PyPI, no GPU needed. CMake's own CUDA language wants a toolkit's layout.
find_program(TIERKV_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda/bin PATH_SUFFIXES bin
  DOC "nvcc of CUDA 13.0 or later")
if(NOT TIERKV_NVCC)
  message(STATUS "tierkv: no nvcc found, fetching one from PyPI")
  execute_process(COMMAND ${PROJECT_SOURCE_DIR}/tools/fetch_nvcc.sh OUTPUT_VARIABLE fetched OUTPUT_STRIP_TRAILING_WHITESPACE
    RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "TIERKV_CUDA is ON, but there is no nvcc and none could be fetched. Install a CUDA toolkit, 13.0 or later, \
or set TIERKV_NVCC to its nvcc, or configure with -DTIERKV_CUDA=OFF.")
  endif()
  set(TIERKV_NVCC ${fetched}/bin/nvcc CACHE FILEPATH "nvcc of CUDA 13.0 or later" FORCE)
endif()
get_filename_component(cuda_root ${TIERKV_NVCC} REALPATH)
get_filename_component(cuda_root ${cuda_root} DIRECTORY)
get_filename_component(cuda_root ${cuda_root} DIRECTORY)
find_path(TIERKV_CUDA_INCLUDE cuda_runtime_api.h PATHS ${cuda_root}/include ${cuda_root}/targets/x86_64-linux/include
  ${cuda_root}/targets/sbsa-linux/include NO_DEFAULT_PATH REQUIRED)
find_library(TIERKV_CUDART NAMES cudart_static PATHS ${cuda_root}/lib64 ${cuda_root}/lib ${cuda_root}/targets/x86_64-linux/lib
  ${cuda_root}/targets/sbsa-linux/lib NO_DEFAULT_PATH REQUIRED)

# 8.0 reads everything in the general way; 9.0 has the tensor-core paths, and its PTX is for what comes later.
set(TIERKV_CUDA_ARCHITECTURES "80;90" CACHE STRING "Compute capabilities to compile for; PTX of the last one goes along")
set(cuda_codes "")
foreach(arch IN LISTS TIERKV_CUDA_ARCHITECTURES)
  list(APPEND cuda_codes -gencode arch=compute_${arch},code=sm_${arch})
endforeach()
list(GET TIERKV_CUDA_ARCHITECTURES -1 arch)
list(APPEND cuda_codes -gencode arch=compute_${arch},code=compute_${arch})
# Of files that use what 9.0 alone has (*_hopper.cu); nothing later runs it.
set(cuda_hopper_codes -gencode arch=compute_90a,code=sm_90a)

set(cuda_flags -std=c++20 -O3 -Xcompiler -fPIC,-Wall -diag-suppress 2810 -I${PROJECT_SOURCE_DIR}/src -I${PROJECT_SOURCE_DIR}/include
  -I${TIERKV_CUDA_INCLUDE} -ccbin ${CMAKE_CXX_COMPILER})
if(TIERKV_WERROR)
  list(APPEND cuda_flags -Werror all-warnings)
endif()
set(cuda_launcher ${CMAKE_CXX_COMPILER_LAUNCHER})

function(tierkv_cuda_object source out)
  file(RELATIVE_PATH name ${PROJECT_SOURCE_DIR} ${source})
  set(object ${PROJECT_BINARY_DIR}/cuda/${name}.o)
  get_filename_component(folder ${object} DIRECTORY)
  file(MAKE_DIRECTORY ${folder})
  # Blocks are the same bits on every machine: what makes them fuses nothing.
  set(own_flags "")
  if(name MATCHES "/encode[^/]*\\.cu$")
    set(own_flags -fmad=false)
  endif()
  set(codes ${cuda_codes})
  if(name MATCHES "_hopper\\.cu$")
    set(codes ${cuda_hopper_codes})
  endif()
  add_custom_command(OUTPUT ${object}
    COMMAND ${cuda_launcher} ${TIERKV_NVCC} ${cuda_flags} ${own_flags} ${codes} -MD -MF ${object}.d -c ${source} -o ${object}
    DEPENDS ${source} DEPFILE ${object}.d COMMENT "Building CUDA object ${name}.o" VERBATIM)
  set(${out} ${object} PARENT_SCOPE)
endfunction()

file(GLOB cuda_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/cuda/runtime/*.cu)
foreach(source IN LISTS cuda_sources)
  tierkv_cuda_object(${source} object)
  target_sources(tierkv PRIVATE ${object})
  set_source_files_properties(${object} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
endforeach()
# Of one file alone, so that a compiler cache knows all others.
set_property(SOURCE ${PROJECT_SOURCE_DIR}/src/cuda/unavailable.cc APPEND PROPERTY COMPILE_DEFINITIONS TIERKV_CUDA)
target_link_libraries(tierkv PRIVATE $<BUILD_INTERFACE:${TIERKV_CUDART}> $<BUILD_INTERFACE:dl> $<BUILD_INTERFACE:rt>)

# The rest is for this tree alone, not for those who build the library into something else.
if(NOT PROJECT_IS_TOP_LEVEL)
  return()
endif()

# What bench/cuda/bench.py, prompt.py and model_step.py load beside torch.
add_library(tierkv_bench_cuda SHARED bench/cuda/cases.cc bench/cuda/prompt_cases.cc bench/cuda/model_cache.cc)
target_include_directories(tierkv_bench_cuda PRIVATE src ${TIERKV_CUDA_INCLUDE})
target_link_libraries(tierkv_bench_cuda PRIVATE tierkv tierkv_options)
add_executable(tierkv_steps_cuda bench/cuda/steps.cc)
target_include_directories(tierkv_steps_cuda PRIVATE ${TIERKV_CUDA_INCLUDE})
target_link_libraries(tierkv_steps_cuda PRIVATE tierkv tierkv_options)
add_executable(tierkv_encode_cuda bench/cuda/encode.cc)
target_include_directories(tierkv_encode_cuda PRIVATE src ${TIERKV_CUDA_INCLUDE})
target_link_libraries(tierkv_encode_cuda PRIVATE tierkv tierkv_options)

# Needs a device: `make test-cuda`, not ctest.
if(TIERKV_BUILD_TESTS)
  find_package(GTest REQUIRED)
  add_executable(cuda_device_test tests/cuda/device_test.cc tests/cuda/demote_test.cc tests/cuda/encode_test.cc
                 tests/cuda/graph_test.cc tests/cuda/mass_test.cc tests/cuda/medium_test.cc tests/cuda/prompt_test.cc)
  target_include_directories(cuda_device_test PRIVATE src tests ${TIERKV_CUDA_INCLUDE})
  target_link_libraries(cuda_device_test PRIVATE tierkv tierkv_options GTest::gtest_main)
endif()
