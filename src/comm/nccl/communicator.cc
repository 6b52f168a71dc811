#include "comm/nccl/communicator.h"

#include <chrono>
#include <exception>
#include <thread>
#include <utility>

#include "base/error.h"

namespace perigee {

namespace {

ncclConfig_t configuration(Axis axis) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.commName = to_string(axis);
    return config;
}

/// NCCL's last words on a communicator, or on any.
std::string words(ncclResult_t code, ncclComm_t comm) {
    char const* const more = ncclGetLastError(comm);
    return fmt::format("{}{}{}", ncclGetErrorString(code), more != nullptr && *more != '\0' ? ": " : "",
                       more != nullptr ? more : "");
}

ncclResult_t state_of(ncclComm_t comm) {
    ncclResult_t state = ncclSuccess;
    ncclResult_t const code = ncclCommGetAsyncError(comm, &state);
    return code != ncclSuccess ? code : state;
}

/// The next call may be made when the last one is no longer in progress.
ncclResult_t wait_until_settled(ncclComm_t comm) {
    constexpr std::chrono::microseconds kPause{20};
    constexpr int kBusyLooks = 1000;  // most calls are through at once
    for (int looks = 0;; ++looks) {
        ncclResult_t const state = state_of(comm);
        if (state != ncclInProgress) return state;
        if (looks >= kBusyLooks) std::this_thread::sleep_for(kPause);
    }
}

}  // namespace

void Communicator::fail_with(ncclResult_t code, char const* what) const {
    fail(Category::communication, "{} among the {} ranks failed: {}", what, to_string(axis_), words(code, comm_));
}

void Communicator::settle(ncclResult_t code, char const* what) const {
    if (code == ncclInProgress || code == ncclSuccess) code = wait_until_settled(comm_);
    if (code != ncclSuccess) fail_with(code, what);
}

Communicator::Communicator(ncclUniqueId const& id, int size, int rank, Axis axis) : axis_(axis) {
    ncclConfig_t config = configuration(axis);
    ncclComm_t comm = nullptr;
    ncclResult_t const code = ncclCommInitRankConfig(&comm, size, id, rank, &config);
    comm_ = comm;
    if (comm == nullptr) fail_with(code, "ncclCommInitRankConfig");
    settle(code, "ncclCommInitRankConfig");
}

Communicator::Communicator(Communicator& whole, int color, int key, Axis axis) : axis_(axis) {
    ncclConfig_t config = configuration(axis);
    ncclComm_t comm = nullptr;
    whole.call("ncclCommSplit", [&](ncclComm_t parent) { return ncclCommSplit(parent, color, key, &comm, &config); });
    comm_ = comm;
    if (comm == nullptr) fail_with(ncclInternalError, "ncclCommSplit");
    settle(ncclSuccess, "ncclCommSplit");
}

Communicator::~Communicator() {
    if (comm_ == nullptr || std::uncaught_exceptions() > 0) return;
    if (ncclCommFinalize(comm_) == ncclInProgress) wait_until_settled(comm_);
    ncclCommDestroy(comm_);
}

void Communicator::call(char const* what, std::function<ncclResult_t(ncclComm_t)> const& body) {
    std::scoped_lock const lock(calling_);
    settle(body(comm_), what);
}

void Communicator::call_in_group(char const* what, std::function<ncclResult_t(ncclComm_t)> const& body) const {
    ncclResult_t const code = body(comm_);
    if (code != ncclSuccess && code != ncclInProgress) fail_with(code, what);
}

std::string Communicator::failure() const {
    std::unique_lock const lock(calling_, std::try_to_lock);
    ncclComm_t const comm = comm_;
    if (!lock || comm == nullptr) return {};
    ncclResult_t const state = state_of(comm);
    if (state == ncclSuccess || state == ncclInProgress) return {};
    return fmt::format("the {} ranks: {}", to_string(axis_), words(state, comm));
}

void Communicator::abort() noexcept {
    if (ncclComm_t const comm = comm_.exchange(nullptr); comm != nullptr) ncclCommAbort(comm);
}

}  // namespace perigee
