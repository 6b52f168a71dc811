# Code that computes little compiles in two thirds of the time: command lines, configs, tables, tests.
# At -O1, GCC 12 warns of bounds in std::string itself.
add_library(perigee_quick INTERFACE)
target_compile_options(perigee_quick INTERFACE
    $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-O1;-Wno-array-bounds>)
foreach(layer IN ITEMS config curves commands app)
    target_link_libraries(perigee_${layer} PRIVATE perigee_quick)
endforeach()

# The program that users run, placed in build/<preset>/bin.
add_executable(perigee src/app/main.cc)
target_link_libraries(perigee PRIVATE perigee_flags perigee_checked perigee_app)
set(commit_header ${CMAKE_BINARY_DIR}/generated/app/commit.h)
add_custom_target(commit BYPRODUCTS ${commit_header}
    COMMAND ${CMAKE_COMMAND} -DSOURCE=${CMAKE_SOURCE_DIR} -DHEADER=${commit_header} -P ${CMAKE_SOURCE_DIR}/cmake/Commit.cmake)
add_dependencies(perigee commit)
target_include_directories(perigee PRIVATE ${CMAKE_BINARY_DIR}/generated)

# Programs of developers: one small main each.
file(GLOB tool_sources CONFIGURE_DEPENDS tools/*.cc)
foreach(source IN LISTS tool_sources)
    get_filename_component(name ${source} NAME_WE)
    file(GLOB parts CONFIGURE_DEPENDS tools/${name}/*.cc)  # of a tool that does not fit one file
    add_executable(${name} ${source} ${parts})
    target_link_libraries(${name} PRIVATE perigee_flags perigee_checked perigee_quick perigee_app CLI11::CLI11)
endforeach()

# Benchmarks keep their own folder; a tool of that name would collide with it.
file(GLOB bench_sources CONFIGURE_DEPENDS tools/bench/*.cc)
if(NOT PERIGEE_CUDA)
    list(FILTER bench_sources EXCLUDE REGEX "/bench_(moba|dense)\\.cc$")  # of kernels that this build does not have
endif()
foreach(source IN LISTS bench_sources)
    get_filename_component(name ${source} NAME_WE)
    add_executable(${name} ${source})
    target_link_libraries(${name} PRIVATE perigee_flags perigee_quick perigee_app CLI11::CLI11 openblas OpenMP::OpenMP_CXX
        nlohmann_json::nlohmann_json)
    if(PERIGEE_SANITIZE)  # no test there runs them
        set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL ON)
    endif()
endforeach()
