#include "ops/cuda/cublas_lt.h"

#include <dlfcn.h>

#include <string>

#include "base/error.h"

namespace perigee {
namespace {

CublasLt load() {
    std::string const name = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);
    void* const library = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);  // stays: handles outlive whoever asked first
    if (library == nullptr) fail(Category::config, "{} cannot be loaded: {}", name, ::dlerror());
    auto const find = [&]<class Function>(Function*& function, char const* symbol) {
        function = reinterpret_cast<Function*>(::dlsym(library, symbol));
        if (function == nullptr) fail(Category::config, "{} has no function {}", name, symbol);
    };
    CublasLt found{};
    find(found.status_name, "cublasLtGetStatusName");
    find(found.create, "cublasLtCreate");
    find(found.destroy, "cublasLtDestroy");
    find(found.matmul, "cublasLtMatmul");
    find(found.get_heuristic, "cublasLtMatmulAlgoGetHeuristic");
    find(found.product_create, "cublasLtMatmulDescCreate");
    find(found.product_destroy, "cublasLtMatmulDescDestroy");
    find(found.product_set, "cublasLtMatmulDescSetAttribute");
    find(found.preference_create, "cublasLtMatmulPreferenceCreate");
    find(found.preference_destroy, "cublasLtMatmulPreferenceDestroy");
    find(found.preference_set, "cublasLtMatmulPreferenceSetAttribute");
    find(found.layout_create, "cublasLtMatrixLayoutCreate");
    find(found.layout_destroy, "cublasLtMatrixLayoutDestroy");
    return found;
}

}  // namespace

CublasLt const& CublasLt::get() {
    static CublasLt const library = load();
    return library;
}

}  // namespace perigee
