#include "comm/launcher.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "base/error.h"

namespace perigee {

namespace {

int number_in(char const* variable) {
    char const* value = std::getenv(variable);
    return value != nullptr ? std::max(0, std::atoi(value)) : -1;
}

}  // namespace

Launcher::Launcher(bool has_launcher) : parent_(has_launcher ? ::getppid() : 0) {
    char const* file = std::getenv("PERIGEE_LAUNCHER");
    if (file == nullptr) return;
    std::filesystem::path const folder = std::filesystem::path(file).parent_path();
    std::error_code ignored;
    // A rank in a container of its own does not see the folder, and cannot look.
    if (!std::filesystem::exists(folder, ignored)) return;
    file_ = file;
    descriptor_ = ::open(file, O_RDONLY | O_CLOEXEC);
    ranks_ = ::open((folder / "ranks").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (ranks_ >= 0) ::flock(ranks_, LOCK_SH);
}

Launcher::~Launcher() {
    for (int const descriptor : {descriptor_, ranks_})
        if (descriptor >= 0) ::close(descriptor);
}

bool Launcher::asks_to_stop() const noexcept {
    if (file_.empty()) return false;
    if (::access(file_.c_str(), F_OK) != 0 && errno == ENOENT) return true;
    return descriptor_ >= 0 && ::flock(descriptor_, LOCK_SH | LOCK_NB) == 0;
}

bool Launcher::is_gone() const noexcept { return parent_ != 0 && ::getppid() != parent_; }

void take_launchers_terminal() noexcept {
    char const* const launcher = std::getenv("PERIGEE_LAUNCHER");
    char const* const terminal = std::getenv("PERIGEE_TERMINAL");
    // On another host the same name is somebody else's terminal; the launcher's file has a random one.
    if (terminal == nullptr || launcher == nullptr || ::access(launcher, F_OK) != 0) return;
    int const opened = ::open(terminal, O_WRONLY | O_NOCTTY | O_CLOEXEC);
    if (opened < 0) return;
    if (::isatty(opened) == 1) {
        std::signal(SIGTTOU, SIG_IGN);  // `stty tostop` stops writers in the background, as ranks are
        ::dup2(opened, STDERR_FILENO);
    }
    ::close(opened);
}

int ranks_promised() {
    for (char const* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
        if (int const ranks = number_in(variable); ranks >= 0) return std::max(1, ranks);
    }
    if (std::getenv("PMIX_RANK") != nullptr) return 1;
    if (number_in("SLURM_STEP_NUM_TASKS") > 1) {
        fail(Category::communication, "srun started several tasks without telling MPI: use `srun --mpi=pmix`");
    }
    return 0;
}

int local_rank_promised() noexcept {
    for (char const* variable : {"OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"}) {
        if (int const rank = number_in(variable); rank >= 0) return rank;
    }
    return 0;
}

}  // namespace perigee
