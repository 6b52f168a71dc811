#include "train/run_folder.h"

#include <unistd.h>

#include <nlohmann/json.hpp>

#include <string_view>

#include "base/log.h"
#include "checkpoint/folders.h"
#include "train/failure.h"

namespace perigee {

Path checkpoint_root(Path const& output_dir) { return output_dir / "checkpoints"; }

namespace {

constexpr char kMetrics[] = "metrics.jsonl";

/// Calls `use` with each whole line of the metrics and where it ends, until it returns false. A kill may have torn the
/// last one.
template <class Use>
void for_each_metric(FileSystem& files, Path const& output_dir, Use&& use) {
    Path const path = output_dir / kMetrics;
    if (!files.exists(path) || files.file_size(path) == 0) return;
    auto const mapped = files.map(path);
    std::string_view const text(reinterpret_cast<char const*>(mapped->bytes().data()), mapped->bytes().size());
    for (size_t begin = 0; begin < text.size();) {
        size_t const end = text.find('\n', begin);
        if (end == std::string_view::npos) return;
        auto const line = text.substr(begin, end - begin);
        begin = end + 1;
        if (!use(line, static_cast<int64_t>(begin))) return;
    }
}

nlohmann::json parse(std::string_view line) { return nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false); }

}  // namespace

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
    metrics_.reset();
    int64_t keep = 0;
    for_each_metric(*files_, path_, [&](std::string_view line, int64_t end) {
        auto const object = parse(line);
        if (!object.is_object()) return false;
        int64_t const done = object.value("step", step + 1);
        if (done > step || (done == step && object.contains("eval_loss"))) return false;
        keep = end;
        return true;
    });
    if (files_->exists(path_ / kMetrics)) files_->append(path_ / kMetrics)->truncate(keep);
}

std::optional<EvalReport> best_evaluation(FileSystem& files, Path const& output_dir) {
    std::optional<EvalReport> best;
    for_each_metric(files, output_dir, [&](std::string_view line, int64_t) {
        if (line.find("\"eval_loss\"") == line.npos) return true;
        auto const object = parse(line);
        if (!object.is_object()) return false;
        auto const loss = object.find("eval_loss");
        if (loss == object.end() || !loss->is_number()) return true;
        EvalReport const report{.step = object.value("step", int64_t{-1}), .loss = loss->get<double>()};
        bool const better = !best || report.loss < best->loss;
        if (better && files.exists(checkpoint_root(output_dir) / step_name(report.step))) best = report;
        return true;
    });
    return best;
}

void RunFolder::append_metrics(std::string const& json_object) {
    if (!metrics_) metrics_ = std::make_unique<Appender>(*files_, path_ / kMetrics);
    metrics_->line(json_object);
}

}  // namespace perigee
