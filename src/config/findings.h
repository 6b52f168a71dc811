// Everything wrong with one source of configuration, collected instead of thrown, so that all of it is reported at
// once, and the name somebody probably meant.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace perigee {

/// Line and column, both from 1; columns count bytes.
struct Place {
    int line = 1;
    int column = 1;
};

class Findings {
  public:
    /// `source` opens every message: a file's name, followed there by the place, or "command line: 'seed=x'".
    enum class Places { shown, hidden };
    Findings(std::string source, Places places) : source_(std::move(source)), places_(places) {}

    void add(Place place, std::string sentence);
    /// Nothing more will be kept: a hostile file must not cost minutes of finding out what else is wrong with it.
    bool full() const { return found_.size() >= kMost; }
    bool empty() const { return found_.empty(); }
    /// One line per finding, in the order of their places.
    std::vector<std::string> lines() const;

  private:
    static constexpr size_t kMost = 100;
    struct Finding {
        Place place;
        std::string sentence;
    };
    std::string source_;
    Places places_;
    std::vector<Finding> found_;
};

/// The nearest of `known` within two edits (letter case and - for _ are free), or one that `name` begins, or that
/// begins `name`; empty when nothing is near.
std::string nearest(std::string_view name, std::vector<std::string> const& known);

}  // namespace perigee
