# Run at every build: leaves the commit of the sources in a header, which changes when the commit does.
#   cmake -DSOURCE=DIR -DHEADER=FILE -P Commit.cmake
find_program(GIT git)
set(commit "")
if(GIT AND EXISTS ${SOURCE}/.git)
    execute_process(COMMAND ${GIT} -C ${SOURCE} describe --always --dirty=+ --abbrev=10 --exclude=*
        OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
file(CONFIGURE OUTPUT ${HEADER} CONTENT "#pragma once\n#define PERIGEE_COMMIT \"${commit}\"\n")
