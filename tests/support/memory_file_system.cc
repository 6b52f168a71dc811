#include "support/memory_file_system.h"

#include <algorithm>
#include <cerrno>
#include <functional>
#include <utility>

namespace perigee::testing {

struct MemoryFileSystem::Node {
    bool directory = false;
    std::map<std::string, NodePointer> names, durable_names;
    std::string bytes, durable_bytes;
    struct Write {
        size_t offset;
        std::string bytes;
    };
    std::vector<Write> unsynced;  ///< a truncation counts as a write of nothing

    static void put(std::string& to, Write const& write, size_t count) {
        if (to.size() < write.offset + count) to.resize(write.offset + count, '\0');
        std::copy_n(write.bytes.begin(), count, to.begin() + static_cast<std::ptrdiff_t>(write.offset));
    }

    std::string after_power_loss(Unsynced what) const {
        std::string found = durable_bytes;
        switch (what) {
            case Unsynced::dropped:
                break;
            case Unsynced::kept:
                return bytes;
            case Unsynced::zeroed:
                found.resize(bytes.size(), '\0');
                break;
            case Unsynced::torn:
                for (size_t i = 0; i < unsynced.size(); ++i) {
                    bool const last = i + 1 == unsynced.size();
                    size_t const size = unsynced[i].bytes.size();
                    put(found, unsynced[i], last ? size / 2 / 512 * 512 : size);
                }
        }
        return found;
    }
};

class MemoryFileSystem::Writable : public WritableFile {
  public:
    Writable(std::mutex& mutex, NodePointer node) : mutex_(mutex), node_(std::move(node)) {}
    void write_at(int64_t offset, std::span<std::byte const> bytes) override {
        std::lock_guard const lock(mutex_);
        Node::Write write{static_cast<size_t>(offset),
                          std::string(reinterpret_cast<char const*>(bytes.data()), bytes.size())};
        Node::put(node_->bytes, write, write.bytes.size());
        node_->unsynced.push_back(std::move(write));
    }
    void truncate(int64_t size) override {
        std::lock_guard const lock(mutex_);
        node_->bytes.resize(static_cast<size_t>(size), '\0');
        node_->unsynced.push_back({static_cast<size_t>(size), ""});
    }
    void sync() override {
        std::lock_guard const lock(mutex_);
        node_->durable_bytes = node_->bytes;
        node_->unsynced.clear();
    }

  private:
    std::mutex& mutex_;
    NodePointer node_;
};

class MemoryFileSystem::Readable : public ReadableFile {
  public:
    Readable(std::mutex& mutex, NodePointer node, Path path)
        : mutex_(mutex), node_(std::move(node)), path_(std::move(path)) {}
    int64_t size() const override {
        std::lock_guard const lock(mutex_);
        return std::ssize(node_->bytes);
    }
    void read_at(int64_t offset, std::span<std::byte> bytes) override {
        std::lock_guard const lock(mutex_);
        if (offset < 0 || static_cast<size_t>(offset) + bytes.size() > node_->bytes.size()) {
            fail(Category::data, "{} ends at byte {}", path_.string(), node_->bytes.size());
        }
        std::copy_n(reinterpret_cast<std::byte const*>(node_->bytes.data()) + offset, bytes.size(), bytes.begin());
    }

  private:
    std::mutex& mutex_;
    NodePointer node_;
    Path path_;
};

class MemoryFileSystem::Mapped : public MappedFile {
  public:
    explicit Mapped(NodePointer node) : node_(std::move(node)) {}
    std::span<std::byte const> bytes() const override { return std::as_bytes(std::span(node_->bytes)); }

  private:
    NodePointer node_;
};

class MemoryFileSystem::Lock : public FileLock {
  public:
    Lock(MemoryFileSystem& owner, Path path) : owner_(owner), path_(std::move(path)) {}
    ~Lock() override {
        std::lock_guard const lock(owner_.mutex_);
        owner_.holders_.erase(path_);
    }
    Lock(Lock const&) = delete;
    Lock& operator=(Lock const&) = delete;

