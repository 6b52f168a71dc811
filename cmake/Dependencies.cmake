# Third-party libraries, all from the distribution's packages, each as one imported target.
find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(MPI REQUIRED COMPONENTS C)
find_package(HDF5 REQUIRED COMPONENTS C)
find_package(ZLIB REQUIRED)
find_package(OpenSSL REQUIRED COMPONENTS Crypto)
find_package(yaml-cpp REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)

# mpi.h would otherwise bring in Open MPI's C++ bindings, which nothing here uses or links.
target_compile_definitions(MPI::MPI_C INTERFACE OMPI_SKIP_MPICXX)

# yaml-cpp 0.7 exports a plain target, 0.8 a namespaced one.
if(NOT TARGET yaml-cpp::yaml-cpp)
    add_library(yaml-cpp::yaml-cpp ALIAS yaml-cpp)
endif()

# The OpenMP build of OpenBLAS: it runs a product on one thread when called from inside a parallel region,
# which is how attention spreads its tiles over the cores.
# Another build works too: the program says at its start that it is not the best one.
find_library(OPENBLAS_LIBRARY openblas HINTS /usr/lib/${CMAKE_LIBRARY_ARCHITECTURE}/openblas-openmp REQUIRED)
find_path(OPENBLAS_INCLUDE cblas.h HINTS /usr/include/${CMAKE_LIBRARY_ARCHITECTURE}/openblas-openmp
    PATH_SUFFIXES openblas openblas-openmp openblas-pthread REQUIRED)
get_filename_component(OPENBLAS_DIR ${OPENBLAS_LIBRARY} DIRECTORY)
add_library(openblas INTERFACE)
target_include_directories(openblas SYSTEM INTERFACE ${OPENBLAS_INCLUDE})
target_link_libraries(openblas INTERFACE ${OPENBLAS_LIBRARY})
# libopenblas.so.0 may also be provided by the pthreads build; the run path prefers the one linked here.
target_link_options(openblas INTERFACE "LINKER:-rpath,${OPENBLAS_DIR}")

# Libraries of tokenizers and compression, whose packages bring no CMake files.
foreach(library IN ITEMS "zstd zstd zstd.h" "pcre2 pcre2-8 pcre2.h" "sentencepiece sentencepiece sentencepiece_processor.h"
        "utf8proc utf8proc utf8proc.h" "oniguruma onig oniguruma.h")
    separate_arguments(library)
    list(POP_FRONT library name file header)
    string(TOUPPER ${name} variable)
    find_library(${variable}_LIBRARY ${file} REQUIRED)
    find_path(${variable}_INCLUDE ${header} REQUIRED)
    add_library(${name} INTERFACE)
    target_include_directories(${name} SYSTEM INTERFACE ${${variable}_INCLUDE})
    target_link_libraries(${name} INTERFACE ${${variable}_LIBRARY})
endforeach()
# cpp-httplib, compiled with these: its classes differ without.
find_library(HTTPLIB_LIBRARY cpp-httplib REQUIRED)
find_path(HTTPLIB_INCLUDE httplib.h REQUIRED)
add_library(httplib INTERFACE)
target_include_directories(httplib SYSTEM INTERFACE ${HTTPLIB_INCLUDE})
target_link_libraries(httplib INTERFACE ${HTTPLIB_LIBRARY})
target_compile_definitions(httplib INTERFACE CPPHTTPLIB_OPENSSL_SUPPORT CPPHTTPLIB_ZLIB_SUPPORT
    CPPHTTPLIB_BROTLI_SUPPORT)
# Oniguruma has functions of the names regcomp, regexec, ... with other flags: the C library's must be found first, by
# every library of the program.
set_property(TARGET oniguruma PROPERTY INTERFACE_LINK_LIBRARIES -l:libc.so.6 ${ONIGURUMA_LIBRARY})

add_library(perigee_flags INTERFACE)
# Errors where CI compiles: GCC 12 and Clang. GCC 13 warns of fmt's and its own library's inline code.
set(werror ON)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
    set(werror OFF)
endif()
option(PERIGEE_WERROR "Warnings of the C++ compiler are errors" ${werror})
target_compile_options(perigee_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra $<$<BOOL:${PERIGEE_WERROR}>:-Werror>>)
# Programs that read strangers' files are hardened, all of them: what an overflow would need is missing or checked.
# Sanitizers bring checks of their own, which _FORTIFY_SOURCE would hide from them.
include(CheckPIESupported)
check_pie_supported(LANGUAGES CXX)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
target_compile_options(perigee_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fstack-protector-strong>)
target_link_options(perigee_flags INTERFACE "LINKER:-z,relro,-z,now")
if(NOT PERIGEE_SANITIZE)
    target_compile_options(perigee_flags INTERFACE
        $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<NOT:$<CONFIG:Debug>>>:-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2>)
