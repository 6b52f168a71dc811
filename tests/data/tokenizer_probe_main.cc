// A tokenizer for other programs: reads texts, or lists of token ids, from standard input and writes ids, or texts, to
// standard output, each as a 32-bit count of elements and the elements (bytes, 32-bit ids). On standard error: the
// speed of one thread. tokenizer_probe TOKENIZER encode|encode_with_special|decode|stream|info
#include <time.h>

#include <cstdio>
#include <functional>

#include "data/tokenizer.h"

namespace perigee {
namespace {

template <class Element>
bool read_list(std::vector<Element>& list) {
    uint32_t count = 0;
    if (std::fread(&count, sizeof count, 1, stdin) != 1) return false;
    list.resize(count);
    return std::fread(list.data(), sizeof(Element), count, stdin) == count;
}

template <class List>
void write_list(List const& list) {
    auto const count = static_cast<uint32_t>(list.size());
    std::fwrite(&count, sizeof count, 1, stdout);
    std::fwrite(list.data(), sizeof list[0], list.size(), stdout);
}

double seconds_of_thread() {
    timespec time{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

template <class In, class Out>
void answer(std::function<Out(std::vector<In> const&)> const& function, char const* unit) {
    double seconds = 0, elements = 0;
    for (std::vector<In> list; read_list(list);) {
        double const start = seconds_of_thread();
        Out const out = function(list);
        seconds += seconds_of_thread() - start;
        elements += static_cast<double>(list.size());
        write_list(out);
    }
    fmt::print(stderr, "{:.2f} M {}/s of one core\n", elements / 1e6 / seconds, unit);
}

std::string stream(Tokenizer const& tokenizer, std::vector<int32_t> const& ids) {
    StreamDecoder decoder(tokenizer);
    std::string text;
    for (int32_t const id : ids) text += decoder.push(id);
    return text + decoder.finish();
}

void run(std::string const& path, std::string const& mode) {
    auto const tokenizer = make_tokenizer(*make_file_system(), path);
    using Ids = std::vector<int32_t>;
    auto const view = [](std::vector<char> const& text) { return std::string_view(text.data(), text.size()); };
    if (mode == "encode") {
        answer<char, Ids>([&](auto const& text) { return tokenizer->encode(view(text)); }, "bytes");
    } else if (mode == "encode_with_special") {
        answer<char, Ids>([&](auto const& text) { return tokenizer->encode_with_special(view(text)); }, "bytes");
    } else if (mode == "decode") {
        answer<int32_t, std::string>([&](Ids const& ids) { return tokenizer->decode(ids); }, "tokens");
    } else if (mode == "stream") {
        answer<int32_t, std::string>([&](Ids const& ids) { return stream(*tokenizer, ids); }, "tokens");
    } else {
        auto const prefix = tokenizer->prefix();
        fmt::print("{} {} {}\n", tokenizer->vocab_size(), tokenizer->end_of_document(),
                   prefix.empty() ? -1 : prefix[0]);
    }
}

}  // namespace
}  // namespace perigee

int main(int argc, char** argv) {
    if (argc != 3) return 2;
    try {
        perigee::run(argv[1], argv[2]);
    } catch (perigee::Error const& error) {
        fmt::print(stderr, "{}\n", error.what());
        return error.exit_code();
    }
    return 0;
}
