#include "serve/choice.h"

#include <algorithm>

#include "data/tokenizer/unicode.h"

namespace perigee::serve {

namespace {

int64_t characters_of(std::string_view text) {
    return std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

}  // namespace

std::string StopTexts::push(std::string const& text) {
    held_ += text;
    size_t cut = std::string::npos, keep = 0;
    for (std::string const& stop : stops_) {
        cut = std::min(cut, held_.find(stop));
        for (size_t size = std::min(held_.size(), stop.size() - 1); size > keep; --size)
            if (held_.ends_with(std::string_view(stop).substr(0, size))) keep = size;
    }
    found_ = cut != std::string::npos;
    std::string shown = held_.substr(0, found_ ? cut : held_.size() - keep);
    held_.erase(0, found_ ? std::string::npos : shown.size());
    return shown;
}

Choice::Choice(ServedRequest const& request, ServedPrompt const& prompt, Tokenizer const& tokenizer)
    : request_(request),
      prompt_(prompt),
      tokenizer_(tokenizer),
      shown_(tokenizer),
      stops_(request.stop),
      ending_(request.end, [this](int32_t id) { release(shown_.push(id)); }),
      text_(request.echo ? prompt.text : "") {
    if (!request.scores_prompt() && request.echo) characters_ = characters_of(text_);
    if (request.max_tokens == 0 && !request.scores_prompt()) finish_ = Finish::length;
}

void Choice::report(int32_t id, bool shown, std::optional<double> logprob, std::vector<TokenLogprob> const& top) {
    ReportedToken token{.text = tokenizer_.piece(id), .logprob = logprob, .offset = count(id, shown)};
    auto const wanted = static_cast<size_t>(*request_.logprobs);
    for (size_t i = 0; i < std::min(wanted, top.size()); ++i)
        token.top.emplace_back(tokenizer_.piece(top[i].id), top[i].logprob);
    reported_.push_back(std::move(token));
}

int64_t Choice::count(int32_t id, bool shown) {
    size_t const earlier = begun_.size();
    int64_t before = characters_;
    if (shown) begun_ += tokenizer_.piece(id);
    size_t done = 0;
    while (done < begun_.size()) {
        auto const step = utf8::first(std::string_view(begun_).substr(done));
        if (step.kind == utf8::Step::Kind::unfinished) break;
        done += step.bytes;
        ++characters_;
        if (done <= earlier) ++before;  // the token shows that what was begun is broken
    }
    begun_.erase(0, done);
    return before;
}

void Choice::release(std::string const& text) {
    if (!stops_.found()) text_ += stops_.push(text);
}

void Choice::add(PromptScores const& scores) {
    scored_ = true;
    for (size_t t = 0; t < prompt_.ids.size(); ++t) {
        int32_t const id = prompt_.ids[t];
        bool const shown = t >= prompt_.names_from || !tokenizer_.is_special(id);
        if (t == 0)
            report(id, shown, std::nullopt, {});
        else
            report(id, shown, scores.logprobs[t - 1], scores.top[t - 1]);
    }
    if (!std::exchange(begun_, {}).empty()) ++characters_;  // no answer completes a character of the prompt
    if (request_.max_tokens == 0) end(Finish::length);
}

void Choice::add(GeneratedToken const& token) {
    if (finish_) return;
    ++tokens_;
    if (request_.logprobs) report(token.id, !tokenizer_.is_special(token.id), token.logprob, token.top);
    bool const ended = ending_.push(token.id);
    if (stops_.found() || ended)
        end(Finish::stop);
    else if (token.finish)
        end(*token.finish);
}

void Choice::end(Finish finish) {
    if (finish_) return;
    if (finish == Finish::length) ending_.release_all();
    release(shown_.finish());
    if (!stops_.found()) text_ += stops_.finish();
    finish_ = stops_.found() ? Finish::stop : finish;
}

}  // namespace perigee::serve
