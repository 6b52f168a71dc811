#include "commands/study/runner.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <set>
#include <sstream>

#include "base/error.h"
#include "base/held_signals.h"
#include "checkpoint/folders.h"
#include "commands/child.h"
#include "config/config.h"
#include "train/failure.h"
#include "train/run_folder.h"

namespace perigee::study {

namespace {

using Clock = std::chrono::steady_clock;

/// The last line that says anything, of at most the last few kilobytes.
std::string last_words(FileSystem& files, Path const& path) {
    constexpr int64_t kEnd = 4096;
    auto const file = files.open(path);
    std::string text(static_cast<size_t>(std::min(kEnd, file->size())), '\0');
    file->read_at(file->size() - std::ssize(text), std::as_writable_bytes(std::span(text)));
    size_t const end = text.find_last_not_of(" \n\r") + 1;
    size_t const begin = text.rfind('\n', end == 0 ? 0 : end - 1);
    return text.substr(begin == std::string::npos ? 0 : begin + 1, end - (begin == std::string::npos ? 0 : begin + 1));
}

/// As this version of the program writes these options, so that keys it did not know then have their defaults.
std::string in_todays_words(std::string const& yaml, std::string const& name) {
    return to_yaml(parse_config(yaml, name, {}));
}

/// What an evaluation is: the options it ends up with, and which of them it sets itself.
std::pair<std::string, std::set<std::string>> evaluation_of(Run const& run, std::vector<std::string> const& overrides,
                                                            std::string const& name) {
    std::set<std::string> keys;
    for (std::string const& text : overrides) keys.insert(text.substr(0, text.find('=')));
    return {to_yaml(parse_config(run.config, name, overrides)), keys};
}

/// Whether `text` is part of a run's name, between whole values: "gate" and "arm=gate" of "arm=gate,seed=1", not of
/// "arm=force_gate,seed=1".
bool names_whole(std::string const& name, std::string const& text) {
    for (size_t at = name.find(text); !text.empty() && at != std::string::npos; at = name.find(text, at + 1)) {
        size_t const end = at + text.size();
        bool const begins = at == 0 || name[at - 1] == ',' || name[at - 1] == '=';
        if (begins && (end == name.size() || name[end] == ',')) return true;
    }
    return false;
}

std::vector<std::string> lines_of(std::string const& text) {
    std::vector<std::string> lines;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) lines.push_back(line);
    return lines;
}

/// Files that a run reads besides those that other runs write.
std::vector<std::string> inputs_of(Run const& run) {
    RunOptions const options = parse_config(run.config, run.name, run.overrides);
    std::vector<std::string> inputs;
    auto const add = [&](std::string const& path) {
        if (!path.empty()) inputs.push_back(path);
    };
    if (!options.data.mock_data)
        for (auto const* const datasets : {&options.data.train, &options.data.validation})
            for (DatasetOptions const& dataset : *datasets) add(dataset.path + ".bin"), add(dataset.path + ".idx");
    if (options.data.tokenizer != "bytes") add(options.data.tokenizer);
    add(options.model.init_from), add(options.model.lora.init_from);
    return inputs;
}

class Runner {
  public:
    Runner(Study const& study, RunnerOptions const& options, FileSystem& files)
        : study_(study), options_(options), files_(files), states_(study.runs.size(), State::waiting) {
        for (size_t i = 0; i < study.runs.size(); ++i) look_at(i);
        leave_others();
        check_inputs();
        files_.make_directories(study.output_dir / "runs");
        free_slots_.resize(std::min(static_cast<size_t>(options.jobs), study.runs.size()));
        for (size_t i = 0; i < free_slots_.size(); ++i) free_slots_[i] = free_slots_.size() - 1 - i;
    }

    Progress run() {
        for (;;) {
            while (!progress_.stopped && !free_slots_.empty() && start_next()) {
            }
            if (children_.empty()) break;
            if (next_signal() != SIGCHLD) stop();
            collect();
        }
        return std::move(progress_);
    }

  private:
    enum class State { waiting, running, finished, failed, stopped, left };  // left: to another call
    struct Child {
        size_t run;
        size_t slot;
        Clock::time_point began;
        std::unique_ptr<FileLock> lock;
    };

    /// 0 where the budget ends first, once.
    int next_signal() const {
        if (options_.budget_minutes <= 0 || progress_.stopped) return signals_.wait();
        std::chrono::duration<double, std::ratio<60>> const budget(options_.budget_minutes);
        return signals_.wait(began_ + std::chrono::duration_cast<Clock::duration>(budget));
    }

