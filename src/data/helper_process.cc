#include "data/helper_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/error.h"

extern char** environ;

namespace perigee {

namespace {

constexpr size_t kReceivedBytes = size_t{1} << 18;
constexpr size_t kMostLastWords = 600;

class Descriptor {
  public:
    explicit Descriptor(int descriptor) : descriptor_(descriptor) {
        if (descriptor_ < 0) fail(Category::memory, "no descriptor for a helper process: {}", std::strerror(errno));
    }
    ~Descriptor() { ::close(descriptor_); }
    Descriptor(Descriptor const&) = delete;
    Descriptor& operator=(Descriptor const&) = delete;
    int get() const { return descriptor_; }

  private:
    int descriptor_;
};

std::array<int, 2> connected() {
    std::array<int, 2> both{};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, both.data()) != 0)
        fail(Category::memory, "no socket for a helper process: {}", std::strerror(errno));
    return both;
}

std::string python_of_environment() {
    char const* const named = std::getenv("PERIGEE_PYTHON");
    return named == nullptr || *named == '\0' ? "python3" : named;
}

/// The end of what a process wrote to standard error, from a whole line on.
std::string last_words(int descriptor) {
    off_t const size = ::lseek(descriptor, 0, SEEK_END);
    if (size <= 0) return "";
    off_t const from = std::max<off_t>(0, size - static_cast<off_t>(kMostLastWords));
    std::string text(static_cast<size_t>(size - from), '\0');
    ssize_t const read = ::pread(descriptor, text.data(), text.size(), from);
    text.resize(static_cast<size_t>(std::max<ssize_t>(0, read)));
    if (from > 0) text.erase(0, text.find('\n') + 1);
    while (text.ends_with('\n')) text.pop_back();
    return text;
}

}  // namespace

class HelperProcess::Process {
  public:
    Process(HelperProgram const& program, std::string const& python)
        : Process(program, python, connected(), ::memfd_create("perigee-helper", MFD_CLOEXEC)) {}
    ~Process() {
        if (id_ > 0) (void)end();
    }
    Process(Process const&) = delete;
    Process& operator=(Process const&) = delete;

    int socket() const { return ours_->get(); }
    std::string said() const { return last_words(errors_.get()); }

    /// Ends it and tells how it ended.
    std::string end() {
        ours_.reset();
        ::kill(-id_, SIGKILL);
        int status = 0;
        while (::waitpid(id_, &status, 0) < 0 && errno == EINTR) {
        }
        id_ = 0;
        return WIFSIGNALED(status) ? fmt::format("signal {} ({})", WTERMSIG(status), ::strsignal(WTERMSIG(status)))
                                   : fmt::format("exit code {}", WEXITSTATUS(status));
    }
    /// How it ended by itself; it has closed its side.
    std::string wait() {
        int status = 0;
        for (int i = 0; i < 100; ++i) {
            pid_t const ended = ::waitpid(id_, &status, WNOHANG);
            if (ended == id_) {
                id_ = 0;
                return WIFSIGNALED(status)
                           ? fmt::format("signal {} ({})", WTERMSIG(status), ::strsignal(WTERMSIG(status)))
                           : fmt::format("exit code {}", WEXITSTATUS(status));
            }
            ::usleep(20000);
        }
        return end();
    }

  private:
    Process(HelperProgram const& program, std::string const& python, std::array<int, 2> sockets, int errors)
        : ours_(std::make_unique<Descriptor>(sockets[0])), errors_(errors) {
        Descriptor const theirs(sockets[1]);
        posix_spawn_file_actions_t actions;
        posix_spawnattr_t attributes;
        posix_spawn_file_actions_init(&actions);
        posix_spawnattr_init(&attributes);
        posix_spawn_file_actions_adddup2(&actions, theirs.get(), STDIN_FILENO);
        posix_spawn_file_actions_adddup2(&actions, theirs.get(), STDOUT_FILENO);
        posix_spawn_file_actions_adddup2(&actions, errors_.get(), STDERR_FILENO);
        posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
        sigset_t none;
        sigemptyset(&none);
        posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
        posix_spawnattr_setpgroup(&attributes, 0);
        posix_spawnattr_setsigmask(&attributes, &none);
        std::vector<std::string> words{python, "-c", program.script};
        words.insert(words.end(), program.arguments.begin(), program.arguments.end());
        std::vector<char*> pointers;
        for (std::string& word : words) pointers.push_back(word.data());
        pointers.push_back(nullptr);
        int const problem = ::posix_spawnp(&id_, python.c_str(), &actions, &attributes, pointers.data(), environ);
        posix_spawn_file_actions_destroy(&actions);
        posix_spawnattr_destroy(&attributes);
        if (problem == 0) return;
        id_ = 0;
        fail(Category::config,
             "{} needs Python, but {} does not start: {}. Install python3, or name another one in PERIGEE_PYTHON",
             program.what, python, std::strerror(problem));
    }

