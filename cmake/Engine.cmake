# Engine.cmake — the room src/engine: models, tokens, sessions, what the command and a server share. Target tierkv_engine, a static
# library that programs under apps/ link and nobody installs. Included when TIERKV_LLAMA is on.
tierkv_add_llama_room(tierkv_engine engine STATIC)
target_include_directories(tierkv_engine INTERFACE ${PROJECT_SOURCE_DIR}/src)
target_include_directories(tierkv_engine SYSTEM PRIVATE ${TIERKV_NLOHMANN_JSON_DIR} ${TIERKV_XXHASH_DIR})
target_link_libraries(tierkv_engine PUBLIC tierkv_llama)
if(TIERKV_BUILD_TESTS)
  tierkv_add_llama_room_tests(tierkv_engine engine)
endif()
