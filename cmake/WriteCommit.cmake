# Writes OUTPUT with the commit of SOURCE_DIR, at build time so that it is never stale, and only when it changed.
execute_process(COMMAND git -C ${SOURCE_DIR} describe --always --dirty --tags
  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT commit)
  set(commit unknown)
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "#pragma once\n\n#define TIERKV_COMMIT \"${commit}\"\n" @ONLY)
