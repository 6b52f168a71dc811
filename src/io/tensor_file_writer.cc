#include <array>

#include "io/hdf5_support.h"
#include "io/sha256.h"
#include "io/tensor_file.h"

namespace perigee {

namespace {

using hdf5::Handle;

/// Parts between slashes must be non-empty and not "." or "..", which would mean something else to other readers.
bool storable(std::string const& name) {
    if (name.empty() || name.size() > 1024 || name.find('\0') != std::string::npos) return false;
    for (size_t begin = 0; begin <= name.size();) {
        size_t const end = std::min(name.find('/', begin), name.size());
        std::string const part = name.substr(begin, end - begin);
        if (part.empty() || part == "." || part == "..") return false;
        begin = end + 1;
    }
    return true;
}

Handle data_space(Shape const& shape) {
    if (shape.rank() == 0) return {H5Screate(H5S_SCALAR), H5Sclose};
    std::array<hsize_t, Shape::kMaxRank> extents{};
    for (int i = 0; i < shape.rank(); ++i) extents[static_cast<size_t>(i)] = static_cast<hsize_t>(shape[i]);
    return {H5Screate_simple(shape.rank(), extents.data(), nullptr), H5Sclose};
}

class Writer final : public TensorFileWriter {
  public:
    Writer(FileSystem& files, Path path)
        : files_(files), path_(std::move(path)), out_(files.create(path_)), in_(files.open(path_)) {
        storage_.in = in_.get();
        storage_.out = out_.get();
        hdf5::Session const session;
        Handle const access = hdf5::access_through(storage_);
        file_ = Handle(H5Fcreate(path_.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access.get()), H5Fclose);
        check(file_.valid(), "create");
    }

    ~Writer() override {
        if (!file_.valid()) return;
        hdf5::Session const session;
        if (!storage_.error) storage_.error = std::make_exception_ptr(Error(Category::internal, "unfinished file"));
        file_.reset();
    }

    void write(std::string const& name, ConstView values, Attributes const& attributes) override {
        PERIGEE_CHECK(file_.valid(), "{}: written to after finish()", path_.string());
        PERIGEE_CHECK(storable(name), "`{}` is not a name for a tensor in a file", name);
        hdf5::Session const session;
        Handle const links(H5Pcreate(H5P_LINK_CREATE), H5Pclose);
        H5Pset_create_intermediate_group(links.get(), 1);
        Handle const creation(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
        H5Pset_obj_track_times(creation.get(), false);  // equal contents make equal files
        H5Pset_fill_time(creation.get(), H5D_FILL_TIME_NEVER);
        Handle const space = data_space(values.shape);
        Handle const type = hdf5::file_type(values.dtype);
        Handle const dataset(
            H5Dcreate2(file_.get(), name.c_str(), type.get(), space.get(), links.get(), creation.get(), H5P_DEFAULT),
            H5Dclose);
        check(dataset.valid(), name);
        for (auto const& [key, numbers] : attributes) write_attribute(dataset, name, key, numbers);
        if (values.size() > 0) {
            check(H5Dwrite(dataset.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data) >= 0, name);
        }
    }

    Result finish() override {
        PERIGEE_CHECK(file_.valid(), "{}: finished twice", path_.string());
        {
            hdf5::Session const session;
            check(file_.reset(), "close");
        }
        out_->sync();
        out_.reset();
        in_.reset();
        return {.bytes = storage_.size, .sha256 = sha256_of_file(files_, path_)};
    }

  private:
    void write_attribute(Handle const& dataset, std::string const& name, std::string const& key,
                         std::vector<int64_t> const& numbers) {
        Handle const space = data_space(Shape{static_cast<int64_t>(numbers.size())});
        Handle const type = hdf5::file_type(DType::i64);
        Handle const attribute(
            H5Acreate2(dataset.get(), key.c_str(), type.get(), space.get(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
        check(attribute.valid(), name);
        if (!numbers.empty()) check(H5Awrite(attribute.get(), type.get(), numbers.data()) >= 0, name);
    }

    /// The file system's failure explains HDF5's, and may be there without one.
    void check(bool done, std::string const& what) const {
        storage_.rethrow();
        PERIGEE_CHECK(done, "{}: {}: {}", path_.string(), what, hdf5::last_error());
    }

    FileSystem& files_;
    Path path_;
    std::unique_ptr<WritableFile> out_;
    std::unique_ptr<ReadableFile> in_;  ///< the library reads back what its cache let go
    hdf5::Storage storage_;
    Handle file_{H5I_INVALID_HID, H5Fclose};
};

}  // namespace

std::unique_ptr<TensorFileWriter> create_tensor_file(FileSystem& files, Path const& path) {
    return std::make_unique<Writer>(files, path);
}

std::string sha256_of_file(FileSystem& files, Path const& path) {
    auto const file = files.open(path);
    Sha256 hash;
    std::vector<std::byte> buffer(static_cast<size_t>(std::min<int64_t>(file->size(), int64_t{1} << 20)));
    for (int64_t offset = 0; offset < file->size();) {
        auto const part =
            std::span(buffer).first(static_cast<size_t>(std::min<int64_t>(std::ssize(buffer), file->size() - offset)));
        file->read_at(offset, part);
        hash.update(part);
        offset += std::ssize(part);
    }
    return hash.finish();
}

}  // namespace perigee
