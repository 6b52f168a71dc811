#include "data/file_source.h"

#include <algorithm>
#include <cmath>
#include <ranges>

#include "base/philox.h"
#include "data/chat_record.h"
#include "data/packing.h"
#include "data/permutation.h"
#include "data/tokenizer_record.h"

namespace perigee {

namespace {

/// First of the last documents that together hold at least `fraction` of the tokens. No conversation lies on both
/// sides; `continued` as in a ChatRecord.
int64_t first_held_out(IndexedDataset const& data, double fraction, std::string const& continued) {
    auto const wanted =
        std::max<int64_t>(1, static_cast<int64_t>(std::ceil(fraction * static_cast<double>(data.tokens()))));
    auto const documents = std::views::iota(int64_t{0}, data.documents());
    auto const too_late = std::ranges::partition_point(
        documents, [&](int64_t document) { return data.tokens() - data.document_begin(document) >= wanted; });
    auto first = static_cast<int64_t>(too_late - documents.begin()) - 1;
    while (first > 0 && !continued.empty() && continued[static_cast<size_t>(first)] == '1') --first;
    if (first <= 0 || data.document_begin(first) == 0) {
        fail(Category::data,
             "{}: validation_fraction {} wants {} of {} tokens in whole documents{}, which leaves none of the {} "
             "documents "
             "to train on",
             data.prefix().string(), fraction, wanted, data.tokens(), continued.empty() ? "" : " and conversations",
             data.documents());
    }
    return first;
}

std::vector<double> weights_of(std::vector<DatasetOptions> const& datasets) {
    std::vector<double> weights;
    for (auto const& dataset : datasets) weights.push_back(dataset.weight);
    return weights;
}

/// Key of one epoch of a data set: 16 bits for the data set, 48 for the epoch.
Philox epoch_key(uint64_t seed, Purpose purpose, size_t dataset, int64_t epoch) {
    return Philox(seed, purpose, uint64_t{dataset} << 48 | static_cast<uint64_t>(epoch));
}

std::vector<float> weights_of(IndexedDataset const& data, int64_t position, size_t count) {
    std::vector<float> weights;
    weights.reserve(count);
    for (size_t i = 0; i < count; ++i) weights.push_back(data.loss_weight(position + static_cast<int64_t>(i)));
    return weights;
}

}  // namespace

FileSource::FileSource(DataOptions const& options, Split split, uint64_t seed, int64_t vocab_size, FileSystem& files)
    : options_(options), split_(split), seed_(seed), vocab_size_(vocab_size), blend_(weights_of(options.train)) {
    bool const own_list = split == Split::validation && !options.validation.empty();
    TokenizerCheck tokenizer(files, options.tokenizer);
    for (auto const& dataset : own_list ? options.validation : options.train) {
        parts_.push_back(open_part(dataset.path, files));
        tokenizer.check(*parts_.back().data);
        samples_ += parts_.back().samples;
    }
}

FileSource::Part FileSource::open_part(std::string const& path, FileSystem& files) const {
    Part part;
    part.data = std::make_unique<IndexedDataset>(files, path);
    part.end_document = part.data->documents();
    if (options_.validation_fraction > 0) {
        int64_t const border = first_held_out(*part.data, options_.validation_fraction,
                                              continued_documents(files, path, part.data->documents()));
        (split_ == Split::train ? part.end_document : part.first_document) = border;
    }
    part.first_token = part.data->document_begin(part.first_document);
    part.end_token = part.data->document_begin(part.end_document);
    int64_t const tokens = part.end_token - part.first_token;
    if (options_.packing == Packing::best_fit) {
        fit_documents(part);
        return part;
    }
    part.samples = (tokens - 1) / options_.sequence_length;
    if (part.samples == 0) {
        fail(Category::data, "{}: {} tokens in {} {} documents, but one sample takes sequence_length + 1 = {}", path,
             tokens, part.end_document - part.first_document, split_ == Split::train ? "training" : "validation",
             options_.sequence_length + 1);
    }
    return part;
}

void FileSource::fit_documents(Part& part) const {
    std::vector<int64_t> sizes;
    int64_t too_long = 0, longest = 0;
    for (int64_t document = part.first_document; document < part.end_document; ++document) {
        int64_t const tokens = part.data->document_begin(document + 1) - part.data->document_begin(document);
        too_long += tokens > options_.sequence_length + 1;
        longest = std::max(longest, tokens);
        sizes.push_back(tokens - 1);  // a document's last token is a target only
        part.places += std::max<int64_t>(0, tokens - 1);
    }
    std::string const prefix = part.data->prefix().string();
    if (too_long > 0) {
        fail(Category::data,
             "{}: {} of {} documents are too long for packing: best_fit with sequence_length {}: at most {} tokens, "
             "and the longest has {}. Tokenize with a smaller chat.max_tokens, or raise sequence_length",
             prefix, too_long, sizes.size(), options_.sequence_length, options_.sequence_length + 1, longest);
    }
    if (part.places == 0) fail(Category::data, "{}: no document of two tokens or more", prefix);
    part.fit.emplace(sizes, options_.sequence_length);
    part.samples = part.fit->bins();
}

FileSource::Place FileSource::train_place(int64_t index) const {
    auto const [dataset, count] = blend_.at(index);
    auto const part = static_cast<size_t>(dataset);
    int64_t const samples = parts_[part].samples;
    int64_t const sample = count % samples;
    if (!options_.shuffle) return {part, sample};
    int64_t const epoch = count / samples;
    Permutation const order(static_cast<uint64_t>(samples), epoch_key(seed_, Purpose::sample_order, part, epoch));
    return {part, static_cast<int64_t>(order(static_cast<uint64_t>(sample))),
            epoch_key(seed_, Purpose::document_order, part, epoch)};
}

FileSource::Place FileSource::validation_place(int64_t index) const {
    Permutation const order(static_cast<uint64_t>(samples_), epoch_key(0, Purpose::sample_order, 0, 0));
    auto sample = static_cast<int64_t>(order(static_cast<uint64_t>(index % samples_)));
    size_t part = 0;
    while (sample >= parts_[part].samples) sample -= parts_[part++].samples;
    return {part, sample};
}

FileSource::Place FileSource::place_of(int64_t index) const {
    PERIGEE_CHECK(index >= 0, "sample {}", index);
    return split_ == Split::train ? train_place(index) : validation_place(index);
}

std::vector<int32_t> FileSource::read_tokens(Part const& part, int64_t position, int64_t count) const {
    std::vector<int64_t> stored(static_cast<size_t>(count));
    part.data->read(position, stored);
    std::vector<int32_t> tokens;
    tokens.reserve(stored.size());
    for (int64_t const id : stored) {
        if (id < 0 || id >= vocab_size_) {
            int64_t const at = position + static_cast<int64_t>(tokens.size());
            int64_t const document = part.data->document_at(at);
            fail(Category::data, "{}.bin: document {}, token {}: id {} is outside the vocabulary of {}",
                 part.data->prefix().string(), document, at - part.data->document_begin(document), id, vocab_size_);
        }
        tokens.push_back(static_cast<int32_t>(id));
    }
    return tokens;
}

void FileSource::append_sample(int64_t index, Batch& batch) const {
    Place const place = place_of(index);
    Part const& part = parts_[place.part];
    if (part.fit) {
        append_whole(part, place, batch);
    } else {
        append_cut(part, place.sample, batch);
    }
}

void FileSource::append_whole(Part const& part, Place const& place, Batch& batch) const {
    int64_t left = options_.sequence_length;
    for (int64_t const item : part.fit->items(place.sample, place.documents ? &*place.documents : nullptr)) {
        int64_t const document = part.first_document + item, begin = part.data->document_begin(document);
        auto const tokens = read_tokens(part, begin, part.data->document_begin(document + 1) - begin);
        append_document(tokens, weights_of(*part.data, begin, tokens.size()), batch);
        left -= static_cast<int64_t>(tokens.size()) - 1;
    }
    append_padding(left, batch);
}

void FileSource::append_cut(Part const& part, int64_t sample, Batch& batch) const {
    IndexedDataset const& data = *part.data;
    int64_t const begin = part.first_token + sample * options_.sequence_length;
    int64_t const last = begin + options_.sequence_length;

    Stretch stretch{.tokens = read_tokens(part, begin, last - begin + 1), .weights = {}, .document_begins = {}};
    stretch.weights = weights_of(data, begin, stretch.tokens.size());
    for (int64_t document = data.document_at(begin) + 1; document < data.documents(); ++document) {
        int64_t const border = data.document_begin(document) - begin;
        if (border > last - begin) break;
        // Empty documents begin where their successor does.
        if (stretch.document_begins.empty() || stretch.document_begins.back() != border) {
            stretch.document_begins.push_back(border);
        }
    }
    append_stretch(stretch, options_.document_mask, batch);
}

std::string FileSource::uneven_reads() const {
    if (split_ != Split::train) return {};
    constexpr double kAboutOnce = 0.1;
    std::string text;
    bool uneven = false;
    for (size_t i = 0; i < parts_.size(); ++i) {
        double const share = static_cast<double>(blend_.quotas()[i]) / Blend::kPeriod;
        double const reads = share * static_cast<double>(samples_) / static_cast<double>(parts_[i].samples);
        uneven = uneven || std::abs(reads - 1) > kAboutOnce;
        text += fmt::format("{}{} {:.3g} times", i == 0 ? "" : ", ", parts_[i].data->prefix().string(), reads);
    }
    return uneven ? text : "";
}

std::string FileSource::summary() const {
    std::string text;
    for (Part const& part : parts_) {
        int64_t const tokens = part.end_token - part.first_token;
        int64_t const capacity = part.samples * options_.sequence_length;
        std::string const packing = part.fit
                                        ? fmt::format("best fit, {:.2f}% full", 100 * static_cast<double>(part.places) /
                                                                                    static_cast<double>(capacity))
                                        : fmt::format("{} tokens never used", tokens - capacity - 1);
        text += fmt::format("{}{}: {} {} documents, {} tokens ({}{}), {} samples of {}, {}", text.empty() ? "" : "\n",
                            part.data->prefix().string(), fmt::group_digits(part.end_document - part.first_document),
                            split_ == Split::train ? "training" : "validation", fmt::group_digits(tokens),
                            to_string(part.data->token_type()), part.data->has_weights() ? ", loss weights" : "",
                            fmt::group_digits(part.samples), fmt::group_digits(options_.sequence_length), packing);
    }
    return text;
}

}  // namespace perigee
