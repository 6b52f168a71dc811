#include "train/session.h"

#include <sched.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/log.h"
#include "checkpoint/agree.h"
#include "checkpoint/folders.h"
#include "checkpoint/manifest.h"
#include "data/fingerprint.h"
#include "data/tokenizer/tokenizer_files.h"
#include "hf/base_fingerprint.h"
#include "hf/peft.h"
#include "hf/weights.h"
#include "ops/traced_ops.h"
#include "train/described.h"
#include "train/run_folder.h"
#include "train/snapshot.h"

namespace perigee {

namespace {

/// f32 values to a tensor that may be narrower.
void upload(Ops& ops, TensorView to, float const* values) {
    if (to.dtype == DType::f32) return ops.upload(to, values);
    std::vector<bf16> rounded(static_cast<size_t>(to.size()));
    std::transform(values, values + to.size(), rounded.begin(), to_bf16);
    ops.upload(to, rounded.data());
}

/// Device values as bf16 in host memory.
std::vector<bf16> rounded(Ops& ops, ConstView values) {
    std::vector<bf16> narrow(static_cast<size_t>(values.size()));
    if (values.dtype == DType::bf16) {
        ops.download(narrow.data(), values);
    } else {
        std::vector<float> wide(narrow.size());
        ops.download(wide.data(), values);
        std::ranges::transform(wide, narrow.begin(), to_bf16);
    }
    return narrow;
}

/// Says where these weights were trained as another model.
void say_changes(Checkpoint const& checkpoint, RunOptions const& options) {
    auto const stored = options_at_step(checkpoint.state());
    if (!stored) return;
    if (auto const found = model_changes(*stored, options); !found.empty())
        log::info("the model is not the one of {}, whose value comes first:\n{}", checkpoint.folder().string(),
                  to_string(found));
}

constexpr int64_t kWeightPieces = 16;  ///< of each file that tell its weights from others

/// Collective. `sample` tells the weights that this rank sees in the folder.
void refuse_other_weights(HostComm& world, Path const& folder, std::string const& sample) {
    auto const all = world.gather_text(sample);
    auto const other = std::ranges::find_if(all, [&](std::string const& its) { return its != all.front(); });
    if (other == all.end()) return;
    fail(Category::config, "{} holds other weights for rank {} than for rank 0 ({}, {}): all hosts must see the same",
         folder.string(), other - all.begin(), *other, all.front());
}

/// Says where the folder that the weights come from has a tokenizer, and the data are bytes all the same.
void say_other_tokenizer(FileSystem& files, Path const& from, DataOptions const& data) {
    if (data.mock_data || data.tokenizer != DataOptions{}.tokenizer || !has_tokenizer(files, from)) return;
    log::warn(
        "the weights of {} were trained with its tokenizer, but data.tokenizer is {}, in which token ids stand for "
        "other "
        "text: tokenize the data with {}",
        from.string(), data.tokenizer, from.string());
}

/// Throws where a tensor is missing because the run that saved the checkpoint had trained a part of its weights.
void refuse_part(Checkpoint const& checkpoint, std::vector<StoredTensor> const& parts) {
    if (!checkpoint.state().info.contains(RunState::kBase)) return;
    auto const is_missing = [&](StoredTensor const& part) { return !checkpoint.tensors().contains(part.name); };
    auto const missing = std::ranges::find_if(parts, is_missing);
    if (missing == parts.end()) return;
    auto const first_is_adapter = [](auto const& tensor) { return is_adapter(tensor.first); };
    bool const adapters = std::ranges::any_of(checkpoint.tensors(), first_is_adapter);
    std::string const folder = checkpoint.folder().string();
    fail(Category::checkpoint,
         "{} has no tensor `{}`: it holds {} alone. `perigee convert {} FOLDER{}` makes a whole model, for "
         "model.init_from=FOLDER",
         folder, missing->name, adapters ? "adapters" : "trained parameters", folder, adapters ? " --merge" : "");
}

/// Throws where the checkpoint has weights that the model lacks.
void refuse_others(Checkpoint const& checkpoint, ModelOptions const& model) {
    std::set<std::string> known;
    for (ParamSpec const& spec : base_params(model)) known.insert(spec.name);
    for (auto const& [name, shape] : checkpoint.tensors())
        if (!name.starts_with(kFirstMoment) && !name.starts_with(kSecondMoment) && !is_adapter(name) &&
            !(is_key_conv(name) && model.key_conv > 0) && !known.contains(name))
            fail(Category::checkpoint, "{}: tensor `{}` has no place in the model that the options describe",
                 checkpoint.folder().string(), name);
}

int usable_cores() {
    cpu_set_t mask;
    return ::sched_getaffinity(0, sizeof mask, &mask) == 0 ? CPU_COUNT(&mask) : 1;
}

}  // namespace

bool takes_gpu(DeviceChoice choice) {
    return choice == DeviceChoice::cuda || (choice == DeviceChoice::automatic && cuda_device_count() > 0);
}

CudaOptions cuda_options(RunOptions const& options) {
    return {.deterministic = options.deterministic,
            .graphs = options.train.cuda_graphs,
            .moba_scratch = static_cast<size_t>(options.train.moba_scratch_mib) << 20};
}

namespace {

Machine untraced_machine(RunOptions const& options) {
    if (takes_gpu(options.device)) {
        auto device = make_cuda_device(options.gpu);
        auto ops = make_cuda_ops(*device, cuda_options(options));
        return {std::move(device), std::move(ops)};
    }
    auto device = make_host_device();
    auto ops = make_host_ops(*device, static_cast<int>(options.threads));
    return {std::move(device), std::move(ops)};
}

}  // namespace

Machine make_machine(RunOptions const& options) {
    Machine machine = untraced_machine(options);
    if (options.train.profile.steps > 0) machine.ops = std::make_unique<TracedOps>(std::move(machine.ops));
    return machine;
}

RunOptions resolve(RunOptions options, int local_ranks, FileSystem& files) {
    if (options.threads == 0) options.threads = std::max(1, usable_cores() / local_ranks);
    // The default is not a choice: runs on tokens from elsewhere need no tokenizer.
    if (options.model.vocab_size > 0 && options.data.tokenizer == DataOptions{}.tokenizer) return options;
    auto const tokenizer = make_tokenizer(files, options.data.tokenizer);
    if (options.model.vocab_size == 0) options.model.vocab_size = (tokenizer->vocab_size() + 63) / 64 * 64;
    check_vocabulary(*tokenizer, options.model.vocab_size);
    return options;
}

double steps_of_epochs(double epochs, int64_t samples, int64_t batch) {
    double const batches = epochs * static_cast<double>(samples) / static_cast<double>(batch);
    return std::ceil(batches * (1 - 1e-12));  // of 100 samples 1.1 epochs are 110, not 110.00000000000001
}

RunOptions with_steps_of_epochs(RunOptions options, FileSystem& files) {
    TrainOptions& train = options.train;
    if (train.epochs == 0) return options;
    auto const data =
        open_data(options.data, Split::train, static_cast<uint64_t>(options.seed), options.model.vocab_size, files);
    double const steps = steps_of_epochs(train.epochs, data->samples_per_epoch(), train.global_batch_size);
    if (steps > static_cast<double>(kMostSteps))
        fail(Category::config, "train.epochs ({}) are {:.0f} steps of {} samples: at most {}", train.epochs, steps,
             train.global_batch_size, kMostSteps);
    train.steps = std::max<int64_t>(1, static_cast<int64_t>(steps));
    if (auto const problems = schedule_problems(options); !problems.empty())
        fail(Category::config, "train.epochs ({}) are {} steps: {}", train.epochs, train.steps, problems.front());
    return options;
}

void check_vocabulary(Tokenizer const& tokenizer, int64_t vocab_size) {
    if (tokenizer.vocab_size() <= vocab_size) return;
    fail(Category::config, "the tokenizer {} has {} tokens, more than model.vocab_size, which is {}", tokenizer.name(),
         tokenizer.vocab_size(), vocab_size);
}

std::vector<ParamSpec> params_of(RunOptions const& options) {
    auto specs = llama_params(options.model);
    freeze(specs, options.train.freeze);
    return specs;
}

namespace {

ParamLayout layout_of(std::vector<ParamSpec> specs, Mesh const& mesh, RunOptions const& options) {
    return {std::move(specs), mesh.shape().tp, mesh.tp_rank(), unit_multiple(mesh.dp_cp().size()),
            unit_count(options.model)};
}

}  // namespace

Session::Frozen::Frozen(std::vector<ParamSpec> specs, Mesh const& mesh, RunOptions const& options)
    : layout(layout_of(std::move(specs), mesh, options)), sharding(layout, mesh, options.parallel) {}

std::unique_ptr<Session::Frozen> Session::make_frozen(RunOptions const& options, Mesh const& mesh) {
    auto specs = split(params_of(options)).frozen;
    return specs.empty() ? nullptr : std::make_unique<Frozen>(std::move(specs), mesh, options);
}

Session::Session(RunOptions const& options, HostComm& world, FileSystem& files)
    : Session(options, make_machine(options), world, files) {}

Session::Session(RunOptions const& options, Machine&& machine, HostComm& world, FileSystem& files)
    : Session(options, Mesh(options.parallel, world, machine.ops->device()), std::move(machine), files) {}

Session::Session(RunOptions const& options, Mesh mesh, Machine&& machine, FileSystem& files)
    : options_(options),
      files_(&files),
      machine_(std::move(machine)),
      mesh_(std::move(mesh)),
      layout_(layout_of(split(params_of(options)).trained, mesh_, options)),
      frozen_(make_frozen(options, mesh_)),
      sharding_(layout_, mesh_, options.parallel),
      weights_(layout_, sharding_, frozen_layout(), frozen_ ? &frozen_->sharding : nullptr, mesh_, ops()),
      model_(options.model, {layout_, frozen_layout()}, mesh_, ops(), memory_policy(options), options.precision),
      arena_(ops().device()) {}

void Session::initialise(ParamLayout const& layout, std::vector<FlatPart> const& parts, uint64_t seed) const {
    bool const adapters = is_adapter(layout.entries().front().spec.name);  // a layout has only adapters or none
    if ((adapters ? options_.model.lora.init_from : options_.model.init_from).empty())
        perigee::initialise(ops(), layout, parts, seed);
    else
        read_initial(layout, stored_tensors(layout, parts, "", {layout.whole()}));
}

void Session::load_frozen() {
    ShardedWeights* const weights = weights_.frozen_part();
    if (weights == nullptr || !base_.empty()) return;
    initialise(frozen_->layout, weights->parts(), static_cast<uint64_t>(options_.seed));
    weights->loaded();
    BaseFingerprint mine;
    for (StoredTensor const& part :
         stored_tensors(frozen_->layout, weights->parts(), "", frozen_->sharding.ownership.owned))
        for (Shard::Run const& run : part.shard.runs())
            mine.add(part.name, part.shard.global, run.global,
                     rounded(ops(), part.values.rows(run.local, run.local + run.count)));
    auto const sum_of = [&](uint64_t half) {
        return static_cast<uint64_t>(mesh_.world().sum(static_cast<int64_t>(half)));
    };
    frozen_hash_ = hash_frozen();
    base_ = BaseFingerprint::text(sum_of(mine.sum() & 0xffffffffu) + (sum_of(mine.sum() >> 32) << 32));
}

int64_t Session::hash_frozen() {
    Buffer const memory(ops().device(), sizeof(int64_t));
    TensorView const sum(static_cast<std::byte*>(memory.data()), DType::i64, {1});
    ops().fill_zero(sum);
    for (FlatPart const& part : weights_.frozen_part()->parts()) ops().hash_bits(sum, part.values);
    int64_t hash = 0;
    ops().download(&hash, sum);
    return hash;
}

void Session::check_frozen() {
    if (base_.empty() || hash_frozen() == frozen_hash_) return;
    fail(Category::corruption,
         "the frozen weights of rank {} are no longer those that it began with: a fault of its "
         "memory. The next start goes on from the last checkpoint",
         mesh_.world().rank());
}

void Session::check_base(Checkpoint const& checkpoint) const {
    auto const& info = checkpoint.state().info;
    auto const found = info.find(RunState::kBase);
    std::string const then = found == info.end() ? "" : found->second;
    if (then == base_) return;
    std::string const folder = checkpoint.folder().string();
    if (then.empty() || base_.empty())
        fail(Category::config,
             "{} was trained with {} weights frozen, and here {} frozen: give train.freeze and lora.rank "
             "the checkpoint's values",
             folder, then.empty() ? "no" : "some", base_.empty() ? "none is" : "some are");
    if (options_.model.init_from.empty())
        fail(Category::checkpoint,
             "{} was trained beside other frozen weights: {} there, {} in this run, whose seed ({}) draws them. Give "
             "`seed`, train.freeze and the model's keys the checkpoint's values, or name the model it began with in "
             "model.init_from",
             folder, then, base_, options_.seed);
    fail(Category::checkpoint,
         "{} was trained beside other frozen weights: {} there, {} in this run, from {}. Name the model it began with "
         "in model.init_from",
         folder, then, base_, options_.model.init_from);
}

std::unique_ptr<DataSource> Session::open(Split split) const {
    return open_data(options_.data, split, static_cast<uint64_t>(options_.seed), options_.model.vocab_size, *files_);
}

std::map<std::string, std::string> Session::data_fingerprints(bool training) const {
    DataOptions data = options_.data;
    if (!training && !data.validation.empty()) data.train.clear();
    auto const found = fingerprints(data, *files_);
    std::string const mine = nlohmann::json(found).dump();
    auto const all = mesh_.world().gather_text(mine);
    for (size_t rank = 1; rank < all.size(); ++rank) {
        if (all[rank] == all[0]) continue;
        nlohmann::json const first = nlohmann::json::parse(all[0]), other = nlohmann::json::parse(all[rank]);
        for (auto const& [name, contents] : first.items()) {
            std::string const its = other.value(name, ""), of_first = contents.get<std::string>();
            if (its != of_first)
                fail(Category::data,
                     "data.{}.path holds other files for rank {} than for rank 0 ({}, {}): all hosts must see the same",
                     name, rank, its, of_first);
        }
    }
    return found;
}

std::vector<Selection> Session::selections(int64_t step) const {
    return layer_selections(options_.attention, options_.model.num_hidden_layers, step,
                            static_cast<uint64_t>(options_.seed));
}

std::vector<int32_t> const& Session::token_bytes() {
    if (token_bytes_) return *token_bytes_;
    token_bytes_.emplace();
    if (options_.data.mock_data) return *token_bytes_;
    auto const tokenizer = make_tokenizer(*files_, options_.data.tokenizer);
    for (int32_t id = 0; id < tokenizer->vocab_size(); ++id)
        token_bytes_->push_back(tokenizer->is_special(id) ? 0 : static_cast<int32_t>(tokenizer->piece(id).size()));
    return *token_bytes_;
}

namespace {

/// `train` would go on from those.
void warn_of_own_checkpoints(RunOptions const& options, Checkpoint const& found, FileSystem& files) {
    if (!options.checkpoint.names_folder()) return;
    Path const root = checkpoint_root(options.output_dir);
    if (is_own(found, options.output_dir) || !files.exists(root) || step_folders(files, root).empty()) return;
    log::warn(
        "checkpoint.resume names {}, so its weights are taken; the run has checkpoints of its own in {}, which "
        "checkpoint.resume=auto takes",
        found.folder().string(), root.string());
}

bool is_same_folder(Path const& a, Path const& b) {
    std::error_code missing;
    return a.lexically_normal() == b.lexically_normal() || std::filesystem::equivalent(a, b, missing);
}

/// Keys of folders with weights which are not read, because the run's own checkpoint was found; as overrides.
std::vector<std::string> unread_folders(RunOptions const& options, Checkpoint const& found) {
    std::vector<std::string> unread;
    auto const stored = stored_options(found.state());
    if (!stored) return unread;
    auto const add = [&](char const* key, std::string const& now, std::string const& then) {
        if (!now.empty() && !is_same_folder(now, then)) unread.push_back(fmt::format("{}={}", key, now));
    };
    // Frozen weights are read from there: Session::check_base().
    if (!found.state().info.contains(RunState::kBase))
        add("model.init_from", options.model.init_from, stored->model.init_from);
    add("lora.init_from", options.model.lora.init_from, stored->model.lora.init_from);
    return unread;
}

}  // namespace

std::optional<Checkpoint> find_weights(RunOptions const& options, HostComm& world, FileSystem& files) {
    CheckpointOptions where = options.checkpoint;
    bool const never = where.resume == "never";
    if (never) where.resume = "auto";
    auto found = find_checkpoint(where, options.output_dir, world, files);
    if (!found && options.model.init_from.empty())
        fail(Category::checkpoint, "no checkpoint in {}: train first, or name one with checkpoint.resume=FOLDER",
             checkpoint_root(options.output_dir).string());
    if (!found) return found;
    if (never)
        for (std::string const& unread : unread_folders(options, *found))
            fail(Category::config,
                 "{} is not read, though checkpoint.resume is `never`: {} holds the run's own weights. Give another "
                 "output_dir",
                 unread, found->folder().string());
    if (world.rank() != 0) return found;
    warn_of_unread_folders(options, *found);
    warn_of_own_checkpoints(options, *found, files);
    return found;
}

void warn_of_unread_folders(RunOptions const& options, Checkpoint const& found) {
    if (options.checkpoint.names_folder()) return;
    for (std::string const& unread : unread_folders(options, found))
        log::warn("{} is not read: the weights are those of {}; give another output_dir{} to begin from it", unread,
                  found.folder().string(), options.checkpoint.resume == "best" ? " and checkpoint.resume=auto" : "");
}

RunState Session::load_weights(std::optional<Checkpoint> const& found) {
    load_frozen();
    ShardedWeights& weights = weights_.trained();
    if (found) {
        check_base(*found);
        read(*found, stored_tensors(layout_, weights.parts(), "", {layout_.whole()}));
    } else {
        initialise(layout_, weights.parts(), static_cast<uint64_t>(options_.seed));
    }
    weights.loaded();
    if (!found) return {};
    log::info("weights of step {} from {}", found->state().step, found->folder().string());
    return found->state();
}

void Session::read(Checkpoint const& checkpoint, std::vector<StoredTensor> const& parts) const {
    auto const as_stored = [&](StoredTensor const& part) {
        return checkpoint.dtype(part.name).value_or(part.values.dtype) == part.values.dtype;
    };
    if (ops().device().is_host() && std::ranges::all_of(parts, as_stored)) return checkpoint.read(parts);
    constexpr int64_t kStagedBytes = int64_t{1} << 30;
    for (size_t begin = 0; begin < parts.size();) {
        // Whole files are opened anew for every batch of tensors, so batches are large.
        size_t end = begin;
        int64_t elements = 0;
        while (end < parts.size() && (end == begin || elements * size_of(DType::f32) < kStagedBytes))
            elements += parts[end++].values.size();
        std::vector<float> values(static_cast<size_t>(elements));
        std::vector<StoredTensor> staged(parts.begin() + static_cast<int64_t>(begin),
                                         parts.begin() + static_cast<int64_t>(end));
        float* to = values.data();
        for (StoredTensor& part : staged) {
            bool const narrow = checkpoint.dtype(part.name) == DType::bf16;  // moments; weights are stored in fp32
            part.values = {reinterpret_cast<std::byte*>(to), narrow ? DType::bf16 : DType::f32, part.values.shape};
            to += part.values.size();
        }
        checkpoint.read(staged);
        for (size_t i = begin; i < end; ++i) {
            TensorView const from = staged[i - begin].values;
            if (from.dtype == DType::f32) {
                upload(ops(), parts[i].values, from.as<float>());
            } else if (parts[i].values.dtype == from.dtype) {
                ops().upload(parts[i].values, from.data);
            } else {
                std::vector<float> wide(static_cast<size_t>(from.size()));
                std::ranges::transform(std::span(from.as<bf16>(), wide.size()), wide.begin(),
                                       [](bf16 x) { return to_float(x); });
                upload(ops(), parts[i].values, wide.data());
            }
        }
        begin = end;
    }
}

void Session::read_initial(ParamLayout const& layout, std::vector<StoredTensor> const& all) const {
    ModelOptions const& model = options_.model;
    bool const adapters = is_adapter(layout.entries().front().spec.name);
    Path const from = adapters ? model.lora.init_from : model.init_from;
    auto parts = all;  // key convolutions may be missing in the source
    auto const leave_out = [&](auto lacks) {
        std::erase_if(parts, [&](StoredTensor const& part) {
            if (!is_key_conv(part.name) || !lacks(part.name)) return false;
            ops().fill_zero(part.values);
            return true;
        });
    };
    bool const sees_checkpoint = mesh_.world().rank() == 0 && !adapters && files_->exists(from / kManifestName);
    if (mesh_.world().any(sees_checkpoint)) {
        Checkpoint const checkpoint = Checkpoint::open(*files_, mesh_.world(), from);
        leave_out([&](std::string const& name) { return !checkpoint.tensors().contains(name); });
        refuse_part(checkpoint, parts);
        refuse_others(checkpoint, model);
        read(checkpoint, parts);
        say_changes(checkpoint, options_);
    } else {
        leave_out([](std::string const&) { return true; });
        std::optional<HfWeights> stored;
        std::string sample;
        agree(mesh_.world(), [&] {
            stored = adapters ? open_adapters(*files_, from, model.lora) : HfWeights(*files_, from);
            stored->check(adapters ? peft_params(model) : base_params(model));
            sample = fingerprint(stored->files(), *files_, kWeightPieces);
        });
        refuse_other_weights(mesh_.world(), from, sample);
        agree(mesh_.world(), [&] {
            std::vector<float> values;
            for (StoredTensor const& part : parts) {
                values.resize(static_cast<size_t>(part.values.size()));
                stored->read(adapters ? peft_name(part.name) : part.name, part.shard, values);
                upload(ops(), part.values, values.data());
            }
        });
    }
    log::info("{} from {}", adapters ? "adapters" : "weights", from.string());
    if (!adapters && mesh_.world().rank() == 0) say_other_tokenizer(*files_, from, options_.data);
}

std::optional<Checkpoint> find_checkpoint(CheckpointOptions const& options, std::string const& output_dir,
                                          HostComm& world, FileSystem& files, Damaged damaged,
                                          std::string const& run_id) {
    Path const root = checkpoint_root(output_dir);
    if (options.resume == "auto") return find_latest(files, world, root, damaged, run_id);
    if (options.resume == "best") {
        std::optional<RunState::Best> best;
        if (world.rank() == 0) best = best_checkpoint(files, output_dir);
        int64_t const step = world.sum(best ? best->step : int64_t{0});
        if (step == 0) fail(Category::checkpoint, "no checkpoint in {} was evaluated on held-out data", root.string());
        return Checkpoint::open(files, world, root / step_name(step));
    }
    if (options.names_folder()) return Checkpoint::open(files, world, options.resume);
    if (files.exists(root) && !files.list(root).empty())
        fail(
            Category::config,
            "checkpoint.resume is `never` but {} holds checkpoints, and two runs would mix: choose another output_dir, "
            "or remove them",
            root.string());
    return std::nullopt;
}

}  // namespace perigee
