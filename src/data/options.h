// Where training tokens come from.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/schema.h"

namespace perigee {

/// One data set: `path`.bin and `path`.idx (Megatron's format), and optionally the loss weights of its tokens (see
/// data/indexed_dataset.h).
struct DatasetOptions {
    std::string path;
    double weight = 1.0;  ///< share of the samples, relative to the other data sets'
};
void describe(Schema& schema, DatasetOptions& options);

/// How samples are made of documents: laid end to end and cut at every sequence_length tokens, or whole documents, as
/// many as fit (see data/best_fit.h), and padding.
enum class Packing { cut, best_fit };

enum class MockTask { phrases, far_recall };
enum class MockLoss { all, answers };

/// What mock_data is made of, see data/mock_source.h and data/recall_source.h. All but the task belongs to far_recall.
struct MockOptions {
    MockTask task = MockTask::phrases;
    MockLoss loss = MockLoss::all;
    int64_t topic_tokens = 16;
    int64_t facts_per_topic = 2;
    int64_t questions = 3;
};
void describe(Schema& schema, MockOptions& options);

struct DataOptions {
    std::vector<DatasetOptions> train;
    std::vector<DatasetOptions> validation;
    double validation_fraction = 0.0;  ///< instead of `validation`: this share of each data set's last documents
    int64_t sequence_length = 1024;    ///< tokens per sample
    Packing packing = Packing::cut;
    bool document_mask = true;  ///< documents in a sample do not see each other
    bool shuffle = true;
    bool mock_data = false;  ///< random tokens with structure instead of files
    MockOptions mock;
    std::string tokenizer = "bytes";
};
void describe(Schema& schema, DataOptions& options);
std::vector<std::string> problems(DataOptions const& options);

/// Whether these options name validation data.
bool has_validation(DataOptions const& options);

}  // namespace perigee
