// The answer to a request, in the shape of OpenAI's API: as one JSON object, or as server-sent events.
#pragma once

#include <deque>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "serve/choice.h"
#include "serve/queue.h"

namespace perigee::serve {

/// Follows the events of a request. One thread.
class Answer {
  public:
    /// `id` tells requests apart, `created` is in seconds since 1970.
    Answer(ServedRequest request, Tokenizer const& tokenizer, std::string const& id, int64_t created);

    /// The tasks of the request: choice c of prompt p is number p * choices + c.
    std::vector<Task> tasks(int64_t most_tokens) const;

    /// Takes an event, and returns what is to be sent for it: nothing for answers that are not streamed.
    std::string add(Event const& event);
    /// The time of the request is over: what there is counts as its answers. Without the log-probabilities of a prompt
    /// it has failed: a client would add up none.
    std::string end_now();
    bool complete() const;
    bool complete(size_t task) const { return choices_[task].finish().has_value(); }
    /// Then what is sent at last is an error.
    bool failed() const { return !failure_.empty(); }
    /// What is sent at last.
    std::string finish();

  private:
    std::string events_of(size_t choice);
    nlohmann::ordered_json frame(bool chunk) const;
    nlohmann::ordered_json usage() const;

    ServedRequest const request_;
    std::string const id_;
    int64_t const created_;
    struct Part {
        std::string text;
        std::vector<ReportedToken> tokens;
        bool begun = false, ended = false;  ///< in the stream
    };
    std::deque<Choice> choices_;
    std::vector<Part> parts_;
    std::string failure_;
};

}  // namespace perigee::serve
