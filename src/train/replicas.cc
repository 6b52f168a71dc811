#include "train/replicas.h"

#include <algorithm>
#include <map>
#include <sstream>

#include "train/failure.h"
#include "train/snapshot.h"

namespace perigee {

namespace {

struct Kind {
    std::string prefix;
    std::vector<FlatPart> parts;
};

bool is_whole(ParamLayout const& layout, std::vector<FlatPart> const& parts) {
    return parts.size() == 1 && parts.front().range == layout.whole();
}

/// True for hashes other than the most frequent one; for all if several are equally frequent.
std::vector<bool> minority(std::vector<std::string> const& hashes) {
    std::map<std::string, int> counts;
    for (std::string const& hash : hashes) ++counts[hash];
    auto const by_count = [](auto const& a, auto const& b) { return a.second < b.second; };
    auto const most = std::ranges::max_element(counts, by_count);
    bool const decided = std::ranges::count_if(counts, [&](auto const& c) { return c.second == most->second; }) == 1;
    std::vector<bool> result;
    for (std::string const& hash : hashes) result.push_back(!decided || hash != most->first);
    return result;
}

struct Hashed {
    std::string name;
    int64_t hash = 0;
};

/// The first of the hashes, the same list on every rank of the group, that is not the same in it, and who is suspected;
/// empty where there is none.
std::string difference_in(HostComm& group, int world_rank, std::vector<Hashed> const& mine) {
    if (mine.empty() || group.size() == 1) return "";
    std::vector<int64_t> low;
    for (Hashed const& hashed : mine) low.push_back(hashed.hash);
    std::vector<int64_t> high = low;
    Shape const all{std::ssize(low)};
    group.all_reduce(TensorView(low.data(), all), Reduce::min);
    group.all_reduce(TensorView(high.data(), all), Reduce::max);
    auto const first = static_cast<size_t>(std::ranges::mismatch(low, high).in1 - low.begin());
    if (first == mine.size()) return "";
    auto const of_ranks = group.gather_text(std::to_string(mine[first].hash));
    auto const ranks = group.gather_text(std::to_string(world_rank));
    auto const suspected = minority(of_ranks);
    std::string suspects, others;
    for (size_t i = 0; i < ranks.size(); ++i) (suspected[i] ? suspects : others) += " " + ranks[i];
    return fmt::format("{}\n{}\n{}", mine[first].name, suspects, others);
}

std::vector<int> numbers(std::string const& text) {
    std::istringstream stream(text);
    std::vector<int> found;
    for (int x; stream >> x;) found.push_back(x);
    std::ranges::sort(found);
    return found;
}

std::vector<int64_t> hashes_of(Session& session, std::vector<Replicated> const& tensors) {
    if (tensors.empty()) return {};
    Ops& ops = session.ops();
    Buffer const memory(ops.device(), sizeof(int64_t) * tensors.size());
    TensorView const on_device(static_cast<std::byte*>(memory.data()), DType::i64, {std::ssize(tensors)});
    ops.fill_zero(on_device);
    for (int64_t i = 0; i < std::ssize(tensors); ++i)
        ops.hash_bits(on_device.rows(i, i + 1), tensors[static_cast<size_t>(i)].tensor.values);
    std::vector<int64_t> hashes(tensors.size());
    ops.download(hashes.data(), on_device);
    return hashes;
}

std::vector<Hashed> only(std::vector<int64_t> const& hashes, std::vector<Replicated> const& tensors,
                         bool Replicated::*over) {
    std::vector<Hashed> found;
    for (size_t i = 0; i < hashes.size(); ++i)
        if (tensors[i].*over) found.push_back({tensors[i].tensor.name, hashes[i]});
    return found;
}

}  // namespace

std::vector<Replicated> replicated_tensors(Session const& session, AdamWOptimizer const& optimizer,
                                           ShardedGradients const& gradients) {
    ParamLayout const& layout = session.layout();
    Mesh const& mesh = session.mesh();
    bool const rounds = session.ops().compute_dtype() != session.ops().main_dtype();
    std::vector<Kind> kinds = {{"", session.weights().parts()},
                               {kFirstMoment, optimizer.first_moment()},
                               {kSecondMoment, optimizer.second_moment()},
                               {"gradient/", gradients.updated()}};
    if (rounds) kinds.push_back({"optimizer.weight/", optimizer.weights()});
    // Sums over more than two ranks may be added up in another order in another group of ranks.
    bool const same_sums = mesh.dp_cp().size() <= 2 || session.ops().device().is_host();
    std::vector<Replicated> found;
    for (Kind const& kind : kinds) {
        bool const over_data = is_whole(layout, kind.parts) && mesh.dp_cp().size() > 1;
        for (StoredTensor& tensor : stored_tensors(layout, kind.parts, kind.prefix, {layout.whole()})) {
            Cut const cut = layout.entry(tensor.name.substr(kind.prefix.size())).spec.cut;
            bool const over_tensor = cut == Cut::whole && same_sums && mesh.tp().size() > 1;
            if (over_data || over_tensor) found.push_back({std::move(tensor), over_data, over_tensor});
        }
    }
    return found;
}

std::optional<Difference> compare_replicas(Session& session, std::vector<Replicated> const& tensors) {
    Mesh const& mesh = session.mesh();
    HostComm& world = mesh.world();
    // What is gathered on a lane has arrived.
    if (session.sharding().stage != ShardStage::weights)
        for (int unit = 0; unit < session.layout().units(); ++unit) session.weights().need(unit, -1);
    auto const hashes = hashes_of(session, tensors);
    std::string const over_data =
        difference_in(mesh.dp_cp().host(), world.rank(), only(hashes, tensors, &Replicated::over_data));
    std::string const over_tensor =
        difference_in(mesh.tp().host(), world.rank(), only(hashes, tensors, &Replicated::over_tensor));
    std::string const& mine = over_data.empty() ? over_tensor : over_data;
    for (std::string const& text : world.gather_text(mine)) {
        if (text.empty()) continue;
        std::istringstream lines(text);
        std::string name, suspects, others;
        std::getline(lines, name), std::getline(lines, suspects), std::getline(lines, others);
        return Difference{name, numbers(suspects), numbers(others)};
    }
    return std::nullopt;
}

std::vector<std::string> rank_names(Session const& session) {
    RunOptions const& o = session.options();
    bool const on_cpu = session.ops().device().is_host();
    HostComm& world = session.mesh().world();
    return world.gather_text(fmt::format("rank {} ({} of host {})", world.rank(),
                                         on_cpu ? "on the CPU" : fmt::format("GPU {}", o.gpu), host_name()));
}

std::string to_string(Difference const& d, std::vector<std::string> const& rank_names) {
    auto const names = [&](std::vector<int> const& ranks) {
        std::vector<std::string> list;
        for (int const rank : ranks) list.push_back(rank_names.at(static_cast<size_t>(rank)));
        return fmt::format("{}", fmt::join(list, ", "));
    };
    if (d.others.empty())
        return fmt::format("tensor `{}` differs between {}: one of them is wrong", d.tensor, names(d.suspects));
    return fmt::format("tensor `{}` of {} differs from that of {}", d.tensor, names(d.suspects), names(d.others));
}

}  // namespace perigee
