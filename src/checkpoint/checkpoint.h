// Checkpoints that survive crashes and any later layout. `root`/step_00000100/ holds one tensor file per writing rank
// and manifest.json with sizes and SHA-256 hashes, written last. Everything is written to step_....tmp/, synced, then
// renamed: a folder of the final name is whole. Protocol: docs/numerics.md names what is bitwise, docs/architecture.md
// draws the order of operations.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/schema.h"
#include "comm/comm.h"
#include "io/file_system.h"
#include "parallel/param_spec.h"
#include "tensor/tensor.h"

namespace perigee {

struct CheckpointOptions {
    int64_t every = 100;     ///< steps between checkpoints; 0: only at the end and when told to stop
    int64_t keep_last = 3;   ///< 0 keeps all
    std::string resume = "auto";  ///< auto, never, or a checkpoint folder
};
void describe(Schema& schema, CheckpointOptions& options);

/// Everything a run needs beside tensors.
struct RunState {
    int64_t step = 0;              ///< steps done
    int64_t consumed_samples = 0;
    int64_t applied_updates = 0;   ///< optimizer updates done; steps skipped by the guard do not count
    int64_t skipped_in_a_row = 0;
    uint64_t seed = 0;
    std::map<std::string, std::string> info;  ///< layout, library versions, model shape: recorded, and compared by the reader where it matters
};

/// One tensor to store or to fill: which part of which global tensor, and the host memory that holds it.
struct StoredTensor {
    std::string name;  ///< "model.layers.0.mlp.up_proj.weight", "optimizer.m/model.layers..."
    Shard shard;
    TensorView values;
};

/// Writes a checkpoint. Every rank of `world` calls it with the parts it is to write; together they cover every tensor
/// once. On failure the previous checkpoint is untouched, the temporary folder is removed as far as possible, and every
/// rank throws Category::checkpoint.
void save_checkpoint(FileSystem& files, Comm& world, Path const& root, RunState const& state,
                     std::vector<StoredTensor> const& parts, int64_t keep_last);

/// A checkpoint folder whose files were verified against its manifest, hashes included, before anything is read.
class Checkpoint {
  public:
    /// Throws Category::checkpoint naming file, expected and found.
    static Checkpoint open(FileSystem& files, Path const& folder);

    RunState const& state() const { return state_; }
    Path const& folder() const { return folder_; }
    std::map<std::string, Shape> const& tensors() const { return tensors_; }  ///< global shapes by name
    /// Fills each part from whatever files hold its elements. Throws for missing tensors, other shapes or gaps.
    void read(std::vector<StoredTensor> const& parts) const;

  private:
    FileSystem* files_ = nullptr;
    Path folder_;
    RunState state_;
    std::map<std::string, Shape> tensors_;
    struct Piece {
        std::string file;
        std::string dataset;
        Shard shard;
    };
    std::map<std::string, std::vector<Piece>> pieces_;
};

/// The newest folder of `root` that verifies, or nothing. Damaged ones are skipped with a warning that says what is
/// wrong; temporary ones are ignored. Collective: rank 0 decides, all ranks open the same folder.
std::optional<Checkpoint> find_latest(FileSystem& files, Comm& world, Path const& root);

}  // namespace perigee
