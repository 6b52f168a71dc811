#include "data/data_source.h"

#include "data/file_source.h"
#include "data/mock_source.h"
#include "data/recall_source.h"

namespace perigee {

std::unique_ptr<DataSource> open_data(DataOptions const& options, Split split, uint64_t seed, int64_t vocab_size,
                                      FileSystem& files) {
    PERIGEE_CHECK(split == Split::train || has_validation(options), "no validation data configured");
    if (options.mock_data && options.mock.task == MockTask::far_recall)
        return std::make_unique<RecallSource>(options, split, seed, vocab_size);
    if (options.mock_data) return std::make_unique<MockSource>(options, split, seed, vocab_size);
    return std::make_unique<FileSource>(options, split, seed, vocab_size, files);
}

Batch make_batch(DataSource const& source, int64_t first, int64_t count) {
    Batch batch;
    for (int64_t i = 0; i < count; ++i) source.append_sample(first + i, batch);
    return batch;
}

}  // namespace perigee
