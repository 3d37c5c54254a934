# Install: headers, library, a CMake package (find_package(tierkv)) and a pkg-config file. Llama.cmake adds the component `llama`.
include(CMakePackageConfigHelpers)

set(TIERKV_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/tierkv)

install(TARGETS tierkv EXPORT tierkvTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR}
  FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT tierkvTargets NAMESPACE tierkv:: DESTINATION ${TIERKV_CMAKE_DIR})

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/tierkvConfig.cmake.in ${PROJECT_BINARY_DIR}/tierkvConfig.cmake
  INSTALL_DESTINATION ${TIERKV_CMAKE_DIR})
# Before 1.0 a minor version may change the API.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tierkvConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tierkvConfig.cmake ${PROJECT_BINARY_DIR}/tierkvConfigVersion.cmake
  DESTINATION ${TIERKV_CMAKE_DIR})

# Paths relative to the .pc file itself: the tree may be installed with another --prefix, or moved.
file(RELATIVE_PATH TIERKV_PC_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(${CMAKE_CURRENT_LIST_DIR}/tierkv.pc.in ${PROJECT_BINARY_DIR}/tierkv.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/tierkv.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