    void look_at(size_t i) {
        Run const& run = study_.runs[i];
        refuse_other_options(run);
        if (!is_finished(study_, run, files_)) return;
        states_[i] = State::finished;
        ++finished_;
        fmt::print("{} has finished before\n", run.name);
    }

    /// Evaluations of older studies have no file of overrides; nothing is compared for them.
    void refuse_other_options(Run const& run) const {
        Path const config = study_.file(run, ".yaml"), overrides = study_.file(run, ".overrides");
        if (files_.exists(config) && in_todays_words(files_.read_text(config, 1 << 20), config.string()) != run.config)
            refuse_changed(config, run);
        if (!run.evaluates || !files_.exists(overrides)) return;
        auto const before = lines_of(files_.read_text(overrides, 1 << 20));
        if (evaluation_of(run, before, overrides.string()) != evaluation_of(run, run.overrides, run.name))
            refuse_changed(overrides, run);
    }

    void write_options(Run const& run) {
        files_.replace_text(study_.file(run, ".yaml"), run.config);
        if (!run.evaluates) return;
        std::string text;
        for (std::string const& line : run.overrides) text += line + "\n";
        files_.replace_text(study_.file(run, ".overrides"), text);
    }

    [[noreturn]] static void refuse_changed(Path const& file, Run const& run) {
        fail(Category::config,
             "{} is of a run with other options than the study has now: choose another output_dir, or remove what "
             "belongs to {}",
             file.string(), run.name);
    }

    void leave_others() {
        if (options_.only.empty()) return;
        std::vector<bool> wanted(study_.runs.size());
        std::set<std::string> unknown(options_.only.begin(), options_.only.end());
        for (size_t i = 0; i < wanted.size(); ++i)
            for (std::string const& text : options_.only) {
                if (!names_whole(study_.runs[i].name, text)) continue;
                wanted[i] = true;
                unknown.erase(text);
            }
        if (!unknown.empty()) {
            std::vector<std::string> names;
            for (Run const& run : study_.runs) names.push_back(run.name);
            fail(Category::config, "--only {}: no run has exactly that in its name. There are {}", *unknown.begin(),
                 fmt::join(names, ", "));
        }
        for (size_t i = wanted.size(); i-- > 0;)  // what a run goes on from comes before it
            if (wanted[i] && study_.runs[i].before) wanted[*study_.runs[i].before] = true;
        for (size_t i = 0; i < wanted.size(); ++i)
            if (!wanted[i] && states_[i] == State::waiting) states_[i] = State::left;
        of_all_ -= static_cast<size_t>(std::ranges::count(states_, State::left));
    }

    /// Of runs that have yet to finish: in hours of runs the last should not fail for want of a file.
    void check_inputs() const {
        std::map<std::string, std::string> missing;
        for (size_t i = 0; i < states_.size(); ++i) {
            if (states_[i] != State::waiting) continue;
            for (std::string const& path : inputs_of(study_.runs[i]))
                if (!files_.exists(path)) missing.try_emplace(path, study_.runs[i].name);
        }
        std::string text;
        for (auto const& [path, run] : missing)
            text += fmt::format("{}{} is not there: {} reads it", text.empty() ? "" : "\n", path, run);
        if (!text.empty()) fail(Category::config, "{}", text);
    }

    /// False where nothing can be started now. A run's evaluations come before other runs: a study that ends early has
    /// whole runs.
    bool start_next() { return start_first(true) || start_first(false); }

    bool start_first(bool evaluates) {
        for (size_t i = 0; i < states_.size(); ++i) {
            if (states_[i] != State::waiting || study_.runs[i].evaluates != evaluates) continue;
            auto const before = study_.runs[i].before;
            if (before && states_[*before] == State::failed) {
                states_[i] = State::failed;
                progress_.failures.push_back(
                    {study_.runs[i].name, 0, "not started: " + study_.runs[*before].name + " failed"});
                continue;
            }
            if (before && states_[*before] != State::finished) continue;
            if (study_.runs[i].evaluates && is_evaluated(*before)) continue;  // one at a time adds to a run's records
            start(i);
            return true;
        }
        return false;
    }

    bool is_evaluated(size_t run) const {
        return std::ranges::any_of(children_, [&](auto const& child) {
            Run const& other = study_.runs[child.second.run];
            return other.evaluates && other.before == run;
        });
    }

    /// A run and its evaluations have one.
    Path lock_of(Run const& run) const { return study_.file(run.evaluates ? study_.runs[*run.before] : run, ".lock"); }

