#include "eval/material.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace perigee {

std::vector<std::string> Draw::some(std::vector<std::string> all, int64_t count) {
    PERIGEE_CHECK(count <= std::ssize(all), "{} of {} words", count, all.size());
    shuffle(all);
    all.resize(static_cast<size_t>(count));
    return all;
}

void Draw::shuffle(std::vector<std::string>& all) {
    for (int64_t left = std::ssize(all); left > 1; --left)
        std::swap(all[static_cast<size_t>(left - 1)], all[static_cast<size_t>(below(left))]);
}

std::string Draw::thing() {
    std::string const& adjective = adjectives()[static_cast<size_t>(below(std::ssize(adjectives())))];
    return adjective + " " + nouns()[static_cast<size_t>(below(std::ssize(nouns())))];
}

namespace {

void append(std::vector<int32_t>& to, std::vector<int32_t> const& tokens) {
    to.insert(to.end(), tokens.begin(), tokens.end());
}

/// A plan in tokens.
struct Encoded {
    std::vector<std::vector<int32_t>> statements;
    std::vector<int32_t> question, answer;
    int64_t read = 0;  ///< tokens, without filler
};

Encoded encode(Material const& material, Plan const& plan) {
    Encoded encoded{
        .statements = {}, .question = material.encode(plan.question), .answer = material.encode(plan.answer)};
    encoded.read = std::ssize(material.prefix) + std::ssize(encoded.question) + std::ssize(encoded.answer) - 1;
    for (Statement const& statement : plan.statements) {
        encoded.statements.push_back(material.encode(statement.text));
        encoded.read += std::ssize(encoded.statements.back());
    }
    return encoded;
}

}  // namespace

int64_t tokens_without_filler(Material const& material, Plan const& plan) { return encode(material, plan).read; }

Item make_item(Material const& material, Plan plan, Draw& draw) {
    std::ranges::stable_sort(plan.statements, {}, &Statement::depth);
    Encoded encoded = encode(material, plan);
    int64_t const filler = plan.item.length - encoded.read;
    if (filler < 0)
        fail(Category::config,
             "an item of task {} takes {} tokens without any text around it, but eval.suites.lengths (where it is "
             "empty, data.sequence_length) asks for one of {}",
             plan.item.task, encoded.read, plan.item.length);
    auto const available = std::ssize(material.filler);
    PERIGEE_CHECK(available > 0, "no filler");
    int64_t const first = draw.below(available);
    Item item = std::move(plan.item);
    item.prompt = material.prefix;
    int64_t used = 0;
    auto const fill_to = [&](int64_t end) {
        for (; used < end; ++used)
            item.prompt.push_back(material.filler[static_cast<size_t>((first + used) % available)]);
    };
    for (size_t i = 0; i < plan.statements.size(); ++i) {
        fill_to(std::llround(plan.statements[i].depth * static_cast<double>(filler)));
        append(item.prompt, encoded.statements[i]);
    }
    fill_to(filler);
    append(item.prompt, encoded.question);
    item.answer = std::move(encoded.answer);
    return item;
}

std::vector<int32_t> made_up_filler(Encoder const& encode, uint64_t seed, int64_t tokens) {
    static constexpr char const* kVerbs[] = {"stands behind", "belongs to", "looks like", "was made for", "lies beside",
                                             "came before",   "waits for",  "follows",    "is kept with", "points to"};
    Draw draw(seed, "filler");
    std::vector<int32_t> filler;
    while (std::ssize(filler) < tokens) {
        std::string const first = draw.thing();
        char const* const verb = kVerbs[draw.below(std::ssize(kVerbs))];
        append(filler, encode(fmt::format(" The {} {} the {}.", first, verb, draw.thing())));
    }
    return filler;
}

std::vector<std::string> const& adjectives() {
    static std::vector<std::string> const words = {
        "amber", "ancient", "blue",   "brave",  "bright", "broad",  "calm",   "clever", "cold",   "copper", "curious",
        "dark",  "deep",    "early",  "eager",  "empty",  "fair",   "famous", "fast",   "gentle", "golden", "grand",
        "green", "happy",   "heavy",  "hidden", "hollow", "honest", "humble", "icy",    "keen",   "large",  "late",
        "light", "little",  "lonely", "loud",   "lucky",  "mild",   "narrow", "noble",  "odd",    "old",    "orange",
        "pale",  "patient", "plain",  "proud",  "purple", "quick",  "quiet",  "rare",   "round",  "rusty",  "sharp",
        "short", "silent",  "silver", "simple", "slow",   "small",  "smooth", "solid",  "square", "steady", "strange",
        "sunny", "tall",    "tiny",   "warm",   "white",  "wide",   "wild",   "wise",   "yellow", "young"};
    return words;
}

std::vector<std::string> const& nouns() {
    static std::vector<std::string> const words = {
        "anchor",   "apple",  "arrow",   "badge",   "banner",  "barrel",  "basket", "beacon",  "bell",    "bench",
        "boat",     "bottle", "branch",  "bridge",  "bucket",  "button",  "cabin",  "candle",  "canyon",  "carpet",
        "castle",   "chair",  "circle",  "cliff",   "cloud",   "coin",    "corner", "cottage", "curtain", "desert",
        "door",     "drum",   "engine",  "falcon",  "feather", "fence",   "field",  "flag",    "flute",   "forest",
        "fountain", "garden", "gate",    "glove",   "hammer",  "harbor",  "hill",   "horse",   "island",  "jacket",
        "kettle",   "key",    "ladder",  "lake",    "lamp",    "lantern", "letter", "lion",    "mirror",  "moon",
        "mountain", "needle", "oven",    "owl",     "paper",   "pencil",  "piano",  "pillow",  "pocket",  "pond",
        "prism",    "puzzle", "rabbit",  "river",   "road",    "roof",    "rope",   "saddle",  "sail",    "shelf",
        "ship",     "spoon",  "station", "stone",   "storm",   "table",   "tent",   "thread",  "ticket",  "tower",
        "train",    "tunnel", "valley",  "village", "violin",  "wagon",   "wheel",  "window",  "wolf"};
    return words;
}

std::string made_up_word(Draw& draw) {
    static constexpr std::string_view kConsonants = "bdfghklmnprstvz", kVowels = "aeiou";
    std::string word;
    for (int syllable = 0; syllable < 3; ++syllable) {
        word += kConsonants[static_cast<size_t>(draw.below(std::ssize(kConsonants)))];
        word += kVowels[static_cast<size_t>(draw.below(std::ssize(kVowels)))];
    }
    return word;
}

}  // namespace perigee
