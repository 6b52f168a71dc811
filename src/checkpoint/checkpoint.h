// Checkpoints that survive crashes and any later layout. `root`/step_00000100/ holds one tensor file per writing rank
// and manifest.json with sizes and SHA-256 hashes, written last. Everything is written to step_....tmp/, synced, then
// renamed: a folder of the final name is whole. Protocol: docs/numerics.md names what is bitwise, docs/architecture.md
// draws the order of operations.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/schema.h"
#include "comm/host_comm.h"
#include "io/file_system.h"
#include "parallel/param_spec.h"
#include "tensor/tensor.h"

namespace perigee {

/// Which checkpoints outlive later ones.
struct Retention {
    int64_t last = 0;                 ///< the newest ones; 0 keeps all
    int64_t every = 0;                ///< besides, those whose step is a multiple of this; 0: none
    int64_t best = -1;                ///< besides, the one of this step
    std::vector<int64_t> steps = {};  ///< besides, those of these steps
};

struct CheckpointOptions {
    int64_t every = 100;          ///< steps between checkpoints; 0: only at the end and when told to stop
    int64_t keep_last = 3;        ///< 0 keeps all
    int64_t keep_every = 0;       ///< besides, for ever, every step that this divides; 0: none
    bool keep_best = false;       ///< besides, the one with the lowest validation loss
    std::string resume = "auto";  ///< auto, never, best, or a checkpoint folder
    bool allow_model_change = false;
    bool asynchronous = true;  ///< copy the state, then write it while training goes on
    Retention retention() const { return {.last = keep_last, .every = keep_every}; }
    /// Whether `resume` is a checkpoint's folder.
    bool names_folder() const { return resume != "auto" && resume != "never" && resume != "best"; }
};
void describe(Schema& schema, CheckpointOptions& options);

/// Everything a run needs beside tensors.
struct RunState {
    int64_t step = 0;  ///< steps done
    int64_t consumed_samples = 0;
    std::optional<int64_t> consumed_tokens = {};  ///< in them, padding included; none in those of older programs
    int64_t applied_updates = 0;                  ///< optimizer updates done; steps skipped by the guard do not count
    int64_t skipped_in_a_row = 0;
    int64_t without_loss_in_a_row = 0;  ///< steps whose global batch had no token that carries loss
    uint64_t seed = 0;
    /// The held-out loss that was the lowest so far, of the steps that have a checkpoint.
    struct Best {
        int64_t step = 0;
        double loss = 0;
        bool operator==(Best const&) const = default;
    };
    std::optional<Best> best = {};
    /// What the guard against spikes knows (train/spike.h), so that a resumed run judges as the unbroken one.
    struct Spikes {
        std::vector<double> losses = {}, grad_norms = {};  ///< of the last steps, the oldest first; finite
        int64_t last = 0;                                  ///< step of the latest spike; 0: none yet
        int64_t rollbacks = 0;                             ///< in this series of spikes
        int64_t rolled_back_to = 0;                        ///< step to which the latest of them went
        std::vector<int64_t> kept = {};                    ///< steps of the checkpoints before spikes: never pruned
        bool operator==(Spikes const&) const = default;
    };
    Spikes spikes = {};
    std::string run_id = {};   ///< random, the same in all checkpoints of a run; empty in those of older programs
    std::string options = {};  ///< of the run, as JSON; empty in those of older programs
    std::map<std::string, std::string> data = {};  ///< what identifies the contents of each data set
    /// Layout, library versions, model shape: recorded, and compared by the reader where it matters. UTF-8.
    std::map<std::string, std::string> info;
    /// In `info`: the Jinja chat template that rendered the training data.
    static constexpr char kChatTemplate[] = "chat_template";
    /// In `info`: the token that ended the answers of the training data, if it was a single one.
    static constexpr char kChatStop[] = "chat_stop";
    /// In `info`: fingerprint of the frozen weights that the tensors were trained with.
    static constexpr char kBase[] = "base";
    /// The checkpoint that checkpoint.resume named when the run began.
    static constexpr char kBeganFrom[] = "began_from";
    bool operator==(RunState const&) const = default;
};

/// One tensor to store or to fill: which part of which global tensor, and the host memory that holds it.
struct StoredTensor {
    std::string name;  ///< "model.layers.0.mlp.up_proj.weight", "optimizer.m/model.layers..."
    Shard shard;
    TensorView values;  ///< shard.flat_count elements
};

/// Writes a checkpoint. Every rank of `world` calls it with the parts it is to write; together they cover every tensor
/// once. On failure the previous checkpoints are untouched, the temporary folder is removed as far as possible, and
/// every rank throws the same Category::checkpoint. A checkpoint of the same step is replaced. Of the checkpoints up
/// to this step, only this one and those that `keep` names remain. Leftovers of crashes are removed.
void save_checkpoint(FileSystem& files, HostComm& world, Path const& root, RunState const& state,
                     std::vector<StoredTensor> const& parts, Retention keep);

struct Manifest;
class SaveFolder;

/// The same in its phases, so that the writing in the middle can be left to another thread.
class CheckpointSave {
  public:
    /// Makes the temporary folder. Collective; `bytes` are the stored_bytes() that write() will be given on this rank.
    CheckpointSave(FileSystem& files, HostComm& world, Path const& root, RunState const& state, int64_t bytes,
                   Retention keep);
    ~CheckpointSave();
    CheckpointSave(CheckpointSave const&) = delete;
    CheckpointSave& operator=(CheckpointSave const&) = delete;

