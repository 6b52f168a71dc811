#include "app/follow.h"

#include "base/log.h"
#include "config/config.h"
#include "train/described.h"

namespace perigee {

void follow(RunOptions& options, Checkpoint const& checkpoint, std::vector<std::string> const& overrides, bool speaks) {
    auto const stored = stored_options(checkpoint.state());
    if (!stored) {
        if (speaks)
            log::warn(
                "{} does not say which model it is of: the configuration decides, and whether it is the same "
                "cannot be checked",
                checkpoint.folder().string());
        return;
    }
    // Left open, it follows from the tokenizer, which the checkpoint's value was made of.
    if (options.model.vocab_size == 0) options.model.vocab_size = stored->model.vocab_size;
    RunOptions const in_file = options;
    take_model(options, *stored);
    apply_overrides(options, overrides);
    if (!speaks) return;
    if (auto const from_line = model_changes(*stored, options); !from_line.empty())
        log::info("the command line changes the checkpoint's model:\n{}", to_string(from_line));
    if (auto const ignored = model_changes(in_file, options); !ignored.empty())
        log::warn("the checkpoint's model is used, not the file's, whose value comes first:\n{}", to_string(ignored));
}

}  // namespace perigee
