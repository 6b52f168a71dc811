// A phantom: one process computes what one rank of a job computes, takes the memory that this rank takes, and there are
// no other ranks. What they would send is made up on the device; links are played by queues that wait.
//
// What comes from others:
//   keys, values and activations   this rank's own, their rows in an order drawn for the sender: the same mean and
//                                  variance, and blocks of keys whose centroids are all different
//   weights                        what lies there, as everybody's initial weights are known: see fill_weights()
//   sums of activations            this rank's own times the root of the ranks, as of independent parts
//   other sums of their groups     this rank's own times the ranks: the softmax's, and gradients of uncut parameters
//   gradients over data x context  this rank's own
//   sums of the host               this rank's own times the ranks
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "device/pace.h"
#include "ops/ops.h"
#include "parallel/mesh.h"
#include "parallel/param_spec.h"
#include "parallel/units.h"

namespace perigee {

struct PhantomOptions {
    int rank = 0;          ///< of the job
    MeshShape shape;       ///< of the job
    int64_t tokens = 1;    ///< of a micro-batch, that a context-parallel rank holds
    int64_t heads = 1;     ///< of a tensor-parallel rank
    int64_t kv_heads = 1;  ///< likewise
    int64_t head_dim = 1;
    double bytes_per_second = 0;  ///< of a link, one way; 0: collectives take no time
    double latency = 0;           ///< seconds of every collective
    bool traffic = false;         ///< collectives also move as many bytes in memory as a rank sends
    uint64_t seed = 1;
};

/// What the collectives of an axis came to.
struct PhantomSent {
    int64_t calls = 0;
    double bytes = 0;    ///< ring_bytes()
    double seconds = 0;  ///< that links are played for
};

class Phantom {
  public:
    /// `ops` works on the device of the job's tensors, unobserved: what is made up is no operation of the model.
    Phantom(PhantomOptions const& options, Ops& ops);
    ~Phantom();
    Phantom(Phantom const&) = delete;
    Phantom& operator=(Phantom const&) = delete;

    HostComm& world() { return *world_; }
    /// Of the job; this outlives them.
    std::unique_ptr<GroupMaker> groups();

    using Sent = std::map<std::pair<Axis, Collective>, PhantomSent>;
    Sent const& sent() const { return sent_; }
    /// Counts from here on.
    void clear() { sent_.clear(); }
    /// Memory of the device that a real rank does not take.
    int64_t own_bytes() const { return own_bytes_; }
    /// Seconds of the compute queue, since the last call, that making up took and no link hid: a real rank does not
    /// spend them. Waits for the device.
    double take_own_seconds();

  private:
    class Group;
    class Groups;

    int rank_of(Axis axis) const;
    /// A number for every row: some order of rows 0 to `rows` - 1 in which each stays among those that are the same
    /// modulo `period`. Another for every `sender`.
    ConstView order(int64_t rows, int64_t period, int sender);

    PhantomOptions options_;
    Ops* ops_;
    std::unique_ptr<HostComm> world_;
    std::unique_ptr<Pace> pace_;  ///< null where collectives take no time
    Sent sent_;
    std::map<std::tuple<int64_t, int64_t, int>, std::pair<Buffer, TensorView>> orders_;
    int64_t own_bytes_ = 0;
    std::vector<std::pair<Event, Event>> made_up_;  ///< from, to
};

/// Sets what `weights` holds of other ranks' shares, by `fill` (unit, its values); gathers of a phantom leave it there.
void fill_weights(ParamLayout const& layout, WeightUnits& weights, std::function<void(int, TensorView)> const& fill);

}  // namespace perigee