  private:
    MemoryFileSystem& owner_;
    Path path_;
};

std::unique_ptr<FileLock> MemoryFileSystem::lock(Path const& path, std::string const& holder) {
    auto const file = append(path);
    auto const key = path.lexically_normal();
    {
        std::lock_guard const lock(mutex_);
        auto const [held, free] = holders_.try_emplace(key, holder);
        if (!free) throw LockedError(path, held->second);
    }
    file->truncate(0);
    file->write_at(0, std::as_bytes(std::span(holder)));
    return std::make_unique<Lock>(*this, key);
}

MemoryFileSystem::MemoryFileSystem() : root_(std::make_shared<Node>()) { root_->directory = true; }
MemoryFileSystem::~MemoryFileSystem() = default;

MemoryFileSystem::NodePointer MemoryFileSystem::find(Path const& path) const {
    NodePointer node = root_;
    for (Path const& part : path.lexically_normal().relative_path()) {
        if (part.empty() || part == ".") continue;
        auto const next = node->names.find(part.string());
        if (next == node->names.end()) return nullptr;
        node = next->second;
    }
    return node;
}

MemoryFileSystem::NodePointer MemoryFileSystem::need(Path const& path, char const* operation, bool directory) const {
    NodePointer node = find(path);
    if (!node) throw IoError(operation, path, ENOENT);
    if (node->directory != directory) throw IoError(operation, path, directory ? ENOTDIR : EISDIR);
    return node;
}

void MemoryFileSystem::apply(Operation operation) {
    for (Edit const& edit : operation) {
        if (edit.target) {
            edit.folder->names[edit.name] = edit.target;
        } else {
            edit.folder->names.erase(edit.name);
        }
    }
    pending_.push_back(std::move(operation));
}

std::unique_ptr<WritableFile> MemoryFileSystem::open_for_writing(Path const& path, bool replace) {
    std::lock_guard const lock(mutex_);
    NodePointer node = find(path);
    if (node && node->directory) throw IoError("create", path, EISDIR);
    if (!node) {
        NodePointer const folder = find(path.parent_path());
        if (!folder || !folder->directory) throw IoError("create", path, folder ? ENOTDIR : ENOENT);
        node = std::make_shared<Node>();
        apply({{folder, path.filename().string(), node}});
    } else if (replace) {
        node->bytes.clear();
        node->unsynced.push_back({0, ""});
    }
    return std::make_unique<Writable>(mutex_, node);
}

std::unique_ptr<WritableFile> MemoryFileSystem::create(Path const& path) { return open_for_writing(path, true); }
std::unique_ptr<WritableFile> MemoryFileSystem::append(Path const& path) { return open_for_writing(path, false); }

std::unique_ptr<ReadableFile> MemoryFileSystem::open(Path const& path) {
    std::lock_guard const lock(mutex_);
    return std::make_unique<Readable>(mutex_, need(path, "open", false), path);
}

std::unique_ptr<MappedFile> MemoryFileSystem::map(Path const& path) {
    std::lock_guard const lock(mutex_);
    return std::make_unique<Mapped>(need(path, "open", false));
}

void MemoryFileSystem::make_directories(Path const& path) {
    std::lock_guard const lock(mutex_);
    Path so_far;
    for (Path const& part : path.lexically_normal()) {
        NodePointer const folder = find(so_far);
        so_far /= part;
        NodePointer const there = find(so_far);
        if (there && !there->directory) throw IoError("create folder", path, ENOTDIR);
        if (there) continue;
        auto node = std::make_shared<Node>();
        node->directory = true;
        apply({{folder, part.string(), node}});
    }
}

void MemoryFileSystem::sync_directory(Path const& path) {
    std::lock_guard const lock(mutex_);
    NodePointer const folder = need(path, "sync folder", true);
    auto touches = [&](Operation const& operation) {
        return std::any_of(operation.begin(), operation.end(), [&](Edit const& e) { return e.folder == folder; });
    };
    for (Operation const& operation : pending_) {
        if (!touches(operation)) continue;
        for (Edit const& edit : operation) {
            if (edit.target) {
                edit.folder->durable_names[edit.name] = edit.target;
            } else {
                edit.folder->durable_names.erase(edit.name);
            }
        }
    }
    std::erase_if(pending_, touches);
}

void MemoryFileSystem::rename(Path const& from, Path const& to) {
    std::lock_guard const lock(mutex_);
    NodePointer const node = find(from);
    if (!node) throw IoError("rename", from, ENOENT);
    NodePointer const target = find(to);
    if (target && target->directory && (!node->directory || !target->names.empty())) {
        throw IoError("rename to", to, node->directory ? ENOTEMPTY : EISDIR);
    }
    NodePointer const old_folder = need(from.parent_path(), "rename", true);
    NodePointer const new_folder = need(to.parent_path(), "rename", true);
    apply({{old_folder, from.filename().string(), nullptr}, {new_folder, to.filename().string(), node}});
}

void MemoryFileSystem::remove_all(Path const& path) {
    std::lock_guard const lock(mutex_);
    // One operation per name, children first, as the system does it: a crash may leave a folder half empty.
    std::function<void(Path const&)> remove = [&](Path const& at) {
        NodePointer const node = find(at);
        if (!node) return;
        auto const children = node->names;
        for (auto const& [name, child] : children) remove(at / name);
        apply({{find(at.parent_path()), at.filename().string(), nullptr}});
    };
    remove(path);
}

bool MemoryFileSystem::exists(Path const& path) const {
    std::lock_guard const lock(mutex_);
    return find(path) != nullptr;
}

bool MemoryFileSystem::is_directory(Path const& path) const {
    std::lock_guard const lock(mutex_);
    NodePointer const node = find(path);
    return node && node->directory;
}

int64_t MemoryFileSystem::file_size(Path const& path) const {
    std::lock_guard const lock(mutex_);
    return std::ssize(need(path, "inspect", false)->bytes);
}

std::vector<std::string> MemoryFileSystem::list(Path const& directory) const {
    std::lock_guard const lock(mutex_);
    std::vector<std::string> names;
    for (auto const& [name, node] : need(directory, "list", true)->names) names.push_back(name);
    return names;
}

size_t MemoryFileSystem::pending_names() const {
    std::lock_guard const lock(mutex_);
    return pending_.size();
}

std::unique_ptr<MemoryFileSystem> MemoryFileSystem::after_power_loss(size_t names, Unsynced contents) const {
    std::lock_guard const lock(mutex_);
    std::map<Node const*, std::map<std::string, NodePointer>> tree;  // folders that differ from their durable state
    auto entries = [&](NodePointer const& folder) -> std::map<std::string, NodePointer>& {
        return tree.try_emplace(folder.get(), folder->durable_names).first->second;
    };
    for (size_t i = 0; i < std::min(names, pending_.size()); ++i) {
        for (Edit const& edit : pending_[i]) {
            if (edit.target) {
                entries(edit.folder)[edit.name] = edit.target;
            } else {
                entries(edit.folder).erase(edit.name);
            }
        }
    }
    std::function<NodePointer(NodePointer const&)> survive = [&](NodePointer const& node) {
        auto copy = std::make_shared<Node>();
        copy->directory = node->directory;
        copy->bytes = copy->durable_bytes = node->after_power_loss(contents);
        for (auto const& [name, child] : entries(node)) copy->names[name] = survive(child);
        copy->durable_names = copy->names;
        return copy;
    };
    auto after = std::make_unique<MemoryFileSystem>();
    after->root_ = survive(root_);
    return after;
}

std::map<std::string, std::string> MemoryFileSystem::contents(Path const& folder) const {
    std::map<std::string, std::string> all;
    for (std::string const& name : list(folder)) {
        Path const path = folder / name;
        if (is_directory(path)) {
            all.merge(contents(path));
        } else {
            std::lock_guard const lock(mutex_);
            all[path.string()] = find(path)->bytes;
        }
    }
    return all;
}

void MemoryFileSystem::damage(Path const& path, std::string contents) {
    std::lock_guard const lock(mutex_);
    NodePointer const node = need(path, "damage", false);
    node->bytes = node->durable_bytes = std::move(contents);
    node->unsynced.clear();
}

}  // namespace perigee::testing