endif()
# Checked indices of the standard library, but for the layers whose loops are the program's speed.
add_library(perigee_checked INTERFACE)
target_compile_definitions(perigee_checked INTERFACE $<$<COMPILE_LANGUAGE:CXX>:_GLIBCXX_ASSERTIONS>)
option(PERIGEE_RACECHECK "CUDA kernels that compute-sanitizer's racecheck can follow, a little slower" OFF)
target_compile_definitions(perigee_flags INTERFACE $<$<BOOL:${PERIGEE_RACECHECK}>:PERIGEE_RACECHECK>)
if(PERIGEE_NATIVE)
    target_compile_options(perigee_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-march=native>)
endif()
if(PERIGEE_SANITIZE)  # by Clang, whose sanitizers can be told what to leave out; warnings are GCC's to give
    set(not_sanitized ${CMAKE_SOURCE_DIR}/tests/support/not_sanitized.txt)
    target_compile_options(perigee_flags INTERFACE
        $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=address,undefined -fno-sanitize-recover=all
            -fsanitize-ignorelist=${not_sanitized} -fno-omit-frame-pointer -O1 -w $<IF:$<BOOL:${PERIGEE_LINES}>,-g1,-g0>>)
    target_link_options(perigee_flags INTERFACE -fsanitize=address,undefined)
    # Fuzz targets follow what their inputs reach, in the same layers: all but those whose loops would slow down.
    target_compile_options(perigee_checked INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=fuzzer-no-link>)
endif()

if(PERIGEE_CUDA)
    if(NOT CMAKE_CUDA_ARCHITECTURES)
        set(CMAKE_CUDA_ARCHITECTURES 80-real 86-real 89-real 90a-real 90-virtual)
    endif()
    enable_language(CUDA)
    set(CMAKE_CUDA_STANDARD 20)
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know yet that nvcc takes it
        set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
        set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
    endif()
    # CMake 3.25 and 3.26 mark this target as deprecated without asking whether the toolkit still has it.
    if(NOT TARGET CUDA::nvToolsExt)
        add_library(CUDA::nvToolsExt INTERFACE IMPORTED)
    endif()
    find_package(CUDAToolkit REQUIRED)

    # cuDNN: the system's, or the one under CUDNN_ROOT; its header-only frontend from launch/setup_cuda.sh.
    find_path(CUDNN_INCLUDE cudnn.h HINTS ${CUDNN_ROOT}/include ${CUDAToolkit_INCLUDE_DIRS})
    find_library(CUDNN_LIBRARY NAMES cudnn libcudnn.so.9 HINTS ${CUDNN_ROOT}/lib ${CUDNN_ROOT}/lib64
        ${CUDAToolkit_LIBRARY_DIR})
    find_path(CUDNN_FRONTEND_INCLUDE cudnn_frontend.h HINTS ${CMAKE_SOURCE_DIR}/.deps/cudnn-frontend/include)
    if(CUDNN_INCLUDE AND CUDNN_LIBRARY AND CUDNN_FRONTEND_INCLUDE)
        set(PERIGEE_CUDNN ON)
        add_library(cudnn INTERFACE)
        target_include_directories(cudnn SYSTEM INTERFACE ${CUDNN_FRONTEND_INCLUDE} ${CUDNN_INCLUDE})
        target_compile_definitions(cudnn INTERFACE CUDNN_FRONTEND_SKIP_JSON_LIB)
        target_link_libraries(cudnn INTERFACE ${CUDNN_LIBRARY} CUDA::nvrtc CUDA::cuda_driver)
    else()
        message(WARNING "without cuDNN: full attention runs on slower kernels. launch/setup_cuda.sh gets its frontend; "
            "CUDNN_ROOT names another place of cuDNN itself.")
        set(PERIGEE_CUDNN OFF)
    endif()

    # NCCL: the system's, or the one under NCCL_ROOT.
    find_path(NCCL_INCLUDE nccl.h HINTS ${NCCL_ROOT}/include ${CUDAToolkit_INCLUDE_DIRS})
    find_library(NCCL_LIBRARY NAMES nccl libnccl.so.2 HINTS ${NCCL_ROOT}/lib ${NCCL_ROOT}/lib64 ${CUDAToolkit_LIBRARY_DIR})
    if(NCCL_INCLUDE AND NCCL_LIBRARY)
        set(PERIGEE_NCCL ON)
        add_library(nccl INTERFACE)
        target_include_directories(nccl SYSTEM INTERFACE ${NCCL_INCLUDE})
        target_link_libraries(nccl INTERFACE ${NCCL_LIBRARY})
    else()
        message(WARNING "without NCCL: ranks on several GPUs exchange tensors through memory of the host, with "
            "parallel.comm=mpi. Debian and Ubuntu: libnccl-dev of NVIDIA's repository; NCCL_ROOT names another place.")
        set(PERIGEE_NCCL OFF)
    endif()
endif()
