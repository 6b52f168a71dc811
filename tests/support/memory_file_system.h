// A file system in memory that knows what a power loss would leave: file contents count from their sync on, names from
// the sync of their folder on. Everything later may be lost, kept in part, or kept. Thread-safe.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "io/file_system.h"

namespace perigee::testing {

class MemoryFileSystem : public FileSystem {
  public:
    MemoryFileSystem();
    ~MemoryFileSystem() override;

    std::unique_ptr<WritableFile> create(Path const& path) override;
    std::unique_ptr<WritableFile> append(Path const& path) override;
    std::unique_ptr<ReadableFile> open(Path const& path) override;
    std::unique_ptr<MappedFile> map(Path const& path) override;
    void make_directories(Path const& path) override;
    void sync_directory(Path const& path) override;
    void rename(Path const& from, Path const& to) override;
    void remove_all(Path const& path) override;
    std::unique_ptr<FileLock> lock(Path const& path, std::string const& holder) override;
    bool exists(Path const& path) const override;
    bool is_directory(Path const& path) const override;
    Path resolve(Path const& path) const override { return path.lexically_normal(); }
    int64_t file_size(Path const& path) const override;
    std::vector<std::string> list(Path const& directory) const override;
    int64_t free_bytes(Path const&) const override { return int64_t{1} << 40; }

    /// What becomes of file contents written since the file's last sync.
    enum class Unsynced {
        dropped,
        torn,    ///< all but the last write, and that one's first half, cut at a sector of 512 bytes
        zeroed,  ///< the new length, but zeros where nothing had been synced
        kept
    };
    /// Creations, renames and removals whose folder was not synced yet, oldest first.
    size_t pending_names() const;
    /// The tree a machine would find after losing power now, if the oldest `names` pending ones had reached the disk.
    std::unique_ptr<MemoryFileSystem> after_power_loss(size_t names, Unsynced contents) const;
    /// The same tree, all of it, for an experiment that leaves this one as it is.
    std::unique_ptr<MemoryFileSystem> copy() const { return after_power_loss(pending_names(), Unsynced::kept); }

    /// All files below `folder`: path to contents.
    std::map<std::string, std::string> contents(Path const& folder) const;
    /// Replaces a file's contents at once and durably, as damage to the disk would.
    void damage(Path const& path, std::string contents);

  private:
    struct Node;
    using NodePointer = std::shared_ptr<Node>;
    struct Edit {
        NodePointer folder;
        std::string name;
        NodePointer target;  ///< null: the name goes
    };
    using Operation = std::vector<Edit>;  ///< happens as a whole
    class Writable;
    class Readable;
    class Mapped;
    class Lock;

    NodePointer find(Path const& path) const;
    NodePointer need(Path const& path, char const* operation, bool directory) const;
    void apply(Operation operation);
    std::unique_ptr<WritableFile> open_for_writing(Path const& path, bool replace);

    mutable std::mutex mutex_;
    NodePointer root_;
    std::vector<Operation> pending_;
    std::map<Path, std::string> holders_;  ///< of locks; a power loss lets go of them
};

}  // namespace perigee::testing
