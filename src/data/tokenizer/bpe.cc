#include "data/tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <utility>

#include "data/tokenizer/unicode.h"

namespace perigee {

namespace {

constexpr uint64_t kNoPair = ~uint64_t{0};

uint64_t pair_of(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

size_t hash(uint64_t x) {
    x *= 0x9E3779B97F4A7C15u;
    return static_cast<size_t>(x ^ x >> 32);
}

struct Alphabet {
    std::array<char32_t, 256> character{};
    std::array<int, 0x144> byte{};  ///< -1: no byte
};

constexpr Alphabet make_alphabet() {
    Alphabet alphabet;
    alphabet.byte.fill(-1);
    char32_t next = 0x100;
    for (size_t i = 0; i < 256; ++i) {
        bool const itself = (0x21 <= i && i <= 0x7E) || (0xA1 <= i && i <= 0xAC) || (0xAE <= i);
        char32_t const character = itself ? static_cast<char32_t>(i) : next++;
        alphabet.character[i] = character;
        alphabet.byte[character] = static_cast<int>(i);
    }
    return alphabet;
}

constexpr Alphabet kAlphabet = make_alphabet();

}  // namespace

std::optional<std::string> bytes_of_token(std::string_view token) {
    std::string bytes;
    for (; !token.empty(); token.remove_prefix(utf8::first(token).bytes)) {
        char32_t const character = utf8::code_point(token);
        if (character >= kAlphabet.byte.size() || kAlphabet.byte[character] < 0) return std::nullopt;
        bytes.push_back(static_cast<char>(kAlphabet.byte[character]));
    }
    return bytes;
}

std::string token_of_bytes(std::string_view bytes) {
    std::string token;
    for (char const byte : bytes) utf8::append(kAlphabet.character[static_cast<unsigned char>(byte)], token);
    return token;
}

Bpe::Bpe(BpeModel model) : model_(std::move(model)) {
    for (size_t byte = 0; byte < 256; ++byte) {
        byte_ids_[byte] = find({std::array{static_cast<char>(byte)}.data(), 1}).value_or(-1);
    }
    slots_.resize(std::bit_ceil(model_.merges.size() * 2 + 1));
    for (size_t i = 0; i < model_.merges.size(); ++i) {
        uint64_t const pair = pair_of(model_.merges[i].left, model_.merges[i].right);
        size_t at = hash(pair) & (slots_.size() - 1);
        while (slots_[at].pair != kNoPair && slots_[at].pair != pair) at = (at + 1) & (slots_.size() - 1);
        slots_[at] = {pair, static_cast<uint32_t>(i)};
    }
}

std::optional<int32_t> Bpe::find(std::string_view bytes) const {
    auto const found = model_.ids.find(std::string(bytes));
    return found == model_.ids.end() ? std::nullopt : std::optional(found->second);
}

uint32_t Bpe::rank(int32_t left, int32_t right) const {
    uint64_t const pair = pair_of(left, right);
    for (size_t at = hash(pair) & (slots_.size() - 1);; at = (at + 1) & (slots_.size() - 1)) {
        if (slots_[at].pair == pair) return slots_[at].rank;
        if (slots_[at].pair == kNoPair) return kNoMerge;
    }
}

void Bpe::encode(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const {
    auto& cached = scratch.cache_[std::hash<std::string_view>{}(word) & (Scratch::kWords - 1)];
    if (std::string_view(cached.text.data(), cached.bytes) == word) {
        ids.insert(ids.end(), cached.ids.begin(), cached.ids.begin() + cached.tokens);
        return;
    }
    size_t const before = ids.size();
    if (auto const whole = model_.whole_words ? find(word) : std::nullopt) {
        ids.push_back(*whole);
    } else {
        merge(word, scratch, ids);
    }
    size_t const tokens = ids.size() - before;
    if (word.size() > cached.text.size() || tokens > cached.ids.size()) return;
    cached.bytes = static_cast<uint8_t>(word.size());
    cached.tokens = static_cast<uint8_t>(tokens);
    std::copy(word.begin(), word.end(), cached.text.begin());
    std::copy(ids.end() - static_cast<ptrdiff_t>(tokens), ids.end(), cached.ids.begin());
}

void Bpe::begin(std::string_view word, std::vector<Scratch::Symbol>& symbols) const {
    bool unknown_waits = false;
    auto const add = [&](int32_t id) { symbols.push_back({id, 0, 0, kNoMerge}); };
    auto const add_unknown = [&] {
        if (std::exchange(unknown_waits, false)) add(*model_.unknown);
    };
    symbols.clear();
    while (!word.empty()) {
        auto const first = static_cast<unsigned char>(word[0]);
        bool const one_byte = !model_.characters || first < 0x80;
        std::string_view const unit = word.substr(0, one_byte ? 1 : utf8::first(word).bytes);
        word.remove_prefix(unit.size());
        int32_t const id = one_byte ? byte_ids_[first] : find(unit).value_or(-1);
        auto const falls_back = [&](char byte) { return (*model_.fallback)[static_cast<unsigned char>(byte)] >= 0; };
        if (id >= 0) {
            add_unknown();
            add(id);
        } else if (model_.fallback && std::ranges::all_of(unit, falls_back)) {
            // As in the reference, an unknown token that waits to be joined comes after these.
            for (char const byte : unit) add((*model_.fallback)[static_cast<unsigned char>(byte)]);
        } else if (model_.unknown) {
            if (!model_.join_unknown) add_unknown();
            unknown_waits = true;
        }
    }
    add_unknown();
    for (size_t i = 0; i < symbols.size(); ++i) {
        symbols[i].previous = static_cast<int32_t>(i) - 1;
        symbols[i].next = i + 1 < symbols.size() ? static_cast<int32_t>(i) + 1 : -1;
    }
}

void Bpe::merge(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const {
    auto& symbols = scratch.symbols_;
    auto& queue = scratch.queue_;
    auto const at = [&](int32_t position) -> Scratch::Symbol& { return symbols[static_cast<size_t>(position)]; };
    // Ranks the pair that begins at `position` anew; an entry of its old rank then no longer matches.
    auto const update = [&](int32_t position) {
        auto& symbol = at(position);
        symbol.rank = symbol.next < 0 ? kNoMerge : rank(symbol.id, at(symbol.next).id);
        if (symbol.rank == kNoMerge) return false;
        queue.push_back(static_cast<uint64_t>(symbol.rank) << 32 | static_cast<uint32_t>(position));
        return true;
    };
    auto const push = [&](int32_t position) {
        if (update(position)) std::push_heap(queue.begin(), queue.end(), std::greater{});
    };

    begin(word, symbols);
    queue.clear();
    if (symbols.empty()) return;
    for (int32_t i = 0; i < static_cast<int32_t>(symbols.size()); ++i) update(i);
    std::make_heap(queue.begin(), queue.end(), std::greater{});
    while (!queue.empty()) {
        std::pop_heap(queue.begin(), queue.end(), std::greater{});
        auto const rank = static_cast<uint32_t>(queue.back() >> 32);
        auto const position = static_cast<int32_t>(queue.back());
        queue.pop_back();
        auto& left = at(position);
        if (left.rank != rank) continue;
        auto& right = at(left.next);
        left.id = model_.merges[rank].result;
        left.next = right.next;
        right.rank = kNoMerge;
        if (left.next >= 0) at(left.next).previous = position;
        push(position);
        if (left.previous >= 0) push(left.previous);
    }
    for (int32_t i = 0; i >= 0; i = at(i).next) ids.push_back(at(i).id);
}

}  // namespace perigee
