// What items are made of: a text of real tokens, and statements that are put into it at exact places.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/philox.h"
#include "eval/item.h"

namespace perigee {

/// The tokens of a piece of text that stands inside a text.
using Encoder = std::function<std::vector<int32_t>(std::string_view)>;

struct Material {
    Encoder encode;
    std::vector<int32_t> prefix;  ///< what stands before every document
    std::vector<int32_t> filler;  ///< at least one token; an item that needs more begins again
    uint64_t seed = 0;
};

/// Random numbers of one item, in the order of the calls: a function of the seed and the item's name.
class Draw {
  public:
    Draw(uint64_t seed, std::string_view name) : random_(seed, Purpose::evaluation, hash_name(name)) {}
    int64_t below(int64_t n) { return static_cast<int64_t>(random_.below(next_++, static_cast<uint64_t>(n))); }
    double uniform() { return random_.uniform(next_++); }
    /// `count` different ones of `all`, in random order.
    std::vector<std::string> some(std::vector<std::string> all, int64_t count);
    void shuffle(std::vector<std::string>& all);
    std::string thing();  ///< "amber falcon"

  private:
    Philox random_;
    uint64_t next_ = 0;
};

/// Something said inside the filler: after the share `depth` of it.
struct Statement {
    double depth = 0;
    std::string text;
};

/// An item without its tokens.
struct Plan {
    Item item;
    std::vector<Statement> statements;
    std::string question;
    std::string answer;
};

/// Tokens that an item of this plan takes besides filler, the last one of the answer not counted.
int64_t tokens_without_filler(Material const& material, Plan const& plan);

/// The item: prefix, filler with the statements in it, question, answer, so that exactly item.length tokens are read.
/// Filler token round(depth * filler) is the first one after a statement. Throws Category::config, naming both numbers,
/// where the length has no room.
Item make_item(Material const& material, Plan plan, Draw& draw);

/// Sentences about nothing, for runs without held-out text: at least `tokens` tokens.
std::vector<int32_t> made_up_filler(Encoder const& encode, uint64_t seed, int64_t tokens);

/// Lists of English words, and words made up of syllables.
std::vector<std::string> const& adjectives();
std::vector<std::string> const& nouns();
std::string made_up_word(Draw& draw);

}  // namespace perigee