    /// Nothing where another study has started the run, which is then a failure of this one.
    std::unique_ptr<FileLock> locked(size_t i) {
        Run const& run = study_.runs[i];
        try {
            return files_.lock(lock_of(run), fmt::format("process {} on {}", getpid(), host_name()));
        } catch (LockedError const& error) {
            states_[i] = State::failed;
            progress_.failures.push_back(
                {run.name, 0, fmt::format("not started: another study is running it ({})", error.holder())});
            return nullptr;
        }
    }

    void start(size_t i) {
        Run const& run = study_.runs[i];
        std::unique_ptr<FileLock> lock = locked(i);
        if (!lock) return;
        if (is_finished(study_, run, files_)) {  // another study was here meanwhile
            states_[i] = State::finished;
            ++finished_;
            files_.remove_all(lock_of(run));
            return;
        }
        write_options(run);
        std::vector<std::string> words{options_.program.string(), run.evaluates ? "eval" : "train",
                                       study_.file(run, ".yaml").string()};
        words.insert(words.end(), run.overrides.begin(), run.overrides.end());
        Path const checkpoints = checkpoint_root(study_.folder(run));
        if (run.evaluates || (files_.exists(checkpoints) && !step_folders(files_, checkpoints).empty()))
            words.emplace_back("checkpoint.resume=auto");
        std::string const out = study_.file(run, ".out").string();
        size_t const slot = free_slots_.back();
        pid_t const parent = getpid(), pid = fork();
        if (pid < 0) fail(Category::internal, "cannot start a process: {}", std::strerror(errno));
        if (pid == 0) become(words, out, slot, parent);
        free_slots_.pop_back();
        states_[i] = State::running;
        children_.emplace(pid, Child{i, slot, Clock::now(), std::move(lock)});
        say("{} started", run.name);
    }

    /// In the child, which never comes back. A run whose study dies is told to save.
    [[noreturn]] void become(std::vector<std::string>& words, std::string const& out, size_t slot, pid_t parent) {
        setpgid(0, 0);  // what the terminal sends to the study is the study's to pass on
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        signals_.release();
        int const file = ::open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
        if (file < 0 || dup2(file, STDOUT_FILENO) < 0 || dup2(file, STDERR_FILENO) < 0) _exit(1);
        if (!options_.gpus.empty()) setenv("CUDA_VISIBLE_DEVICES", options_.gpus[slot].c_str(), 1);
        become_program(words, parent);
    }

    void stop() {
        progress_.stopped = true;
        say("stopping: {} runs save their state", children_.size());
        for (auto const& [pid, child] : children_) kill(pid, SIGTERM);
    }

    void collect() {
        for (auto it = children_.begin(); it != children_.end();) {
            int status = 0;
            if (waitpid(it->first, &status, WNOHANG) != it->first) {
                ++it;
                continue;
            }
            free_slots_.push_back(it->second.slot);
            judge(it->second, WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
            files_.remove_all(lock_of(study_.runs[it->second.run]));
            it = children_.erase(it);
        }
    }

    void judge(Child const& child, int code) {
        Run const& run = study_.runs[child.run];
        double const seconds = std::chrono::duration<double>(Clock::now() - child.began).count();
        if (code == 0) {
            files_.replace_text(study_.file(run, ".finished"), "");
            states_[child.run] = State::finished;
            say("{} finished after {:.1f} s ({} of {})", run.name, seconds, ++finished_, of_all_);
        } else if (code == kExitPreempted || (progress_.stopped && code == -SIGTERM)) {
            states_[child.run] = State::stopped;
            say("{} stopped", run.name);
        } else {
            states_[child.run] = State::failed;
            progress_.failures.push_back({run.name, code, last_words(files_, study_.file(run, ".out"))});
            say("{} FAILED after {:.1f} s", run.name, seconds);
        }
    }

    template <class... Args>
    static void say(fmt::format_string<Args...> format, Args&&... args) {
        fmt::print("{}\n", fmt::format(format, std::forward<Args>(args)...));
        std::fflush(stdout);
    }

    Study const& study_;
    RunnerOptions const& options_;
    FileSystem& files_;
    HeldSignals signals_;
    Clock::time_point began_ = Clock::now();
    std::vector<State> states_;
    std::vector<size_t> free_slots_;
    std::map<pid_t, Child> children_;
    size_t finished_ = 0, of_all_ = study_.runs.size();
    Progress progress_;
};

}  // namespace

bool is_finished(Study const& study, Run const& run, FileSystem const& files) {
    return files.exists(study.file(run, ".finished"));
}

Progress run_all(Study const& study, RunnerOptions const& options, FileSystem& files) {
    return Runner(study, options, files).run();
}

}  // namespace perigee::study
