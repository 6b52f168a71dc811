// `perigee tokenize`: text files and JSONL to tokens, on all cores.
#pragma once

#include <string>
#include <vector>

#include "data/text_documents.h"

namespace perigee {

struct TextInputs {
    std::vector<Path> files;
    Path output;  ///< prefix
    std::string tokenizer = "bytes";
    TextOptions text;
    bool special = false;     ///< names of special tokens in the text are those tokens
    bool prepend_bos = true;  ///< what the tokenizer puts before a text
    bool append_eod = true;
    int threads = 0;      ///< 0: one per core
    double seconds = 10;  ///< between lines of progress, and between states to go on from
};

/// Writes the tokens of all documents in the order of the files, whatever the number of threads; prints a summary.
/// A run that was killed is gone on with.
void tokenize_text(TextInputs const& inputs, FileSystem& files);

}  // namespace perigee
