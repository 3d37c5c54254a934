# Installs BUILD_DIR into an empty PREFIX, so that a file left by an earlier install cannot make the tests pass; by way of another
# folder, so that nothing works that knows where it was installed.
file(REMOVE_RECURSE ${PREFIX} ${PREFIX}-before)
execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${PREFIX}-before --config ${CONFIG}
  COMMAND_ERROR_IS_FATAL ANY)
file(RENAME ${PREFIX}-before ${PREFIX})
