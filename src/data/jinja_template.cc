#include "data/jinja_template.h"

#include <array>
#include <ctime>
#include <nlohmann/json.hpp>

#include "data/helpers/scripts.h"
#include "io/strict_json.h"

namespace perigee {

namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr int64_t kMaxFileBytes = int64_t{16} << 20;
constexpr int kMaxTemplateDepth = 64;
constexpr char kJinjaFile[] = "chat_template.jinja", kJsonFile[] = "chat_template.json",
               kConfigFile[] = "tokenizer_config.json", kSpecialFile[] = "special_tokens_map.json";

OrderedJson read_ordered(FileSystem& files, Path const& path) {
    if (!files.exists(path)) return OrderedJson::object();
    std::string const text = files.read_text(path, kMaxFileBytes);
    check_json(text, path.string(), Category::config, kMaxTemplateDepth);
    OrderedJson object = OrderedJson::parse(text);
    if (!object.is_object()) fail(Category::config, "{}: not a JSON object", path.string());
    return object;
}

/// A text, or an object of a token.
std::optional<std::string> token_text(OrderedJson const& token) {
    if (token.is_string()) return token.get<std::string>();
    if (token.is_object() && token.contains("content") && token["content"].is_string())
        return token["content"].get<std::string>();
    return std::nullopt;
}

std::map<std::string, std::string> special_tokens(FileSystem& files, Path const& folder) {
    std::map<std::string, std::string> found;
    for (char const* const file : {kSpecialFile, kConfigFile}) {  // what the second says holds
        OrderedJson const object = read_ordered(files, folder / file);
        for (auto const& [key, value] : object.items())
            if (auto const text = token_text(value); text && key.ends_with("_token")) found[key] = *text;
    }
    return found;
}

/// What a file has under "chat_template": the one text, or those that are named.
struct Named {
    std::map<std::string, std::string> texts;
    std::string names() const {
        std::string all;
        for (auto const& [name, unused] : texts) all += (all.empty() ? "" : ", ") + name;
        return all;
    }
};

Named named_templates(OrderedJson const& value, Path const& path) {
    Named found;
    if (value.is_string()) found.texts["default"] = value;
    if (value.is_array())
        for (OrderedJson const& one : value) {
            if (!one.is_object() || !one.contains("name") || !one.contains("template") || !one["name"].is_string() ||
                !one["template"].is_string())
                fail(Category::config, "{}: chat_template: a list must have objects of \"name\" and \"template\"",
                     path.string());
            found.texts[one["name"]] = one["template"];
        }
    return found;
}

struct Found {
    Named named;
    Path path;
};

Found templates_of(FileSystem& files, Path const& folder) {
    if (Path const path = folder / kJinjaFile; files.exists(path)) {
        Found found{{{{"default", files.read_text(path, kMaxFileBytes)}}}, path};
        Path const more = folder / "additional_chat_templates";
        if (files.exists(more))
            for (std::string const& name : files.list(more))
                if (name.ends_with(".jinja"))
                    found.named.texts[Path(name).stem().string()] = files.read_text(more / name, kMaxFileBytes);
        return found;
    }
    for (char const* const name : {kJsonFile, kConfigFile}) {
        OrderedJson const object = read_ordered(files, folder / name);
        if (object.contains("chat_template"))
            if (Named const named = named_templates(object["chat_template"], folder / name); !named.texts.empty())
                return {named, folder / name};
    }
    return {};
}

Path folder_of(FileSystem& files, std::string const& tokenizer) {
    return files.is_directory(tokenizer) ? Path(tokenizer) : Path(tokenizer).parent_path();
}

/// The answer to the first line, as an object.
OrderedJson parsed(std::string const& line) {
    OrderedJson const answer = OrderedJson::parse(line, nullptr, /*allow_exceptions=*/false);
    PERIGEE_CHECK(answer.is_object(), "a helper's answer: {:.80}", line);
    return answer;
}

}  // namespace

std::optional<JinjaTemplate> find_jinja_template(FileSystem& files, std::string const& tokenizer,
                                                 JinjaOptions const& options) {
    bool const has_folder = tokenizer != "bytes" && files.exists(tokenizer);
    JinjaTemplate chat;
    if (has_folder) chat.special = special_tokens(files, folder_of(files, tokenizer));
    if (!options.file.empty()) {
        if (!files.exists(options.file)) fail(Category::config, "chat.jinja.file: {}: no such file", options.file);
        chat.text = files.read_text(options.file, kMaxFileBytes);
        chat.source = options.file;
        return chat;
    }
    if (!has_folder) return std::nullopt;
    auto [named, path] = templates_of(files, folder_of(files, tokenizer));
    auto& texts = named.texts;
    if (!options.name.empty() && !texts.contains(options.name))
        fail(Category::config, "chat.jinja.name: {} has no template \"{}\"; {}", tokenizer, options.name,
             texts.empty() ? "it has none at all" : fmt::format("there are: {}", named.names()));
    if (texts.empty()) return std::nullopt;
    std::string const name = !options.name.empty() ? options.name : "default";
    if (!texts.contains(name))
        fail(Category::config, "{}: no template is named default; chat.jinja.name takes one of: {}", path.string(),
             named.names());
    chat.text = texts[name];
    chat.source = path.string();
    if (options.name.empty() && texts.contains("tool_use")) chat.tools_text = texts["tool_use"];
    return chat;
}

