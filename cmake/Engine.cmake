# Engine.cmake — the room src/engine: models, tokens, sessions, what the command and a server share. Target tierkv_engine, a static
# library that programs under apps/ link and nobody installs. Included when TIERKV_LLAMA is on.
file(GLOB TIERKV_ENGINE_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/engine/*.cc)
list(FILTER TIERKV_ENGINE_SOURCES EXCLUDE REGEX "_test\\.cc$")
add_library(tierkv_engine STATIC ${TIERKV_ENGINE_SOURCES})
target_include_directories(tierkv_engine PUBLIC ${PROJECT_SOURCE_DIR}/src)
target_include_directories(tierkv_engine SYSTEM PRIVATE ${TIERKV_NLOHMANN_JSON_DIR})
target_link_libraries(tierkv_engine PRIVATE tierkv_options PUBLIC tierkv_llama tierkv)
# What `tools/make_calibration.sh` made for the default model; without the file the program has none of its own.
set(shipped_calibration ${PROJECT_SOURCE_DIR}/data/calibration/smollm2-135m.tkc)
if(EXISTS ${shipped_calibration})
  set_source_files_properties(${PROJECT_SOURCE_DIR}/src/engine/calibrations.cc PROPERTIES OBJECT_DEPENDS ${shipped_calibration}
    COMPILE_DEFINITIONS TIERKV_SHIPPED_CALIBRATION="${shipped_calibration}")
endif()

if(TIERKV_BUILD_TESTS)
  file(GLOB TIERKV_ENGINE_TESTS CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/engine/*_test.cc)
  foreach(source ${TIERKV_ENGINE_TESTS})
    get_filename_component(name ${source} NAME_WE)
    tierkv_add_program(engine_${name} ${source} engine)
    target_compile_definitions(engine_${name} PRIVATE TIERKV_TINY_MODELS="${PROJECT_BINARY_DIR}/tiny_models")
    target_link_libraries(engine_${name} PRIVATE tierkv_engine GTest::gtest_main)
    add_dependencies(engine_${name} tierkv_tiny_models)
    tierkv_labels(${source} engine labels)
    # Tests run beside each other, and a spinning thread takes the core another needs.
    tierkv_discover(engine_${name} engine "${labels}" TIMEOUT 600 ENVIRONMENT OMP_WAIT_POLICY=passive)
  endforeach()
endif()
