// What train, eval and generate share: a model on a device, its weights, and the data it was configured with.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "data/data_source.h"
#include "data/tokenizer.h"
#include "model/llama.h"
#include "ops/ops.h"
#include "parallel/mesh.h"
#include "parallel/model_weights.h"
#include "tensor/arena.h"
#include "train/options.h"

namespace perigee {

/// Fills in what the options leave open: the vocabulary size from the tokenizer, and the threads of a rank from the
/// cores this process may use, shared by the ranks of this host.
RunOptions resolve(RunOptions options, int local_ranks, FileSystem& files);

/// Batches that so many epochs of so many samples take, the last one rounded up.
double steps_of_epochs(double epochs, int64_t samples, int64_t batch);

/// With train.steps of train.epochs, where that is set: it opens the training data. Options are free of problems.
/// Throws Category::config where so many steps are too many, or too few for the schedule; else as open_data.
RunOptions with_steps_of_epochs(RunOptions options, FileSystem& files);

/// Throws Category::config where the tokenizer knows ids that the model does not.
void check_vocabulary(Tokenizer const& tokenizer, int64_t vocab_size);

/// Every parameter. `lora` and `train.freeze` decide which are frozen. Throws Category::config.
std::vector<ParamSpec> params_of(RunOptions const& options);

/// What a rank computes on, and with.
struct Machine {
    std::unique_ptr<Device> device;
    std::unique_ptr<Ops> ops;
};

/// Whether this choice means GPUs on this machine, and what is asked of them.
bool takes_gpu(DeviceChoice choice);
CudaOptions cuda_options(RunOptions const& options);

/// As `device`, `gpu` and `threads` say. Throws Category::config.
Machine make_machine(RunOptions const& options);

/// The checkpoint whose weights eval and generate take: the newest of the run, or the one named; nothing where
/// `model.init_from` is to supply them. A warning names folders of model.init_from and lora.init_from that are not read
/// because the run has weights of its own. Throws Category::checkpoint where neither is there, and Category::config
/// where there would be such a warning and checkpoint.resume is `never`. Collective.
std::optional<Checkpoint> find_weights(RunOptions const& options, HostComm& world, FileSystem& files);

/// Warns of folders in model.init_from and lora.init_from that are not read because the weights come from `found`.
void warn_of_unread_folders(RunOptions const& options, Checkpoint const& found);

class Session {
  public:
    /// `options` are resolved and free of problems for this world.
    Session(RunOptions const& options, HostComm& world, FileSystem& files);
    /// The same on a given machine, and the same on a given mesh too: for dry runs, measurements and tests.
    Session(RunOptions const& options, Machine&& machine, HostComm& world, FileSystem& files);
    Session(RunOptions const& options, Mesh mesh, Machine&& machine, FileSystem& files);

    RunOptions const& options() const { return options_; }
    FileSystem& files() const { return *files_; }
    Mesh const& mesh() const { return mesh_; }
    Ops& ops() const { return *machine_.ops; }
    /// Layouts of the trained and of the frozen parameters. The latter is null if nothing is frozen.
    ParamLayout const& layout() const { return layout_; }
    ParamLayout const* frozen_layout() const { return frozen_ ? &frozen_->layout : nullptr; }
    /// Number of parameters of the whole model, frozen or not.
    int64_t parameters() const { return layout_.global_size() + (frozen_ ? frozen_->layout.global_size() : 0); }
    Llama& model() { return model_; }
    Arena& arena() { return arena_; }
    Sharding const& sharding() const { return sharding_; }
    /// All weights, for the model's passes; weights() has the trained ones, in layout().
    ModelWeights& model_weights() { return weights_; }
    ModelWeights const& model_weights() const { return weights_; }
    ShardedWeights& weights() { return weights_.trained(); }
    ShardedWeights const& weights() const { return weights_.trained(); }
    std::unique_ptr<DataSource> open(Split split) const;
    /// fingerprints() of the data that a run reads, or only an evaluation. Collective; throws Category::data where
    /// ranks read different files.
    std::map<std::string, std::string> data_fingerprints(bool training = true) const;
    std::vector<Selection> selections(int64_t step) const;
    /// Bytes of text that each token id of the tokenizer stands for, 0 for special tokens; empty for made-up data,
    /// which stands for none.
    std::vector<int32_t> const& token_bytes();

    /// The weights of a checkpoint: the newest of the run, or the one that `checkpoint.resume` names; without one,
    /// those in `model.init_from`. Returns their state; throws Category::checkpoint where there are none. Collective.
    RunState load_weights() { return load_weights(find_weights(options_, mesh_.world(), *files_)); }
    RunState load_weights(std::optional<Checkpoint> const& found);
    /// Loads the frozen weights from model.init_from, or initialises them at random. No effect if nothing is frozen.
    /// Collective.
    void load_frozen();
    /// Fingerprint of the frozen weights as load_frozen() left them, independent of the layout. Empty if nothing is
    /// frozen.
    std::string const& base() const { return base_; }
    /// Throws Category::corruption if this rank's frozen weights have changed in any bit since load_frozen(). Waits for
    /// the device.
    void check_frozen();
    /// Throws Category::checkpoint if the checkpoint was trained with other frozen weights.
    void check_base(Checkpoint const& checkpoint) const;

    /// Fills `parts`, which lie on the device, from a checkpoint: rounded or widened where it stores another type.
    void read(Checkpoint const& checkpoint, std::vector<StoredTensor> const& parts) const;
    /// Fills parts of a layout's weights, which lie on the device, from the folder in `model.init_from`
    /// (`lora.init_from` for adapters). A rank reads only the bytes of its parts, and a sample of every file.
    /// Collective: all ranks succeed or throw the same Category::checkpoint; Category::config where they see other
    /// weights.
    void read_initial(ParamLayout const& layout, std::vector<StoredTensor> const& parts) const;
    /// Initial weights of a new run: read_initial() if a folder is named, else random numbers, each a function of
    /// (seed, name, index) only. Collective.
    void initialise(ParamLayout const& layout, std::vector<FlatPart> const& parts, uint64_t seed) const;

  private:
    /// The frozen parameters.
    struct Frozen {
        Frozen(std::vector<ParamSpec> specs, Mesh const& mesh, RunOptions const& options);
        ParamLayout layout;
        Sharding sharding;
    };
    static std::unique_ptr<Frozen> make_frozen(RunOptions const& options, Mesh const& mesh);
    int64_t hash_frozen();

    RunOptions options_;
    FileSystem* files_;
    Machine machine_;
    Mesh mesh_;
    ParamLayout layout_;
    std::unique_ptr<Frozen> frozen_;
    Sharding sharding_;
    ModelWeights weights_;
    std::string base_;
    int64_t frozen_hash_ = 0;  ///< of this rank's bits
    Llama model_;
    Arena arena_;
    std::optional<std::vector<int32_t>> token_bytes_;
};

/// The checkpoint a run starts from: none, the newest whole one as find_latest() finds it, or the one named, whose
/// damage is an error. Collective.
std::optional<Checkpoint> find_checkpoint(CheckpointOptions const& options, std::string const& output_dir,
                                          HostComm& world, FileSystem& files, Damaged damaged = Damaged::skipped,
                                          std::string const& run_id = {});

}  // namespace perigee
