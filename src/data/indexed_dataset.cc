#include "data/indexed_dataset.h"

#include <algorithm>
#include <cmath>
#include <ranges>

#include "data/dataset_files.h"

namespace perigee {

namespace {

Path with_extension(Path const& prefix, char const* extension) { return Path(prefix.string() + extension); }

bool starts_with(std::span<std::byte const> bytes, std::string_view magic) {
    return bytes.size() >= magic.size() && std::memcmp(bytes.data(), magic.data(), magic.size()) == 0;
}

template <class Stored>
void widen(std::byte const* from, std::span<int64_t> values) {
    for (size_t i = 0; i < values.size(); ++i) values[i] = load<Stored>(from + i * sizeof(Stored));
}

}  // namespace

int64_t size_of(TokenType type) {
    switch (type) {
        case TokenType::u8:
        case TokenType::i8:
            return 1;
        case TokenType::i16:
        case TokenType::u16:
            return 2;
        case TokenType::i32:
            return 4;
        case TokenType::i64:
            return 8;
    }
    return 0;
}

char const* to_string(TokenType type) {
    switch (type) {
        case TokenType::u8:
            return "u8";
        case TokenType::i8:
            return "i8";
        case TokenType::i16:
            return "i16";
        case TokenType::u16:
            return "u16";
        case TokenType::i32:
            return "i32";
        case TokenType::i64:
            return "i64";
    }
    return "unknown";
}

IndexedDataset::IndexedDataset(FileSystem& files, Path const& prefix) : prefix_(prefix) {
    Path const index = with_extension(prefix, ".idx");
    if (!files.exists(index))
        fail(Category::data, "there is no {0}.idx; perigee tokenize TEXTS --output {0} makes it", prefix.string());
    index_ = files.map(index);
    parse_header();
    bin_ = files.map(with_extension(prefix, ".bin"));
    check_sequences(static_cast<int64_t>(bin_->bytes().size()));
    check_borders();
    open_sidecars(files);
}

void IndexedDataset::parse_header() {
    auto const bytes = index_->bytes();
    auto const file = with_extension(prefix_, ".idx").string();
    auto const size = static_cast<uint64_t>(bytes.size());
    if (!starts_with(bytes, kIndexMagic)) {
        fail(Category::data, "{}: not a Megatron index: it does not start with MMIDIDX", file);
    }
    if (size < kIndexHeaderBytes) {
        fail(Category::data, "{}: {} bytes, shorter than the header of {}", file, size, kIndexHeaderBytes);
    }
    if (auto const version = load<uint64_t>(&bytes[9]); version != kIndexVersion) {
        fail(Category::data, "{}: version {}, expected {}", file, version, kIndexVersion);
    }
    type_ = static_cast<TokenType>(bytes[17]);
    if (size_of(type_) == 0) {
        fail(Category::data, "{}: dtype code {}, expected 1 (u8), 2 (i8), 3 (i16), 4 (i32), 5 (i64) or 8 (u16)", file,
             static_cast<int>(bytes[17]));
    }
    auto const sequences = load<uint64_t>(&bytes[18]);
    auto const borders = load<uint64_t>(&bytes[26]);
    // First against bounds that make the sums below safe, then exactly.
    bool const plausible = sequences <= size / 12 && borders <= size / 8;
    uint64_t const expected = plausible ? kIndexHeaderBytes + 12 * sequences + 8 * borders : 0;
    if (!plausible || (size != expected && size != expected + sequences)) {
        fail(Category::data, "{}: the header says {} sequences and {} document borders, {}, but the file has {} bytes",
             file, sequences, borders,
             plausible ? fmt::format("so {} bytes ({} with modes)", expected, expected + sequences) : "too many", size);
    }
    if (borders < 2 || sequences == 0) {
        fail(Category::data, "{}: no documents ({} sequences, {} document borders)", file, sequences, borders);
    }
    sequences_ = static_cast<int64_t>(sequences);
    borders_ = static_cast<int64_t>(borders);
    lengths_ = bytes.data() + kIndexHeaderBytes;
    offsets_ = lengths_ + 4 * sequences_;
    borders_at_ = offsets_ + 8 * sequences_;
}

void IndexedDataset::check_sequences(int64_t bin_bytes) {
    auto const file = with_extension(prefix_, ".idx").string();
    int64_t end = 0;  // bytes; grows by at most 2^34 before it is compared, so it cannot overflow
    for (int64_t i = 0; i < sequences_; ++i) {
        auto const length = load<int32_t>(lengths_ + 4 * i);
        auto const offset = load<int64_t>(offsets_ + 8 * i);
        if (length < 0) fail(Category::data, "{}: sequence {} has length {}", file, i, length);
        if (offset != end) {
            fail(Category::data,
                 "{}: sequence {} starts at byte {} of the .bin, expected {}, where the one before ends", file, i,
                 offset, end);
        }
        end += length * size_of(type_);
        if (end > bin_bytes) {
            fail(Category::data, "{}: {} bytes, but sequence {} of {} ends at byte {}: truncated, or of another index",
                 with_extension(prefix_, ".bin").string(), bin_bytes, i, sequences_, end);
        }
    }
    if (end != bin_bytes) {
        fail(Category::data, "{}: {} bytes, but the index accounts for {}: not the .bin of this .idx",
             with_extension(prefix_, ".bin").string(), bin_bytes, end);
    }
    if (end == 0) fail(Category::data, "{}: no tokens in {} sequences", file, sequences_);
    tokens_ = end / size_of(type_);
}

void IndexedDataset::check_borders() const {
    auto const file = with_extension(prefix_, ".idx").string();
    if (border(0) != 0 || border(borders_ - 1) != sequences_) {
        fail(Category::data, "{}: document borders run from {} to {}, expected from 0 to {}", file, border(0),
             border(borders_ - 1), sequences_);
    }
    for (int64_t i = 1; i < borders_; ++i) {
        if (border(i) < border(i - 1)) {
            fail(Category::data, "{}: document border {} is {}, less than {} before it", file, i, border(i),
                 border(i - 1));
        }
    }
}

void IndexedDataset::open_sidecars(FileSystem& files) {
    Path const mask = with_extension(prefix_, ".mask"), weights = with_extension(prefix_, ".weights");
    bool const has_mask = files.exists(mask), has_weights = files.exists(weights);
    if (has_mask && has_weights) {
        fail(Category::data, "both {} and {} say which tokens carry loss: keep one", mask.string(), weights.string());
    }
    if (Path const chat = with_extension(prefix_, kChatRecordExtension);
        !has_mask && !has_weights && files.exists(chat)) {
        fail(Category::data,
             "{} is there, so the data set is of conversations, but neither {} nor {}: prompts would carry loss",
             chat.string(), mask.string(), weights.string());
    }
    if (has_weights) weights_ = open_sidecar(files, weights, kWeightsMagic, 4 * tokens_);
    if (!has_mask) return;
    mask_ = open_sidecar(files, mask, kMaskMagic, (tokens_ + 7) / 8);
    if (tokens_ % 8 != 0 && std::to_integer<int>(mask_->bytes().back()) >> (tokens_ % 8) != 0) {
        fail(Category::data, "{}: bits are set after the last token", mask.string());
    }
}

std::unique_ptr<MappedFile> IndexedDataset::open_sidecar(FileSystem& files, Path const& path, std::string_view magic,
                                                         int64_t bytes) const {
    auto mapped = files.map(path);
    auto const head = mapped->bytes();
    auto const file = path.string();
    auto const size = static_cast<int64_t>(head.size());
    if (!starts_with(head, magic)) {
        fail(Category::data, "{}: not a file of loss weights: it does not start with {}", file, magic.data());
    }
    if (size < kSidecarHeaderBytes) {
        fail(Category::data, "{}: {} bytes, shorter than the header of {}", file, size, kSidecarHeaderBytes);
    }
    if (auto const version = load<uint64_t>(&head[8]); version != kSidecarVersion) {
        fail(Category::data, "{}: version {}, expected {}", file, version, kSidecarVersion);
    }
    if (auto const count = load<uint64_t>(&head[16]); count != static_cast<uint64_t>(tokens_)) {
        fail(Category::data, "{}: loss weights of {} tokens, but the data set has {}", file, count, tokens_);
    }
    int64_t const expected = kSidecarHeaderBytes + bytes;
    if (size != expected) fail(Category::data, "{}: {} bytes, expected {}", file, size, expected);
    return mapped;
}

int64_t IndexedDataset::border(int64_t index) const { return load<int64_t>(borders_at_ + 8 * index); }

int64_t IndexedDataset::sequence_begin(int64_t sequence) const {
    if (sequence == sequences_) return tokens_;
    return load<int64_t>(offsets_ + 8 * sequence) / size_of(type_);
}

int64_t IndexedDataset::document_begin(int64_t document) const {
    PERIGEE_CHECK(0 <= document && document < borders_, "document {} of {}", document, documents());
    return sequence_begin(border(document));
}

int64_t IndexedDataset::document_at(int64_t position) const {
    PERIGEE_CHECK(0 <= position && position < tokens_, "token {} of {}", position, tokens_);
    auto const documents_from_0 = std::views::iota(int64_t{0}, documents());
    auto const after = std::ranges::partition_point(
        documents_from_0, [&](int64_t document) { return document_begin(document) <= position; });
    return static_cast<int64_t>(after - documents_from_0.begin()) - 1;
}

void IndexedDataset::read(int64_t position, std::span<int64_t> values) const {
    auto const count = static_cast<int64_t>(values.size());
    PERIGEE_CHECK(0 <= position && count <= tokens_ && position <= tokens_ - count, "tokens {} + {} of {}", position,
                  count, tokens_);
    std::byte const* const from = bin_->bytes().data() + position * size_of(type_);
    switch (type_) {
        case TokenType::u8:
            return widen<uint8_t>(from, values);
        case TokenType::i8:
            return widen<int8_t>(from, values);
        case TokenType::i16:
            return widen<int16_t>(from, values);
        case TokenType::u16:
            return widen<uint16_t>(from, values);
        case TokenType::i32:
            return widen<int32_t>(from, values);
        case TokenType::i64:
            return widen<int64_t>(from, values);
    }
}

float IndexedDataset::loss_weight(int64_t position) const {
    PERIGEE_CHECK(0 <= position && position < tokens_, "token {} of {}", position, tokens_);
    if (mask_) {
        auto const byte = mask_->bytes()[static_cast<size_t>(kSidecarHeaderBytes + position / 8)];
        return static_cast<float>(std::to_integer<int>(byte) >> (position % 8) & 1);
    }
    if (!weights_) return 1.0f;
    auto const weight = load<float>(weights_->bytes().data() + kSidecarHeaderBytes + 4 * position);
    if (!std::isfinite(weight) || weight < 0) {
        fail(Category::data, "{}: token {} has loss weight {}; weights are finite and not negative",
             with_extension(prefix_, ".weights").string(), position, weight);
    }
    return weight;
}

}  // namespace perigee
