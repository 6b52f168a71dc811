#include "data/binary_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "data/text_reader.h"
#include "data/tokenizer/unicode.h"

namespace perigee {

namespace {

using namespace std::string_view_literals;

constexpr int64_t kLookedAt = int64_t{64} << 10;
constexpr size_t kTolerated = 10;  // one in so many bytes may be none of text's
constexpr size_t kAlwaysTolerated = 4;

struct Magic {
    std::string_view bytes;
    char const* name;
};
constexpr std::array kMagics = {
    Magic{"\x28\xB5\x2F\xFD"sv, "zstd data; decompress it first (zstd -d)"},
    Magic{"PAR1\x15"sv, "a Parquet file; its name must end in .parquet"},  // a page's header follows
    Magic{"ARROW1\0\0"sv, "an Arrow file; write its text as JSONL first"},
    Magic{"\xFD"
          "7zXZ\0"sv,
          "xz data; decompress it first"},
    Magic{"\x04\x22\x4D\x18"sv, "lz4 data; decompress it first"},
    Magic{"PK\x03\x04"sv, "a zip archive; unpack it first"},
    Magic{"7z\xBC\xAF\x27\x1C"sv, "a 7z archive; unpack it first"},
    Magic{"\x89PNG\r\n\x1A\n"sv, "a PNG image"},
    Magic{"\xFF\xD8\xFF"sv, "a JPEG image"},
    Magic{"GIF87a"sv, "a GIF image"},
    Magic{"GIF89a"sv, "a GIF image"},
    Magic{"%PDF-"sv, "a PDF document"},
    Magic{"\x7F"
          "ELF"sv,
          "a program"},
    Magic{"\x89HDF\r\n\x1A\n"sv, "an HDF5 file"},
    Magic{"MMIDIDX\0"sv, "the index of a tokenized data set"},
    Magic{"SQLite format 3\0"sv, "an SQLite database"},
};

constexpr Magic kBzip2{"1AY&SY"sv, "bzip2 data; decompress it first"};  // after "BZh" and a digit
constexpr Magic kTar{"ustar"sv, "a tar archive; unpack it first"};
constexpr size_t kBzip2At = 4, kTarAt = 257;

bool holds(std::string_view head, size_t at, Magic const& magic) {
    return head.size() > at && head.substr(at).starts_with(magic.bytes);
}

/// Zero bytes and those of broken UTF-8, where there are too many for a text; else 0.
size_t strange_bytes(std::string_view piece) {
    size_t strange = 0;
    for (std::string_view rest = piece; !rest.empty();) {
        auto const step = utf8::first(rest);
        if (step.kind == utf8::Step::Kind::broken || rest[0] == '\0') strange += step.bytes;
        rest.remove_prefix(step.bytes);
    }
    return strange <= kAlwaysTolerated || strange * kTolerated <= piece.size() ? 0 : strange;
}

}  // namespace

std::optional<std::string> binary_kind(std::string_view head) {
    for (Magic const& magic : kMagics)
        if (holds(head, 0, magic)) return magic.name;
    if (head.starts_with("BZh") && holds(head, kBzip2At, kBzip2)) return kBzip2.name;
    if (holds(head, kTarAt, kTar)) return kTar.name;
    head = head.substr(0, kLookedAt);
    size_t const strange = strange_bytes(head);
    if (strange == 0) return std::nullopt;
    if (head.starts_with("\xFF\xFE") || head.starts_with("\xFE\xFF"))
        return "UTF-16 text; convert it to UTF-8 first (iconv -f UTF-16 -t UTF-8)";
    return fmt::format("no UTF-8 text: {} of its first {} bytes are zero or broken UTF-8", strange, head.size());
}

std::optional<std::string> binary_kind(TextReader& reader) {
    if (auto const kind = binary_kind(reader.ahead())) return kind;
    int64_t const bytes = reader.plain_bytes();
    if (bytes <= kLookedAt) return std::nullopt;
    for (int64_t const begin : {(bytes - kLookedAt) / 2, bytes - kLookedAt}) {
        std::string const piece = reader.plain_piece(begin, kLookedAt);
        if (size_t const strange = strange_bytes(piece); strange > 0)
            return fmt::format("no UTF-8 text: {} of {} bytes from byte {} on are zero or broken UTF-8", strange,
                               piece.size(), begin);
    }
    return std::nullopt;
}

}  // namespace perigee
