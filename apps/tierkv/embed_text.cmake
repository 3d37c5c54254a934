# embed_text.cmake — writes a text file as a C++ string of the command:
#   cmake -DOUT=file.cc -DTEXT=story.txt -DNAME=kEmbeddedStory -P embed_text.cmake
file(READ ${TEXT} text)
file(WRITE ${OUT}.new "namespace tierkv::cli {\nextern const char* const ${NAME};\nconst char* const ${NAME} =\n")
# In pieces: no compiler promises more than 64 KiB in one literal.
while(NOT text STREQUAL "")
  string(LENGTH "${text}" left)
  string(SUBSTRING "${text}" 0 8000 piece)
  file(APPEND ${OUT}.new "R\"TIERKV(${piece})TIERKV\"\n")
  if(left GREATER 8000)
    string(SUBSTRING "${text}" 8000 -1 text)
  else()
    set(text "")
  endif()
endwhile()
file(APPEND ${OUT}.new "\"\";\n}  // namespace tierkv::cli\n")
file(RENAME ${OUT}.new ${OUT})
