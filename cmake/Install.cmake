# `cmake --install build/<preset> [--prefix DIR]` and, in the build folder, `cpack`: the program, what `perigee quickstart`
# reads, completion for bash and zsh, and the manual. The source tree's folders keep their places below share/perigee, so
# links between documents hold.
include(GNUInstallDirs)
set(share ${CMAKE_INSTALL_DATADIR}/perigee)
set(PERIGEE_ZSH_COMPLETIONS ${CMAKE_INSTALL_DATADIR}/zsh/site-functions CACHE STRING "Folder of completions for zsh")

install(TARGETS perigee)
install(DIRECTORY configs docs launch DESTINATION ${share} USE_SOURCE_PERMISSIONS
    REGEX "/(quickstart|setup|setup_cuda|package)\\.sh$" EXCLUDE)
install(FILES README.md CHANGELOG.md DESTINATION ${share})

foreach(shell IN ITEMS bash zsh)
    add_custom_command(TARGET perigee POST_BUILD VERBATIM
        COMMAND sh -c "\"$1\" completion ${shell} >completion.${shell}" - $<TARGET_FILE:perigee>)
endforeach()
install(FILES ${CMAKE_BINARY_DIR}/completion.bash RENAME perigee
    DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
install(FILES ${CMAKE_BINARY_DIR}/completion.zsh RENAME _perigee DESTINATION ${PERIGEE_ZSH_COMPLETIONS})

# MoBA's kernels for other programs: a library with an interface in plain C, found by find_package(perigee).
if(PERIGEE_CUDA)
    include(CMakePackageConfigHelpers)
    add_library(perigee_moba SHARED kernels/c_interface/perigee_moba.cc)
    set_target_properties(perigee_moba PROPERTIES EXPORT_NAME moba VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}
        PUBLIC_HEADER ${CMAKE_SOURCE_DIR}/kernels/c_interface/perigee_moba.h)
    target_link_libraries(perigee_moba PRIVATE perigee_flags perigee_kernels)
    set(exports ${CMAKE_SOURCE_DIR}/kernels/c_interface/exports.map)
    target_link_options(perigee_moba PRIVATE LINKER:--exclude-libs,ALL LINKER:--version-script=${exports})
    set_property(TARGET perigee_moba PROPERTY LINK_DEPENDS ${exports})
    target_include_directories(perigee_moba INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
    set(package ${CMAKE_INSTALL_LIBDIR}/cmake/perigee)
    install(TARGETS perigee_moba EXPORT perigee)
    install(EXPORT perigee NAMESPACE perigee:: FILE perigee-config.cmake DESTINATION ${package})
    write_basic_package_version_file(${CMAKE_BINARY_DIR}/perigee-config-version.cmake COMPATIBILITY SameMinorVersion)
    install(FILES ${CMAKE_BINARY_DIR}/perigee-config-version.cmake DESTINATION ${package})
endif()

# A package for the system it is built on; launch/package.sh makes one. OpenBLAS is named, as its OpenMP build is the one
# that Perigee is fast with, and another one provides the same library.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_CONTACT "Perigee developers")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Trainer of long-context transformers with Mixture of Block Attention")
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_DEPENDS libopenblas0-openmp)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS openmpi-bin)
set(CPACK_STRIP_FILES ON)
include(CPack)
