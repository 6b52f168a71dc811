#include <fmt/format.h>

#include "commands/view/view.h"
#include "curves/markup.h"
#include "train/progress.h"

namespace perigee::view {

namespace {

double percent(int64_t part, int64_t whole) {
    return whole > 0 ? 100 * static_cast<double>(part) / static_cast<double>(whole) : 0;
}

std::string loss_share(int64_t loss_tokens, int64_t tokens) {
    return fmt::format("{} of {} tokens with loss ({:.2f}%)", format_count(loss_tokens), format_count(tokens),
                       percent(loss_tokens, tokens));
}

std::string kind(Layer const& layer) { return layer.is_full ? "full" : "moba"; }

constexpr char kStyle[] = R"(
body{font:15px/1.6 system-ui,sans-serif;max-width:72em;margin:2em auto;padding:0 1em;color:#111827}
h1{font-size:1.4em}h2{font-size:1.1em;margin:2em 0 .4em}
table{border-collapse:collapse}td,th{padding:.1em 1em;text-align:right;border-bottom:1px solid #e5e7eb}
.d{font:13px/1.7 ui-monospace,monospace;border:1px solid #9ca3af;border-radius:6px;padding:.5em .7em;margin:.5em 0;white-space:pre-wrap;overflow-wrap:anywhere}
.b{color:#6b7280;border-left:2px solid #2563eb;padding:0 .4em;margin:0 .2em;font-size:11px}
.l{background:#fde047;border-radius:2px}.u{outline:1px dashed #9ca3af}
)";

constexpr char kGold[] = "\x1b[30;43m", kBlue[] = "\x1b[34m", kGrey[] = "\x1b[90m", kBold[] = "\x1b[1m",
               kPlain[] = "\x1b[0m";

/// One document on the terminal, a line per block.
class TerminalDocument {
  public:
    explicit TerminalDocument(bool color) : color_(color) {}

    std::string draw(std::vector<Token> const& tokens, bool known_depth) {
        int64_t block = -1;
        for (Token const& token : tokens) {
            if (token.block != block) {
                switch_to(Style::plain);
                text_ += fmt::format("{}{}{:>5} |{} ", block < 0 ? "" : "\n", color_ ? kBlue : "", token.block,
                                     color_ ? kPlain : "");
                block = token.block;
            }
            bool const lost = known_depth && token.depth == 0 && token.is_read;
            switch_to(token.weight > 0 ? Style::loss : lost ? Style::unreached : Style::plain);
            text_ += token.text;
        }
        switch_to(Style::plain);
        text_ += "\n";
        return std::move(text_);
    }

  private:
    enum class Style { plain, loss, unreached };
    void switch_to(Style style) {
        if (style == style_) return;
        if (color_) {
            text_ += kPlain;
            if (style != Style::plain) text_ += style == Style::loss ? kGold : kGrey;
        } else if (style == Style::loss || style_ == Style::loss) {
            text_ += style == Style::loss ? "[[" : "]]";
        }
        style_ = style;
    }

    bool color_;
    Style style_ = Style::plain;
    std::string text_;
};

std::string html_token(Token const& token, size_t layers) {
    std::string const reach = layers == 0      ? ""
                              : !token.is_read ? ", only predicted"
                              : token.depth > 0
                                  ? fmt::format(", gradient in the lowest {} of {} layers", token.depth, layers)
                                  : ", no gradient";
    double const opacity = layers == 0 || !token.is_read
                               ? 1
                               : 0.35 + 0.65 * static_cast<double>(token.depth) / static_cast<double>(layers);
    return fmt::format(R"(<span class="{}{}" style="opacity:{:.2f}" title="id {}, loss weight {:.4g}{}">{}</span>)",
                       token.weight > 0 ? "l" : "", token.is_read ? "" : " u", opacity, token.id, token.weight, reach,
                       escaped(token.text));
}

}  // namespace

std::string draw_terminal(View const& view, bool color) {
    auto const bold = [&](std::string const& text) {
        return color ? fmt::format("{}{}{}", kBold, text, kPlain) : text;
    };
    std::string text = bold(fmt::format("step {}: {}, loss weight {:.6g}", view.step,
                                        loss_share(view.loss_tokens, view.tokens), view.loss_weight));
    text += fmt::format("\n{}\n", view.data);
    if (!view.layers.empty()) text += fmt::format("gradient enters, with {}:\n", view.weights);
    for (size_t i = view.layers.size(); i-- > 0;)
        text += fmt::format("  layer {:>3} ({})  {:>12} tokens {:>7.2f}%\n", i, kind(view.layers[i]),
                            format_count(view.layers[i].reached), percent(view.layers[i].reached, view.tokens));
    text += fmt::format("tokens with loss: {}; a line per MoBA block of {} tokens\n",
                        color ? fmt::format("{}in colour{}", kGold, kPlain) : "in [[brackets]]", view.block_size);
    for (Sample const& sample : view.samples) {
        text += fmt::format(
            "\n{}\n", bold(fmt::format("sample {}: {}", sample.number, loss_share(sample.loss_tokens, sample.tokens))));
        for (size_t i = 0; i < sample.documents.size(); ++i) {
            text += fmt::format("-- document {} of {}\n", i + 1, sample.documents.size());
            text += TerminalDocument(color).draw(sample.documents[i], !view.layers.empty());
        }
    }
    return text;
}

std::string draw_html(View const& view) {
    std::string text = fmt::format(
        "<!doctype html>\n<meta charset=\"utf-8\"><title>step {0}</title>\n<style>{1}</style>\n<h1>Step {0}: {2}</h1>\n"
        "<p>{3}; sum of loss weights {4:.6g}. Tokens with loss are <span class=\"l\">marked</span>; the paler a token, "
        "the fewer layers learn from it. Boxes are documents, bars the borders of MoBA's blocks of {5} tokens.</p>\n",
        view.step, kStyle, loss_share(view.loss_tokens, view.tokens), escaped(view.data), view.loss_weight,
        view.block_size);
    if (!view.layers.empty()) {
        text += fmt::format(
            "<p>Where gradient enters, with {}:</p>\n<table><tr><th>layer<th>attention<th>tokens<th>share\n",
            escaped(view.weights));
        for (size_t i = view.layers.size(); i-- > 0;)
            text += fmt::format("<tr><td>{}<td>{}<td>{}<td>{:.2f}%\n", i, kind(view.layers[i]),
                                format_count(view.layers[i].reached), percent(view.layers[i].reached, view.tokens));
        text += "</table>\n";
    }
    for (Sample const& sample : view.samples) {
        text += fmt::format("<h2>Sample {}: {}</h2>\n", sample.number, loss_share(sample.loss_tokens, sample.tokens));
        for (auto const& document : sample.documents) {
            text += "<div class=\"d\">";
            int64_t block = 0;
            for (Token const& token : document) {
                if (token.block != block) text += fmt::format("<span class=\"b\">{}</span>", token.block);
                block = token.block;
                text += html_token(token, view.layers.size());
            }
            text += "</div>\n";
        }
    }
    return text;
}

}  // namespace perigee::view
