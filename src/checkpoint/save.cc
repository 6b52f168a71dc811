// The order of operations is the point of this file: nothing that a reader trusts exists before everything it names is
// on the disk.
#include "base/log.h"
#include "checkpoint/agree.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/folders.h"
#include "checkpoint/manifest.h"
#include "io/tensor_file.h"

namespace perigee {

namespace {

/// Room for what a tensor file holds beside values, per tensor.
constexpr int64_t kOverheadBytes = 2048;

std::vector<int64_t> list(Shape const& shape) {
    std::vector<int64_t> extents;
    for (int i = 0; i < shape.rank(); ++i) extents.push_back(shape[i]);
    return extents;
}

}  // namespace

/// The folder a checkpoint grows in.
class SaveFolder {
  public:
    SaveFolder(FileSystem& files, Path root, int64_t step)
        : files_(files),
          root_(std::move(root)),
          name_(step_name(step)),
          temporary_(root_ / (name_ + kTemporarySuffix)) {}

    void prepare(int64_t bytes) {
        make_durable_folder(files_, root_);
        clean_up(files_, root_);
        int64_t const needed = bytes + bytes / 10;
        int64_t const free = files_.free_bytes(root_);
        if (free <= needed) {
            fail(Category::checkpoint,
                 "no room for a checkpoint in {}: {} bytes needed, {} bytes free. Make room, or remove older "
                 "checkpoints: checkpoint.keep_last does so only after a save",
                 root_.string(), needed, free);
        }
        files_.make_directories(temporary_);
    }

    /// This rank's file; a rank without parts writes none.
    Manifest write_parts(int rank, std::vector<StoredTensor> const& parts, CheckpointSave::Fill const& fill) {
        Manifest manifest;
        if (parts.empty()) return manifest;
        std::string const file = fmt::format("rank_{:04}.h5", rank);
        auto writer = create_tensor_file(files_, temporary_ / file);
        for (StoredTensor const& part : parts) {
            if (fill) fill(part);
            Shard const& s = part.shard;
            PERIGEE_CHECK(part.values.size() == s.flat_count, "`{}` holds {} of {} elements", part.name,
                          part.values.size(), s.flat_count);
            auto& tensor = manifest.tensors.try_emplace(part.name, Manifest::Tensor{part.values.dtype, s.global, {}})
                               .first->second;
            PERIGEE_CHECK(tensor.dtype == part.values.dtype && tensor.shape == s.global, "two kinds of `{}`",
                          part.name);
            std::string const dataset =
                tensor.pieces.empty() ? part.name : fmt::format("{}#{}", part.name, tensor.pieces.size());
            bool const whole_box = s.flat_count == s.extent.size();
            // The attributes let a person with h5dump see what a piece is; the program reads the manifest.
            writer->write(dataset, part.values.reshape(whole_box ? s.extent : Shape{s.flat_count}),
                          {{"shape", list(s.global)},
                           {"begin", list(s.begin)},
                           {"extent", list(s.extent)},
                           {"flat", {s.flat_begin, s.flat_count}}});
            tensor.pieces.push_back({0, dataset, s});
        }
        auto const result = writer->finish();
        manifest.files.push_back({file, result.bytes, result.sha256});
        return manifest;
    }

    /// From here on the new checkpoint exists, or the old state does; nothing in between is taken for either.
    void commit(Manifest const& manifest) {
        manifest.check_pieces(temporary_.string());
        std::string const text = manifest.to_text();
        if (std::ssize(text) > kMaxManifestBytes)
            fail(Category::checkpoint,
                 "{} of {} would have {} bytes, more than the {} that can be read: fewer ranks or larger buckets "
                 "(parallel.bucket_mib) make fewer pieces",
                 kManifestName, name_, text.size(), kMaxManifestBytes);
        {
            auto const file = files_.create(temporary_ / kManifestName);
            file->write_at(0, std::as_bytes(std::span(text)));
            file->sync();
        }
        files_.sync_directory(temporary_);
        bool const replaces = files_.exists(root_ / name_);
        if (replaces) files_.rename(root_ / name_, replaced());
        try {
            if (replaces) files_.sync_directory(root_);
            files_.rename(temporary_, root_ / name_);
        } catch (Error const&) {
            if (replaces) files_.rename(replaced(), root_ / name_);
            throw;
        }
        files_.sync_directory(root_);
    }

    void tidy(int64_t step, Retention keep) {
        try {
            clean_up(files_, root_);
            prune(files_, root_, step, keep);
        } catch (Error const& e) {
            log::warn("an old checkpoint stays: {}", e.what());
        }
    }

    void abandon() noexcept {
        try {
            files_.remove_all(temporary_);
        } catch (std::exception const& e) {
            log::warn("{} stays behind: {}", temporary_.string(), e.what());
        }
    }

  private:
    Path replaced() const { return root_ / (name_ + kReplacedSuffix); }

    FileSystem& files_;
    Path root_;
    std::string name_;
    Path temporary_;
};

template <class Action>
void CheckpointSave::or_abandon(Action&& action) {
    try {
        action();
    } catch (Error const& e) {
        if (world_.rank() == 0 && e.category() == Category::checkpoint) folder_->abandon();
        throw;
    }
}

CheckpointSave::CheckpointSave(FileSystem& files, HostComm& world, Path const& root, RunState const& state,
                               int64_t bytes, Retention keep)
    : world_(world), state_(state), keep_(keep), folder_(std::make_unique<SaveFolder>(files, root, state.step)) {
    PERIGEE_CHECK(state.step >= 0, "step {}", state.step);
    int64_t const all_bytes = world_.sum(bytes);
    or_abandon([&] {
        agree(world_, [&] {
            if (world_.rank() == 0) folder_->prepare(all_bytes);
        });
    });
}

CheckpointSave::~CheckpointSave() = default;

void CheckpointSave::write(std::vector<StoredTensor> const& parts, Fill const& fill) noexcept {
    try {
        report_ = folder_->write_parts(world_.rank(), parts, fill).to_text();
    } catch (...) {
        write_error_ = std::current_exception();
    }
}

void CheckpointSave::commit() {
    bool const first = world_.rank() == 0;
    or_abandon([&] {
        agree(world_, [&] {
            if (write_error_) std::rethrow_exception(write_error_);
        });
        std::vector<std::string> const reports = world_.gather_text(report_);
        agree(world_, [&] {
            if (!first) return;
            Manifest manifest;
            manifest.state = state_;
            for (std::string const& text : reports) manifest.merge(Manifest::parse(text, "report of a rank"));
            folder_->commit(manifest);
        });
    });
    if (first) folder_->tidy(state_.step, keep_);
    world_.barrier();  // large checkpoints take long to delete: within the limit of a save, not of the next step
}

int64_t value_bytes(std::vector<StoredTensor> const& parts) {
    int64_t bytes = 0;
    for (StoredTensor const& part : parts) bytes += part.values.bytes();
    return bytes;
}

int64_t stored_bytes(std::vector<StoredTensor> const& parts) {
    return value_bytes(parts) + std::ssize(parts) * kOverheadBytes;
}

void save_checkpoint(FileSystem& files, HostComm& world, Path const& root, RunState const& state,
                     std::vector<StoredTensor> const& parts, Retention keep) {
    CheckpointSave save(files, world, root, state, stored_bytes(parts), keep);
    save.write(parts);
    save.commit();
}

}  // namespace perigee
