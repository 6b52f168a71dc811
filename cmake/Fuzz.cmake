# Fuzz targets of the build under sanitizers: tests/fuzz/<name>_fuzz.cc becomes the libFuzzer program bin/<name>_fuzz, linked
# with the layers it includes. `--target fuzz` builds them and nothing that they do not need; tests/fuzz.sh runs them.

# An object library: nothing refers to the hook that writes seeds.
add_library(fuzz_support OBJECT EXCLUDE_FROM_ALL tests/fuzz/fuzz.cc tests/support/memory_file_system.cc)
target_include_directories(fuzz_support PUBLIC ${CMAKE_SOURCE_DIR}/tests)
target_link_libraries(fuzz_support PUBLIC perigee_io PRIVATE perigee_flags perigee_checked)

add_custom_target(fuzz)
file(GLOB fuzz_sources CONFIGURE_DEPENDS tests/fuzz/*_fuzz.cc)
foreach(source IN LISTS fuzz_sources)
    get_filename_component(name ${source} NAME_WE)
    add_executable(${name} EXCLUDE_FROM_ALL ${source})
    target_link_libraries(${name} PRIVATE fuzz_support perigee_flags perigee_checked)
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    file(STRINGS ${source} includes REGEX "^#include \"[a-z]+/")
    if(includes MATCHES "data/")
        target_link_libraries(${name} PRIVATE ZLIB::ZLIB)
    endif()
    foreach(line IN LISTS includes)
        string(REGEX REPLACE "^#include \"([a-z]+)/.*" "perigee_\\1" layer ${line})
        if(TARGET ${layer})
            target_link_libraries(${name} PRIVATE ${layer})
        endif()
    endforeach()
    add_dependencies(fuzz ${name})
endforeach()
