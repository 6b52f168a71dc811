#include "io/sha256.h"

#include <gtest/gtest.h>

#include <string>

#include "support/random.h"

namespace perigee {
namespace {

std::string hash(std::string const& text, size_t piece) {
    Sha256 sha;
    for (size_t i = 0; i < text.size(); i += piece)
        sha.update(std::as_bytes(std::span(text).subspan(i).first(std::min(piece, text.size() - i))));
    return sha.finish();
}

// FIPS 180-4 / NIST CAVP examples.
TEST(Sha256, GivesThePublishedHashes) {
    struct Example {
        std::string text, expected;
    };
    for (auto const& [text, expected] : {
             Example{"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
             Example{"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
             Example{"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
                     "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
             Example{"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrs"
                     "mnopqrstnopqrstu",
                     "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1"},
             Example{std::string(1'000'000, 'a'), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"},
         }) {
        EXPECT_EQ(sha256(text), expected);
        EXPECT_EQ(hash(text, 1000), expected);
    }
}

TEST(Sha256, DoesNotDependOnHowTheBytesArrive) {
    Philox const random(20, Purpose::mock_data);
    for (size_t length = 0; length < 300; ++length) {
        std::string text(length, '\0');
        for (size_t i = 0; i < length; ++i) text[i] = static_cast<char>(random.u64(length * 1000 + i));
        std::string const whole = sha256(text);
        for (size_t piece : {1, 7, 63, 64, 65, 129})
            EXPECT_EQ(hash(text, piece), whole) << length << " in pieces of " << piece;
    }
}

}  // namespace
}  // namespace perigee
