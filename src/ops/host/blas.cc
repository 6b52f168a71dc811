#include "ops/host/blas.h"

#include <cblas.h>
#include <omp.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <mutex>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "ops/ops.h"

// OpenBLAS's own allocator: exported, but in no header.
extern "C" {
[[gnu::weak]] void* blas_memory_alloc(int);
[[gnu::weak]] void blas_memory_free(void*);
}

namespace perigee {

namespace host {

namespace {

constexpr size_t kBlasBuffer = (size_t{128} << 20) + (size_t{64} << 10);  // OpenBLAS's BUFFER_SIZE, and what it adds

/// Throws OutOfMemory where the process cannot get `buffers` more for OpenBLAS, which would try for ever.
void check_room(int buffers) {
    if (buffers <= 0) return;
    size_t const bytes = static_cast<size_t>(buffers) * kBlasBuffer;
    void* const memory =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        throw OutOfMemory(
            fmt::format("out of memory: OpenBLAS takes {} bytes of address space for each of its buffers, "
                        "and the limit on this process (ulimit -v) does not leave it {}",
                        kBlasBuffer, buffers == 1 ? "one" : fmt::format("{} of them", buffers)));
    ::munmap(memory, bytes);
}

/// Makes OpenBLAS take the buffers that `threads` callers at a time need, and keep them: each of its threads holds one,
/// and each call takes another. Only addresses: pages come with their first use.
void take_buffers(int threads) {
    static std::mutex mutex;
    static int taken = 0;
    std::lock_guard const lock(mutex);
    if (threads <= taken || blas_memory_alloc == nullptr || blas_memory_free == nullptr) return;
    std::vector<void*> buffers;
    for (int i = 0; i < threads; ++i) {
        check_room(1);
        buffers.push_back(blas_memory_alloc(0));
    }
    for (void* const buffer : buffers) blas_memory_free(buffer);
    taken = threads;
}

/// Each thread counts for itself; the registry outlives them all, so that nothing is lost when a thread ends.
struct Counter {
    std::atomic<double> seconds = 0;
    std::atomic<double> flops = 0;
};
struct Registry {
    std::mutex mutex;
    std::deque<Counter> counters;
};
Registry& registry() {
    static Registry instance;
    return instance;
}
Counter& this_thread() {
    thread_local Counter& counter = []() -> Counter& {
        std::lock_guard const lock(registry().mutex);
        return registry().counters.emplace_back();
    }();
    return counter;
}

// One writer per counter, so a plain load and store suffice.
void count(double seconds, double flops) {
    Counter& mine = this_thread();
    mine.seconds.store(mine.seconds.load(std::memory_order_relaxed) + seconds, std::memory_order_relaxed);
    mine.flops.store(mine.flops.load(std::memory_order_relaxed) + flops, std::memory_order_relaxed);
}

template <class Function>
void timed_product(Function product, int64_t m, int64_t n, int64_t k) {
    auto const start = std::chrono::steady_clock::now();
    product();
    std::chrono::duration<double> const elapsed = std::chrono::steady_clock::now() - start;
    count(elapsed.count() / omp_get_num_threads(), 2.0 * double(m) * double(n) * double(k));
}

template <class Real>
blasint stride(Rows<Real> rows) {
    return static_cast<blasint>(std::max<int64_t>(rows.stride, 1));
}
CBLAS_TRANSPOSE transposed(bool transpose) { return transpose ? CblasTrans : CblasNoTrans; }

}  // namespace

template <class Real>
void gemm(Gemm<Real> const& x) {
    if (x.m == 0 || x.n == 0) return;
    auto const product = [&] {
        auto const call = [&](auto cblas) {
            cblas(CblasRowMajor, transposed(x.transpose_a), transposed(x.transpose_b), blasint(x.m), blasint(x.n),
                  blasint(x.k), x.alpha, x.a.data, stride(x.a), x.b.data, stride(x.b), x.beta, x.c.data, stride(x.c));
        };
        if constexpr (std::is_same_v<Real, float>)
            call(cblas_sgemm);
        else
            call(cblas_dgemm);
    };
    timed_product(product, x.m, x.n, x.k);
}

template void gemm(Gemm<float> const&);
template void gemm(Gemm<double> const&);

void set_threads(int threads) {
    int const count = threads > 0 ? threads : omp_get_num_procs();
    omp_set_num_threads(count);
    check_room(count - openblas_get_num_threads());
    openblas_set_num_threads(count);
    take_buffers(std::min(count, openblas_get_num_threads()));
    static std::once_flag once;
    std::call_once(once, [] {
        if (openblas_get_parallel() != OPENBLAS_OPENMP)
            log::warn("OpenBLAS is not its OpenMP build ({}): attention will compete with it for the cores",
                      openblas_get_config());
    });
}

}  // namespace host

MatrixClock host_matrix_clock() {
    MatrixClock total;
    std::lock_guard const lock(host::registry().mutex);
    for (host::Counter const& counter : host::registry().counters) {
        total.seconds += counter.seconds.load(std::memory_order_relaxed);
        total.flops += counter.flops.load(std::memory_order_relaxed);
    }
    return total;
}

}  // namespace perigee
