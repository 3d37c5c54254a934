# Program.cmake — the command `tierkv` inside the wheel: tierkv/_program, laid out as `make install` does it.
#
#   bin/tierkv            the program, stripped
#   lib/                  the pinned libllama and what it needs of ggml; lib/ggml the kernels for each kind of processor
#   share/tierkv/tools    what downloads models and texts
#
# TIERKV_PYTHON_PROGRAM is AUTO, ON or OFF. AUTO builds the program where everything for it is there or can be fetched; otherwise it
# says what is missing and makes a wheel without it. ON fails instead.
set(TIERKV_PYTHON_PROGRAM AUTO CACHE STRING "Put the command tierkv and its libllama into the wheel: AUTO, ON or OFF")
set_property(CACHE TIERKV_PYTHON_PROGRAM PROPERTY STRINGS AUTO ON OFF)

# What is missing for the program, as a sentence; empty: nothing.
function(tierkv_program_lacks out)
  set(${out} "" PARENT_SCOPE)
  find_path(TIERKV_CLI11_DIR CLI/CLI.hpp)
  find_path(TIERKV_HTTPLIB_DIR httplib.h)
  find_library(TIERKV_HTTPLIB_LIBRARY cpp-httplib)
  find_package(OpenSSL QUIET COMPONENTS Crypto)
  if(NOT TIERKV_CLI11_DIR OR NOT TIERKV_HTTPLIB_DIR OR NOT TIERKV_HTTPLIB_LIBRARY OR NOT OpenSSL_FOUND)
    set(${out} "CLI11, cpp-httplib or OpenSSL is missing (`make deps` in a clone installs them)" PARENT_SCOPE)
    return()
  endif()
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  execute_process(COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/../tools/fetch.py llama.cpp
    OUTPUT_QUIET RESULT_VARIABLE failed)
  if(failed)
    set(${out} "the source of libllama could not be fetched" PARENT_SCOPE)
  endif()
endfunction()

# Before tierkv's own CMakeLists.txt: switches on what the program is made of, with the pinned libllama and without gRPC, whose
# libraries are larger than all the rest.
macro(tierkv_prepare_program)
  set(TIERKV_WITH_PROGRAM OFF)
  if(TIERKV_PYTHON_PROGRAM)
    tierkv_program_lacks(lacks)
    if(NOT lacks)
      set(TIERKV_WITH_PROGRAM ON)
      set(TIERKV_BUILD_APPS ON)
      set(TIERKV_LLAMA ON)
      set(TIERKV_LLAMA_SYSTEM OFF)
      set(TIERKV_GRPC OFF)
    elseif(TIERKV_PYTHON_PROGRAM STREQUAL AUTO)
      message(WARNING "The wheel will not have the command tierkv: ${lacks}. TIERKV_PYTHON_PROGRAM=OFF says that this is meant.")
    else()
      message(FATAL_ERROR "TIERKV_PYTHON_PROGRAM is ON, and ${lacks}.")
    endif()
  endif()
endmacro()

# One shared library of libllama's prefix, under the name that others ask for. Wheels have no links.
function(tierkv_install_library file destination)
  get_filename_component(name ${file} NAME)
  file(REAL_PATH ${file} real)
  if(IS_SYMLINK ${file})
    file(READ_SYMLINK ${file} name)
  endif()
  set(copy ${CMAKE_CURRENT_BINARY_DIR}/program/${name})
  add_custom_command(OUTPUT ${copy} DEPENDS ${real} VERBATIM COMMAND ${CMAKE_STRIP} --strip-unneeded -o ${copy} ${real})
  add_custom_target(program_${name} ALL DEPENDS ${copy})
  install(PROGRAMS ${copy} DESTINATION ${destination})
endfunction()

# After it: builds and installs them.
function(tierkv_install_program)
  set(root tierkv/_program)
  get_directory_property(prefix DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}/.. DEFINITION TIERKV_LLAMA_PREFIX)
  file(MAKE_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/program)
  foreach(library llama ggml ggml-base)
    tierkv_install_library(${prefix}/lib/lib${library}.so ${root}/lib)
  endforeach()
  file(GLOB kernels ${prefix}/lib/ggml/*.so)
  foreach(library IN LISTS kernels)
    tierkv_install_library(${library} ${root}/lib/ggml)
  endforeach()
  set_target_properties(tierkv_cli PROPERTIES INSTALL_RPATH $ORIGIN/../lib INSTALL_RPATH_USE_LINK_PATH OFF)
  add_custom_target(program ALL DEPENDS tierkv_cli)
  install(PROGRAMS ${CMAKE_CURRENT_SOURCE_DIR}/../tools/fetch.py DESTINATION ${root}/share/tierkv/tools)
  install(FILES ${CMAKE_CURRENT_SOURCE_DIR}/../tools/parquet_text.py DESTINATION ${root}/share/tierkv/tools)
  install(FILES ${prefix}/LICENSE DESTINATION ${root}/share/tierkv/licenses RENAME llama.cpp.txt)
  install(TARGETS tierkv_cli RUNTIME DESTINATION ${root}/bin)
endfunction()
