// MPI's return codes as exceptions.
#pragma once

#include <mpi.h>

#include "base/error.h"

namespace perigee::detail {

/// Throws Category::communication with MPI's own text unless `code` is MPI_SUCCESS.
inline void check_mpi(int code, char const* call) {
    if (code == MPI_SUCCESS) return;
    char text[MPI_MAX_ERROR_STRING] = "unknown error";
    int length = 0;
    MPI_Error_string(code, text, &length);
    fail(Category::communication, "{} failed: {}", call, text);
}

}  // namespace perigee::detail
