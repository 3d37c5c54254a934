# LlamaRooms.cmake — the rooms that know libllama, src/llama and src/engine: their libraries and their tests are set up alike.
#
#   tierkv_add_llama_room(<target> <room> [STATIC])   the library <target> of src/<room>/*.cc without the tests
#   tierkv_add_llama_room_tests(<target> <room>)      every src/<room>/foo_test.cc is the program <room>_foo_test; models are there
function(tierkv_add_llama_room target room)
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${room}/*.cc)
  list(FILTER sources EXCLUDE REGEX "_test\\.cc$")
  add_library(${target} ${ARGN} ${sources})
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:tierkv_options> PUBLIC tierkv)
endfunction()

function(tierkv_add_llama_room_tests target room)
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${room}/*_test.cc)
  foreach(source ${sources})
    get_filename_component(name ${source} NAME_WE)
    tierkv_add_program(${room}_${name} ${source} ${room})
    target_compile_definitions(${room}_${name} PRIVATE TIERKV_TINY_MODELS="${PROJECT_BINARY_DIR}/tiny_models")
    target_link_libraries(${room}_${name} PRIVATE ${target} GTest::gtest_main)
    add_dependencies(${room}_${name} tierkv_tiny_models)
    tierkv_labels(${source} ${room} labels)
    # Tests run beside each other, and a spinning thread takes the core another needs.
    tierkv_discover(${room}_${name} ${room} "${labels}" TIMEOUT 600 ENVIRONMENT OMP_WAIT_POLICY=passive)
  endforeach()
endfunction()
