#include <algorithm>
#include <array>
#include <set>

#include "io/hdf5_support.h"
#include "io/tensor_file.h"

namespace perigee {

namespace {

using hdf5::Handle;

constexpr int kMaxDepth = 32;               ///< of groups in groups
constexpr hsize_t kMaxExtent = 1ull << 48;  ///< of one dimension
constexpr hssize_t kMaxAttributeValues = 4096;

/// Where an array is in the file.
struct Entry {
    TensorFileReader::Info info;
    int64_t offset = 0;
};
using Index = std::map<std::string, Entry>;

/// Walks the tree of an untrusted file and notes every array, or says what is wrong with it.
class Indexer {
  public:
    Indexer(Path const& path, int64_t file_size, Category category)
        : path_(path.string()), file_size_(file_size), category_(category) {}

    Index run(Handle const& file) {
        Handle const root(H5Gopen2(file.get(), "/", H5P_DEFAULT), H5Gclose);
        check(root.valid(), "/");
        walk(root, "", 0);
        return std::move(index_);
    }

  private:
    struct Link {
        std::string name;
        H5L_type_t type;
    };

    std::vector<Link> links(Handle const& group, std::string const& prefix) const {
        std::vector<Link> found;
        auto note = [](hid_t, char const* name, H5L_info_t const* info, void* out) -> herr_t {
            static_cast<std::vector<Link>*>(out)->push_back({name, info->type});
            return 0;
        };
        check(H5Literate(group.get(), H5_INDEX_NAME, H5_ITER_INC, nullptr, note, &found) >= 0, prefix);
        return found;
    }

    void walk(Handle const& group, std::string const& prefix, int depth) {
        if (depth > kMaxDepth) refuse(prefix, fmt::format("groups nest deeper than {}", kMaxDepth));
        for (Link const& link : links(group, prefix)) {
            std::string const name = prefix + link.name;
            if (link.type != H5L_TYPE_HARD) refuse(name, "soft and external links are not accepted");
            Handle const object(H5Oopen(group.get(), link.name.c_str(), H5P_DEFAULT), H5Oclose);
            check(object.valid(), name);
            H5O_info_t status;
            check(H5Oget_info2(object.get(), &status, H5O_INFO_BASIC) >= 0, name);
            if (!seen_.insert(status.addr).second) refuse(name, "it is linked to twice");
            switch (status.type) {
                case H5O_TYPE_GROUP:
                    walk(object, name + "/", depth + 1);
                    break;
                case H5O_TYPE_DATASET:
                    index_[name] = describe(object, name);
                    break;
                default:
                    refuse(name, "it is neither a group nor an array");
            }
        }
    }

    Entry describe(Handle const& dataset, std::string const& name) const {
        Handle const creation(H5Dget_create_plist(dataset.get()), H5Pclose);
        check(creation.valid(), name);
        if (H5Pget_layout(creation.get()) != H5D_CONTIGUOUS) {
            refuse(name, "only contiguous storage is accepted (not chunked, compact or virtual)");
        }
        if (H5Pget_external_count(creation.get()) != 0) refuse(name, "external storage is not accepted");
        if (H5Pget_nfilters(creation.get()) != 0) refuse(name, "filters are not accepted");

        Entry entry;
        entry.info.dtype = dtype(dataset, name);
        entry.info.shape = shape(dataset, name);
        int64_t const bytes = bytes_of(entry.info, name);
        if (bytes > 0) {
            haddr_t const offset = H5Dget_offset(dataset.get());
            if (offset == HADDR_UNDEF) refuse(name, "its values were never written");
            if (offset > static_cast<haddr_t>(file_size_ - bytes)) {
                refuse(name, fmt::format("its {} bytes at {} reach behind the end at {}", bytes, offset, file_size_));
            }
            entry.offset = static_cast<int64_t>(offset);
        }
        entry.info.attributes = attributes(dataset, name);
        return entry;
    }

    DType dtype(Handle const& dataset, std::string const& name) const {
        Handle const type(H5Dget_type(dataset.get()), H5Tclose);
        check(type.valid(), name);
        for (DType known : {DType::f32, DType::f64, DType::bf16, DType::i32, DType::i64, DType::u8}) {
            if (H5Tequal(type.get(), hdf5::file_type(known).get()) > 0) return known;
        }
        refuse(name, "its elements are not little-endian f32, f64, bf16, i32, i64 or u8");
    }

    Shape shape(Handle const& dataset, std::string const& name) const {
        Handle const space(H5Dget_space(dataset.get()), H5Sclose);
        int const rank = H5Sget_simple_extent_ndims(space.get());
        if (rank < 0 || rank > Shape::kMaxRank || H5Sget_simple_extent_type(space.get()) == H5S_NULL) {
            refuse(name, fmt::format("it has {} dimensions; 0 to {} are accepted", rank, Shape::kMaxRank));
        }
        std::array<hsize_t, Shape::kMaxRank> extents{};
        check(H5Sget_simple_extent_dims(space.get(), extents.data(), nullptr) == rank, name);
        std::array<int64_t, Shape::kMaxRank> checked{};
        for (size_t i = 0; i < extents.size(); ++i) {
            if (extents[i] > kMaxExtent) refuse(name, fmt::format("its extent {} is absurd", extents[i]));
            checked[i] = static_cast<int64_t>(extents[i]);
        }
        return Shape(std::span(checked).first(static_cast<size_t>(rank)));
    }

