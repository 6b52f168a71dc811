#include "hf/safetensors.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>

#include "io/strict_json.h"

namespace perigee {

namespace {

using Json = nlohmann::json;
static_assert(std::endian::native == std::endian::little);

constexpr int64_t kLengthBytes = 8;
constexpr int64_t kMaxHeaderBytes = int64_t{16} << 20;  // far above the 50,000 tensors of the largest model
constexpr int kMaxHeaderDepth = 4;
constexpr int64_t kMaxExtent = int64_t{1} << 48;
constexpr int64_t kBufferElements = int64_t{1} << 20;
constexpr char kMetadata[] = "__metadata__";

constexpr std::pair<char const*, int64_t> kSizes[] = {
    {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"U16", 2}, {"I16", 2}, {"F16", 2},
    {"BF16", 2}, {"U32", 4}, {"I32", 4}, {"F32", 4},     {"U64", 8},     {"I64", 8}, {"F64", 8}};

/// Reads the entries of an untrusted header; every failure names file and tensor.
class HeaderParser {
  public:
    HeaderParser(std::string path, int64_t values_bytes) : path_(std::move(path)), values_bytes_(values_bytes) {}

    template <class... Args>
    [[noreturn]] void refuse(std::string const& name, fmt::format_string<Args...> format, Args&&... args) const {
        fail(Category::checkpoint, "{}: tensor `{}`: {}", path_, name.substr(0, 200),
             fmt::format(format, std::forward<Args>(args)...));
    }

    /// Offsets count from the first value.
    SafetensorsFile::Tensor tensor(std::string const& name, Json const& entry) const {
        if (!entry.is_object() || entry.size() != 3 || !entry.contains("dtype") || !entry.contains("shape") ||
            !entry.contains("data_offsets"))
            refuse(name, "its entry is not an object of dtype, shape and data_offsets");
        SafetensorsFile::Tensor tensor;
        int64_t const element = dtype(name, entry["dtype"], tensor.dtype);
        std::vector<int64_t> const extents = counts(name, "shape", entry["shape"]);
        if (extents.size() > Shape::kMaxRank)
            refuse(name, "it has {} dimensions; at most {} are accepted", extents.size(), Shape::kMaxRank);
        int64_t bytes = element;
        for (int64_t const extent : extents)
            if (extent > kMaxExtent || __builtin_mul_overflow(bytes, extent, &bytes))
                refuse(name, "its shape [{}] is absurd", fmt::join(extents, ", "));
        tensor.shape = Shape(std::span<int64_t const>(extents));
        std::vector<int64_t> const range = counts(name, "data_offsets", entry["data_offsets"]);
        if (range.size() != 2 || range[0] > range[1])
            refuse(name, "its data_offsets [{}] are not a range", fmt::join(range, ", "));
        if (range[1] > values_bytes_)
            refuse(name, "its bytes {} to {} reach behind the file's {} bytes of values", range[0], range[1],
                   values_bytes_);
        tensor.offset = range[0];
        tensor.bytes = range[1] - range[0];
        if (tensor.bytes != bytes)
            refuse(name, "{} {} takes {} bytes, but its data_offsets hold {}", tensor.dtype, tensor.shape.str(), bytes,
                   tensor.bytes);
        return tensor;
    }

    void metadata(Json const& entry) const {
        bool const texts = entry.is_object() && std::ranges::all_of(entry, [](auto& v) { return v.is_string(); });
        if (!texts) fail(Category::checkpoint, "{}: {} is not an object of texts", path_, kMetadata);
    }

  private:
    int64_t dtype(std::string const& name, Json const& value, std::string& dtype) const {
        if (value.is_string()) dtype = value.get<std::string>();
        for (auto const& [known, size] : kSizes)
            if (dtype == known) return size;
        refuse(name, "its dtype {} is not known", json_excerpt(value));
    }
    std::vector<int64_t> counts(std::string const& name, char const* key, Json const& list) const {
        std::vector<int64_t> values;
        bool valid = list.is_array() && list.size() <= 64;
        for (size_t i = 0; valid && i < list.size(); ++i) {
            valid = list[i].is_number_unsigned() && list[i].get<uint64_t>() <= uint64_t{INT64_MAX};
            if (valid) values.push_back(list[i].get<int64_t>());
        }
        if (!valid) refuse(name, "its {} {} is not a list of counts", key, json_excerpt(list));
        return values;
    }

