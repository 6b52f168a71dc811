#include "comm/nccl/communicator.h"

#include <exception>
#include <utility>

#include "base/error.h"

namespace perigee {

namespace {

ncclConfig_t configuration(Axis axis) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;
    config.commName = to_string(axis);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
    config.CTAPolicy = NCCL_CTA_POLICY_ZERO;  // gathers of registered memory go by copy engines
#endif
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

}  // namespace

void Communicator::fail_with(ncclResult_t code, char const* what) const {
    fail(Category::communication, "{} among the {} ranks failed: {}", what, to_string(axis_), words(code, comm_));
}

Communicator::Communicator(ncclUniqueId const& id, int size, int rank, Axis axis) : axis_(axis) {
    ncclConfig_t config = configuration(axis);
    ncclComm_t comm = nullptr;
    ncclResult_t const code = ncclCommInitRankConfig(&comm, size, id, rank, &config);
    if (code != ncclSuccess) fail_with(code, "ncclCommInitRankConfig");
    comm_ = comm;
}

Communicator::Communicator(Communicator& whole, int color, int key, Axis axis) : axis_(axis) {
    ncclConfig_t config = configuration(axis);
    ncclComm_t comm = nullptr;
    whole.call("ncclCommSplit", [&](ncclComm_t parent) { return ncclCommSplit(parent, color, key, &comm, &config); });
    if (comm == nullptr) fail_with(ncclInternalError, "ncclCommSplit");
    comm_ = comm;
}

Communicator::~Communicator() {
    if (comm_ == nullptr || std::uncaught_exceptions() > 0) return;
    ncclCommFinalize(comm_);
    ncclCommDestroy(comm_);
}

void Communicator::call(char const* what, std::function<ncclResult_t(ncclComm_t)> const& body) {
    std::scoped_lock const lock(calling_);
    if (ncclResult_t const code = body(comm_); code != ncclSuccess) fail_with(code, what);
}

void Communicator::call_in_group(char const* what, std::function<ncclResult_t(ncclComm_t)> const& body) const {
    if (ncclResult_t const code = body(comm_); code != ncclSuccess) fail_with(code, what);
}

std::string Communicator::failure() const {
    std::unique_lock const lock(calling_, std::try_to_lock);
    ncclComm_t const comm = comm_;
    if (!lock || comm == nullptr) return {};
    ncclResult_t const state = state_of(comm);
    if (state == ncclSuccess) return {};
    return fmt::format("the {} ranks: {}", to_string(axis_), words(state, comm));
}

void Communicator::abort() noexcept {
    if (ncclComm_t const comm = comm_.exchange(nullptr); comm != nullptr) ncclCommAbort(comm);
}

void Communicator::release(std::function<void(ncclComm_t)> const& body) noexcept {
    std::scoped_lock const lock(calling_);
    if (ncclComm_t const comm = comm_; comm != nullptr && std::uncaught_exceptions() == 0) body(comm);
}

}  // namespace perigee
