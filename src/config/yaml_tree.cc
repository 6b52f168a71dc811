#include "config/yaml_tree.h"

#include <fmt/format.h>
#include <yaml-cpp/anchor.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <sstream>
#include <string_view>
#include <unordered_map>

namespace perigee {
namespace {

struct Refused {
    Place place;
    std::string sentence;
};

Place place_of(YAML::Mark const& mark) { return mark.is_null() ? Place{} : Place{mark.line + 1, mark.column + 1}; }

/// Bytes of the UTF-8 sequence at text[i], 0 when there is none.
size_t utf8_length(std::string_view text, size_t i) {
    auto const byte = [&](size_t k) { return k < text.size() ? static_cast<unsigned char>(text[k]) : 0u; };
    unsigned const first = byte(i);
    size_t const length = first < 0x80                    ? 1
                          : first >= 0xC2 && first < 0xE0 ? 2
                          : first >= 0xE0 && first < 0xF0 ? 3
                          : first >= 0xF0 && first < 0xF5 ? 4
                                                          : 0;
    for (size_t k = 1; k < length; ++k) {
        if ((byte(i + k) & 0xC0) != 0x80) return 0;
    }
    bool const overlong = (first == 0xE0 && byte(i + 1) < 0xA0) || (first == 0xF0 && byte(i + 1) < 0x90);
    bool const surrogate = first == 0xED && byte(i + 1) >= 0xA0;
    bool const too_large = first == 0xF4 && byte(i + 1) >= 0x90;
    return overlong || surrogate || too_large ? 0 : length;
}

bool is_control(char c) {
    auto const byte = static_cast<unsigned char>(c);
    return (byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7F;
}

/// The text without two things that yaml-cpp gets wrong: it takes the carriage return of a Windows line end for a part
/// of the value, and a quote that is never closed for one closed at the end of the text, unless a document end follows.
std::string prepared(std::string_view text) {
    std::string result;
    result.reserve(text.size());
    for (size_t i = 0; i < text.size(); ++i) {
        if (!text.substr(i).starts_with("\r\n")) result += text[i];
    }
    if (!result.ends_with('\n')) result += '\n';
    return result + "...\n";
}

/// What yaml-cpp would misread or not complain about, line by line before parsing.
void check_characters(std::string_view text) {
    if (text.starts_with("\xEF\xBB\xBF"))
        throw Refused{{}, "starts with a byte-order mark; save it as UTF-8 without one"};
    if (text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF"))
        throw Refused{{}, "starts with the byte-order mark of UTF-16; save it as UTF-8"};
    Place at;
    bool indentation = true;
    for (size_t i = 0; i < text.size();) {
        char const c = text[i];
        size_t const length = utf8_length(text, i);
        if (length == 0) throw Refused{at, fmt::format("byte {:#04x} is not UTF-8", static_cast<unsigned char>(c))};
        if (is_control(c)) {
            throw Refused{at, fmt::format("control character {:#04x} is not allowed", static_cast<unsigned char>(c))};
        }
        if (c == '\t' && indentation) throw Refused{at, "a tab in the indentation; YAML wants spaces"};
        indentation = c == '\n' || (indentation && c == ' ');
        at = c == '\n' ? Place{at.line + 1, 1} : Place{at.line, at.column + static_cast<int>(length)};
        i += length;
    }
}

class TreeBuilder : public YAML::EventHandler {
  public:
    std::shared_ptr<YamlNode const> root() const { return root_ ? root_ : std::make_shared<YamlNode>(); }

    void OnDocumentStart(YAML::Mark const& mark) override {
        if (++documents_ > 1) throw Refused{place_of(mark), "the document ended before this line; only one is allowed"};
    }
    void OnDocumentEnd() override {}
    void OnNull(YAML::Mark const& mark, YAML::anchor_t anchor) override {
        place_node(make(YamlNode::Kind::null, mark, "?"), anchor);
    }
    void OnAlias(YAML::Mark const& mark, YAML::anchor_t anchor) override {
        if (++aliases_ > kMaxYamlAliases)
            throw Refused{place_of(mark), fmt::format("more than {} aliases", kMaxYamlAliases)};
        auto const found = anchors_.find(anchor);
        if (found == anchors_.end()) throw Refused{place_of(mark), "an alias inside the node it stands for"};
        place_node(found->second, YAML::NullAnchor);
    }
    void OnScalar(YAML::Mark const& mark, std::string const& tag, YAML::anchor_t anchor,
                  std::string const& value) override {
        auto node = make(YamlNode::Kind::scalar, mark, tag);
        node->text = value;
        node->quoted = tag == "!";
        place_node(node, anchor);
    }
    void OnSequenceStart(YAML::Mark const& mark, std::string const& tag, YAML::anchor_t anchor,
                         YAML::EmitterStyle::value) override {
        open(make(YamlNode::Kind::list, mark, tag), anchor);
    }
    void OnSequenceEnd() override { close(); }
    void OnMapStart(YAML::Mark const& mark, std::string const& tag, YAML::anchor_t anchor,
                    YAML::EmitterStyle::value) override {
        open(make(YamlNode::Kind::map, mark, tag), anchor);
    }
    void OnMapEnd() override { close(); }

  private:
    using Node = std::shared_ptr<YamlNode>;
    struct Open {
        Node node;
        YAML::anchor_t anchor;
        std::shared_ptr<YamlNode const> key;  ///< of a mapping, waiting for its value
    };

    static Node make(YamlNode::Kind kind, YAML::Mark const& mark, std::string const& tag) {
        if (!tag.empty() && tag != "?" && tag != "!")
            throw Refused{place_of(mark), fmt::format("tags are not supported, found {}", tag)};
        auto node = std::make_shared<YamlNode>();
        node->kind = kind;
        node->place = place_of(mark);
        return node;
    }
    void open(Node node, YAML::anchor_t anchor) {
        if (open_.size() >= kMaxYamlDepth)
            throw Refused{node->place, fmt::format("nested more than {} levels deep", kMaxYamlDepth)};
        open_.push_back({std::move(node), anchor, nullptr});
    }
    void close() {
        Open const done = std::move(open_.back());
        open_.pop_back();
        place_node(done.node, done.anchor);
    }
    void place_node(std::shared_ptr<YamlNode const> node, YAML::anchor_t anchor) {
        if (anchor != YAML::NullAnchor) anchors_[anchor] = node;
        if (open_.empty()) {
            root_ = std::move(node);
        } else if (Open& parent = open_.back(); parent.node->kind == YamlNode::Kind::list) {
            parent.node->items.push_back(std::move(node));
        } else if (!parent.key) {
            if (node->kind == YamlNode::Kind::scalar && !node->quoted && node->text == "<<")
                throw Refused{node->place, "merge keys (<<) are not supported; write the keys out"};
            parent.key = std::move(node);
        } else {
            // yaml-cpp places a value that is not there where the next token stands.
            if (node->kind == YamlNode::Kind::null && node->place.line != parent.key->place.line) {
                auto missing = std::make_shared<YamlNode>(*node);
                missing->place = parent.key->place;
                node = std::move(missing);
            }
            parent.node->entries.emplace_back(std::move(parent.key), std::move(node));
            parent.key = nullptr;
        }
    }

    std::shared_ptr<YamlNode const> root_;
    std::vector<Open> open_;
    std::unordered_map<YAML::anchor_t, std::shared_ptr<YamlNode const>> anchors_;
    int documents_ = 0;
    int aliases_ = 0;
};

}  // namespace

std::shared_ptr<YamlNode const> parse_yaml(std::string const& text, Findings& findings) {
    try {
        if (text.size() > kMaxYamlBytes)
            throw Refused{{}, fmt::format("has more than {} bytes, the most a configuration may have", kMaxYamlBytes)};
        std::string const lines = prepared(text);
        check_characters(lines);
        std::istringstream stream(lines);
        YAML::Parser parser(stream);
        TreeBuilder builder;
        while (parser.HandleNextDocument(builder)) {
        }
        return builder.root();
    } catch (Refused const& refused) {
        findings.add(refused.place, refused.sentence);
    } catch (YAML::Exception const& error) {
        bool const unclosed = error.msg == YAML::ErrorMsg::DOC_IN_SCALAR;
        // yaml-cpp 0.8 names the anchor, 0.7 does not: one sentence for both.
        bool const undefined = error.msg.starts_with("the referenced anchor is not defined");
        findings.add(place_of(error.mark), fmt::format("not valid YAML: {}", unclosed ? "a quote before is not closed"
                                                                             : undefined ? "this anchor is not defined"
                                                                                         : error.msg.c_str()));
    }
    return nullptr;
}

}  // namespace perigee
