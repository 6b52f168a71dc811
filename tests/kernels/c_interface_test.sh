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

static perigee_moba_shape shape = {1024, 1, 8, 2, 64, 128, 3, 0, 0, 0};
static char message[PERIGEE_MOBA_MESSAGE_BYTES];

/* Without a GPU too, wrong arguments are named. */
static void say(int status) { printf("%d: %s\n", status, message); }

int main(void) {
    perigee_moba_sizes sizes;
    char* const at = (char*)0x10000;
    perigee_moba_problem problem = {(int32_t*)at, at, at, at, 0.125, (int32_t*)at, NULL, at, NULL};
    say(perigee_moba_get_sizes(NULL, &sizes, message));
    shape.head_dim = 48;
    say(perigee_moba_get_sizes(&shape, &sizes, message));
    shape.head_dim = 64;
    shape.documents = 0;
    say(perigee_moba_select(&shape, &problem, message));
    shape.documents = 1;
    problem.k = at + 8;
    say(perigee_moba_select(&shape, &problem, message));
    problem.k = at;
    problem.scratch = at + 16;
    say(perigee_moba_forward(&shape, &problem, at, (float*)at, message));
    problem.scratch = at;
    problem.scale = 1e300 * 1e300;
    say(perigee_moba_forward(&shape, &problem, at, (float*)at, message));
    problem.scale = 0.125;
    say(perigee_moba_forward(&shape, &problem, at + 2, (float*)at, message));
    say(perigee_moba_backward(&shape, &problem, NULL, message));
    return 0;
}
C
cmake -S "$scratch/program" -B "$scratch/program/build" -DCMAKE_PREFIX_PATH="$scratch/there" >"$scratch/log" 2>&1 &&
    cmake --build "$scratch/program/build" >"$scratch/log" 2>&1 || complain "a project that finds the package"
"$scratch/program/build/program" >"$scratch/printed" 2>"$scratch/log" || complain "a program in C"
diff "$scratch/printed" - <<'SAID' || complain "calls from C"
1: shape is null
1: head_dim 48 is not 32, 64, 96 or 128
1: 1024 queries of 1024 tokens in 0 documents
1: k is not aligned to 16 bytes
1: scratch is not aligned to 256 bytes
1: scale is inf; a positive number was expected
1: o is not aligned to 16 bytes
1: gradients is null
SAID
library=$(echo "$scratch"/there/lib*/libperigee_moba.so "$scratch"/there/lib/*/libperigee_moba.so | tr ' ' '\n' | grep -v '\*' | head -n 1)
nm -D --defined-only "$library" >"$scratch/symbols" 2>"$scratch/log" && grep -q ' perigee_moba_forward$' "$scratch/symbols" ||
    complain "no symbols of the library"
awk '{ print $3 }' "$scratch/symbols" | grep -v '^perigee_moba_' >"$scratch/printed" &&
    complain "the library exports more than its interface"
verdict
