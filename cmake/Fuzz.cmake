# Fuzz targets: tests/fuzz/<name>_fuzz.cc becomes the libFuzzer program bin/<name>_fuzz, linked with the layers it includes
# and built with everything below it under both sanitizers. tests/fuzz.sh runs them.
target_compile_options(perigee_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=fuzzer-no-link>)

# An object library: nothing refers to the hook that writes seeds.
add_library(fuzz_support OBJECT tests/fuzz/fuzz.cc tests/support/memory_file_system.cc)
target_include_directories(fuzz_support PUBLIC ${CMAKE_SOURCE_DIR}/tests)
target_link_libraries(fuzz_support PUBLIC perigee_io PRIVATE perigee_flags)

add_custom_target(fuzz)  # all of them, and nothing they do not need
file(GLOB fuzz_sources CONFIGURE_DEPENDS tests/fuzz/*_fuzz.cc)
foreach(source IN LISTS fuzz_sources)
    get_filename_component(name ${source} NAME_WE)
    add_executable(${name} ${source})
    target_link_libraries(${name} PRIVATE fuzz_support perigee_flags)
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
