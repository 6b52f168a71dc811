#include "train/failure.h"

#include <fmt/chrono.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include <cstdio>
#include <ctime>

namespace perigee {

namespace {

constexpr std::string_view kPrefix = "failure_rank_";

}  // namespace

char const* to_string(Section section) noexcept {
    switch (section) {
        case Section::setup:
            return "setup";
        case Section::first_step:
            return "first_step";
        case Section::step:
            return "step";
        case Section::save:
            return "save";
        case Section::eval:
            return "eval";
    }
    return "unknown";
}

std::string host_name() {
    char name[256] = "?";
    ::gethostname(name, sizeof name - 1);
    return name;
}

void write_failure(FileSystem& files, Path const& folder, RankStatus const& status, Category category,
                   std::string const& message) noexcept {
    try {
        NumberedCollective const last = status.waits_in().sequence > 0 ? status.waits_in() : status.begun.load();
        nlohmann::ordered_json const object = {
            {"category", to_string(category)},
            {"message", message},
            {"rank", status.rank.load()},
            {"section", to_string(static_cast<Section>(status.section.load()))},
            {"step", status.step.load()},
            {"collective", to_string(last.collective)},
            {"axis", to_string(last.axis)},
            {"sequence", last.sequence},
            {"inside_collective", status.waits_in().sequence > 0},
            {"host", host_name()},
            {"pid", status.pid.load()},
            {"time", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)))},
        };
        std::string const text =
            object.dump(2, ' ', /*ensure_ascii=*/false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
        files.replace_text(folder / fmt::format("{}{}.json", kPrefix, status.rank.load()), text);
    } catch (std::exception const& e) {
        std::fprintf(stderr, "perigee: warning: no failure file: %s\n", e.what());
    }
}

void remove_failures(FileSystem& files, Path const& folder) noexcept {
    try {
        // As FileSystem::temporary_of() has it: of a rank that was killed while it wrote.
        constexpr size_t kDigits = 8;
        std::string const temporary = fmt::format(".{}", kPrefix);
        for (std::string const& name : files.list(folder))
            if (name.starts_with(kPrefix) || name.find(temporary) == kDigits) files.remove_all(folder / name);
    } catch (std::exception const& e) {
        std::fprintf(stderr, "perigee: warning: an old failure file stays: %s\n", e.what());
    }
}

}  // namespace perigee
