// Text and JSONL files, plain or gzip: an input is the file's name and the file. Documents are no larger than what a
// reader may take from a file of this size, and their bytes counts never run back.
#include "data/text_documents.h"

#include <zlib.h>

#include <string>

#include "data/text_reader.h"
#include "fuzz/fuzz.h"
#include "support/memory_file_system.h"

namespace perigee::testing {

namespace {

std::string gzip(std::string const& text) {
    z_stream stream{};
    PERIGEE_CHECK(deflateInit2(&stream, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK, "deflateInit2");
    std::string out(deflateBound(&stream, text.size()) + 64, '\0');
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
    stream.avail_in = static_cast<uInt>(text.size());
    stream.next_out = reinterpret_cast<Bytef*>(out.data());
    stream.avail_out = static_cast<uInt>(out.size());
    PERIGEE_CHECK(deflate(&stream, Z_FINISH) == Z_STREAM_END, "deflate");
    out.resize(stream.total_out);
    deflateEnd(&stream);
    return out;
}

void read_everything(FileSystem& files, Path const& path, TextOptions const& options) {
    int64_t before = 0;
    for_each_document(files, path, options, [&](std::string_view text, int64_t bytes_read) {
        PERIGEE_CHECK(bytes_read >= before && bytes_read <= files.file_size(path), "{} bytes read after {}", bytes_read,
                      before);
        PERIGEE_CHECK(std::ssize(text) <= TextReader::kFreeBytes + TextReader::kMostExpansion * bytes_read,
                      "a document of {} bytes from {}", text.size(), bytes_read);
        before = bytes_read;
    });
}

}  // namespace

std::vector<std::string> fuzz_seeds() {
    std::string const jsonl = "{\"text\": \"one\"}\n\n{\"id\": 3, \"text\": \"two \\u00e9\", \"more\": [1, {}]}\n";
    std::string const text = "one\ntwo\n\n\nthree\r\n\n\n\nfour <b>bold</b> &amp; &#65;";
    return {Pieces::join({"a.jsonl", jsonl}),
            Pieces::join({"a.txt", text}),
            Pieces::join({"a.jsonl.gz", gzip(jsonl)}),
            Pieces::join({"a.gz", gzip(text)}),
            Pieces::join({"a.gz", gzip(text) + gzip(jsonl)}),
            Pieces::join({"a.gz", gzip(std::string(100000, 'x'))})};
}

}  // namespace perigee::testing

extern "C" int LLVMFuzzerTestOneInput(uint8_t const* data, size_t size) {
    using namespace perigee;
    testing::Pieces pieces(data, size);
    bool const jsonl = pieces.next().find(".jsonl") != std::string::npos;
    std::string const bytes = pieces.rest();
    Path const path = jsonl ? "/file.jsonl" : "/file.txt";
    testing::MemoryFileSystem files;
    files.create(path)->write_at(0, std::as_bytes(std::span(bytes)));
    for (int64_t const blank_lines : {0, 2})
        testing::may_refuse([&] { testing::read_everything(files, path, {.blank_lines = blank_lines}); });
    return 0;
}