    std::unique_ptr<Descriptor> ours_;
    Descriptor errors_;
    pid_t id_ = 0;
};

HelperProcess::HelperProcess(HelperProgram program) : program_(std::move(program)), python_(python_of_environment()) {
    process_ = std::make_unique<Process>(program_, python_);
}

HelperProcess::~HelperProcess() = default;

void HelperProcess::fail_ended() {
    std::string const said = process_->said();
    std::string const how = process_->wait();
    process_.reset();
    fail(Category::data, "{} ({}) ended with {}{}{}", program_.what, python_, how, said.empty() ? "" : ": ", said);
}

/// Sends some, or receives some, whichever comes first.
void HelperProcess::exchange(std::string_view& unsent) {
    if (!process_) fail(Category::data, "{} has ended", program_.what);
    pollfd ready{process_->socket(), static_cast<short>(POLLIN | (unsent.empty() ? 0 : POLLOUT)), 0};
    int const found = ::poll(&ready, 1, static_cast<int>(program_.patience.count()));
    if (found < 0 && errno == EINTR) return;
    if (found <= 0) {
        process_->end();
        process_.reset();
        fail(Category::data, "{} ({}) gave no sign of life for {} s and was ended", program_.what, python_,
             static_cast<double>(program_.patience.count()) / 1000);
    }
    if ((ready.revents & POLLOUT) != 0) {
        ssize_t const sent = ::send(process_->socket(), unsent.data(), unsent.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent > 0) unsent.remove_prefix(static_cast<size_t>(sent));
        if (sent < 0 && errno != EAGAIN && errno != EINTR) fail_ended();
    }
    if ((ready.revents & (POLLIN | POLLHUP | POLLERR)) == 0) return;
    if (used_ > 0) received_.erase(0, std::exchange(used_, 0));
    size_t const before = received_.size();
    received_.resize(before + kReceivedBytes);
    ssize_t const got = ::recv(process_->socket(), received_.data() + before, kReceivedBytes, MSG_DONTWAIT);
    received_.resize(before + static_cast<size_t>(std::max<ssize_t>(0, got)));
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) fail_ended();
}

std::vector<std::string> HelperProcess::ask(std::vector<std::string> const& lines) {
    std::string sent;
    for (std::string const& line : lines) sent.append(line).push_back('\n');
    std::string_view unsent = sent;
    std::vector<std::string> answers;
    size_t looked = used_;  // no line ends before
    while (answers.size() < lines.size()) {
        size_t const end = received_.find('\n', looked);
        if (end != received_.npos) {
            if (end > used_) answers.push_back(received_.substr(used_, end - used_));  // else a sign of life
            looked = used_ = end + 1;
            continue;
        }
        size_t const waiting = received_.size() - used_;
        exchange(unsent);
        looked = used_ + waiting;
    }
    return answers;
}

std::string HelperProcess::read_line() {
    std::string_view nothing;
    size_t end = 0;
    while ((end = received_.find('\n', used_)) == received_.npos) exchange(nothing);
    std::string line = received_.substr(used_, end - used_);
    used_ = end + 1;
    return line;
}

void HelperProcess::read(std::span<char> bytes) {
    std::string_view nothing;
    while (!bytes.empty()) {
        size_t const size = std::min(bytes.size(), received_.size() - used_);
        std::memcpy(bytes.data(), received_.data() + used_, size);
        bytes = bytes.subspan(size);
        used_ += size;
        if (!bytes.empty()) exchange(nothing);
    }
}

std::string missing_module(HelperProcess const& helper, std::string const& module, std::string const& remedy) {
    return fmt::format("{} needs the library {} of {}: {}, or name a Python that has it in PERIGEE_PYTHON",
                       helper.what(), module, helper.python(), remedy);
}

}  // namespace perigee
