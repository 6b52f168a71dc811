// The text of one answer as a client sees it, and the log-probabilities that go with it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "data/tokenizer.h"
#include "serve/request.h"
#include "train/ending.h"

namespace perigee::serve {

/// Cuts text at the first of some texts; holds back what may be the beginning of one.
class StopTexts {
  public:
    explicit StopTexts(std::vector<std::string> stops) : stops_(std::move(stops)) {}
    /// What may be shown by now.
    std::string push(std::string const& text);
    /// What was held back.
    std::string finish() { return std::exchange(held_, {}); }
    bool found() const { return found_; }

  private:
    std::vector<std::string> stops_;
    std::string held_;
    bool found_ = false;
};

/// A token as the API reports it.
struct ReportedToken {
    std::string text;               ///< bytes
    std::optional<double> logprob;  ///< none for the first token of a text
    std::vector<std::pair<std::string, double>> top = {};
    int64_t offset = 0;  ///< characters before it
};

/// Log-probabilities of a prompt: of each token but the first, and the likeliest ids at every place, also after the
/// last token.
struct PromptScores {
    std::vector<double> logprobs;
    std::vector<std::vector<TokenLogprob>> top;
};

class Choice {
  public:
    Choice(ServedRequest const& request, ServedPrompt const& prompt, Tokenizer const& tokenizer);
    Choice(Choice const&) = delete;
    Choice& operator=(Choice const&) = delete;

    void add(PromptScores const& scores);
    void add(GeneratedToken const& token);
    /// Ends here, whatever is still to come.
    void end(Finish finish);

    std::optional<Finish> const& finish() const { return finish_; }
    /// Log-probabilities of the prompt are wanted and have not come.
    bool lacks_scores() const { return request_.scores_prompt() && !scored_; }
    int64_t tokens() const { return tokens_; }
    /// What has come since the last call: text, an echo first, and tokens where log-probabilities are wanted.
    std::string take_text() { return std::exchange(text_, {}); }
    std::vector<ReportedToken> take_tokens() { return std::exchange(reported_, {}); }

  private:
    void report(int32_t id, bool shown, std::optional<double> logprob, std::vector<TokenLogprob> const& top);
    /// Counts the characters of a token that the text shows; returns how many come before it.
    int64_t count(int32_t id, bool shown);
    void release(std::string const& text);

    ServedRequest const& request_;
    ServedPrompt const& prompt_;
    Tokenizer const& tokenizer_;
    StreamDecoder shown_;  ///< text without what ends it
    StopTexts stops_;
    Ending ending_;
    std::string text_;
    std::vector<ReportedToken> reported_;
    int64_t characters_ = 0;  ///< of the reported tokens, whole ones
    std::string begun_;       ///< bytes after them: the start of a character
    int64_t tokens_ = 0;
    bool scored_ = false;  ///< its prompt
    std::optional<Finish> finish_;
};

}  // namespace perigee::serve
