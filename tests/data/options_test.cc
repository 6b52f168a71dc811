#include "data/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace perigee {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

DataOptions good() {
    DataOptions options;
    options.train = {{"a"}, {"b", 2.0}};
    return options;
}

TEST(DataOptionsProblems, GoodOptionsHaveNone) {
    EXPECT_THAT(problems(good()), IsEmpty());
    DataOptions mock;
    mock.mock_data = true;
    EXPECT_THAT(problems(mock), IsEmpty());
}

TEST(DataOptionsProblems, TwoSourcesOfValidationExcludeEachOther) {
    auto options = good();
    options.validation = {{"c"}};
    EXPECT_THAT(problems(options), IsEmpty());
    options.validation_fraction = 0.1;
    EXPECT_THAT(problems(options), ElementsAre(HasSubstr("exclude each other")));
}

TEST(DataOptionsProblems, ValidationMustNotBeTrainedOn) {
    auto options = good();
    options.validation = {{"./x/../b"}};
    options.train[1].path = "./b";
    EXPECT_THAT(problems(options), ElementsAre(HasSubstr("also trained on")));
    options.train[1].path = std::filesystem::absolute("b").string();
    EXPECT_THAT(problems(options), ElementsAre(HasSubstr("also trained on")));
}

TEST(DataOptionsProblems, AllAreReportedAtOnce) {
    auto options = good();
    options.train[0].path = "";
    options.train[1].path = "b.bin";
    options.tokenizer = "";
    options.validation = {{"c", 3.0}};
    EXPECT_THAT(problems(options), ElementsAre(HasSubstr("train[0]: path is missing"), HasSubstr("without .bin"),
                                               HasSubstr("weight 3 has no effect"), HasSubstr("tokenizer: empty")));
}

TEST(DataOptionsProblems, WeightsTooSmallToBeHeardAreNamed) {
    auto options = good();
    options.train[0].weight = 1e-6;
    EXPECT_THAT(problems(options), ElementsAre(HasSubstr("train[0]: weight 1e-06 of a")));
}

TEST(DataOptions, EveryKeyIsDescribed) {
    DataOptions options;
    Schema schema;
    describe(schema, options);
    std::vector<std::string> keys;
    for (auto const& field : schema.fields()) {
        keys.push_back(field.key);
        EXPECT_FALSE(field.help.empty());
    }
    EXPECT_THAT(keys, ElementsAre("train", "validation", "validation_fraction", "sequence_length", "packing",
                                  "document_mask", "shuffle", "mock_data", "mock", "tokenizer"));
}

TEST(DataOptions, ValidationIsPresentWhenAnyOfItsSourcesIs) {
    auto options = good();
    EXPECT_FALSE(has_validation(options));
    options.validation_fraction = 0.1;
    EXPECT_TRUE(has_validation(options));
    options.validation_fraction = 0;
    options.validation = {{"c"}};
    EXPECT_TRUE(has_validation(options));
}

}  // namespace
}  // namespace perigee
