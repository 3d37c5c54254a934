# LlamaBuild.cmake — builds the pinned libllama into a prefix, once. Run in script mode by Llama.cmake:
#
#   cmake -DSOURCE=... -DPREFIX=... -DGENERATOR=... -DCC=... -DCXX=... -DPROCESSOR=... -P LlamaBuild.cmake
#
# ggml's CPU code is built for no particular machine (`native` can turn on instructions that a virtual machine then refuses): one
# plain library, and on x86-64 one for AVX2 and one for AVX-512, of which ggml loads the best that the processor runs. They are
# built one after the other in one build tree, because the flags concern only ggml-cpu and everything else is then built once.
#
# The prefix may be moved or copied, and installing tierkv does so: libraries find each other by $ORIGIN, and libggml finds its
# kernels in ggml/ beside itself (libllama_modules.h).
cmake_minimum_required(VERSION 3.25)

set(work ${PREFIX}.work)
file(REMOVE_RECURSE ${work} ${PREFIX})
set(modules ${PREFIX}/lib/ggml)

cmake_host_system_information(RESULT jobs QUERY NUMBER_OF_LOGICAL_CORES)
if(DEFINED ENV{CMAKE_BUILD_PARALLEL_LEVEL})
  set(jobs $ENV{CMAKE_BUILD_PARALLEL_LEVEL})
endif()

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE failed OUTPUT_FILE ${work}.log ERROR_FILE ${work}.log)
  if(failed)
    message(FATAL_ERROR "libllama could not be built, see ${work}.log")
  endif()
endfunction()

set(features SSE42 AVX F16C FMA AVX2 BMI2 AVX512 AVX512_VBMI AVX512_VNNI)
function(configure)
  set(flags)
  foreach(feature IN LISTS features)
    if(feature IN_LIST ARGN)
      list(APPEND flags -DGGML_${feature}=ON)
    else()
      list(APPEND flags -DGGML_${feature}=OFF)
    endif()
  endforeach()
  run(${CMAKE_COMMAND} -S ${SOURCE} -B ${work} -G ${GENERATOR} -DCMAKE_C_COMPILER=${CC} -DCMAKE_CXX_COMPILER=${CXX}
    -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX=${PREFIX} -DCMAKE_INSTALL_LIBDIR=lib
    -DCMAKE_INSTALL_RPATH=$ORIGIN:$ORIGIN/.. -DCMAKE_BUILD_WITH_INSTALL_RPATH=ON
    "-DCMAKE_CXX_FLAGS=-include ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/libllama_modules.h"
    -DBUILD_SHARED_LIBS=ON -DGGML_BACKEND_DL=ON -DGGML_NATIVE=OFF -DGGML_CCACHE=OFF
    -DLLAMA_BUILD_NUMBER=0 -DLLAMA_BUILD_COMMIT=pinned -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_COMMON=OFF -DLLAMA_BUILD_TESTS=OFF
    -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_APP=OFF ${flags})
endfunction()

function(variant name)
  message(STATUS "libllama: kernels for ${name}")
  configure(${ARGN})
  run(${CMAKE_COMMAND} --build ${work} --parallel ${jobs} --target ggml-cpu)
  file(COPY_FILE ${work}/bin/libggml-cpu.so ${work}.${name}.so)
endfunction()

if(PROCESSOR MATCHES "x86_64|AMD64")
  set(avx2 SSE42 AVX F16C FMA AVX2 BMI2)
  variant(haswell ${avx2})
  variant(icelake ${avx2} AVX512 AVX512_VBMI AVX512_VNNI)
endif()
message(STATUS "libllama: the library")
configure()
run(${CMAKE_COMMAND} --build ${work} --parallel ${jobs} --target llama)
run(${CMAKE_COMMAND} --install ${work})
file(MAKE_DIRECTORY ${modules})
file(RENAME ${PREFIX}/bin/libggml-cpu.so ${modules}/libggml-cpu.so)
file(REMOVE_RECURSE ${PREFIX}/bin)
foreach(name haswell icelake)
  if(EXISTS ${work}.${name}.so)
    file(RENAME ${work}.${name}.so ${modules}/libggml-cpu-${name}.so)
  endif()
endforeach()
file(COPY ${SOURCE}/LICENSE DESTINATION ${PREFIX})
file(REMOVE_RECURSE ${work} ${work}.log)
file(WRITE ${PREFIX}/.complete "")
