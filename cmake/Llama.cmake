# Llama.cmake — the host for unmodified libllama: target tierkv::llama. Included when TIERKV_LLAMA is on.
#
# libllama is an installed one that CMake finds (set TIERKV_LLAMA_SYSTEM=OFF not to look), otherwise the pinned source: fetched by
# tools/fetch.py and built once into the cache folder ($TIERKV_CACHE, or tierkv/ in the XDG cache), where every build tree finds it.
option(TIERKV_LLAMA_SYSTEM "Use an installed libllama if there is one" ON)

if(TIERKV_LLAMA_SYSTEM)
  find_package(llama CONFIG QUIET)
  if(llama_FOUND)
    include(CheckCXXSourceCompiles)
    set(CMAKE_REQUIRED_LIBRARIES llama)
    check_cxx_source_compiles([[
      #include <llama.h>
      int main() {
        llama_context_params params = llama_context_default_params();
        params.kv_unified = true;
        params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
        return llama_model_n_swa(nullptr) + llama_model_is_hybrid(nullptr) + (llama_get_memory(nullptr) != nullptr);
      }]] TIERKV_LLAMA_IS_RECENT)
    unset(CMAKE_REQUIRED_LIBRARIES)
    if(NOT TIERKV_LLAMA_IS_RECENT)
      message(FATAL_ERROR "The libllama in ${llama_DIR} is too old for tierkv: set TIERKV_LLAMA_SYSTEM=OFF to use the pinned one.")
    endif()
    message(STATUS "tierkv: using the libllama in ${llama_DIR}")
    set(TIERKV_LLAMA_DIR ${llama_DIR})
  endif()
endif()

if(NOT llama_FOUND)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  execute_process(COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tools/fetch.py llama.cpp --json
    OUTPUT_VARIABLE fetched RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "libllama is not installed and its source could not be fetched: -DTIERKV_LLAMA=OFF does without it.")
  endif()
  string(JSON source GET "${fetched}" path)
  string(JSON digest GET "${fetched}" files 0 sha256)
  # The same source, compiler and recipe give the same libraries.
  file(SHA256 ${CMAKE_CURRENT_LIST_DIR}/LlamaBuild.cmake recipe)
  file(SHA256 ${CMAKE_CURRENT_LIST_DIR}/libllama_modules.h modules)
  set(compiler "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}")
  string(SHA256 key "${digest} ${recipe} ${modules} ${compiler} ${CMAKE_SYSTEM_PROCESSOR}")
  string(SUBSTRING ${key} 0 12 key)
  get_filename_component(cache ${source}/../.. ABSOLUTE)
  get_filename_component(version ${source} NAME)
  set(prefix ${cache}/build/${version}-${key})
  file(MAKE_DIRECTORY ${cache}/build)
  file(LOCK ${prefix}.lock GUARD FILE)
  if(NOT EXISTS ${prefix}/.complete)
    message(STATUS "tierkv: building libllama into ${prefix}, once (a few minutes)")
    string(TIMESTAMP started %s)
    execute_process(COMMAND ${CMAKE_COMMAND} -DSOURCE=${source} -DPREFIX=${prefix} -DGENERATOR=${CMAKE_GENERATOR}
      -DCC=${CMAKE_C_COMPILER} -DCXX=${CMAKE_CXX_COMPILER} -DPROCESSOR=${CMAKE_SYSTEM_PROCESSOR}
      -P ${CMAKE_CURRENT_LIST_DIR}/LlamaBuild.cmake COMMAND_ERROR_IS_FATAL ANY)
    string(TIMESTAMP finished %s)
    math(EXPR took "${finished} - ${started}")
    message(STATUS "tierkv: built libllama in ${took} s")
  endif()
  file(LOCK ${prefix}.lock RELEASE)
  find_package(llama CONFIG REQUIRED PATHS ${prefix} NO_DEFAULT_PATH)
  set(TIERKV_LLAMA_DIR ${llama_DIR})
  unset(llama_DIR CACHE)  # so that the next configuration looks again and follows a changed pin
  unset(llama_LIBRARY CACHE)
  set(TIERKV_LLAMA_PREFIX ${prefix})  # installed with us
endif()

