#include "data/binary_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "data/tokenizer/unicode.h"

namespace perigee {

namespace {

using namespace std::string_view_literals;

constexpr size_t kLookedAt = size_t{64} << 10;
constexpr size_t kTolerated = 10;  // one in so many bytes may be none of text's
constexpr size_t kAlwaysTolerated = 4;

struct Magic {
    std::string_view bytes;
    char const* name;
};
constexpr std::array kMagics = {
    Magic{"\x28\xB5\x2F\xFD"sv, "zstd data; decompress it first (zstd -d)"},
    Magic{"PAR1"sv, "a Parquet file; write its text as JSONL first"},
    Magic{"ARROW1"sv, "an Arrow file; write its text as JSONL first"},
    Magic{"\xFD"
          "7zXZ\0"sv,
          "xz data; decompress it first"},
    Magic{"BZh"sv, "bzip2 data; decompress it first"},
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

}  // namespace

std::optional<std::string> binary_kind(std::string_view head) {
    for (Magic const& magic : kMagics)
        if (head.starts_with(magic.bytes)) return magic.name;
    head = head.substr(0, kLookedAt);
    size_t strange = 0;
    for (std::string_view rest = head; !rest.empty();) {
        auto const step = utf8::first(rest);
        if (step.kind == utf8::Step::Kind::broken || rest[0] == '\0') strange += step.bytes;
        rest.remove_prefix(step.bytes);
    }
    if (strange <= kAlwaysTolerated || strange * kTolerated <= head.size()) return std::nullopt;
    if (head.starts_with("\xFF\xFE") || head.starts_with("\xFE\xFF"))
        return "UTF-16 text; convert it to UTF-8 first (iconv -f UTF-16 -t UTF-8)";
    return fmt::format("no UTF-8 text: {} of its first {} bytes are zero or broken UTF-8", strange, head.size());
}

}  // namespace perigee
