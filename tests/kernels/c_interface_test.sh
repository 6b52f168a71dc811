#!/usr/bin/env bash
# The kernels' library as another project takes it: installed, found by find_package(perigee), and called from plain C.
# Builds without CUDA have no such library.
source "$PERIGEE_SOURCE/tests/support/mpi.sh"
build=$PERIGEE_BIN/..
[ -e "$build/lib/libperigee_moba.so" ] || [ -e "$build/libperigee_moba.so" ] || { echo "built without CUDA"; exit 77; }

cmake --install "$build" --prefix "$scratch/there" >"$scratch/log" 2>&1 || complain "install"
mkdir "$scratch/program"
cat >"$scratch/program/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.20)
project(program LANGUAGES C)
find_package(perigee 0.1 REQUIRED)
add_executable(program program.c)
set_property(TARGET program PROPERTY C_STANDARD 99)
target_compile_options(program PRIVATE -Wall -Wextra -Wpedantic -Werror)
target_link_libraries(program PRIVATE perigee::moba)
CMAKE
cat >"$scratch/program/program.c" <<'C'
#include <perigee_moba.h>
#include <stdio.h>

int main(void) {
    char message[PERIGEE_MOBA_MESSAGE_BYTES] = "";
    perigee_moba_sizes sizes;
    int const status = perigee_moba_get_sizes(NULL, &sizes, message);
    printf("%d: %s\n", status, message);
    return 0;
}
C
cmake -S "$scratch/program" -B "$scratch/program/build" -DCMAKE_PREFIX_PATH="$scratch/there" >"$scratch/log" 2>&1 &&
    cmake --build "$scratch/program/build" >"$scratch/log" 2>&1 || complain "a project that finds the package"
[ "$("$scratch/program/build/program" 2>"$scratch/log")" = "1: shape is null" ] || complain "a call from C"
library=$(echo "$scratch"/there/lib*/libperigee_moba.so "$scratch"/there/lib/*/libperigee_moba.so | tr ' ' '\n' | grep -v '\*' | head -n 1)
nm -D --defined-only "$library" >"$scratch/symbols" 2>"$scratch/log" && grep -q ' perigee_moba_forward$' "$scratch/symbols" ||
    complain "no symbols of the library"
awk '{ print $3 }' "$scratch/symbols" | grep -v '^perigee_moba_' >"$scratch/printed" &&
    complain "the library exports more than its interface"
verdict
