// `perigee` over a disk that kills it: PERIGEE_KILL=OPERATION:PATH_PART:COUNT[:after] ends this process with SIGKILL
// before (or after) the COUNT-th operation of that name (`any`: of any name) on a path that contains PATH_PART. Only
// rank PERIGEE_KILL_RANK (default 0; `all`: every one) dies by itself. Operation names: support/fault_file_system.h.
// PERIGEE_KILL_DELAY: it dies so many microseconds after that point, whatever it does then.
// PERIGEE_KILL=join: it dies before it joins its job. PERIGEE_KILL=barrier:COUNT: at its COUNT-th MPI_Barrier.
// PERIGEE_KILL=collective:NAME:COUNT: at its COUNT-th all_gather or reduce_scatter of tensors.
// PERIGEE_ABORT=hang: MPI_Abort does not return.
// PERIGEE_KILL_BY is another thing to do there: a signal's number, `exit` (in order, with code 0), `throw`, `wait`
// until it is told to stop, or `sleep` until a signal ends that, both for 20 seconds at most and announced; at a
// collective also `skip`, which leaves it out, and `allocate`, which asks its device for more memory than there is.
// PERIGEE_KILL_MARK: a file that it makes right before.
//
// PERIGEE_FLIP=TENSOR:COUNT: on rank PERIGEE_KILL_RANK, a bit of the first element of that tensor flips right before
// the COUNT-th comparison of what ranks hold alike.
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>

#include "app/app.h"
#include "base/stop_request.h"
#include "comm/comm.h"
#include "support/fault_file_system.h"
#include "train/replicas.h"

namespace {

using Operation = perigee::testing::FaultFileSystem::Operation;

std::string environment(char const* name, char const* otherwise) {
    char const* value = std::getenv(name);
    return value != nullptr ? value : otherwise;
}

std::string cut(std::string& text) {
    size_t const colon = text.find(':');
    std::string const head = text.substr(0, colon);
    text = colon == std::string::npos ? "" : text.substr(colon + 1);
    return head;
}

void mark() {
    if (std::string const path = environment("PERIGEE_KILL_MARK", ""); !path.empty())
        if (std::FILE* const file = std::fopen(path.c_str(), "w"); file != nullptr) std::fclose(file);
}

void disturb(std::string const& how) {
    if (int const delay = std::stoi(environment("PERIGEE_KILL_DELAY", "0")); delay > 0) {
        std::thread([how, delay] {
            std::this_thread::sleep_for(std::chrono::microseconds(delay));
            mark();
            ::kill(::getpid(), std::stoi(how));
        }).detach();
        return;
    }
    mark();
    if (how == "throw") throw std::runtime_error("thrown by the test");
    if (how == "exit") std::exit(0);
    if (how == "wait") {  // until it is told to stop
        std::fputs("waiting for a signal\n", stderr);
        for (int tenths = 0; tenths < 200 && !perigee::stop_requested(); ++tenths)
            std::this_thread::sleep_for(std::chrono::milliseconds(100));
    } else if (how == "sleep") {  // a signal that nobody else takes ends it
        std::fputs("waiting for a signal\n", stderr);
        ::sleep(20);
    } else {
        std::raise(std::stoi(how));
    }
}

bool is_victim() {
    std::string const victim = environment("PERIGEE_KILL_RANK", "0");
    return victim == "all" || victim == environment("OMPI_COMM_WORLD_RANK", "0");
}

/// Before a collective of tensors; false where it is left out.
bool begins(char const* name, int& count, perigee::Queue& queue) {
    if (environment("PERIGEE_KILL", "") != std::string("collective:") + name + ":" + std::to_string(++count) ||
        !is_victim())
        return true;
    constexpr size_t kMoreThanThereIs = size_t{1} << 50;
    std::string const how = environment("PERIGEE_KILL_BY", "9");
    bool const is_signal_or_alike = how != "skip" && how != "allocate";
    is_signal_or_alike ? disturb(how) : mark();
    if (how == "allocate") queue.device().allocate(kMoreThanThereIs);
    return how != "skip";
}

}  // namespace

