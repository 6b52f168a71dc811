// Operations that repeat, as CUDA graphs: the first time they are queued one by one, which plans and allocates what
// they need, the second time they are captured, and from then on the graph is queued.
#include "base/log.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/dense_attention.h"

namespace perigee {

namespace {

/// Documents whose lengths never come again leave no more than this behind.
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
    try {
        body();
    } catch (Error const& e) {
        refusal = e.what();
    }
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    cudaError_t code = cudaStreamEndCapture(stream(), &graph);
    if (code == cudaSuccess && refusal.empty()) code = cudaGraphInstantiate(&executable, graph, 0);
    if (graph != nullptr) cudaGraphDestroy(graph);
    cudaGetLastError();
    if (executable == nullptr) {
        log::info("no CUDA graph of a micro-batch: {}", refusal.empty() ? cudaGetErrorString(code) : refusal);
        return false;
    }
    known.graph = {executable, [](cudaGraphExec_t graph) { cudaGraphExecDestroy(graph); }};
    known.places = places();
    return true;
}

void CudaOps::repeat(std::span<int64_t const> key, std::function<void()> const& body) {
    if (!options_.graphs) return body();
    std::vector<int64_t> const name(key.begin(), key.end());
    auto found = repeated_.find(name);
    if (found == repeated_.end()) {
        if (repeated_.size() == kMostKeys) {
            device_.synchronize();  // graphs that go may still run
            repeated_.clear();
        }
        body();
        repeated_[name] = {
            .borders = borders_.values, .frequencies = frequencies_.values, .dense_tables = dense_->tables()};
        return;
    }
    Repeated& known = found->second;
    restore_tables(known);
    // Memory that graphs know by address has moved: later operations needed more of it.
    if (known.graph && known.places != places()) known.graph.reset();
    if (!known.graph && (known.refused || !capture(known, body))) {
        known.refused = true;
        return body();
    }
    check_cuda(cudaGraphLaunch(known.graph.get(), stream()), "cudaGraphLaunch");
}

}  // namespace perigee
