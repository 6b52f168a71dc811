#include "train/run_folder.h"

#include <unistd.h>

#include <nlohmann/json.hpp>

#include <string_view>

#include "base/log.h"
#include "train/failure.h"

namespace perigee {

Path checkpoint_root(Path const& output_dir) { return output_dir / "checkpoints"; }

/// Lines added to a file. A line that cannot be written is dropped: losing a log line must not end a run.
struct RunFolder::Appender {
    Appender(FileSystem& files, Path const& path)
        : path(path), end(files.exists(path) ? files.file_size(path) : 0), file(files.append(path)) {}

    void line(std::string text) {
        if (failed) return;
        text += '\n';
        try {
            file->write_at(end, std::as_bytes(std::span(text)));
            end += static_cast<int64_t>(text.size());
        } catch (Error const& e) {
            failed = true;  // first: the warning below may come back here
            log::warn("{} ends here: {}", path.string(), e.what());
        }
    }

    Path path;
    int64_t end;
    std::unique_ptr<WritableFile> file;
    bool failed = false;
};

RunFolder::RunFolder(FileSystem& files, Path path) : files_(&files), path_(std::move(path)) {
    try {
        files_->make_directories(checkpoint_root(path_));
    } catch (Error const& e) {
        fail(Category::config, "output_dir cannot be written: {}", e.what());
    }
    try {
        lock_ = files_->lock(path_ / ".lock", fmt::format("process {} on host {}", ::getpid(), host_name()));
    } catch (LockedError const& e) {
        fail(Category::config, "output_dir {} is in use by another job ({})", path_.string(), e.holder());
    } catch (IoError const& e) {
        fail(Category::config, "output_dir cannot be written: {}", e.what());
    }
    remove_failures(*files_, path_);
}

RunFolder::~RunFolder() { log::mirror({}); }

void RunFolder::write_config(std::string const& yaml) { files_->replace_text(path_ / "config.yaml", yaml); }

void RunFolder::mirror_log() {
    log_ = std::make_unique<Appender>(*files_, path_ / "log.txt");
    log::mirror([log = log_.get()](std::string const& text) { log->line(text); });
}

void RunFolder::rewind_metrics(int64_t step) {
    Path const path = path_ / "metrics.jsonl";
    metrics_.reset();
    if (!files_->exists(path) || files_->file_size(path) == 0) return;
    int64_t keep = 0;
    {
        auto const mapped = files_->map(path);
        std::string_view const text(reinterpret_cast<char const*>(mapped->bytes().data()), mapped->bytes().size());
        while (static_cast<size_t>(keep) < text.size()) {
            size_t const end = text.find('\n', static_cast<size_t>(keep));
            if (end == std::string_view::npos) break;  // torn by a kill
            auto const object =
                nlohmann::json::parse(text.substr(static_cast<size_t>(keep), end - static_cast<size_t>(keep)), nullptr,
                                      /*allow_exceptions=*/false);
            if (!object.is_object()) break;
            int64_t const done = object.value("step", step + 1);
            if (done > step || (done == step && object.contains("eval_loss"))) break;
            keep = static_cast<int64_t>(end) + 1;
        }
    }
    files_->append(path)->truncate(keep);
}

void RunFolder::append_metrics(std::string const& json_object) {
    if (!metrics_) metrics_ = std::make_unique<Appender>(*files_, path_ / "metrics.jsonl");
    metrics_->line(json_object);
}

}  // namespace perigee
