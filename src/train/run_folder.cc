#include "train/run_folder.h"

#include <unistd.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <random>
#include <string_view>
#include <thread>

#include "base/log.h"
#include "base/printable.h"
#include "checkpoint/folders.h"
#include "checkpoint/manifest.h"
#include "train/described.h"
#include "train/failure.h"

namespace perigee {

Path checkpoint_root(Path const& output_dir) { return output_dir / "checkpoints"; }

namespace {

constexpr char kMetrics[] = "metrics.jsonl", kSamples[] = "samples.jsonl", kBlocks[] = "blocks.jsonl";
constexpr char kConfig[] = "config.yaml", kLock[] = ".lock";
constexpr std::string_view kRunComment = "# run ";

/// A whole line of a file of lines with steps.
struct MetricLine {
    std::string_view text;
    int64_t number = 0;  ///< from 1
    int64_t end = 0;     ///< where the next one begins
    bool last = false;
};

/// Calls `use` with each whole line until it returns false. A kill may have torn the last one.
template <class Use>
void for_each_line(std::string_view text, Use&& use) {
    MetricLine line;
    for (size_t begin = 0; begin < text.size(); begin = static_cast<size_t>(line.end)) {
        size_t const end = text.find('\n', begin);
        if (end == std::string_view::npos) return;
        line = {text.substr(begin, end - begin), line.number + 1, static_cast<int64_t>(end + 1),
                text.find('\n', end + 1) == std::string_view::npos};
        if (!use(line)) return;
    }
}

template <class Use>
void for_each_line(FileSystem& files, Path const& path, Use&& use) {
    if (!files.exists(path) || files.file_size(path) == 0) return;
    auto const mapped = files.map(path);
    for_each_line(std::string_view(reinterpret_cast<char const*>(mapped->bytes().data()), mapped->bytes().size()),
                  std::forward<Use>(use));
}

struct Metric {
    int64_t step = 0;
    nlohmann::json object;
};

/// Nothing for a last line that is torn. Perigee writes no other than objects with a step, but anybody may edit the
/// file: throws Category::data.
std::optional<Metric> read_metric(MetricLine const& line, Path const& path) {
    auto object = nlohmann::json::parse(line.text, nullptr, /*allow_exceptions=*/false);
    if (!object.is_object() && line.last) return std::nullopt;
    if (object.is_object()) {
        auto const step = object.find("step");
        if (step != object.end() && step->is_number_unsigned() && step->get<uint64_t>() <= uint64_t{1} << 62)
            return Metric{step->get<int64_t>(), std::move(object)};
    }
    fail(Category::data,
         "{}:{}: a JSON object whose `step` is a whole number is expected, found {}: correct that line, "
         "or remove it",
         path.string(), line.number, printable_name(line.text.substr(0, 200)));
}

/// Cuts the file off before the first line that `is_done_again`.
template <class Again>
void cut(FileSystem& files, Path const& path, Again&& is_done_again) {
    int64_t keep = 0;
    for_each_line(files, path, [&](MetricLine const& line) {
        auto const metric = read_metric(line, path);
        if (!metric || is_done_again(*metric)) return false;
        keep = line.end;
        return true;
    });
    if (!files.exists(path)) return;
    auto const file = files.append(path);
    file->truncate(keep);
    file->sync();
}

/// Calls `use` with each evaluation that has a loss.
template <class Use>
void for_each_evaluation(FileSystem& files, Path const& path, Use&& use) {
    for_each_line(files, path, [&](MetricLine const& line) {
        if (line.text.find("\"eval_loss\"") == line.text.npos) return true;
        auto const metric = read_metric(line, path);
        if (!metric) return false;
        auto const loss = metric->object.find("eval_loss"), data = metric->object.find("eval_data");
        if (loss == metric->object.end() || !loss->is_number()) return true;
        EvalReport report{.step = metric->step, .loss = loss->get<double>()};
        if (data != metric->object.end() && data->is_string()) report.data = data->get<std::string>();
        use(report);
        return true;
    });
}

}  // namespace

RunFolder::RunFolder(FileSystem& files, Path path) : files_(&files), path_(std::move(path)) {
    try {
        files_->make_directories(checkpoint_root(path_));
    } catch (Error const& e) {
        fail(Category::config, "output_dir cannot be written: {}", e.what());
    }
    try {
        holder_ = fmt::format("process {} on host {}", ::getpid(), host_name());
        lock_ = files_->lock(path_ / kLock, holder_);
    } catch (LockedError const& e) {
        fail(Category::config, "output_dir {} is in use by another job ({})", path_.string(), e.holder());
    } catch (IoError const& e) {
        fail(Category::config, "output_dir cannot be written: {}", e.what());
    }
    remove_failures(*files_, path_);
}

void check_shared(FileSystem& files, Path const& output_dir, std::string const& holder, std::chrono::seconds patience) {
    auto const until = std::chrono::steady_clock::now() + patience;
    for (;;) {  // a network file system may show it late
        std::string found;
        try {
            found = files.read_text(output_dir / kLock, 4096);
        } catch (Error const&) {  // not there yet, or cut while it is read
        }
        if (found == holder) return;
        if (std::chrono::steady_clock::now() > until) break;
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    fail(Category::config,
         "output_dir {} on host {} is not the folder that rank 0 ({}) has: all hosts must share it, as every rank "
         "writes its part of the checkpoints there",
         output_dir.string(), host_name(), holder);
}

RunFolder::~RunFolder() {
    finish_metrics();
    log::mirror({});
}

std::string RunFolder::run_id() const {
    Path const path = path_ / kConfig;
    if (!files_->exists(path)) return "";
    auto const file = files_->open(path);
    std::string text(static_cast<size_t>(std::min<int64_t>(file->size(), 80)), '\0');
    file->read_at(0, std::as_writable_bytes(std::span(text)));
    if (!text.starts_with(kRunComment)) return "";
    return text.substr(kRunComment.size(), text.find('\n') - kRunComment.size());
}

void RunFolder::write_config(std::string const& yaml, std::string const& run_id) {
    files_->replace_text(path_ / kConfig, fmt::format("{}{}\n{}", kRunComment, run_id, yaml));
}

void RunFolder::write_record(std::string const& json) { files_->replace_text(path_ / "run.json", json + "\n"); }

std::string new_run_id() {
    std::random_device random;
    return fmt::format("{:08x}{:08x}", random(), random());
}

void RunFolder::mirror_log() {
    log_ = std::make_unique<LineFile>(*files_, path_ / "log.txt");
    log::mirror([log = log_.get()](std::string const& text) { log->append(text); });
}

template <class Again>
void RunFolder::rewind(std::unique_ptr<LineFile>& file, char const* name, Again&& is_done_again) {
    cut(*files_, path_ / name, is_done_again);
    std::string const waiting = file ? file->take_waiting() : "";
    if (file) file->was_cut();
    for_each_line(waiting, [&](MetricLine const& line) {  // that a full disk did not take
        auto const metric = read_metric(line, path_ / name);
        if (!metric || is_done_again(*metric)) return false;
        append(file, name, std::string(line.text));
        return true;
    });
}

std::vector<std::string> RunFolder::rewind_metrics(int64_t step, bool evaluates) {
    std::vector<std::string> of_step;
    auto const again = [=](Metric const& metric) { return metric.step > step || (evaluates && metric.step == step); };
    rewind(metrics_, kMetrics, [&](Metric const& metric) {
        bool const goes = metric.step > step || (again(metric) && metric.object.contains("eval_loss"));
        if (!goes && metric.step == step) of_step.push_back(metric.object.dump());
        return goes;
    });
    rewind(samples_, kSamples, again);
    rewind(blocks_, kBlocks, again);
    return of_step;
}

bool is_own(Checkpoint const& found, Path const& output_dir) {
    std::error_code missing;
    return std::filesystem::equivalent(found.folder(), checkpoint_root(output_dir) / step_name(found.state().step),
                                       missing);
}

std::optional<EvalReport> best_evaluation(FileSystem& files, Path const& output_dir, std::string const& held_out) {
    std::optional<EvalReport> best;
    for_each_evaluation(files, output_dir / kMetrics, [&](EvalReport const& report) {
        bool const better = !best || report.loss < best->loss;
        if (!better || (!report.data.empty() && report.data != held_out)) return;
        if (files.exists(checkpoint_root(output_dir) / step_name(report.step))) best = report;
    });
    return best;
}

std::optional<RunState::Best> best_checkpoint(FileSystem& files, Path const& output_dir) {
    Path const root = checkpoint_root(output_dir);
    if (!files.exists(root)) return std::nullopt;
    RunState newest;
    for (StepFolder const& folder : step_folders(files, root)) {
        try {
            Path const path = root / folder.name / kManifestName;
            newest = Manifest::parse(files.read_text(path, kMaxManifestBytes), path.string()).state;
            break;
        } catch (Error const&) {  // a damaged one: an older one may say
        }
    }
    auto best = newest.best;
    if (best && !files.exists(root / step_name(best->step))) best.reset();
    auto const options = stored_options(newest);
    std::string held_out = options ? held_out_data(*options, newest.data) : "";
    EvalReport last;
    for_each_evaluation(files, output_dir / kMetrics, [&](EvalReport const& report) { last = report; });
    // A finished run that starts again with other held-out data evaluates its last step anew and saves nothing.
    if (!last.data.empty() && last.data != held_out && (!best || last.step >= newest.step))
        best.reset(), held_out = last.data;
    auto const evaluated = best_evaluation(files, output_dir, held_out);
    if (evaluated && (!best || evaluated->loss <= best->loss)) best = {evaluated->step, evaluated->loss};
    return best;
}

void RunFolder::write_events(int64_t step, std::vector<std::string> const& lines) {
    events_ = std::make_unique<EventFile>(*files_, path_ / "tensorboard", step);
    for (std::string const& line : lines) events_->append(line);
}

void RunFolder::append(std::unique_ptr<LineFile>& file, char const* name, std::string const& json_object) {
    if (!file) file = std::make_unique<LineFile>(*files_, path_ / name);
    file->append(json_object);
    tell_news();
}

void RunFolder::append_metrics(std::string const& json_object) {
    if (events_) events_->append(json_object);
    append(metrics_, kMetrics, json_object);
}

void RunFolder::append_sample(std::string const& json_object) { append(samples_, kSamples, json_object); }

void RunFolder::append_blocks(std::string const& json_object) { append(blocks_, kBlocks, json_object); }

int64_t RunFolder::finish_metrics() {
    int64_t missing = 0;
    for (LineFile* const file : {metrics_.get(), samples_.get(), blocks_.get()}) {
        if (file == nullptr) continue;
        file->flush();
        missing += file->missing();
    }
    tell_news();
    return missing;
}

void RunFolder::tell_news() {
    auto const tell = [](auto* file) {
        if (file == nullptr) return;
        if (std::string const news = file->news(); !news.empty()) log::warn("{}", news);
    };
    for (auto const& file : {metrics_.get(), samples_.get(), blocks_.get()}) tell(file);
    tell(log_.get());
    tell(events_.get());
}

}  // namespace perigee
