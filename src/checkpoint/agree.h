// How the ranks of a job succeed or fail together.
#pragma once

#include <exception>
#include <string>

#include "checkpoint/checkpoint.h"
#include "comm/host_comm.h"

namespace perigee {

/// Runs `action`, which must not communicate, on this rank. When it fails on any rank, every rank throws the first
/// failing rank's message, so that none waits for another: Category::memory where memory ran out, otherwise
/// Category::checkpoint, a DamagedError where damage is all that any rank met. Collective.
template <class Action>
void agree(HostComm& world, Action&& action) {
    constexpr char kDamage = 'd', kMemory = 'm', kOther = 'o';
    std::string error;  // its kind, then its message
    auto const note = [&](char kind, char const* what) {
        error = fmt::format("{}{}{}", kind, world.size() > 1 ? fmt::format("rank {}: ", world.rank()) : "", what);
    };
    try {
        action();
    } catch (DamagedError const& e) {
        note(kDamage, e.what());
    } catch (std::exception const& e) {
        Error const known = as_error(e);
        note(known.category() == Category::memory ? kMemory : kOther, known.what());
    }
    std::string damage;
    for (std::string const& text : world.gather_text(error)) {
        if (text.empty()) continue;
        if (text.front() == kMemory) throw OutOfMemory(text.substr(1));
        if (text.front() == kOther) throw Error(Category::checkpoint, text.substr(1));
        if (damage.empty()) damage = text.substr(1);
    }
    if (!damage.empty()) throw DamagedError(damage);
}

}  // namespace perigee
