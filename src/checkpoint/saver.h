// Saves while training goes on: a lane copies the state, a thread writes the copy, and a later step commits it as a
// checkpoint. Only the calling thread communicates. The writing thread alone uses HDF5 until finish() has returned.
#pragma once

#include <atomic>
#include <memory>
#include <thread>

#include "checkpoint/checkpoint.h"
#include "device/queue.h"

namespace perigee {

inline constexpr char const* kSaveLane = "save";

/// Thread rule: one thread calls all members. The writing thread is the object's own; it reads only the copy.
class Saver {
  public:
    /// The parts it is given lie in memory of `device`.
    Saver(FileSystem& files, HostComm& world, Path root, Retention keep, Device& device)
        : files_(&files), world_(&world), root_(std::move(root)), keep_(keep), device_(&device) {}
    ~Saver();  ///< waits for the writer; a save that was not finished leaves a temporary folder
    Saver(Saver const&) = delete;
    Saver& operator=(Saver const&) = delete;

    /// Takes the memory for the copy of such parts, for which the first save would wait.
    void reserve(std::vector<StoredTensor> const& parts);
    /// Begins a save; none is in flight. What is queued that changes `parts` waits for copied(). Collective; throws
    /// like save_checkpoint(), after which none is in flight.
    void begin(RunState const& state, std::vector<StoredTensor> const& parts);
    /// The state of the latest save has been copied.
    Event const& copied() const { return copied_; }
    /// The checkpoint of this step outlives all saves that begin from now on.
    void keep_best(int64_t step) { keep_.best = step; }
    /// So does the one of this step, that in flight included.
    void keep(int64_t step) {
        keep_.steps.push_back(step);
        if (in_flight()) save_->keep(step);
    }
    bool in_flight() const { return save_ != nullptr; }
    /// This rank still writes.
    bool writing() const { return in_flight() && !written_.load(); }
    /// Step of the save in flight.
    int64_t step() const { return save_->state().step; }
    /// Waits for this rank's writer and makes the checkpoint. Collective; throws like save_checkpoint(). None is in
    /// flight afterwards.
    void finish();

  private:
    std::vector<StoredTensor> copy(std::vector<StoredTensor> const& parts);

    FileSystem* files_;
    HostComm* world_;
    Path root_;
    Retention keep_;
    Device* device_;
    HostBuffer memory_;  ///< kept from save to save
    std::unique_ptr<CheckpointSave> save_;
    Event copied_;
    std::atomic<bool> written_ = false, abandoned_ = false;
    std::thread writer_;
};

}  // namespace perigee
