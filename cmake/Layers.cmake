# One static library per layer. A layer links exactly the layers it may include: tools/check_layers.sh holds the same
# edges against the #include lines, and docs/architecture.md draws them.
function(perigee_layer name)
    cmake_parse_arguments(ARG "" "ROOT" "LAYERS;LIBRARIES;EXCLUDE" ${ARGN})
    if(NOT ARG_ROOT)
        set(ARG_ROOT ${CMAKE_SOURCE_DIR}/src/${name})
    endif()
    file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${ARG_ROOT}/*.cc ${ARG_ROOT}/*.cu)
    foreach(pattern IN LISTS ARG_EXCLUDE)
        list(FILTER sources EXCLUDE REGEX ${pattern})
    endforeach()
    add_library(perigee_${name} STATIC ${sources})
    list(TRANSFORM ARG_LAYERS PREPEND perigee_)
    set(checks perigee_checked)
    if(name MATCHES "^(kernels|ops)$")
        set(checks "")
    endif()
    target_link_libraries(perigee_${name} PUBLIC ${ARG_LAYERS} PRIVATE perigee_flags ${checks} ${ARG_LIBRARIES})
    target_include_directories(perigee_${name} PUBLIC ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR})
endfunction()

# Tests put a function of theirs between this one and its callers (perigee_faulty), which needs it in an object of its own.
set_source_files_properties(src/train/replicas.cc PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)

# What a build leaves out: the CUDA sources, or what stands in for them.
if(PERIGEE_CUDA)
    set(other_backend "/no_cuda\\.cc$")
    if(PERIGEE_CUDNN)
        list(APPEND other_backend "/no_cudnn\\.cc$")
    else()
        list(APPEND other_backend "/dense_attention\\.cc$")
    endif()
    if(PERIGEE_NCCL)
        list(APPEND other_backend "/no_nccl\\.cc$")
    else()
        list(APPEND other_backend "src/comm/nccl/")
    endif()
else()
    set(other_backend "(src|kernels)/.*/cuda/" "src/comm/nccl/" "kernels/hopper/" "\\.cu$")
endif()

perigee_layer(base LIBRARIES spdlog::spdlog Threads::Threads)
target_link_libraries(perigee_base PUBLIC fmt::fmt)
perigee_layer(device LAYERS base LIBRARIES ${CMAKE_DL_LIBS} EXCLUDE ${other_backend})
if(PERIGEE_CUDA)
    target_link_libraries(perigee_device PUBLIC CUDA::cudart)
    set(cuda_libraries ${CMAKE_DL_LIBS} $<TARGET_NAME_IF_EXISTS:cudnn>)  # cuBLASLt: src/ops/cuda/cublas_lt.h
endif()
perigee_layer(tensor LAYERS base device)
perigee_layer(io LAYERS base device tensor LIBRARIES hdf5::hdf5 OpenSSL::Crypto ZLIB::ZLIB nlohmann_json::nlohmann_json)
perigee_layer(kernels ROOT ${CMAKE_SOURCE_DIR}/kernels LAYERS base device tensor
    EXCLUDE ${other_backend} "kernels/c_interface/")
# Kernels share constexpr code, such as Philox, with the host.
target_compile_options(perigee_kernels PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>)
perigee_layer(ops LAYERS base device tensor kernels LIBRARIES openblas OpenMP::OpenMP_CXX ${cuda_libraries} EXCLUDE ${other_backend})
# Neither a square root that may set errno vectorises, nor a choice between two floats whose comparison may trap.
target_compile_options(perigee_ops PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:-fno-math-errno;-fno-trapping-math>")
perigee_layer(comm LAYERS base device tensor kernels LIBRARIES MPI::MPI_C $<TARGET_NAME_IF_EXISTS:nccl> EXCLUDE ${other_backend})
perigee_layer(parallel LAYERS base device tensor comm ops)
perigee_layer(model LAYERS base device tensor kernels ops comm parallel)
perigee_layer(optim LAYERS base device tensor ops comm parallel)
perigee_layer(data LAYERS base device tensor io comm parallel LIBRARIES nlohmann_json::nlohmann_json ZLIB::ZLIB zstd
    pcre2 oniguruma sentencepiece utf8proc)
# The scripts of helper processes are part of the program: data/helpers/scripts.h.
foreach(script IN ITEMS render_chat read_parquet)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS src/data/helpers/${script}.py)
    file(READ src/data/helpers/${script}.py ${script})
endforeach()
configure_file(src/data/helpers/scripts.cc.in ${CMAKE_BINARY_DIR}/generated/scripts.cc @ONLY)
target_sources(perigee_data PRIVATE ${CMAKE_BINARY_DIR}/generated/scripts.cc)
perigee_layer(checkpoint LAYERS base device tensor io comm parallel LIBRARIES nlohmann_json::nlohmann_json)
perigee_layer(hf LAYERS base device tensor kernels io ops comm parallel model checkpoint
    LIBRARIES nlohmann_json::nlohmann_json)
perigee_layer(eval LAYERS base device tensor ops comm parallel LIBRARIES OpenMP::OpenMP_CXX)
perigee_layer(train LAYERS base device tensor io ops comm parallel model optim data checkpoint eval hf
    LIBRARIES nlohmann_json::nlohmann_json)
perigee_layer(serve LAYERS base device tensor io ops comm parallel model data eval train
    LIBRARIES nlohmann_json::nlohmann_json httplib)
perigee_layer(config LAYERS base io hf train LIBRARIES yaml-cpp::yaml-cpp)
perigee_layer(curves LAYERS base io LIBRARIES nlohmann_json::nlohmann_json)
perigee_layer(commands LAYERS base device tensor io ops comm model data checkpoint hf train config curves
    LIBRARIES CLI11::CLI11 nlohmann_json::nlohmann_json httplib)

# The report's script and style are files of their own, and part of the program.
foreach(part IN ITEMS css js)
    set(source ${CMAKE_SOURCE_DIR}/src/commands/report/page.${part})
    file(READ ${source} report_${part})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${source})
endforeach()
configure_file(src/commands/report/page_parts.h.in ${CMAKE_BINARY_DIR}/generated/commands/report/page_parts.h @ONLY)
target_include_directories(perigee_commands PRIVATE ${CMAKE_BINARY_DIR}/generated)
perigee_layer(app LAYERS base device io ops comm model optim hf config train serve commands LIBRARIES CLI11::CLI11
    EXCLUDE "/main\\.cc$")
target_compile_definitions(perigee_app PRIVATE PERIGEE_VERSION="${PROJECT_VERSION}")

# The frontend of cuDNN is templates: at -O3 this file compiles longer than any other, and its code runs once per shape.
if(PERIGEE_CUDNN)
    set_source_files_properties(src/ops/cuda/dense_attention.cc PROPERTIES COMPILE_OPTIONS -O1)
endif()
