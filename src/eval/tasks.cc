#include "eval/tasks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>

#include "base/error.h"

namespace perigee {

namespace {

constexpr int64_t kDistractors = 4;  ///< other keys, stated like the one asked for
constexpr int64_t kValues = 4;       ///< of one key
constexpr int64_t kHops = 4;         ///< from the first name of a chain to the last one
constexpr int64_t kAskedWords = 3;
constexpr size_t kWordsPerList = 10;

/// `count` different texts that `make` gives.
template <class Make>
std::vector<std::string> different(int64_t count, Make&& make) {
    std::vector<std::string> texts;
    while (std::ssize(texts) < count)
        if (std::string text = make(); std::ranges::find(texts, text) == texts.end()) texts.push_back(std::move(text));
    return texts;
}

std::string number(Draw& draw) { return fmt::format("{}", 1'000'000 + draw.below(9'000'000)); }

std::string uuid(Draw& draw) {
    std::string text;
    for (int const digits : {8, 4, 4, 4, 12}) {
        if (!text.empty()) text += '-';
        for (int i = 0; i < digits; ++i) text += "0123456789abcdef"[draw.below(16)];
    }
    return text;
}

/// What is stated of a key.
struct Fact {
    char const* name;
    std::string key, value;
    std::string statement() const { return fmt::format("\nThe {} of {} is {}.\n", name, key, value); }
};

void ask(Plan& plan, Fact const& fact) {
    plan.question = fmt::format("\nQuestion: What is the {0} of {1}?\nAnswer: The {0} of {1} is", fact.name, fact.key);
    plan.answer = fmt::format(" {}", fact.value);
}

Fact needle_fact(std::string const& task, Draw& draw) {
    if (task == "number") return {"code", draw.thing(), number(draw)};
    if (task == "words") return {"motto", draw.thing(), fmt::format("{}", fmt::join(draw.some(nouns(), 5), " "))};
    PERIGEE_CHECK(task == "uuid", "no needle task {}", task);
    return {"identifier", draw.thing(), uuid(draw)};
}

void plan_keys(Plan& plan, Draw& draw, int64_t count) {
    auto const keys = different(count, [&] { return draw.thing(); });
    auto const values = different(count, [&] { return number(draw); });
    for (size_t i = 0; i < keys.size(); ++i) {
        Fact const fact{"code", keys[i], values[i]};
        plan.statements.push_back({draw.uniform(), fact.statement()});
        if (i == 0) ask(plan, fact);
    }
}

std::vector<double> rising_depths(Draw& draw, int64_t count) {
    std::vector<double> depths(static_cast<size_t>(count));
    for (double& depth : depths) depth = draw.uniform();
    std::ranges::sort(depths);
    return depths;
}

void plan_values(Plan& plan, Draw& draw) {
    std::string const of = draw.thing();
    auto const values = different(kValues, [&] { return number(draw); });
    auto const depths = rising_depths(draw, kValues);
    for (size_t i = 0; i < values.size(); ++i)
        plan.statements.push_back({depths[i], Fact{"code", of, values[i]}.statement()});
    plan.question = fmt::format(
        "\nQuestion: Which {1} codes does {0} have, in the order of the text?\nAnswer: The {1} codes of {0} are", of,
        kValues);
    plan.answer = fmt::format(" {}", fmt::join(values, ", "));
}

/// Two chains of names; each name after the first stands for what the one before it stands for.
void plan_variables(Plan& plan, Draw& draw) {
    constexpr int64_t kNames = kHops + 1;
    auto const names = different(2 * kNames, [&] {
        std::string name;
        for (int i = 0; i < 4; ++i) name += static_cast<char>('A' + draw.below(26));
        return name;
    });
    auto const values = different(2, [&] { return number(draw); });
    for (int64_t chain = 0; chain < 2; ++chain) {
        auto const depths = rising_depths(draw, kNames);
        for (int64_t i = 0; i < kNames; ++i) {
            auto const name = static_cast<size_t>(chain * kNames + i);
            std::string const of =
                i == 0 ? values[static_cast<size_t>(chain)] : fmt::format("the value of {}", names[name - 1]);
            plan.statements.push_back(
                {depths[static_cast<size_t>(i)], fmt::format("\nLet {} be {}.\n", names[name], of)});
        }
    }
    plan.question = fmt::format(
        "\nQuestion: Which {1} names have the value {0}, in the order of the text?\nAnswer: The {1} names with the "
        "value "
        "{0} are",
        values[0], kNames);
    plan.answer = fmt::format(" {}", fmt::join(std::span(names).first(kNames), ", "));
}

/// Words in lists of ten, spread evenly over the text.
std::vector<Statement> lists_of(std::vector<std::string> const& words) {
    size_t const lists = (words.size() + kWordsPerList - 1) / kWordsPerList;
    std::vector<Statement> statements;
    for (size_t i = 0; i < lists; ++i) {
        auto const part =
            std::span(words).subspan(i * kWordsPerList, std::min(kWordsPerList, words.size() - i * kWordsPerList));
        statements.push_back({(static_cast<double>(i) + 0.5) / static_cast<double>(lists),
                              fmt::format("\nWord list: {}.\n", fmt::join(part, ", "))});
    }
    return statements;
}

/// The plan of the largest scale that fills at most half of the length with lists, but at least the smallest.
template <class PlanAt>
Plan largest_plan(Material const& material, int64_t smallest, PlanAt&& plan_at) {
    Plan const least = plan_at(smallest);
    int64_t const room = least.item.length / 2, tokens = tokens_without_filler(material, least);
    int64_t const more = tokens_without_filler(material, plan_at(2 * smallest)) - tokens;
    // A straight line through two points; an estimate that is too high is lowered.
    for (int64_t scale = smallest + smallest * (room - tokens) / more; scale > smallest; scale -= 1 + scale / 20)
        if (Plan larger = plan_at(scale); tokens_without_filler(material, larger) <= room) return larger;
    return least;
}

/// Three words take three of about ten places, all others are rarer.
Plan plan_common(Material const& material, Plan const& begun, Draw& draw) {
    constexpr int64_t kSmallest = 4, kOthers = 7;
    std::vector<std::string> pool = draw.some(nouns(), std::ssize(nouns()));
    std::vector<std::string> const common(pool.end() - kAskedWords, pool.end());
    pool.resize(pool.size() - kAskedWords);
    return largest_plan(material, kSmallest, [&](int64_t scale) {
        std::vector<std::string> words;
        for (int64_t i = 0; i < scale; ++i) words.insert(words.end(), common.begin(), common.end());
        for (int64_t i = 0; i < scale * kOthers; ++i) words.push_back(pool[static_cast<size_t>(i % std::ssize(pool))]);
        Draw(draw).shuffle(words);
        std::vector<std::string> asked = common;
        std::ranges::sort(asked, {}, [&](std::string const& word) { return std::ranges::find(words, word); });
        Plan plan = begun;
        plan.statements = lists_of(words);
        plan.question = fmt::format(
            "\nQuestion: Which {0} words are most common in the word lists, in the order in which they first occur?\n"
            "Answer: The {0} most common words are",
            kAskedWords);
        plan.answer = fmt::format(" {}", fmt::join(asked, ", "));
        return plan;
    });
}

/// Made-up words; the one of rank i occurs about 1 / i times as often as the first.
Plan plan_frequent(Material const& material, Plan const& begun, Draw& draw) {
    constexpr int64_t kWords = 20, kSmallest = 12;  // counts of the first four: 12, 6, 4, 3
    auto const words = different(kWords, [&] { return made_up_word(draw); });
    return largest_plan(material, kSmallest, [&](int64_t scale) {
        std::vector<std::string> all;
        for (int64_t i = 0; i < kWords; ++i)
            all.insert(all.end(), static_cast<size_t>(std::max<int64_t>(1, scale / (i + 1))),
                       words[static_cast<size_t>(i)]);
        Draw(draw).shuffle(all);
        Plan plan = begun;
        plan.statements = lists_of(all);
        plan.question = fmt::format(
            "\nQuestion: Which {0} words occur most often in the word lists, the most frequent first?\n"
            "Answer: The {0} most frequent words are",
            kAskedWords);
        plan.answer = fmt::format(" {}", fmt::join(std::span(words).first(kAskedWords), ", "));
        return plan;
    });
}

void plan_ruler(Material const& material, Plan& plan, Draw& draw) {
    std::string const& task = plan.item.task;
    if (task == "single") return plan_keys(plan, draw, 1);
    if (task == "keys") return plan_keys(plan, draw, 1 + kDistractors);
    if (task == "values") return plan_values(plan, draw);
    if (task == "variables") return plan_variables(plan, draw);
    PERIGEE_CHECK(task == "common" || task == "frequent", "no ruler task {}", task);
    plan = task == "common" ? plan_common(material, plan, draw) : plan_frequent(material, plan, draw);
}

}  // namespace

std::vector<std::string> const& needle_tasks() {
    static std::vector<std::string> const tasks = {"number", "words", "uuid"};
    return tasks;
}

std::vector<std::string> const& ruler_tasks() {
    static std::vector<std::string> const tasks = {"single", "keys", "values", "variables", "common", "frequent"};
    return tasks;
}

double depth_of(int64_t index, int64_t count) {
    return count == 1 ? 0.5 : static_cast<double>(index) / static_cast<double>(count - 1);
}

std::vector<Item> needle_items(Material const& material, SuiteOptions const& options, std::string const& task,
                               int64_t length) {
    std::vector<Item> items;
    for (int64_t d = 0; d < options.depths; ++d) {
        for (int64_t i = 0; i < options.items; ++i) {
            double const depth = depth_of(d, options.depths);
            Draw draw(material.seed, fmt::format("needle {} {} {:.6f} {}", task, length, depth, i));
            Plan plan;
            plan.item = {.task = task, .length = length, .depth = depth, .number = i};
            Fact const fact = needle_fact(task, draw);
            plan.statements = {{depth, fact.statement()}};
            ask(plan, fact);
            items.push_back(make_item(material, std::move(plan), draw));
        }
    }
    return items;
}

std::vector<Item> ruler_items(Material const& material, SuiteOptions const& options, std::string const& task,
                              int64_t length) {
    std::vector<Item> items;
    for (int64_t i = 0; i < options.items; ++i) {
        Draw draw(material.seed, fmt::format("ruler {} {} {}", task, length, i));
        Plan plan;
        plan.item = {.task = task, .length = length, .number = i};
        plan_ruler(material, plan, draw);
        items.push_back(make_item(material, std::move(plan), draw));
    }
    return items;
}

}  // namespace perigee
