// What a fuzz target provides and uses. A target tests/fuzz/<name>_fuzz.cc defines LLVMFuzzerTestOneInput and
// fuzz_seeds(); `<name>_fuzz --write-seeds FOLDER` writes the latter as files, so that no binary input is committed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace perigee::testing {

/// Valid inputs to start from, made by code.
std::vector<std::string> fuzz_seeds();

/// Runs `action` on hostile input: it may succeed or refuse with an Error for the user. A broken promise of our own
/// (Category::internal) and every other exception end the process, which libFuzzer reports as a crash.
template <class Action>
void may_refuse(Action&& action) {
    try {
        action();
    } catch (Error const& error) {
        if (error.category() == Category::internal) throw;
    }
}

/// Cuts an input that stands for several files: each but the last comes as a u16 length, little endian, and the bytes.
class Pieces {
  public:
    Pieces(uint8_t const* data, size_t size) : rest_(reinterpret_cast<char const*>(data), size) {}
    std::string next();
    std::string rest() const { return std::string(rest_); }
    /// The input that next(), ..., rest() cut into `pieces` again.
    static std::string join(std::vector<std::string> const& pieces);

  private:
    std::string_view rest_;
};

}  // namespace perigee::testing
