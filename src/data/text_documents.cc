#include "data/text_documents.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "data/binary_file.h"
#include "data/parquet.h"
#include "io/strict_json.h"

namespace perigee {

namespace {

using nlohmann::json;

std::string plain_name(Path const& path) {
    bool const compressed = path.extension() == ".gz" || path.extension() == ".zst";
    return compressed ? path.stem().string() : path.filename().string();
}

/// Finds the text under one key of the outermost object without building the rest; nlohmann's parser does not recurse.
class TextFinder : public nlohmann::json_sax<json> {
  public:
    explicit TextFinder(std::string const& wanted) : wanted_(wanted) {}

    std::string text, problem;
    bool found = false;

    bool null() override { return other("null"); }
    bool boolean(bool) override { return other("a boolean"); }
    bool number_integer(number_integer_t) override { return other("a number"); }
    bool number_unsigned(number_unsigned_t) override { return other("a number"); }
    bool number_float(number_float_t, string_t const&) override { return other("a number"); }
    bool binary(binary_t&) override { return other("binary"); }
    bool string(string_t& value) override {
        if (depth_ == 0) return other("a string");
        if (!at_wanted_) return true;
        at_wanted_ = false;
        text = std::move(value);
        found = true;
        return true;
    }
    bool key(string_t& name) override {
        at_wanted_ = depth_ == 1 && name == wanted_;
        return true;
    }
    bool start_object(size_t) override {
        if (at_wanted_) return other("an object");
        return deeper();
    }
    bool start_array(size_t) override { return other("an array") && deeper(); }
    bool end_object() override { return --depth_, true; }
    bool end_array() override { return --depth_, true; }
    bool parse_error(size_t position, std::string const&, json::exception const& error) override {
        problem = json_problem(position, error.what());
        return false;
    }

  private:
    bool other(char const* what) {
        if (depth_ == 0) problem = fmt::format("{}, where an object is expected", what);
        if (at_wanted_) problem = fmt::format("\"{}\" is {}, where text is expected", wanted_, what);
        return problem.empty();
    }
    bool deeper() {
        if (++depth_ > kMaxJsonDepth) problem = fmt::format("nested more than {} deep", kMaxJsonDepth);
        return problem.empty();
    }

    std::string const& wanted_;
    bool at_wanted_ = false;
    int depth_ = 0;
};

constexpr std::string_view kBlanks = " \t\r\n\f\v", kByteOrderMark = "\xEF\xBB\xBF";
constexpr char kFromArray[] = "a JSON array is converted by: jq -c '.[]' FILE > FILE.jsonl";

bool is_blank(std::string_view line) { return line.find_first_not_of(kBlanks) == line.npos; }

void read_jsonl(TextReader& reader, TextOptions const& options, UseDocument const& use, int64_t skip) {
    refuse_array(reader);
    std::string line;
    while (reader.read_line(line, kMaxJsonLineBytes)) {
        if (is_blank(line) || skip-- > 0) continue;
        TextFinder finder(options.key);
        if (auto const problem = nul_problem(line))
            finder.problem = *problem;
        else
            json::sax_parse(line, &finder);
        if (finder.problem.empty() && !finder.found)
            finder.problem =
                fmt::format("no \"{}\": --key names the field of the text, --chat reads conversations", options.key);
        if (!finder.problem.empty()) {
            fail(Category::data, "{}:{}: {}", reader.path().string(), reader.line_number(), finder.problem);
        }
        use(finder.text, reader.bytes_read());
    }
}

void read_text(TextReader& reader, TextOptions const& options, UseDocument const& use_all, int64_t skip) {
    auto const use = [&](std::string_view text, int64_t bytes_read) {
        if (skip-- <= 0) use_all(text, bytes_read);
    };
    std::string document, blanks, line;
    int64_t blank_run = 0;
    while (reader.read_line(line, kMaxDocumentBytes)) {
        if (reader.line_number() == 1 && line.starts_with(kByteOrderMark)) line.erase(0, kByteOrderMark.size());
        if (options.blank_lines > 0 && is_blank(line)) {
            ++blank_run;
            blanks += line;
        } else {
            if (options.blank_lines > 0 && blank_run >= options.blank_lines) {
                if (!document.empty()) use(document, reader.bytes_read());
                document.clear();
            } else {
                document += blanks;
            }
            blanks.clear();
            blank_run = 0;
            document += line;
        }
        int64_t const most = reader.limit(kMaxDocumentBytes);
        if (static_cast<int64_t>(document.size() + blanks.size()) > most) {
            fail(Category::data, "{}:{}: a document of more than {} bytes; blank lines can split it{}",
                 reader.path().string(), reader.line_number(), most,
                 most < kMaxDocumentBytes
                     ? fmt::format(". It comes from {} compressed ones: if that is meant, decompress the file first",
                                   reader.bytes_read())
                     : "");
        }
    }
    use(document, reader.bytes_read());
}

bool is_jsonl(Path const& path, TextOptions const& options) {
    if (options.format != TextOptions::Format::automatic) return options.format == TextOptions::Format::jsonl;
    auto const name = plain_name(path);
    return name.ends_with(".jsonl") || name.ends_with(".ndjson");
}

}  // namespace

void refuse_binary(TextReader& reader) {
    if (auto const kind = binary_kind(reader))
        fail(Category::data, "{}: expected UTF-8 text or JSONL, plain, gzip or zstd; this is {}",
             reader.path().string(), *kind);
}

void refuse_array(TextReader& reader) {
    std::string_view ahead = reader.ahead();
    if (ahead.starts_with(kByteOrderMark)) ahead.remove_prefix(kByteOrderMark.size());
    size_t const first = ahead.find_first_not_of(kBlanks);
    if (first != ahead.npos && ahead[first] == '[')
        fail(Category::data, "{}: begins with \"[\", where one JSON object per line is read; {}",
             reader.path().string(), kFromArray);
}

std::optional<std::string> unclear_json(Path const& path, TextOptions::Format format) {
    if (format != TextOptions::Format::automatic || !plain_name(path).ends_with(".json")) return std::nullopt;
    return fmt::format(
        "a .json file: give --format text to read it as text, --format jsonl for one object per line; {}", kFromArray);
}

void for_each_document(FileSystem& files, Path const& path, TextOptions const& options, UseDocument const& use,
                       int64_t skip) {
    if (is_parquet(path)) {
        ParquetReader reader(files, path, ParquetReader::Kind::text, options.key, skip);
        for (std::string_view text; reader.next(text);) use(text, reader.bytes_read());
        return;
    }
    TextReader reader(files, path);
    refuse_binary(reader);
    auto* const read = is_jsonl(path, options) ? &read_jsonl : &read_text;
    read(reader, options, use, skip);
}

}  // namespace perigee
