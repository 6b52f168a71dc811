// Items of needle and ruler, with a tokenizer whose tokens are bytes, so that prompts can be read.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <regex>
#include <set>

#include "base/error.h"
#include "eval/tasks.h"

namespace perigee {
namespace {

using ::testing::HasSubstr;

constexpr int32_t kPrefix = 300, kFirstFiller = 1000;

std::vector<int32_t> bytes(std::string_view text) {
    return {reinterpret_cast<unsigned char const*>(text.data()),
            reinterpret_cast<unsigned char const*>(text.data()) + text.size()};
}
/// Filler tokens, which are no bytes, are left out.
std::string text_of(std::vector<int32_t> const& tokens) {
    std::string text;
    for (int32_t const id : tokens)
        if (id < 256) text += static_cast<char>(id);
    return text;
}

Material material(uint64_t seed = 5) {
    Material m{.encode = bytes, .prefix = {kPrefix}, .filler = {}, .seed = seed};
    for (int32_t i = 0; i < 700; ++i) m.filler.push_back(kFirstFiller + i);
    return m;
}

struct Case {
    bool needle;
    std::string task;
};
std::vector<Case> cases() {
    std::vector<Case> all;
    for (auto const& task : needle_tasks()) all.push_back({true, task});
    for (auto const& task : ruler_tasks()) all.push_back({false, task});
    return all;
}
std::vector<Item> items_of(Case const& c, Material const& m, int64_t length, SuiteOptions const& options = {}) {
    return (c.needle ? needle_items : ruler_items)(m, options, c.task, length);
}
/// What a question asks about: the text after the last "Question".
std::string question(Item const& item) {
    std::string const text = text_of(item.prompt);
    return text.substr(text.rfind("\nQuestion: "));
}
std::string body(Item const& item) {
    std::string const text = text_of(item.prompt);
    return text.substr(0, text.rfind("\nQuestion: "));
}
std::vector<std::string> parts(std::string text, std::string const& separator = ", ") {
    std::vector<std::string> found;
    for (size_t at; (at = text.find(separator)) != text.npos; text.erase(0, at + separator.size()))
        found.push_back(text.substr(0, at));
    found.push_back(text);
    return found;
}
std::string answer(Item const& item) {
    std::string const text = text_of(item.answer);
    EXPECT_EQ(text.front(), ' ');
    return text.substr(1);
}

TEST(Items, AreAsLongAsAskedForAndBeginAsDocumentsDo) {
    for (Case const& c : cases())
        for (int64_t const length : {900, 4096}) {
            auto const items = items_of(c, material(), length);
            EXPECT_EQ(items.size(), c.needle ? 220u : 20u);
            for (Item const& item : items) {
                ASSERT_EQ(std::ssize(item.prompt) + std::ssize(item.answer), length + 1) << c.task;
                ASSERT_EQ(item.prompt.front(), kPrefix);
                ASSERT_EQ(std::ranges::count(item.prompt, kPrefix), 1);
                ASSERT_EQ(item.length, length);
            }
        }
}

TEST(Items, FillerIsOneStretchOfTheText) {
    for (Case const& c : cases())
        for (Item const& item : items_of(c, material(), 3000)) {
            int32_t last = -1;
            for (int32_t const id : item.prompt) {
                if (id < kFirstFiller) continue;
                ASSERT_TRUE(last < 0 || id == (last == kFirstFiller + 699 ? kFirstFiller : last + 1));
                last = id;
            }
        }
}

TEST(Needle, LiesAtItsDepthToTheToken) {
    for (auto const& task : needle_tasks()) {
        std::set<double> depths;
        for (Item const& item : needle_items(material(), {.depths = 5, .items = 3}, task, 2000)) {
            depths.insert(item.depth.value());
            auto const filler = std::ranges::count_if(item.prompt, [](int32_t id) { return id >= kFirstFiller; });
            auto const needle =
                std::find_if(item.prompt.begin() + 1, item.prompt.end(), [](int32_t id) { return id < kFirstFiller; });
            auto const before = std::llround(*item.depth * static_cast<double>(filler));
            EXPECT_EQ(needle - item.prompt.begin() - 1, before);
        }
        EXPECT_EQ(depths, (std::set<double>{0, 0.25, 0.5, 0.75, 1}));
    }
    EXPECT_EQ(needle_items(material(), {.depths = 1, .items = 1}, "number", 500).front().depth, 0.5);
}

TEST(Needle, StatesWhatItAsksFor) {
    for (auto const& task : needle_tasks())
        for (Item const& item : needle_items(material(), {.depths = 2}, task, 1000)) {
            std::string const q = question(item);
            std::string const claim = q.substr(q.find("Answer: The ") + 12);  // "code of amber falcon is"
            EXPECT_THAT(body(item), HasSubstr("\nThe " + claim + text_of(item.answer) + ".\n"));
        }
}

TEST(Ruler, OneOfSeveralKeysIsAskedFor) {
    for (auto const& [task, keys] : {std::pair{"single", 1}, {"keys", 5}})
        for (Item const& item : ruler_items(material(), {}, task, 1000)) {
            std::regex const statement("\nThe code of ([a-z]+ [a-z]+) is ([0-9]{7})\\.\n");
            std::string const text = body(item);
            std::map<std::string, std::string> facts;
            for (std::sregex_iterator at(text.begin(), text.end(), statement), end; at != end; ++at)
                facts[(*at)[1]] = (*at)[2];
            EXPECT_EQ(std::ssize(facts), keys);
            std::smatch asked;
            std::string const q = question(item);
            ASSERT_TRUE(std::regex_search(q, asked, std::regex("the code of ([a-z]+ [a-z]+)\\?")));
            EXPECT_EQ(facts.at(asked[1]), answer(item));
        }
}

TEST(Ruler, ValuesOfAKeyAreAskedForInTheirOrder) {
    for (Item const& item : ruler_items(material(), {}, "values", 1000)) {
        std::string const text = body(item);
        std::vector<std::string> found;
        std::regex const statement("is ([0-9]{7})\\.\n");
        for (std::sregex_iterator at(text.begin(), text.end(), statement), end; at != end; ++at)
            found.push_back((*at)[1]);
        EXPECT_EQ(found, parts(answer(item)));
        EXPECT_EQ(found.size(), 4u);
    }
}

TEST(Ruler, VariablesAreThoseThatAChainLeadsTo) {
    for (Item const& item : ruler_items(material(), {}, "variables", 1500)) {
        std::string const text = body(item);
        std::regex const statement("\nLet ([A-Z]{4}) be (?:the value of )?([A-Z0-9]+)\\.\n");
        std::map<std::string, std::string> values;  // by name, resolved as the text goes on
        std::vector<std::string> order;
        for (std::sregex_iterator at(text.begin(), text.end(), statement), end; at != end; ++at) {
            std::string const of = (*at)[2];
            values[(*at)[1]] = values.contains(of) ? values[of] : of;
            order.push_back((*at)[1]);
        }
        EXPECT_EQ(order.size(), 10u);
        std::smatch asked;
        std::string const q = question(item);
        ASSERT_TRUE(std::regex_search(q, asked, std::regex("have the value ([0-9]{7}),")));
        std::vector<std::string> expected;
        for (std::string const& name : order)
            if (values[name] == asked[1]) expected.push_back(name);
        EXPECT_EQ(expected.size(), 5u);
        EXPECT_EQ(parts(answer(item)), expected);
    }
}

/// Every word of the lists with how often it occurs, in the order of first occurrences.
std::vector<std::pair<std::string, int>> listed_words(Item const& item) {
    std::vector<std::pair<std::string, int>> words;
    std::string const text = body(item);
    std::regex const list("\nWord list: ([a-z, ]+)\\.\n");
    for (std::sregex_iterator at(text.begin(), text.end(), list), end; at != end; ++at)
        for (std::string const& word : parts((*at)[1])) {
            auto const known = std::ranges::find(words, word, &std::pair<std::string, int>::first);
            if (known == words.end())
                words.emplace_back(word, 1);
            else
                ++known->second;
        }
    return words;
}

TEST(Ruler, CommonWordsAreTheMostCommonInTheOrderOfTheText) {
    for (int64_t const length : {1200, 6000})
        for (Item const& item : ruler_items(material(), {}, "common", length)) {
            auto const words = listed_words(item);
            std::vector<int> counts;
            for (auto const& [word, count] : words) counts.push_back(count);
            std::ranges::sort(counts, std::greater());
            ASSERT_GT(counts.at(2), counts.at(3)) << length;
            std::vector<std::string> expected;
            for (auto const& [word, count] : words)
                if (count >= counts[2]) expected.push_back(word);
            EXPECT_EQ(parts(answer(item)), expected);
        }
}

TEST(Ruler, FrequentWordsAreInTheOrderOfTheirCounts) {
    for (int64_t const length : {1200, 6000})
        for (Item const& item : ruler_items(material(), {}, "frequent", length)) {
            auto words = listed_words(item);
            EXPECT_EQ(words.size(), 20u);
            std::ranges::stable_sort(words, std::greater(), &std::pair<std::string, int>::second);
            for (size_t i = 0; i < 3; ++i) EXPECT_GT(words[i].second, words[i + 1].second);
            EXPECT_EQ(parts(answer(item)), (std::vector{words[0].first, words[1].first, words[2].first}));
        }
}

TEST(Ruler, ListsFillAboutHalfOfALongItem) {
    for (auto const& task : {"common", "frequent"})
        for (Item const& item : ruler_items(material(), {.items = 4}, task, 6000)) {
            auto const filler = std::ranges::count_if(item.prompt, [](int32_t id) { return id >= kFirstFiller; });
            EXPECT_GE(filler, 3000);
            EXPECT_LE(filler, 3700) << task;
        }
}

TEST(Items, FollowFromSeedAndNameAlone) {
    SuiteOptions const few{.depths = 3, .items = 2}, many{.depths = 3, .items = 9};
    for (Case const& c : cases()) {
        auto const first = items_of(c, material(), 1500, few), again = items_of(c, material(), 1500, many);
        auto const other = items_of(c, material(6), 1500, few);
        std::set<std::vector<int32_t>> prompts;
        for (size_t i = 0; i < first.size(); ++i) {
            size_t const same = i / 2 * 9 + i % 2;  // items of a cell do not depend on how many there are
            EXPECT_EQ(first[i].prompt, again[same].prompt);
            EXPECT_EQ(first[i].answer, again[same].answer);
            EXPECT_NE(first[i].answer, other[i].answer);
            prompts.insert(first[i].prompt);
        }
        EXPECT_EQ(prompts.size(), first.size());
    }
}

TEST(Items, WithoutRoomAreRefusedWithBothNumbers) {
    for (Case const& c : cases()) {
        try {
            items_of(c, material(), 64);
            ADD_FAILURE() << c.task << " fits into 64 bytes";
        } catch (Error const& e) {
            EXPECT_EQ(e.category(), Category::config);
            EXPECT_THAT(e.what(), HasSubstr("task " + c.task));
            EXPECT_THAT(e.what(), HasSubstr("one of 64"));
        }
    }
    // The smallest length that is not refused is the one that the message names.
    Draw draw(1, "x");
    Plan plan{.item = {.task = "t", .length = 20}, .statements = {{0.5, "abc"}}, .question = "q?", .answer = " yes"};
    EXPECT_EQ(tokens_without_filler(material(), plan), 1 + 3 + 2 + 4 - 1);
    plan.item.length = 9;
    EXPECT_EQ(text_of(make_item(material(), plan, draw).prompt), "abcq?");
    plan.item.length = 8;
    EXPECT_THROW(make_item(material(), plan, draw), Error);
}

TEST(Filler, MadeUpSentencesFollowFromTheSeed) {
    auto const one = made_up_filler(bytes, 1, 5000);
    EXPECT_GE(std::ssize(one), 5000);
    EXPECT_LT(std::ssize(one), 5200);
    EXPECT_EQ(one, made_up_filler(bytes, 1, 5000));
    EXPECT_NE(one, made_up_filler(bytes, 2, 5000));
    EXPECT_TRUE(std::regex_match(text_of(one), std::regex("( The [a-z ]+\\.)+")));
}

TEST(SuiteOptions, NamesThatAreNoSuitesAndListsThatFallAreRefused) {
    EXPECT_TRUE(problems(SuiteOptions{}).empty());
    EXPECT_TRUE(suites_of(SuiteOptions{}).empty());
    SuiteOptions const good{.run = "ruler,position"};
    EXPECT_TRUE(problems(good).empty());
    EXPECT_EQ(suites_of(good), (std::vector{Suite::position, Suite::ruler}));
    SuiteOptions const bad{.run = "needle,nedle", .lengths = {128, 128}, .position_edges = {5, 4}};
    auto const found = problems(bad);
    ASSERT_EQ(found.size(), 3u);
    EXPECT_THAT(found[0], HasSubstr("\"nedle\""));
    EXPECT_EQ(problems(SuiteOptions{.run = "needle, ruler"}).size(), 1u);
}

}  // namespace
}  // namespace perigee
