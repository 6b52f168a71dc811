#include "app/chat.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <optional>
#include <string>

#include "base/interrupts.h"
#include "base/log.h"
#include "base/printable.h"
#include "train/conversation.h"

namespace perigee {

namespace {

/// Lines of standard input, waiting for which can be interrupted.
class Lines {
  public:
    enum class Event { line, interrupted, end };

    Lines(Interrupts& interrupts, std::function<void()> const& alive) : interrupts_(interrupts), alive_(alive) {}

    Event next(std::string& line) {
        constexpr int kMilliseconds = 200;
        for (;;) {
            alive_();
            if (interrupts_.take()) return Event::interrupted;
            if (size_t const end = read_.find('\n'); end != std::string::npos) {
                line = read_.substr(0, end);
                if (line.ends_with('\r')) line.pop_back();
                read_.erase(0, end + 1);
                return Event::line;
            }
            if (at_end_) {
                line = std::exchange(read_, {});
                return line.empty() ? Event::end : Event::line;
            }
            pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
            if (::poll(&input, 1, kMilliseconds) > 0) read_more();
        }
    }

  private:
    void read_more() {
        char bytes[4096];
        ssize_t const count = ::read(STDIN_FILENO, bytes, sizeof bytes);
        if (count > 0) read_.append(bytes, static_cast<size_t>(count));
        at_end_ = count == 0 || (count < 0 && errno != EINTR && errno != EAGAIN);
    }

    Interrupts& interrupts_;
    std::function<void()> const& alive_;
    std::string read_;
    bool at_end_ = false;
};

/// Prints what only a person at a terminal needs.
class Prompter {
  public:
    void tell(char const* text) const {
        if (is_person_) print_generated(text);
    }

  private:
    bool const is_person_ = ::isatty(STDIN_FILENO) == 1 && ::isatty(STDOUT_FILENO) == 1;
};

}  // namespace

void run_chat(Session& session, RunState const& state, std::function<void()> const& alive) {
    Conversation conversation(session, state);
    Interrupts interrupts;
    Lines lines(interrupts, alive);
    Prompter const prompter;
    prompter.tell("/new begins anew, /exit ends; Ctrl-C ends an answer\n");
    std::string line;
    for (;;) {
        prompter.tell("> ");
        auto const event = lines.next(line);
        if (event == Lines::Event::end || (event == Lines::Event::line && line == "/exit")) break;
        if (event == Lines::Event::interrupted) {
            prompter.tell("\n");
            continue;
        }
        if (line == "/new") conversation.forget();
        if (line == "/new" || line.find_first_not_of(" \t\r") == std::string::npos) continue;
        try {
            conversation.answer(line, print_generated, [&] {
                alive();
                return !interrupts.came();
            });
            interrupts.take();
            print_generated("\n");
        } catch (Error const& error) {
            if (error.category() != Category::data) throw;
            log::warn("{}; /new begins anew", error.what());
        }
    }
}

}  // namespace perigee