    int64_t bytes_of(TensorFileReader::Info const& info, std::string const& name) const {
        int64_t bytes = size_of(info.dtype);
        bool empty = false;
        for (int i = 0; i < info.shape.rank(); ++i) {
            empty = empty || info.shape[i] == 0;
            if (__builtin_mul_overflow(bytes, std::max<int64_t>(info.shape[i], 1), &bytes)) {
                refuse(name, fmt::format("its shape {} is absurd", info.shape.str()));
            }
        }
        if (!empty && bytes > file_size_) {
            refuse(name, fmt::format("its shape {} is more than the file's {} bytes", info.shape.str(), file_size_));
        }
        return empty ? 0 : bytes;
    }

    Attributes attributes(Handle const& dataset, std::string const& name) const {
        std::vector<std::string> keys;
        auto note = [](hid_t, char const* key, H5A_info_t const*, void* out) -> herr_t {
            static_cast<std::vector<std::string>*>(out)->emplace_back(key);
            return 0;
        };
        check(H5Aiterate2(dataset.get(), H5_INDEX_NAME, H5_ITER_INC, nullptr, note, &keys) >= 0, name);
        Attributes found;
        for (std::string const& key : keys) {
            Handle const attribute(H5Aopen(dataset.get(), key.c_str(), H5P_DEFAULT), H5Aclose);
            Handle const type(H5Aget_type(attribute.get()), H5Tclose);
            Handle const space(H5Aget_space(attribute.get()), H5Sclose);
            hssize_t const count = H5Sget_simple_extent_npoints(space.get());
            if (H5Tget_class(type.get()) != H5T_INTEGER || count < 0 || count > kMaxAttributeValues) {
                refuse(name, fmt::format("its attribute `{}` is not a list of at most {} integers", key,
                                         kMaxAttributeValues));
            }
            std::vector<int64_t> numbers(static_cast<size_t>(count));
            if (count > 0) check(H5Aread(attribute.get(), H5T_NATIVE_INT64, numbers.data()) >= 0, name);
            found[key] = std::move(numbers);
        }
        return found;
    }

    [[noreturn]] void refuse(std::string const& name, std::string const& reason) const {
        fail(category_, "{}: `{}`: {}", path_, name, reason);
    }
    void check(bool done, std::string const& name) const {
        if (!done) refuse(name, hdf5::last_error());
    }

    std::string path_;
    int64_t file_size_;
    Category category_;
    Index index_;
    std::set<haddr_t> seen_;
};

Index read_index(ReadableFile& file, Path const& path, Category category) {
    hdf5::Storage storage{.in = &file, .size = file.size()};
    hdf5::Session const session;
    Handle const access = hdf5::access_through(storage);
    Handle opened(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.get()), H5Fclose);
    storage.rethrow();
    if (!opened.valid()) fail(category, "{} is not a readable HDF5 file: {}", path.string(), hdf5::last_error());
    try {
        return Indexer(path, file.size(), category).run(opened);
    } catch (Error const&) {
        storage.rethrow();  // a failed read explains HDF5's complaint
        throw;
    }
}

class Reader final : public TensorFileReader {
  public:
    Reader(FileSystem& files, Path path, Category category) : path_(std::move(path)), category_(category) {
        in_category([&] {
            file_ = files.open(path_);
            index_ = read_index(*file_, path_, category_);
        });
    }

    std::vector<std::string> names() const override {
        std::vector<std::string> all;
        for (auto const& [name, entry] : index_) all.push_back(name);
        return all;
    }

    Info info(std::string const& name) const override { return find(name).info; }

    void read(std::string const& name, TensorView values) const override {
        Info const& have = find(name).info;
        if (have.shape.size() != values.size()) {
            fail(category_, "{}: `{}` has the shape {}; {} was expected", path_.string(), name, have.shape.str(),
                 values.shape.str());
        }
        read_range(name, 0, values);
    }

    void read_range(std::string const& name, int64_t first, TensorView values) const override {
        Entry const& entry = find(name);
        if (entry.info.dtype != values.dtype) {
            fail(category_, "{}: `{}` holds {}; {} was expected", path_.string(), name, to_string(entry.info.dtype),
                 to_string(values.dtype));
        }
        if (first < 0 || first > entry.info.shape.size() - values.size()) {
            fail(category_, "{}: `{}` has {} elements; {} from {} on were expected", path_.string(), name,
                 entry.info.shape.size(), values.size(), first);
        }
        in_category([&] {
            file_->read_at(entry.offset + first * size_of(values.dtype),
                           {values.data, static_cast<size_t>(values.bytes())});
        });
    }

  private:
    Entry const& find(std::string const& name) const {
        auto const found = index_.find(name);
        if (found == index_.end()) fail(category_, "{} has no tensor `{}`", path_.string(), name);
        return found->second;
    }

    /// Failures of the file system become errors of the category the caller asked for.
    template <class Action>
    void in_category(Action&& action) const {
        try {
            action();
        } catch (Error const& e) {
            if (e.category() == category_) throw;
            throw Error(category_, e.what());
        }
    }

    Path path_;
    Category category_;
    std::unique_ptr<ReadableFile> file_;
    Index index_;
};

}  // namespace

std::unique_ptr<TensorFileReader> open_tensor_file(FileSystem& files, Path const& path, Category category) {
    return std::make_unique<Reader>(files, path, category);
}

}  // namespace perigee
