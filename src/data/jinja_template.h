// The Jinja chat template of a tokenizer folder, and the process that renders it.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "data/chat_template.h"
#include "data/helper_process.h"
#include "data/tokenizer.h"
#include "io/file_system.h"

namespace perigee {

struct JinjaTemplate {
    std::string text;
    std::string source;                          ///< path of the file it was found in
    std::string tools_text;                      ///< for conversations with tools, where the folder has one apart
    std::map<std::string, std::string> special;  ///< names of special tokens that templates may use: "bos_token"
};

/// The template that `options` or the folder of `tokenizer` (a name as data.tokenizer has it) name; nothing where there
/// is none. In the folder: chat_template.jinja, chat_template.json, else chat_template in tokenizer_config.json, a text
/// or a list of named ones. Throws Category::config.
std::optional<JinjaTemplate> find_jinja_template(FileSystem& files, std::string const& tokenizer,
                                                 JinjaOptions const& options);

/// `options` with `automatic` decided: it stays where the folder has a template, and becomes none elsewhere.
ChatOptions resolved(FileSystem& files, std::string const& tokenizer, ChatOptions options);

/// The day that templates are told: options.date or today.
std::string day_of(JinjaOptions const& options);

/// Renders conversations in a helper process. Names of special tokens that users wrote hold kGuard in the texts. One
/// thread at a time.
class JinjaRenderer {
  public:
    static constexpr std::chrono::milliseconds kPatience{60000};

    /// `names`: of special tokens. Throws Category::config where Python or jinja2 is missing or the template is none.
    JinjaRenderer(JinjaTemplate const& chat, bool with_tools, JinjaOptions const& options,
                  std::vector<std::string> const& names, std::chrono::milliseconds patience = kPatience);

    /// Its helper has ended; everything that asks it throws.
    bool ended() const { return helper_.ended(); }
    /// What ends an answer, as text; may be empty.
    std::string const& stop() const { return stop_; }
    /// What the template writes around short messages of all kinds.
    std::string const& frame() const { return frame_; }
    /// What the template writes before an answer that is to be generated; may be empty.
    std::string const& opening() const { return opening_; }

    struct Answer {
        size_t message = 0, begin = 0, end = 0;  ///< bytes of the text, its end included
    };
    struct Document {
        std::string text;
        size_t messages = 0;  ///< as many from the first on
        std::vector<Answer> answers;
    };
    struct Rendered {
        std::string problem;  ///< empty where all is well
        std::vector<Document> documents;
        int64_t rewritten = 0;          ///< answers that the whole conversation shows otherwise
        int64_t without_reasoning = 0;  ///< answers whose reasoning the template leaves out
    };
    struct Request {
        std::string messages_json, tools_json;  ///< as in a ConversationLine
        std::vector<size_t> wanted;             ///< answers to look for
        bool whole = false;                     ///< one document of all messages, whatever JinjaOptions::rewritten says
    };
    std::vector<Rendered> documents(std::vector<Request> const& requests);

    /// The whole text; nothing where the template does not take these messages.
    std::optional<std::string> text(std::string const& messages_json, std::string const& tools_json);
    /// The text that generation starts from. Throws Category::data with the template's own words.
    std::string prompt(std::string const& messages_json, std::string const& tools_json);

  private:
    /// The helper's answer to what is asked of one conversation.
    std::string asked(char const* what, std::string const& messages_json, std::string const& tools_json);

    HelperProcess helper_;
    bool split_;
    std::string stop_, frame_, opening_;
};

}  // namespace perigee
