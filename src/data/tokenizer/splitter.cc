#include "data/tokenizer/splitter.h"

#include "base/error.h"

namespace perigee {

namespace {

/// Joins the matches and what lies between them, which arrive in order, as the behavior says.
class Joiner {
  public:
    Joiner(MatchBehavior behavior, Splitter::Use const& use) : behavior_(behavior), use_(use) {}

    void add(std::string_view piece, bool is_match) {
        if (piece.empty()) return;
        if (!pending_.empty() && joins(is_match)) {
            pending_ = {pending_.data(), pending_.size() + piece.size()};
        } else {
            flush();
            if (behavior_ != MatchBehavior::removed || !is_match) pending_ = piece;
        }
        last_is_match_ = is_match;
    }
    void flush() {
        if (!pending_.empty()) use_(pending_);
        pending_ = {};
    }

  private:
    bool joins(bool is_match) const {
        switch (behavior_) {
            case MatchBehavior::merged_with_previous:
                return is_match && !last_is_match_;
            case MatchBehavior::merged_with_next:
                return !is_match && last_is_match_;
            case MatchBehavior::contiguous:
                return is_match == last_is_match_;
            case MatchBehavior::removed:
            case MatchBehavior::isolated:
                break;
        }
        return false;
    }

    MatchBehavior behavior_;
    Splitter::Use const& use_;
    std::string_view pending_;
    bool last_is_match_ = false;
};

}  // namespace

void Splitter::cut(std::string_view text, size_t step, Regex::Scratch& scratch, Use const& use) const {
    if (step == steps_.size()) {
        if (!text.empty()) use(text);
        return;
    }
    bool const last = step + 1 == steps_.size();
    Use const cut_further = [&](std::string_view piece) { cut(piece, step + 1, scratch, use); };
    auto const& [regex, behavior, invert] = steps_[step];
    Joiner joiner(behavior, last ? use : cut_further);
    size_t done = 0;
    while (done < text.size()) {
        auto const match = regex.find(text, done, scratch);
        if (!match) break;
        joiner.add(text.substr(done, match->begin - done), invert);
        joiner.add(text.substr(match->begin, match->end - match->begin), !invert);
        done = match->end;
    }
    joiner.add(text.substr(done), invert);
    joiner.flush();
}

}  // namespace perigee
