// A conversation with a trained model, message after message. Keys and values of what was said are kept, so that each
// answer costs its own tokens and those of the message before it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "train/prompt_encoder.h"
#include "train/text_model.h"

namespace perigee {

class Conversation {
  public:
    /// Begins with generate.system, where that is not empty. Throws Category::config without a chat template.
    Conversation(Session& session, RunState const& state);

    struct Reply {
        std::string text;
        int64_t prompt_tokens = 0;  ///< of the conversation up to the answer
        int64_t kept_tokens = 0;    ///< those of them whose keys and values were still there
    };
    /// Answers the message and hands the text to `sink` as it comes, in whole characters. Ends early, with what there
    /// is, when `go_on`, which is asked before each token, says no. Throws Category::data, and the message counts as
    /// not said, where the template cannot write it or max_position_embeddings leave no room for an answer.
    Reply answer(std::string const& message, std::function<void(std::string const&)> const& sink,
                 std::function<bool()> const& go_on);
    /// Begins anew.
    void forget();

  private:
    std::vector<int32_t> prompt(std::string const& message);

    Session& session_;
    PromptEncoder encoder_;
    TextModel model_;
    std::vector<Message> messages_;
    int64_t answers_ = 0;
};

}  // namespace perigee
