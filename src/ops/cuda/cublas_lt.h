// The functions of cuBLASLt, loaded when a GPU first needs them. The library has half a gigabyte: linked, it would add
// a tenth of a second to the start of every command and test.
#pragma once

#include <cublasLt.h>

namespace perigee {

struct CublasLt {
    /// Throws Category::config if the library, of the version that this program was built for, cannot be loaded.
    static CublasLt const& get();

    decltype(&cublasLtGetStatusName) status_name;
    decltype(&cublasLtCreate) create;
    decltype(&cublasLtDestroy) destroy;
    decltype(&cublasLtMatmul) matmul;
    decltype(&cublasLtMatmulAlgoGetHeuristic) get_heuristic;
    decltype(&cublasLtMatmulDescCreate) product_create;
    decltype(&cublasLtMatmulDescDestroy) product_destroy;
    decltype(&cublasLtMatmulDescSetAttribute) product_set;
    decltype(&cublasLtMatmulPreferenceCreate) preference_create;
    decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy;
    decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set;
    decltype(&cublasLtMatrixLayoutCreate) layout_create;
    decltype(&cublasLtMatrixLayoutDestroy) layout_destroy;
};

}  // namespace perigee
