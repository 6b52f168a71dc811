// Operations that repeat, as CUDA graphs: the first time they are queued one by one, which plans and allocates what
// they need, the second time they are captured, and from then on the graph is queued. A pass without collectives is one
// graph. Of a pass with collectives, what lies between two uses of the queue by others is one: its operations are held
// back until then, and known by the digest of all their arguments.
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/dense_attention.h"

namespace perigee {

namespace {

/// Known at a time: documents whose lengths never come again leave no more than this behind.
constexpr size_t kMostPasses = 16, kMostParts = 1024;
/// Of fewer operations a graph saves nothing.
constexpr size_t kFewestOperations = 3;

}  // namespace

CudaOps::Places CudaOps::places() const {
    return {scratch_.data(), arrivals_.data(), borders_.memory.data(), frequencies_.memory.data(),
            dense_->tables_place()};
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
void CudaOps::queue_first(Known& known, size_t most, Digest const& name, std::function<void()> const& body) {
    known.erase(name);
    body();
    if (known.size() == most) {
        std::vector<int64_t> used;
        for (auto const& [digest, entry] : known) used.push_back(entry.last_used);
        auto const last = used.begin() + static_cast<int64_t>(most / 64);  // of many, some at once
        std::ranges::nth_element(used, last);
        std::erase_if(known, [newest = *last](auto const& entry) { return entry.second.last_used <= newest; });
    }
    known[name] = {.borders = borders_.values,
                   .frequencies = frequencies_.values,
                   .dense_tables = dense_->tables(),
                   .places = places(),
                   .last_used = ++repeats_};
}

void CudaOps::repeat_known(Known& known, size_t most, Digest const& name, std::function<void()> const& body) {
    auto const found = known.find(name);
    if (found == known.end()) return queue_first(known, most, name, body);
    Repeated& entry = found->second;
    entry.last_used = ++repeats_;
    restore_tables(entry);
    // Memory that graphs know by address has moved, as later operations needed more of it: they may plan and allocate
    // again.
    if (entry.places != places()) return queue_first(known, most, name, body);
    if (!entry.graph && (entry.refused || !capture(entry, body))) {
        entry.refused = true;
        return body();
    }
    check_cuda(cudaGraphLaunch(entry.graph.get(), stream()), "cudaGraphLaunch");
    ++replays_;
    device_.phases().queued_again(device_, entry.phases);
}

void CudaOps::repeat(std::span<int64_t const> key, std::function<void()> const& body) {
    if (!options_.graphs) return body();
    if (key.empty()) return repeat_between(body);
    repeat_known(passes_, kMostPasses, digest_of(key), body);
}

void CudaOps::repeat_between(std::function<void()> const& body) {
    PERIGEE_CHECK(!holding_, "a pass within a pass");
    holding_ = true;
    device_.before_use_of_queue([this] { queue_held(); });
    auto const end = [this] {
        device_.before_use_of_queue({});
        holding_ = false;
        held_.clear();
    };
    try {
        body();
        queue_held();
    } catch (std::exception const&) {
        end();
        failure_ = nullptr;
        throw;
    }
    end();
    // Thrown already, where nobody could pass it on (Device::settle).
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void CudaOps::queue_held() {
    if (held_.empty()) return;
    std::vector<Operation> const operations = std::exchange(held_, {});
    auto const each = [&] {
        for (Operation const& operation : operations) compute_one(operation);
    };
    try {
        if (operations.size() < kFewestOperations)
            each();
        else
            repeat_known(parts_, kMostParts, digest_of(operations), each);
    } catch (std::exception const&) {
        failure_ = std::current_exception();
        throw;
    }
}

}  // namespace perigee
