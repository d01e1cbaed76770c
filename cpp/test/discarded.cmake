# cmake -DSOURCE=FILE -DCOMMAND=COMPILER;OPTION;… -P discarded.cmake: as many lines have a warning as say that they should, and the headers
# of the library have none.
execute_process(COMMAND ${COMMAND} ${SOURCE} ERROR_VARIABLE output RESULT_VARIABLE failed)
file(READ ${SOURCE} source)
string(REGEX MATCHALL "// discarded" expected "${source}")
string(REGEX MATCHALL "discarded\\.cpp:[0-9]+:[0-9]+: warning" warned "${output}")
list(TRANSFORM warned REPLACE "[0-9]+: warning" "")
list(REMOVE_DUPLICATES warned)
list(LENGTH expected expected)
list(LENGTH warned warnings)
if(failed OR NOT expected EQUAL warnings OR output MATCHES "nearcall/[a-z]+\\.hpp:[0-9]+:[0-9]+: warning")
  message(FATAL_ERROR "${warnings} lines have warnings and ${expected} should:\n${output}")
endif()