// The linker gives the program's calls of these members to the functions here (cmake/Tests.cmake).
namespace perigee {

Pending real_all_gather(Comm* comm, Queue& queue, TensorView all, ConstView part) asm(
    "__real__ZN7perigee4Comm10all_gatherERNS_5QueueENS_9BasicViewISt4byteEENS3_IKS4_EE");
Pending all_gather(Comm* comm, Queue& queue, TensorView all, ConstView part) asm(
    "__wrap__ZN7perigee4Comm10all_gatherERNS_5QueueENS_9BasicViewISt4byteEENS3_IKS4_EE");
Pending all_gather(Comm* comm, Queue& queue, TensorView all, ConstView part) {
    static int count = 0;
    return begins("all_gather", count, queue) ? real_all_gather(comm, queue, all, part) : Pending();
}

Pending real_reduce_scatter(Comm* comm, Queue& queue, TensorView part, ConstView all) asm(
    "__real__ZN7perigee4Comm14reduce_scatterERNS_5QueueENS_9BasicViewISt4byteEENS3_IKS4_EE");
Pending reduce_scatter(Comm* comm, Queue& queue, TensorView part, ConstView all) asm(
    "__wrap__ZN7perigee4Comm14reduce_scatterERNS_5QueueENS_9BasicViewISt4byteEENS3_IKS4_EE");
Pending reduce_scatter(Comm* comm, Queue& queue, TensorView part, ConstView all) {
    static int count = 0;
    return begins("reduce_scatter", count, queue) ? real_reduce_scatter(comm, queue, part, all) : Pending();
}

using Compared = std::optional<Difference>;
Compared real_compare(Session& session, std::vector<Replicated> const& tensors) asm(
    "__real__ZN7perigee16compare_replicasERNS_7SessionERKSt6vectorINS_10ReplicatedESaIS3_EE");
Compared compare(Session& session, std::vector<Replicated> const& tensors) asm(
    "__wrap__ZN7perigee16compare_replicasERNS_7SessionERKSt6vectorINS_10ReplicatedESaIS3_EE");
Compared compare(Session& session, std::vector<Replicated> const& tensors) {
    static int count = 0;
    ++count;
    for (Replicated const& replicated : tensors) {
        StoredTensor const& tensor = replicated.tensor;
        if (!is_victim() || environment("PERIGEE_FLIP", "") != tensor.name + ":" + std::to_string(count)) continue;
        Device& device = session.ops().device();
        std::byte first{};
        device.copy(&first, tensor.values.data, 1);
        first ^= std::byte{1};
        device.copy(tensor.values.data, &first, 1);
    }
    return real_compare(session, tensors);
}

}  // namespace perigee

// The program's own MPI functions come before the library's. MPI_Comm is a pointer in Open MPI.
extern "C" int PMPI_Abort(void* comm, int code);
extern "C" int MPI_Abort(void* comm, int code) {
    while (environment("PERIGEE_ABORT", "") == "hang") ::pause();
    return PMPI_Abort(comm, code);
}

extern "C" int PMPI_Barrier(void* comm);
extern "C" int MPI_Barrier(void* comm) {
    static int count = 0;
    if (environment("PERIGEE_KILL", "") == "barrier:" + std::to_string(++count) && is_victim())
        disturb(environment("PERIGEE_KILL_BY", "9"));
    return PMPI_Barrier(comm);
}

int main(int argc, char** argv) {
    perigee::catch_stop_signals();
    auto real = perigee::make_file_system();
    perigee::testing::FaultFileSystem files(*real);
    std::string plan = environment("PERIGEE_KILL", "");
    if (plan == "join" && is_victim()) {
        disturb(environment("PERIGEE_KILL_BY", "9"));
    } else if (!plan.empty() && !plan.starts_with("barrier:") && !plan.starts_with("collective:") && is_victim()) {
        std::string const name = cut(plan);
        std::string const part = cut(plan);
        int64_t left = std::stoll(cut(plan));
        std::string const how = environment("PERIGEE_KILL_BY", "9");
        auto const kill = [=](Operation const& op) mutable {
            if (name != "any" && op.name != name) return;
            if (op.path.string().find(part) != std::string::npos && --left == 0) disturb(how);
        };
        (plan == "after" ? files.after : files.before) = kill;
    }
    return perigee::run_app(argc, argv, files);
}