    std::string path_;
    int64_t values_bytes_;
};

/// Throws where a clone of a repository has left a pointer in the file's place.
void refuse_pointer(ReadableFile& file, Path const& path) {
    constexpr std::string_view kPointer = "version https://git-lfs";
    std::string begin(std::min(kPointer.size(), static_cast<size_t>(file.size())), '\0');
    file.read_at(0, std::as_writable_bytes(std::span(begin)));
    if (begin == kPointer)
        fail(Category::checkpoint, "{} is a pointer of Git LFS, not the weights: `git lfs pull` fetches them",
             path.string());
}

}  // namespace

SafetensorsFile::SafetensorsFile(FileSystem& files, Path path) : path_(std::move(path)), file_(files.open(path_)) {
    int64_t const size = file_->size();
    uint64_t length = 0;
    if (size < kLengthBytes)
        fail(Category::checkpoint, "{} has {} bytes, too few for a safetensors file", path_.string(), size);
    file_->read_at(0, std::as_writable_bytes(std::span(&length, 1)));
    if (length > static_cast<uint64_t>(std::min(size - kLengthBytes, kMaxHeaderBytes))) {
        refuse_pointer(*file_, path_);
        fail(Category::checkpoint,
             "{}: not a safetensors file: a header of {} bytes in a file of {}; at most {} are accepted",
             path_.string(), length, size, kMaxHeaderBytes);
    }
    std::string header(length, '\0');
    file_->read_at(kLengthBytes, std::as_writable_bytes(std::span(header)));
    int64_t const values_begin = kLengthBytes + static_cast<int64_t>(length);
    check_json(header, fmt::format("{}: header", path_.string()), Category::checkpoint, kMaxHeaderDepth);
    parse(header, values_begin, size - values_begin);
}

void SafetensorsFile::parse(std::string const& header, int64_t values_begin, int64_t values_bytes) {
    Json const entries = Json::parse(header);
    if (!entries.is_object()) fail(Category::checkpoint, "{}: the header is not a JSON object", path_.string());
    HeaderParser const parser(path_.string(), values_bytes);
    for (auto const& [name, entry] : entries.items()) {
        if (name == kMetadata) {
            parser.metadata(entry);
        } else {
            tensors_[name] = parser.tensor(name, entry);
        }
    }
    std::vector<std::pair<std::string const, Tensor>*> order;
    for (auto& item : tensors_) order.push_back(&item);
    std::ranges::stable_sort(order, {}, [](auto* item) { return std::pair(item->second.offset, item->second.bytes); });
    int64_t end = 0;
    for (auto* item : order) {
        Tensor& tensor = item->second;
        if (tensor.offset != end)
            parser.refuse(item->first, "it begins at byte {} of the values, {} the end of the one before it, {}",
                          tensor.offset, tensor.offset < end ? "before" : "after", end);
        end += tensor.bytes;
        tensor.offset += values_begin;
    }
    if (end != values_bytes)
        fail(Category::checkpoint, "{}: {} bytes of values, but the header accounts for {}", path_.string(),
             values_bytes, end);
}

void SafetensorsFile::read(Tensor const& tensor, ElementType type, int64_t first, std::span<float> values) const {
    int64_t const element = size_of(type);
    PERIGEE_CHECK(0 <= first && (first + std::ssize(values)) * element <= tensor.bytes, "elements {} to {} of {}",
                  first, first + std::ssize(values), tensor.bytes / element);
    std::vector<std::byte> buffer(static_cast<size_t>(std::min(kBufferElements, std::ssize(values)) * element));
    for (size_t done = 0; done < values.size();) {
        auto const part = values.subspan(done, std::min(values.size() - done, static_cast<size_t>(kBufferElements)));
        auto const bytes = std::span(buffer).first(part.size() * static_cast<size_t>(element));
        file_->read_at(tensor.offset + (first + static_cast<int64_t>(done)) * element, bytes);
        widen(bytes.data(), type, part);
        done += part.size();
    }
}

SafetensorsWriter::SafetensorsWriter(FileSystem& files, Path path, std::vector<Tensor> tensors)
    : path_(std::move(path)), file_(files.create(path_)) {
    std::ranges::sort(tensors, {},
                      [](Tensor const& t) { return std::pair(-size_of(t.type), std::string_view(t.name)); });
    std::string header = fmt::format("{{\"{}\":{{\"format\":\"pt\"}}", kMetadata);
    int64_t end = 0;
    for (Tensor const& tensor : tensors) {
        std::vector<int64_t> extents;
        for (int i = 0; i < tensor.shape.rank(); ++i) extents.push_back(tensor.shape[i]);
        int64_t const begin = end;
        end += tensor.shape.size() * size_of(tensor.type);
        header += fmt::format(R"(,{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", Json(tensor.name).dump(),
                              to_string(tensor.type), fmt::join(extents, ","), begin, end);
        bool const fresh = places_.emplace(tensor.name, Place{tensor.type, begin}).second;
        PERIGEE_CHECK(fresh, "two tensors are named `{}`", tensor.name);
    }
    header += '}';
    header.resize((header.size() + 7) / 8 * 8, ' ');  // values begin aligned
    PERIGEE_CHECK(std::ssize(header) <= kMaxHeaderBytes, "{}: a header of {} bytes", path_.string(), header.size());
    uint64_t const length = header.size();
    file_->write_at(0, std::as_bytes(std::span(&length, 1)));
    file_->write_at(kLengthBytes, std::as_bytes(std::span(header)));
    written_ = kLengthBytes + std::ssize(header);
    bytes_ = written_ + end;
    for (auto& [name, place] : places_) place.offset += written_;
}

void SafetensorsWriter::write(std::string const& name, int64_t first, std::span<float const> values) {
    Place const& place = places_.at(name);
    int64_t const element = size_of(place.type);
    for (size_t done = 0; done < values.size();) {
        auto const part = values.subspan(done, std::min(values.size() - done, static_cast<size_t>(kBufferElements)));
        buffer_.resize(part.size() * static_cast<size_t>(element));
        if (!narrow(part, place.type, buffer_.data()))
            fail(Category::checkpoint, "{}: a value of tensor `{}` is too large for {}", path_.string(), name,
                 config_name(place.type));
        file_->write_at(place.offset + (first + static_cast<int64_t>(done)) * element, buffer_);
        written_ += std::ssize(buffer_);
        done += part.size();
    }
}

void SafetensorsWriter::finish() {
    PERIGEE_CHECK(written_ == bytes_, "{}: {} of {} bytes were written", path_.string(), written_, bytes_);
    file_->sync();
}

}  // namespace perigee
