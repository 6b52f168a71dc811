#include "support/fault_file_system.h"

#include <type_traits>
#include <utility>

namespace perigee::testing {

template <class Action>
auto FaultFileSystem::pass(char const* name, Path const& path, Action&& action,
                           std::function<void()> const& when_failing) const {
    Operation operation{0, name, path};
    {
        std::lock_guard const lock(mutex_);
        operation.index = std::ssize(operations_);
        operations_.push_back(operation);
    }
    if (before) before(operation);
    if (fault_ && operation.index >= fault_->first && operation.index <= fault_->last) {
        if (when_failing && fault_->first == fault_->last) when_failing();
        throw IoError(name, path, fault_->errno_value);
    }
    if constexpr (std::is_void_v<decltype(action())>) {
        action();
        if (after) after(operation);
    } else {
        auto result = action();
        if (after) after(operation);
        return result;
    }
}

class FaultFileSystem::Writable : public WritableFile {
  public:
    Writable(FaultFileSystem const& owner, Path path, std::unique_ptr<WritableFile> inner)
        : owner_(owner), path_(std::move(path)), inner_(std::move(inner)) {}
    void write_at(int64_t offset, std::span<std::byte const> bytes) override {
        owner_.pass(
            "write", path_, [&] { inner_->write_at(offset, bytes); },
            [&] { inner_->write_at(offset, bytes.first(bytes.size() / 2)); });
    }
    void truncate(int64_t size) override {
        owner_.pass("truncate", path_, [&] { inner_->truncate(size); });
    }
    void sync() override {
        owner_.pass("sync", path_, [&] { inner_->sync(); });
    }

  private:
    FaultFileSystem const& owner_;
    Path path_;
    std::unique_ptr<WritableFile> inner_;
};

class FaultFileSystem::Readable : public ReadableFile {
  public:
    Readable(FaultFileSystem const& owner, Path path, std::unique_ptr<ReadableFile> inner)
        : owner_(owner), path_(std::move(path)), inner_(std::move(inner)) {}
    int64_t size() const override { return inner_->size(); }
    void read_at(int64_t offset, std::span<std::byte> bytes) override {
        owner_.bytes_read_ += std::ssize(bytes);
        owner_.pass("read", path_, [&] { inner_->read_at(offset, bytes); });
    }

  private:
    FaultFileSystem const& owner_;
    Path path_;
    std::unique_ptr<ReadableFile> inner_;
};

std::vector<FaultFileSystem::Operation> FaultFileSystem::operations() const {
    std::lock_guard const lock(mutex_);
    return operations_;
}

std::unique_ptr<WritableFile> FaultFileSystem::create(Path const& path) {
    return std::make_unique<Writable>(*this, path, pass("create", path, [&] { return inner_.create(path); }));
}
std::unique_ptr<WritableFile> FaultFileSystem::append(Path const& path) {
    return std::make_unique<Writable>(*this, path, pass("append", path, [&] { return inner_.append(path); }));
}
std::unique_ptr<ReadableFile> FaultFileSystem::open(Path const& path) {
    return std::make_unique<Readable>(*this, path, pass("open", path, [&] { return inner_.open(path); }));
}
std::unique_ptr<MappedFile> FaultFileSystem::map(Path const& path) {
    return pass("map", path, [&] { return inner_.map(path); });
}
void FaultFileSystem::make_directories(Path const& path) {
    pass("make_directories", path, [&] { inner_.make_directories(path); });
}
void FaultFileSystem::sync_directory(Path const& path) {
    pass("sync_directory", path, [&] { inner_.sync_directory(path); });
}
void FaultFileSystem::rename(Path const& from, Path const& to) {
    pass("rename", to, [&] { inner_.rename(from, to); });
}
void FaultFileSystem::remove_all(Path const& path) {
    pass("remove", path, [&] { inner_.remove_all(path); });
}
std::unique_ptr<FileLock> FaultFileSystem::lock(Path const& path, std::string const& holder) {
    return pass("lock", path, [&] { return inner_.lock(path, holder); });
}
std::vector<std::string> FaultFileSystem::list(Path const& directory) const {
    return pass("list", directory, [&] { return inner_.list(directory); });
}

}  // namespace perigee::testing
