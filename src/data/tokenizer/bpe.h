// Byte pair encoding of one word: bytes, or characters, become tokens, then the pair of neighbours that was merged
// first in training is merged, the leftmost of equals, until no pair is left. Source: Sennrich et al., "Neural Machine
// Translation of Rare Words with Subword Units", ACL 2016; on bytes as in GPT-2.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace perigee {

// How vocabularies over bytes spell them: 188 as the Latin-1 character of the same number, the other 68 (controls, the
// space, ...) as U+0100 and on. Source: bytes_to_unicode of OpenAI's GPT-2, src/encoder.py.

/// The bytes of a token spelled so; nothing where a character spells no byte. `token` is whole UTF-8.
std::optional<std::string> bytes_of_token(std::string_view token);

/// The spelling of bytes.
std::string token_of_bytes(std::string_view bytes);

/// A vocabulary over bytes or characters. Ids of `merges` are indices of the vocabulary.
struct BpeModel {
    struct Merge {
        int32_t left, right, result;
    };
    std::unordered_map<std::string, int32_t> ids;  ///< of each token, by its bytes
    std::vector<Merge> merges;                     ///< in order of training; of equal pairs the last counts
    bool whole_words = false;                      ///< a word that is a token needs no merges (`ignore_merges`)
    bool characters = false;                       ///< words are whole UTF-8 and begin as characters, else as bytes
    /// What becomes of characters (bytes) that are no token: tokens of their bytes where all are >= 0, else the unknown
    /// token, one for all in a row if they are joined, else nothing.
    std::optional<std::array<int32_t, 256>> fallback;
    std::optional<int32_t> unknown;
    bool join_unknown = false;
};

class Bpe {
  public:
    explicit Bpe(BpeModel model);

    /// What one thread needs: working memory, and the tokens of words seen lately.
    class Scratch {
      public:
        Scratch() : cache_(kWords) {}

      private:
        friend class Bpe;
        struct Symbol {
            int32_t id;
            int32_t previous, next;  ///< -1: none
            uint32_t rank;           ///< of the merge with the next one
        };
        struct Word {
            uint8_t bytes = 0, tokens = 0;
            std::array<char, 30> text;
            std::array<int32_t, 8> ids;
        };
        static constexpr size_t kWords = size_t{1} << 16;  // 4 MiB

        std::vector<Symbol> symbols_;
        std::vector<uint64_t> queue_;  ///< rank and position of merges to come, the least first
        std::vector<Word> cache_;      ///< by the word's hash; a newer word takes the place of an older
    };

    /// Appends the tokens of a word of at least one byte and less than 2 GiB.
    void encode(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const;

    std::optional<int32_t> find(std::string_view bytes) const;

  private:
    struct Slot {
        uint64_t pair = ~uint64_t{0};
        uint32_t rank = 0;
    };
    static constexpr uint32_t kNoMerge = ~uint32_t{0};

    uint32_t rank(int32_t left, int32_t right) const;
    /// The tokens before any merge.
    void begin(std::string_view word, std::vector<Scratch::Symbol>& symbols) const;
    void merge(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const;

    BpeModel model_;
    std::array<int32_t, 256> byte_ids_{};  ///< of words that are bytes or ASCII; -1: no token
    std::vector<Slot> slots_;              ///< ranks by pair: open addressing
};

}  // namespace perigee
