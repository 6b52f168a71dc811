#include "data/options.h"

#include <fmt/format.h>

#include <set>

#include "data/blend.h"
#include "io/file_system.h"

namespace perigee {

void describe(Schema& schema, DatasetOptions& options) {
    schema.add("path", options.path,
               "prefix of the files: PREFIX.bin and PREFIX.idx (Megatron's format), optionally PREFIX.mask or "
               "PREFIX.weights with the loss weight of each token");
    schema.add(
        "weight", options.weight, {.low = 0, .high = 1e9, .strict_low = true},
        "share of the training samples relative to the other data sets', rounded to 1/4096 of all; samples repeat "
        "where it asks for more than there are. For validation it must be 1");
}

void describe(Schema& schema, MockOptions& options) {
    schema.choice(
        "task", options.task, {{"phrases", MockTask::phrases}, {"far_recall", MockTask::far_recall}},
        "phrases: repeated phrases of a random grammar; far_recall: facts, and questions about them at the end "
        "of the document");
    schema.choice("loss", options.loss, {{"all", MockLoss::all}, {"answers", MockLoss::answers}},
                  "far_recall: which training tokens carry loss; validation is on answers alone");
    schema.add("topic_tokens", options.topic_tokens, between(2, 1 << 20),
               "far_recall: tokens that state the same facts again and again, even");
    schema.add("facts_per_topic", options.facts_per_topic, between(1, 1 << 20), "far_recall: facts of one topic");
    schema.add("questions", options.questions, between(0, 1 << 20),
               "far_recall: questions of a document, each with one answer token");
}

void describe(Schema& schema, DataOptions& options) {
    schema.list("train", options.train, "data sets to train on, mixed by weight");
    schema.list("validation", options.validation,
                "data sets for validation; each of their samples is used once, in an order that never changes");
    schema.add(
        "validation_fraction", options.validation_fraction, between(0, 0.5),
        "instead of `validation`: hold out the last documents of each training set, as few as hold this share of "
        "its tokens");
    schema.add("sequence_length", options.sequence_length, between(1, kMostTokens), "tokens per sample");
    schema.choice("packing", options.packing, {{"cut", Packing::cut}, {"best_fit", Packing::best_fit}},
                  "how samples are made: cut lays documents end to end and cuts at every sequence_length tokens; "
                  "best_fit keeps documents whole, as many to a sample as fit, and pads the rest");
    schema.add("document_mask", options.document_mask,
               "documents in a sample do not see each other, and no document's last token predicts the next document");
    schema.add("shuffle", options.shuffle, "read the training samples in another random order in every epoch");
    schema.add("mock_data", options.mock_data,
               "made-up tokens with a structure that can be learnt, instead of files: for trying things out and for "
               "measuring speed");
    schema.section("mock", options.mock, "what mock_data is made of");
    schema.add("tokenizer", options.tokenizer,
               "turns text into tokens and back: bytes, or the path of a tokenizer.json, of a tokenizer.model, or of a "
               "folder with one of them, such as a Hugging Face model's");
}

namespace {

void check_path(DatasetOptions const& dataset, std::string const& where, std::vector<std::string>& found) {
    if (dataset.path.empty()) found.push_back(fmt::format("{}: path is missing", where));
    for (char const* const extension : {".bin", ".idx"}) {
        if (!dataset.path.ends_with(extension)) continue;
        found.push_back(fmt::format("{}: path \"{}\" must be the prefix, without {}", where, dataset.path, extension));
    }
}

void check_weights(std::vector<DatasetOptions> const& datasets, std::vector<std::string>& found) {
    std::vector<double> weights;
    for (auto const& dataset : datasets) {
        if (!(dataset.weight > 0)) return;  // reported by the range of the key
        weights.push_back(dataset.weight);
    }
    if (weights.empty()) return;
    auto const quotas = Blend::quotas_of(weights);
    for (size_t i = 0; i < quotas.size(); ++i) {
        if (quotas[i] > 0) continue;
        found.push_back(
            fmt::format("train[{}]: weight {} of {} is less than one sample in {}: raise it or drop the set", i,
                        weights[i], datasets[i].path, Blend::kPeriod));
    }
}

}  // namespace

std::vector<std::string> problems(DataOptions const& options) {
    std::vector<std::string> found;
    std::set<std::string> train_paths;
    for (size_t i = 0; i < options.train.size(); ++i) {
        check_path(options.train[i], fmt::format("train[{}]", i), found);
        train_paths.insert(whole_path(options.train[i].path));
    }
    for (size_t i = 0; i < options.validation.size(); ++i) {
        auto const& dataset = options.validation[i];
        check_path(dataset, fmt::format("validation[{}]", i), found);
        if (train_paths.contains(whole_path(dataset.path))) {
            found.push_back(fmt::format("validation[{}]: {} is also trained on", i, dataset.path));
        }
        if (dataset.weight != 1.0) {
            found.push_back(fmt::format("validation[{}]: weight {} has no effect: validation uses each sample once", i,
                                        dataset.weight));
        }
    }
    check_weights(options.train, found);
    if (options.packing == Packing::best_fit && !options.document_mask) {
        found.push_back(
            "packing: best_fit puts documents together that have nothing to do with each other, so "
            "document_mask must be true");
    }
    if (!options.validation.empty() && options.validation_fraction > 0) {
        found.push_back(fmt::format("validation_fraction: {} and {} validation data sets exclude each other",
                                    options.validation_fraction, options.validation.size()));
    }
    MockOptions const& mock = options.mock;
    if (mock.topic_tokens % 2 != 0 || mock.topic_tokens / 2 < mock.facts_per_topic)
        found.push_back(fmt::format("mock.topic_tokens ({}) must be even and hold mock.facts_per_topic ({}) pairs",
                                    mock.topic_tokens, mock.facts_per_topic));
    if (options.tokenizer.empty()) found.push_back("tokenizer: empty; the tokenizer without a file is \"bytes\"");
    return found;
}

bool has_validation(DataOptions const& options) {
    return options.mock_data || !options.validation.empty() || options.validation_fraction > 0;
}

}  // namespace perigee