    RunState const& state() const { return state_; }
    /// The checkpoint of this step outlives this save too.
    void keep(int64_t step) { keep_.steps.push_back(step); }
    /// Called with each part before it is written, so that parts can take turns in the same memory.
    using Fill = std::function<void(StoredTensor const&)>;
    /// Writes this rank's file. Does not communicate; a failure, of `fill` too, is kept for commit().
    void write(std::vector<StoredTensor> const& parts, Fill const& fill = {}) noexcept;
    /// Makes the checkpoint of what all ranks wrote. Collective, after write() has returned on this rank.
    void commit();

  private:
    template <class Action>
    void or_abandon(Action&& action);

    HostComm& world_;
    RunState state_;
    Retention keep_;
    std::unique_ptr<SaveFolder> folder_;
    std::string report_;  ///< what this rank wrote
    std::exception_ptr write_error_;
};

/// Of the values alone: what a copy of `parts` takes.
int64_t value_bytes(std::vector<StoredTensor> const& parts);
/// Room that `parts` take in a file, what comes with the values included.
int64_t stored_bytes(std::vector<StoredTensor> const& parts);

/// What a folder holds is not the whole checkpoint that its name promises. Other failures to read one, such as a
/// disk's error or a lack of permission, are not damage.
class DamagedError : public Error {
  public:
    explicit DamagedError(std::string const& message) : Error(Category::checkpoint, message) {}
};

/// A checkpoint folder whose files were verified against its manifest, hashes included, before anything is read.
class Checkpoint {
  public:
    /// What a caller knows of a checkpoint beforehand.
    struct Expected {
        std::optional<int64_t> step;
        std::string run_id;  ///< empty: any
    };
    /// Throws Category::checkpoint naming file, expected and found; DamagedError where the folder was read and is not
    /// a whole checkpoint, or another one than expected.
    static Checkpoint open(FileSystem& files, Path const& folder);
    /// Collective: the ranks share the work of verifying, and all succeed or throw the same error.
    static Checkpoint open(FileSystem& files, HostComm& world, Path const& folder) {
        return open(files, world, folder, {});
    }
    static Checkpoint open(FileSystem& files, HostComm& world, Path const& folder, Expected const& expected);

    RunState const& state() const;
    Path const& folder() const { return folder_; }
    std::map<std::string, Shape> const& tensors() const { return tensors_; }  ///< global shapes by name
    /// Stored type of a tensor; empty if there is no such tensor.
    std::optional<DType> dtype(std::string const& name) const;
    /// Fills each part from whatever files hold its elements, for any layout on either side. Throws
    /// Category::checkpoint for missing tensors, other shapes and other types before it touches any part.
    void read(std::vector<StoredTensor> const& parts) const;

  private:
    Checkpoint(FileSystem& files, Path folder, std::shared_ptr<Manifest const> manifest);

    FileSystem* files_;
    Path folder_;
    std::shared_ptr<Manifest const> manifest_;
    std::map<std::string, Shape> tensors_;
};

/// What find_latest() does with damaged checkpoints that are newer than the whole one it finds.
enum class Damaged {
    skipped,   ///< left where they are: for readers, which do not own the folder
    set_aside  ///< renamed to step_00000120.damaged: for the run that owns the folder
};

/// The newest checkpoint of `root` that verifies and is of this run (empty: of any); nothing where there is none.
/// A warning says what is wrong with each damaged one; temporary ones are ignored. Throws Category::checkpoint and
/// renames nothing where none is whole, rather than let a run start anew unasked, and where one cannot be read for
/// another reason than damage. Collective: all ranks open the same folder.
std::optional<Checkpoint> find_latest(FileSystem& files, HostComm& world, Path const& root,
                                      Damaged damaged = Damaged::skipped, std::string const& run_id = {});

}  // namespace perigee
