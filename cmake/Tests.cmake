# One GoogleTest program per layer from tests/<layer>/*_test.cc, and real-process tests from tests/**/*_test.sh.
find_package(GTest REQUIRED)
include(GoogleTest)

file(GLOB support_sources CONFIGURE_DEPENDS tests/support/*.cc)
list(FILTER support_sources EXCLUDE REGEX "_main\\.cc$")
add_library(test_support STATIC ${support_sources})
target_include_directories(test_support PUBLIC ${CMAKE_SOURCE_DIR}/tests)
target_compile_definitions(test_support PUBLIC PERIGEE_SANITIZED=$<BOOL:${PERIGEE_SANITIZE}>)
target_link_libraries(test_support PUBLIC perigee_app perigee_flags perigee_quick GTest::gtest GTest::gmock
    nlohmann_json::nlohmann_json hdf5::hdf5 yaml-cpp::yaml-cpp)
# All test programs share one precompiled header, so this library is compiled with the options of a program.
set_target_properties(test_support PROPERTIES POSITION_INDEPENDENT_CODE OFF)
target_compile_options(test_support PRIVATE -fPIE)
target_precompile_headers(test_support PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:<gmock/gmock.h$<ANGLE-R>> $<$<COMPILE_LANGUAGE:CXX>:<gtest/gtest.h$<ANGLE-R>>
    $<$<COMPILE_LANGUAGE:CXX>:<nlohmann/json.hpp$<ANGLE-R>> $<$<COMPILE_LANGUAGE:CXX>:<fmt/format.h$<ANGLE-R>>)

# Open MPI unloads its plugins at exit, after which their leaks cannot be told from ours: real jobs run without the leak
# check, the GoogleTest programs with it.
# CPU tests compute on the CPU also where there is a GPU.
set(cpu_environment "CUDA_VISIBLE_DEVICES=")
set(stacked_environment "PERIGEE_BIN=${CMAKE_BINARY_DIR}/bin" "PERIGEE_SOURCE=${CMAKE_SOURCE_DIR}")
# Ranks that wait let others have their core: tests run beside each other on few cores.
set(job_environment "CUDA_VISIBLE_DEVICES=" "OMPI_MCA_mpi_yield_when_idle=1" ${stacked_environment})
if(PERIGEE_SANITIZE)
    # PERIGEE_BRIEF: tests that repeat the same code over many inputs take fewer.
    list(APPEND job_environment "ASAN_OPTIONS=detect_leaks=0:handle_segv=0" PERIGEE_BRIEF=1)
    set(cpu_environment "LSAN_OPTIONS=suppressions=${CMAKE_SOURCE_DIR}/tests/support/leaks.txt")
endif()

# Adds a test per suite of <folder>_tests: under sanitizers a process costs more than most tests. What the sources do not
# name as a suite runs in <folder>/others, so that nothing is left out.
function(add_test_suites folder)
    set(suites)
    foreach(source IN LISTS ARGN)
        set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${source})
        file(STRINGS ${source} lines REGEX "^(TYPED_)?TEST(_F|_P)?\\(")
        foreach(line IN LISTS lines)
            string(REGEX REPLACE "^[A-Z_]+\\(([A-Za-z0-9_]+),.*" "\\1" suite "${line}")
            list(APPEND suites ${suite})
        endforeach()
    endforeach()
    list(REMOVE_DUPLICATES suites)
    list(FILTER suites EXCLUDE REGEX Gpu)
    set(others "*Gpu*")
    foreach(suite IN LISTS suites)
        set(filter "${suite}.*:*/${suite}.*:${suite}/*.*:*/${suite}/*.*")
        add_test(NAME ${folder}/${suite} COMMAND ${folder}_tests --gtest_brief=1 --gtest_filter=${filter})
        string(APPEND others ":${filter}")
    endforeach()
    add_test(NAME ${folder}/others COMMAND ${folder}_tests --gtest_filter=-${others})
    list(TRANSFORM suites PREPEND ${folder}/)
    set_tests_properties(${suites} ${folder}/others PROPERTIES TIMEOUT 600 ENVIRONMENT ${cpu_environment})
endfunction()

file(GLOB test_folders LIST_DIRECTORIES true RELATIVE ${CMAKE_SOURCE_DIR}/tests ${CMAKE_SOURCE_DIR}/tests/*)
foreach(folder IN LISTS test_folders)
    file(GLOB sources CONFIGURE_DEPENDS tests/${folder}/*_test.cc)
    if(PERIGEE_CUDA)
        file(GLOB cuda_sources CONFIGURE_DEPENDS tests/${folder}/*.cu)
        list(APPEND sources ${cuda_sources})
    else()  # of what this build does not have
        list(FILTER sources EXCLUDE REGEX "tests/kernels/gpu_|tests/ops/(gpu_(dense_attention|gemv)|cublas_lt)_|gpu_(overlap|parts)_test")
    endif()
    if(sources)
        add_executable(${folder}_tests ${sources})
        target_link_libraries(${folder}_tests PRIVATE test_support GTest::gtest_main)
        target_precompile_headers(${folder}_tests REUSE_FROM test_support)
        # Eight files at a time: what they all include takes longer to compile than they do.
        set_target_properties(${folder}_tests PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
        if(folder STREQUAL kernels AND TARGET perigee_moba)
            target_link_libraries(${folder}_tests PRIVATE perigee_moba)
        endif()
        # Tests that need a GPU have Gpu in their suites' names and skip themselves without one: `ctest -L gpu` runs them
        # alone, one at a time, as some look at how much of its memory is taken.
        set(discovery TEST_PREFIX ${folder}/ DISCOVERY_TIMEOUT 60)
        if(PERIGEE_SANITIZE)
            add_test_suites(${folder} ${sources})
        else()
            gtest_discover_tests(${folder}_tests ${discovery} TEST_FILTER -*Gpu*.* TEST_LIST ${folder}_cpu
                PROPERTIES TIMEOUT 300 ENVIRONMENT ${cpu_environment})
            gtest_discover_tests(${folder}_tests ${discovery} TEST_FILTER *Gpu*.* TEST_LIST ${folder}_gpu
                PROPERTIES TIMEOUT 300 LABELS gpu RESOURCE_LOCK gpu)
        endif()
        # The same as on a GPU whose thread blocks have the least shared memory.
        if(PERIGEE_CUDA AND folder MATCHES "^(kernels|ops|model)$")
            add_test(NAME ${folder}/gpu_in_99_kib COMMAND ${folder}_tests --gtest_filter=*Gpu*)
            set_tests_properties(${folder}/gpu_in_99_kib PROPERTIES TIMEOUT 1800 LABELS "gpu;long" RESOURCE_LOCK gpu
                ENVIRONMENT "PERIGEE_SHARED_MEMORY_KIB=99")
        endif()
    endif()
    # Test helpers that are programs of their own: tests/<layer>/<name>_main.cc becomes bin/<name>.
    file(GLOB mains CONFIGURE_DEPENDS tests/${folder}/*_main.cc)
    foreach(main IN LISTS mains)
        get_filename_component(name ${main} NAME_WE)
        string(REGEX REPLACE "_main$" "" name ${name})
        add_executable(${name} ${main})
        target_link_libraries(${name} PRIVATE test_support)
        if(name STREQUAL perigee_faulty)  # it looks at every collective of tensors before the program makes it
            foreach(member IN ITEMS 10all_gather 14reduce_scatter)
                target_link_options(${name} PRIVATE
                    "LINKER:--wrap=_ZN7perigee4Comm${member}ERNS_5QueueENS_9BasicViewISt4byteEENS3_IKS4_EE")
            endforeach()
            target_link_options(${name} PRIVATE
                "LINKER:--wrap=_ZN7perigee16compare_replicasERNS_7SessionERKSt6vectorINS_10ReplicatedESaIS3_EE")
        endif()
    endforeach()
    file(GLOB scripts CONFIGURE_DEPENDS tests/${folder}/*_test.sh)
    if(PERIGEE_SANITIZE AND folder MATCHES "^(launch|tools)$")
        set(scripts)  # they test scripts; the programs run under sanitizers in the other folders
    endif()
    foreach(script IN LISTS scripts)
        get_filename_component(name ${script} NAME_WE)
        add_test(NAME ${folder}/${name} COMMAND bash ${script})
        set_tests_properties(${folder}/${name} PROPERTIES TIMEOUT 600 SKIP_RETURN_CODE 77
            ENVIRONMENT "${job_environment}")
        if(name MATCHES "^(models|resume|stop|plot|tokenize_resume|launcher|slurm|collectives|bench_links)_test$")
            set_tests_properties(${folder}/${name} PROPERTIES COST 100)  # the longest begin first, also at the first run
        endif()
        # Loops of many runs, and what measures seconds and so wants a quiet machine: `ctest -L long` runs them alone,
        # tests/run.sh leaves them out.
        if(name MATCHES "_loop_test$|^failure_test$")
            set_tests_properties(${folder}/${name} PROPERTIES TIMEOUT 7200 LABELS long)
        endif()
        # Ranks that share one GPU: `ctest -L stacked`. They skip themselves without one.
        if(name MATCHES "_stacked_test$")
            set_tests_properties(${folder}/${name} PROPERTIES TIMEOUT 1800 LABELS stacked RESOURCE_LOCK gpu
                ENVIRONMENT "${stacked_environment}")
        endif()
        # The report in a browser: `ctest -L browser`.
        if(name MATCHES "_browser_test$")
            set_tests_properties(${folder}/${name} PROPERTIES LABELS "browser;long")
        endif()
        # What a user does from nothing, in a system or a clone of its own: `ctest -L package`. Minutes to an hour.
        if(name MATCHES "_package_test$")
            set_tests_properties(${folder}/${name} PROPERTIES TIMEOUT 14400 LABELS "package;long")
        endif()
        # Comparisons with the reference libraries, in a virtual environment: `ctest -L hf`.
        if(name MATCHES "_hf_test$")
            set_tests_properties(${folder}/${name} PROPERTIES TIMEOUT 7200 LABELS "hf;long")
        endif()
    endforeach()
endforeach()