ChatOptions resolved(FileSystem& files, std::string const& tokenizer, ChatOptions options) {
    if (options.format == ChatFormat::automatic && !find_jinja_template(files, tokenizer, options.jinja))
        options.format = ChatFormat::none;
    return options;
}

std::string day_of(JinjaOptions const& options) {
    if (!options.date.empty()) return options.date;
    std::time_t const now = std::time(nullptr);
    std::tm day{};
    ::localtime_r(&now, &day);
    std::array<char, 16> text{};
    std::strftime(text.data(), text.size(), "%Y-%m-%d", &day);
    return text.data();
}

JinjaRenderer::JinjaRenderer(JinjaTemplate const& chat, bool with_tools, JinjaOptions const& options,
                             std::vector<std::string> const& names, std::chrono::milliseconds patience)
    : helper_({.what = "the helper that renders chat templates", .script = kRenderChatScript, .patience = patience}),
      split_(options.rewritten == Rewritten::split) {
    OrderedJson const setting{{"template", with_tools && !chat.tools_text.empty() ? chat.tools_text : chat.text},
                              {"special", chat.special},
                              {"arguments", OrderedJson::parse(options.arguments)},
                              {"date", day_of(options)},
                              {"names", names},
                              {"guard", kGuard}};
    OrderedJson const answer = parsed(helper_.ask({setting.dump()})[0]);
    if (answer.contains("missing"))
        fail(Category::config, "{}; or set chat.template to another one",
             missing_module(helper_, answer["missing"], "install python3-jinja2"));
    if (answer.contains("error"))
        fail(Category::config, "{}: {}", chat.source, answer["error"].get_ref<std::string const&>());
    stop_ = answer["stop"];
    frame_ = answer["frame"];
    opening_ = answer["opening"];
}

std::vector<JinjaRenderer::Rendered> JinjaRenderer::documents(std::vector<Request> const& requests) {
    std::vector<std::string> lines;
    for (Request const& request : requests) {
        OrderedJson const rest{{"ask", "documents"}, {"wanted", request.wanted}, {"split", split_ && !request.whole}};
        std::string line = rest.dump();
        line.pop_back();
        line += ", \"messages\": " + request.messages_json;
        if (!request.tools_json.empty()) line += ", \"tools\": " + request.tools_json;
        lines.push_back(line + "}");
    }
    std::vector<Rendered> all;
    for (std::string const& line : helper_.ask(lines)) {
        OrderedJson const answer = parsed(line);
        Rendered& rendered = all.emplace_back();
        if (answer.contains("error")) {
            rendered.problem = answer["error"];
            continue;
        }
        rendered.rewritten = answer["rewritten"];
        rendered.without_reasoning = answer["without_reasoning"];
        for (OrderedJson const& document : answer["documents"]) {
            Document& made = rendered.documents.emplace_back();
            made.text = document["text"];
            made.messages = document["messages"];
            for (OrderedJson const& one : document["answers"]) made.answers.push_back({one[0], one[1], one[2]});
        }
    }
    return all;
}

std::string JinjaRenderer::asked(char const* what, std::string const& messages_json, std::string const& tools_json) {
    return helper_.ask({fmt::format("{{\"ask\": \"{}\", \"messages\": {}{}{}}}", what, messages_json,
                                    tools_json.empty() ? "" : ", \"tools\": ", tools_json)})[0];
}

std::optional<std::string> JinjaRenderer::text(std::string const& messages_json, std::string const& tools_json) {
    OrderedJson const answer = parsed(asked("text", messages_json, tools_json));
    if (answer.contains("error")) return std::nullopt;
    return answer["text"];
}

std::string JinjaRenderer::prompt(std::string const& messages_json, std::string const& tools_json) {
    OrderedJson const answer = parsed(asked("prompt", messages_json, tools_json));
    if (answer.contains("error")) fail(Category::data, "{}", answer["error"].get_ref<std::string const&>());
    return answer["text"];
}

}  // namespace perigee
