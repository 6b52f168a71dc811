// Operations that repeat, as CUDA graphs: the first time they are queued one by one, which plans and allocates what
// they need, the second time they are captured, and from then on the graph is queued.
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/dense_attention.h"

namespace perigee {

namespace {

/// Keys that are known at a time: documents whose lengths never come again leave no more than this behind.
constexpr size_t kMostKeys = 16;

}  // namespace

CudaOps::Places CudaOps::places() const {
    return {scratch_.data(), borders_.memory.data(), frequencies_.memory.data(), dense_->tables_place()};
}

void CudaOps::restore_tables(Repeated const& known) {
    if (!known.borders.empty()) borders(known.borders);
    if (!known.frequencies.empty()) frequencies(known.frequencies);
    dense_->restore(known.dense_tables);
}

bool CudaOps::capture(Repeated& known, std::function<void()> const& body) {
    check_cuda(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    std::string refusal;
    device_.phases().begin_noting();
    try {
        body();
    } catch (std::exception const& e) {
        refusal = e.what();  // thrown again where it has nothing to do with the capture: the body is run without
    }
    known.phases = device_.phases().end_noting();
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    cudaError_t code = cudaStreamEndCapture(stream(), &graph);
    if (code == cudaSuccess && refusal.empty()) code = cudaGraphInstantiate(&executable, graph, 0);
    if (graph != nullptr) cudaGraphDestroy(graph);
    cudaGetLastError();
    if (executable == nullptr) {
        if (!std::exchange(warned_, true))
            log::warn("no CUDA graph of a micro-batch, its operations are queued one by one: {}",
                      refusal.empty() ? cudaGetErrorString(code) : refusal);
        return false;
    }
    // A graph that still runs is freed when it has finished.
    known.graph = {executable, [](cudaGraphExec_t unused) { cudaGraphExecDestroy(unused); }};
    return true;
}

/// Queues the operations one by one and notes what they find on the device, in place of what was known of them.
void CudaOps::queue_first(std::vector<int64_t> const& name, std::function<void()> const& body) {
    repeated_.erase(name);
    body();
    if (repeated_.size() == kMostKeys)
        repeated_.erase(
            std::ranges::min_element(repeated_, {}, [](auto const& entry) { return entry.second.last_used; }));
    repeated_[name] = {.borders = borders_.values,
                       .frequencies = frequencies_.values,
                       .dense_tables = dense_->tables(),
                       .places = places(),
                       .last_used = ++repeats_};
}

void CudaOps::repeat(std::span<int64_t const> key, std::function<void()> const& body) {
    if (!options_.graphs) return body();
    std::vector<int64_t> const name(key.begin(), key.end());
    auto const found = repeated_.find(name);
    if (found == repeated_.end()) return queue_first(name, body);
    Repeated& known = found->second;
    known.last_used = ++repeats_;
    restore_tables(known);
    // Memory that graphs know by address has moved, as later operations needed more of it: they may plan and allocate
    // again.
    if (known.places != places()) return queue_first(name, body);
    if (!known.graph && (known.refused || !capture(known, body))) {
        known.refused = true;
        return body();
    }
    check_cuda(cudaGraphLaunch(known.graph.get(), stream()), "cudaGraphLaunch");
    device_.phases().queued_again(known.phases);
}

}  // namespace perigee
