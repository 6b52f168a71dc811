#include "config/follow.h"

#include "base/log.h"
#include "config/config.h"
#include "train/described.h"

namespace perigee {

void follow(RunOptions& options, Checkpoint const& checkpoint, OptionSources const& sources, bool speaks) {
    auto const stored = options_at_step(checkpoint.state());  // an override of the kind holds at every step
    if (!stored) {
        if (speaks)
            log::warn(
                "{} does not say which model it is of: the configuration decides, and whether it is the same "
                "cannot be checked",
                checkpoint.folder().string());
        return;
    }
    std::string const tokenizer = options.data.tokenizer;
    take_model(options, *stored);
    apply_overrides(options, sources.overrides);
    if (!speaks) return;
    if (options.data.tokenizer != tokenizer) log::info("the tokenizer is the checkpoint's: {}", options.data.tokenizer);
    RunOptions at_step = options;
    at_step.attention = attention_at(options.attention, checkpoint.state().step);
    if (auto const from_line = model_changes(*stored, at_step); !from_line.empty())
        log::info("the command line changes the checkpoint's model:\n{}", to_string(from_line));
    // What the file leaves out, or leaves open, is no other model.
    RunOptions in_file = *stored;
    apply_file(in_file, sources.file);
    if (in_file.model.vocab_size == 0) in_file.model.vocab_size = stored->model.vocab_size;
    in_file.attention = attention_at(in_file.attention, checkpoint.state().step);
    apply_overrides(in_file, sources.overrides);  // of their keys the file does not decide
    if (auto const ignored = model_changes(in_file, options); !ignored.empty())
        log::warn("the checkpoint's model is used, not the file's, whose value comes first:\n{}", to_string(ignored));
}

}  // namespace perigee
