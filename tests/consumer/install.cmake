# Installs BUILD_DIR into an empty PREFIX, so that a file left by an earlier install cannot make the tests pass.
file(REMOVE_RECURSE ${PREFIX})
execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${PREFIX} --config ${CONFIG} COMMAND_ERROR_IS_FATAL ANY)
