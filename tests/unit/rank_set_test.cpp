#include "runtime/rank_set.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace sgpu {
namespace {

TEST(RankSet, WritesAndReadsTheSameText) {
    for (const std::string text :
         {"", "0", "7", "0-3", "0-3,7", "1,3,5", "63-64", "0,62-65,4095"}) {
        const auto set = RankSet::parse(text);
        ASSERT_TRUE(set) << text;
        EXPECT_EQ(set.value().to_string(), text);
    }
}

TEST(RankSet, WritesTheShortestText) {
    const std::vector<std::pair<std::string, std::string>> cases = {
        {"3,1,2", "1-3"}, {"0-2,2-4", "0-4"}, {" 1 , 0 ", "0-1"},
        {"5,5", "5"},     {"0-0", "0"},       {"  ", ""}};
    for (const auto& [written, shortest] : cases) {
        const auto set = RankSet::parse(written);
        ASSERT_TRUE(set) << written;
        EXPECT_EQ(set.value().to_string(), shortest) << written;
    }
}

TEST(RankSet, RefusesWhatIsNoSetInOneLineThatQuotesThePiece) {
    const std::vector<std::pair<std::string, std::string>> cases = {
        {"two", "'two'"},   {"0,x", "'x'"},         {"3-1", "'3-1'"},
        {"-1", "'-1'"},     {"1-", "'1-'"},         {"0--3", "'0--3'"},
        {"4096", "'4096'"}, {"1,,2", "'1,,2'"},     {"1,", "'1,'"},
        {"1 2", "'1 2'"},   {"0-4096", "'0-4096'"}, {"99999999999999", "'99999999999999'"}};
    for (const auto& [text, piece] : cases) {
        const auto set = RankSet::parse(text);
        ASSERT_FALSE(set) << text;
        EXPECT_EQ(set.error().code, Errc::bad_input);
        EXPECT_EQ(set.error().message,
                  piece + " is not a set of ranks; write it as 0-3,7, with ranks of 0 to 4095");
    }
}

TEST(RankSet, AllHoldsEveryRankOfTheWorld) {
    EXPECT_EQ(RankSet::all(0), RankSet{});
    EXPECT_EQ(RankSet::all(8).to_string(), "0-7");
    EXPECT_EQ(RankSet::all(kMaxRanks).size(), static_cast<std::size_t>(kMaxRanks));
    EXPECT_EQ(RankSet::all(kMaxRanks).to_string(), "0-4095");
}

TEST(RankSet, IteratesInRisingOrder) {
    const RankSet set{100, 3, 64, 0, 4095};
    EXPECT_EQ(std::vector<Rank>(set.begin(), set.end()), (std::vector<Rank>{0, 3, 64, 100, 4095}));
    const RankSet none;
    EXPECT_EQ(none.begin(), none.end());
}

TEST(RankSet, IsEqualByItsMembersWhateverItHeldBefore) {
    RankSet set{1, 200};
    set.erase(200);
    set.erase(200);
    EXPECT_EQ(set, RankSet{1});
    set.erase(1);
    EXPECT_EQ(set, RankSet{});
    EXPECT_TRUE(set.empty());
}

TEST(RankSet, TellsMembersSizeAndMaximum) {
    RankSet set{2, 70};
    set.insert(RankSet{2, 3, 130});
    EXPECT_EQ(set, (RankSet{2, 3, 70, 130}));
    EXPECT_EQ(set.size(), 4U);
    EXPECT_EQ(set.max(), 130);
    EXPECT_TRUE(set.contains(70));
    for (const Rank absent : {-1, 0, 71, 4096}) EXPECT_FALSE(set.contains(absent)) << absent;
}

}  // namespace
}  // namespace sgpu
