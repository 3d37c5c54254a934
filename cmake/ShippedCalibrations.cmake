# ShippedCalibrations.cmake — every data/calibration/*.tkc becomes part of a target (src/llama/shipped_calibration.h): a C++ file is
# written that has the assembler take the bytes in.
function(tierkv_ship_calibrations target)
  file(GLOB files CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/data/calibration/*.tkc)
  set(blocks "")
  set(names "")
  set(table "")
  set(number 0)
  foreach(file IN LISTS files)
    set(name tierkv_shipped_calibration_${number})
    string(APPEND blocks "    \".balign 64\\n${name}:\\n.incbin \\\"${file}\\\"\\n${name}_end:\\n.byte 0\\n\"\n")
    string(APPEND names "extern \"C\" const std::byte ${name}[], ${name}_end[];\n")
    string(APPEND table "      {${name}, ${name}_end},\n")
    math(EXPR number "${number} + 1")
  endforeach()
  set(body "  return {};\n")
  if(files)
    set(blocks "asm(\".pushsection .rodata\\n\"\n${blocks}    \".popsection\\n\");\n${names}")
    set(body "  static const std::span<const std::byte> files[] = {\n${table}  };\n  return files;\n")
  endif()
  set(source ${PROJECT_BINARY_DIR}/shipped_calibrations.cc)
  file(CONFIGURE OUTPUT ${source} @ONLY CONTENT "// Written by cmake/ShippedCalibrations.cmake.
#include \"llama/shipped_calibration.h\"

@blocks@
namespace tierkv::llama {

std::span<const std::span<const std::byte>> shipped_files() {
@body@}

}  // namespace tierkv::llama
")
  set_source_files_properties(${source} PROPERTIES OBJECT_DEPENDS "${files}")
  target_sources(${target} PRIVATE ${source})
endfunction()