include(${CMAKE_CURRENT_LIST_DIR}/LlamaRooms.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/ShippedCalibrations.cmake)
tierkv_add_llama_room(tierkv_llama llama)
add_library(tierkv::llama ALIAS tierkv_llama)
tierkv_ship_calibrations(tierkv_llama)
target_link_libraries(tierkv_llama PUBLIC llama)
# What is installed finds its libraries by these; each program and library says how to get to the library folder from where it lies.
# The pinned libllama is installed with us. One that the system has stays where it is, and the link knows where.
function(tierkv_set_run_path target from)
  file(RELATIVE_PATH to_libraries /${from} /${CMAKE_INSTALL_LIBDIR})
  string(REGEX REPLACE "/$" "" here "$ORIGIN/${to_libraries}")
  set(paths ${here})
  if(TIERKV_LLAMA_PREFIX)
    list(APPEND paths ${here}/tierkv/llama/lib)
  else()
    set_target_properties(${target} PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)
  endif()
  set_target_properties(${target} PROPERTIES INSTALL_RPATH "${paths}")
endfunction()
set_target_properties(tierkv_llama PROPERTIES EXPORT_NAME llama VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}
  POSITION_INDEPENDENT_CODE ON)
tierkv_set_run_path(tierkv_llama ${CMAKE_INSTALL_LIBDIR})

if(TIERKV_INSTALL)
  # The component `llama` of the package: find_package(tierkv COMPONENTS llama). It must meet the libllama it was built against.
  install(TARGETS tierkv_llama EXPORT tierkvLlamaTargets
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
    RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(EXPORT tierkvLlamaTargets NAMESPACE tierkv:: DESTINATION ${TIERKV_CMAKE_DIR})
  set(llama_folder ${CMAKE_INSTALL_LIBDIR}/tierkv/llama)
  if(TIERKV_LLAMA_PREFIX)
    # In a folder of its own, so that it meets no other libllama. Its pkg-config file has a fixed path: tierkv-llama.pc serves.
    install(DIRECTORY ${TIERKV_LLAMA_PREFIX}/lib ${TIERKV_LLAMA_PREFIX}/include DESTINATION ${llama_folder} USE_SOURCE_PERMISSIONS
      PATTERN pkgconfig EXCLUDE)
    install(FILES ${TIERKV_LLAMA_PREFIX}/LICENSE DESTINATION ${llama_folder})
    file(RELATIVE_PATH to_llama /${TIERKV_CMAKE_DIR} /${llama_folder}/lib/cmake/llama)
    set(TIERKV_LLAMA_DIR "\${CMAKE_CURRENT_LIST_DIR}/${to_llama}")
    set(TIERKV_LLAMA_PC_CFLAGS "-I\${libdir}/tierkv/llama/include")
    set(TIERKV_LLAMA_PC_LIBS "-L\${libdir}/tierkv/llama/lib -Wl,-rpath,\${libdir}/tierkv/llama/lib")
  endif()
  configure_file(${CMAKE_CURRENT_LIST_DIR}/tierkv-llama.pc.in ${PROJECT_BINARY_DIR}/tierkv-llama.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/tierkv-llama.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
  configure_file(${CMAKE_CURRENT_LIST_DIR}/tierkvLlama.cmake.in ${PROJECT_BINARY_DIR}/tierkvLlama.cmake @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/tierkvLlama.cmake DESTINATION ${TIERKV_CMAKE_DIR})
endif()

if(TIERKV_BUILD_TESTS)
  find_package(GTest REQUIRED)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  set(tiny ${PROJECT_BINARY_DIR}/tiny_models)
  add_custom_command(OUTPUT ${tiny}/.written COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tools/tiny_gguf.py ${tiny}
    COMMAND ${CMAKE_COMMAND} -E touch ${tiny}/.written DEPENDS ${PROJECT_SOURCE_DIR}/tools/tiny_gguf.py VERBATIM)
  add_custom_target(tierkv_tiny_models DEPENDS ${tiny}/.written)
  tierkv_add_llama_room_tests(tierkv_llama llama)
  # What a real model gives when it is learnt in passing; run by hand.
  tierkv_add_program(learn_measure ${PROJECT_SOURCE_DIR}/tests/learn_measure.cc learn)
  target_link_libraries(learn_measure PRIVATE tierkv_llama)
  add_test(NAME llama/fetch COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/fetch_test.py)
  set_tests_properties(llama/fetch PROPERTIES TIMEOUT 300 LABELS llama)
endif()
