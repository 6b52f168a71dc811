// Megatron's .idx/.bin and our .mask and .weights: an input is the four files. What the reader accepts must be readable
// throughout.
#include <algorithm>
#include <span>

#include "data/indexed_dataset.h"
#include "fuzz/fuzz.h"
#include "support/memory_file_system.h"

namespace perigee::testing {

namespace {

char const* const kExtensions[] = {".idx", ".mask", ".weights", ".bin"};

void read_everything(IndexedDataset const& data) {
    std::vector<int64_t> tokens(static_cast<size_t>(std::min<int64_t>(data.tokens(), 1 << 16)));
    data.read(data.tokens() - static_cast<int64_t>(tokens.size()), tokens);
    for (size_t i = 0; i < tokens.size(); ++i) (void)data.loss_weight(static_cast<int64_t>(i));
    int64_t end = 0;
    for (int64_t document = 0; document < std::min<int64_t>(data.documents(), 1 << 12); ++document) {
        int64_t const begin = data.document_begin(document);
        PERIGEE_CHECK(begin >= end && begin <= data.tokens(), "document {} begins at {}", document, begin);
        if (begin < data.document_begin(document + 1))
            PERIGEE_CHECK(data.document_at(begin) == document, "token {} is not in document {}", begin, document);
        end = begin;
    }
}

}  // namespace

std::vector<std::string> fuzz_seeds() {
    std::vector<std::string> seeds;
    for (int64_t vocabulary : {1000, 100000}) {
        for (float weight : {0.0f, 1.0f, 0.5f}) {  // none, bits, numbers
            MemoryFileSystem files;
            IndexedDatasetWriter writer(files, "/set", vocabulary, weight > 0);
            for (std::vector<int32_t> const& tokens : {std::vector<int32_t>{1, 2, 3, 999}, {7}, {5, 6, 7, 8, 9}})
                writer.add_document(tokens, std::vector<float>(weight > 0 ? tokens.size() : 0, weight));
            writer.finish();
            auto contents = files.contents("/");
            seeds.push_back(Pieces::join(
                {contents["/set.idx"], contents["/set.mask"], contents["/set.weights"], contents["/set.bin"]}));
        }
    }
    return seeds;
}

}  // namespace perigee::testing

extern "C" int LLVMFuzzerTestOneInput(uint8_t const* data, size_t size) {
    using namespace perigee;
    testing::Pieces pieces(data, size);
    testing::MemoryFileSystem files;
    for (std::string extension : testing::kExtensions) {
        std::string const bytes = extension == ".bin" ? pieces.rest() : pieces.next();
        if (bytes.empty() && (extension == ".mask" || extension == ".weights")) continue;
        auto const file = files.create("/set" + extension);
        file->write_at(0, std::as_bytes(std::span(bytes)));
    }
    testing::may_refuse([&] { testing::read_everything(IndexedDataset(files, "/set")); });
    return 0;
}
