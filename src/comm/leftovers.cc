#include "comm/leftovers.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace perigee {

namespace {

namespace fs = std::filesystem;

bool is_mine(fs::path const& path) {
    struct stat info {};
    return ::lstat(path.c_str(), &info) == 0 && info.st_uid == ::geteuid();
}

std::string host() {
    char name[256] = {};
    ::gethostname(name, sizeof name - 1);
    return name;
}

std::string temporary() {
    char const* folder = std::getenv("TMPDIR");
    return folder != nullptr && *folder != '\0' ? folder : "/tmp";
}

bool all_digits(std::string const& text) {
    return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
}

/// False for a process that is dead and only waits to be collected.
bool lives(std::string const& pid) {
    std::ifstream file("/proc/" + pid + "/stat");
    std::string line;
    if (!std::getline(file, line)) return ::kill(std::stoi(pid), 0) == 0 || errno != ESRCH;
    size_t const name_end = line.rfind(')');  // the state comes after the name
    return name_end == std::string::npos || !line.substr(name_end + 1).starts_with(" Z");
}

/// Names in `folder` that begin so and are this user's.
std::vector<fs::path> mine_in(fs::path const& folder, std::string const& prefix) {
    std::vector<fs::path> found;
    std::error_code ignored;
    for (fs::directory_entry const& entry : fs::directory_iterator(folder, ignored))
        if (entry.path().filename().string().starts_with(prefix) && is_mine(entry.path()))
            found.push_back(entry.path());
    return found;
}

/// Takes from `files` those that process `pid` has open or mapped. Descriptors come first: who makes a segment closes
/// its descriptor only after it has mapped it.
void keep_used_by(fs::path const& process, std::vector<fs::path>& files) {
    std::error_code ignored;
    auto const drop = [&files](std::string const& used) {
        std::erase_if(files, [&used](fs::path const& file) { return used == file; });
    };
    for (fs::directory_entry const& entry : fs::directory_iterator(process / "fd", ignored))
        drop(fs::read_symlink(entry.path(), ignored).string());
    std::ifstream maps(process / "maps");
    for (std::string line; std::getline(maps, line);)
        if (size_t const slash = line.find('/'); slash != std::string::npos) drop(line.substr(slash));
}

void remove_segments() {
    std::vector<fs::path> files;
    for (char const* kind : {"vader_segment", "osc_sm"})  // of messages, and of the host board
        for (fs::path& file : mine_in("/dev/shm", fmt::format("{}.{}.", kind, host())))
            files.push_back(std::move(file));
    if (files.empty()) return;
    std::error_code failed;
    fs::directory_iterator const processes("/proc", failed);
    if (failed) return;  // nobody can be asked
    for (fs::directory_entry const& process : processes)
        if (all_digits(process.path().filename().string()) && is_mine(process.path()))
            keep_used_by(process.path(), files);
    for (fs::path const& file : files) fs::remove(file, failed);
}

/// .../ompi.HOST.UID/pid.PID, PID being mpirun's.
void remove_sessions() {
    std::error_code failed;
    fs::path const user = fs::path(temporary()) / fmt::format("ompi.{}.{}", host(), ::geteuid());
    if (!is_mine(user)) return;
    for (fs::path const& session : mine_in(user, "pid.")) {
        std::string const pid = session.extension().string().substr(1);
        if (!all_digits(pid) || pid.size() > 9) continue;
        if (!lives(pid)) fs::remove_all(session, failed);
    }
}

void remove_launchers() {
    std::error_code failed;
    for (fs::path const& folder : mine_in(temporary(), fmt::format("perigee-mpirun.{}.", ::geteuid()))) {
        int const descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (descriptor < 0) continue;
        // One that was only just made is gone as well; its maker looks and makes another.
        if (::flock(descriptor, LOCK_EX | LOCK_NB) == 0) fs::remove_all(folder, failed);
        ::close(descriptor);
    }
}

}  // namespace

void remove_leftovers() noexcept {
    try {
        remove_segments();
        remove_sessions();
        remove_launchers();
    } catch (std::exception const&) {
        // What could not be looked at stays.
    }
}

}  // namespace perigee
