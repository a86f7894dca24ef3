// Which progress lines of two ranks are one.
#include "runtime/progress_text.h"

#include <gtest/gtest.h>

#include "tests/unit/mux_support.h"

namespace sgpu {
namespace {

bool same(std::string_view a, std::string_view b) {
    const bool found = same_state(read_progress(a), read_progress(b));
    EXPECT_EQ(found, same_state(read_progress(b), read_progress(a)));
    return found;
}
bool near(std::string_view a, std::string_view b) {
    const bool found = in_step(read_progress(a), read_progress(b));
    EXPECT_EQ(found, in_step(read_progress(b), read_progress(a)));
    return found;
}

std::string tqdm(int done, const std::string& pace, const std::string& rest = "") {
    const int percent = done * 100 / 40;
    return "train: " + std::to_string(percent) + "%|" +
           std::string(std::size_t(percent / 10), '#') + "| " + std::to_string(done) + "/40 [" +
           pace + rest + "]";
}

TEST(ProgressText, TqdmsCountTimesAndRateAreRead) {
    const auto read = read_progress("x:  45%|###  | 18/40 [01:02<1:00:03, 2.00s/it, loss=0.5]");
    EXPECT_EQ(read.done, 18);
    EXPECT_EQ(read.total, 40);
    ASSERT_EQ(read.pace.size(), 3U);
    EXPECT_EQ(read.pace[0].value, 62);
    EXPECT_EQ(read.pace[1].value, 3603);
    EXPECT_EQ(read.pace[2].value, 2);
    EXPECT_EQ(read.rest, "x:  \x02 [\x01<\x01, \x01it, loss=0.5]");
}

TEST(ProgressText, ScaledCountsAreNumbers) {
    const auto read = read_progress("45%|###  | 1.20M/2.5G [00:01<00:01, 3.40MB/s]");
    EXPECT_DOUBLE_EQ(read.done.value_or(0), 1.2e6);
    EXPECT_DOUBLE_EQ(read.total.value_or(0), 2.5e9);
}

TEST(ProgressText, RanksThatMeasuredALittleDifferentlyAreOne) {
    EXPECT_TRUE(same(tqdm(40, "00:00<00:00, 49.25it/s"), tqdm(40, "00:01<00:00, 48.11it/s")));
    EXPECT_TRUE(same(tqdm(7, "00:07<00:33, 1.01s/it"), tqdm(7, "00:06<00:32, 1.00it/s")));
    EXPECT_TRUE(same("3/3 0s 2ms/step - loss: 0.5", "3/3 1s 3ms/step - loss: 0.5"));
    EXPECT_TRUE(same("Epoch 1 ━━━ 63/63 0:00:05 • 0:00:00 49.25it/s v_num: 3",
                     "Epoch 1 ━━━ 63/63 0:00:06 • 0:00:00 44.01it/s v_num: 3"));
}

TEST(ProgressText, ARankThatIsSlowerIsNotOneWithTheRest) {
    EXPECT_FALSE(same(tqdm(40, "00:10<00:00, 4.00it/s"), tqdm(40, "00:20<00:00, 3.00it/s")));
    EXPECT_FALSE(same(tqdm(40, "00:01<00:00, 9.00it/s"), tqdm(40, "00:01<00:00, 3.00it/s")));
}

TEST(ProgressText, WhatIsNoPaceMustBeEqual) {
    const std::string pace = "00:01<00:00, 40.0it/s";
    EXPECT_FALSE(same(tqdm(40, pace, ", loss=0.5"), tqdm(40, pace, ", loss=0.6")));
    EXPECT_FALSE(near("rank 0: " + tqdm(7, pace), "rank 1: " + tqdm(7, pace)));
    EXPECT_FALSE(near("<0> 199/200", "<1> 199/200"));
    EXPECT_FALSE(near("10%", "11%"));
    EXPECT_FALSE(near("v1.2.3", "v1.2.4"));
    EXPECT_TRUE(near("no figures", "no figures"));
}

TEST(ProgressText, AFewStepsApartIsInStepAndNotTheSameState) {
    const std::string pace = "00:01<00:00, 40.0it/s";
    EXPECT_TRUE(near(tqdm(18, pace), tqdm(20, pace)));
    EXPECT_FALSE(same(tqdm(18, pace), tqdm(20, pace)));
    EXPECT_FALSE(near(tqdm(18, pace), tqdm(21, pace)));
}

TEST(ProgressText, WhatHasNoKnownEndIsCountedToo) {
    EXPECT_TRUE(near("40it [00:01, 39.1it/s]", "41it [00:01, 38.0it/s]"));
    EXPECT_FALSE(same("40it [00:01, 39.1it/s]", "41it [00:01, 38.0it/s]"));
    EXPECT_FALSE(near("40it [00:01, 39.1it/s]", "50it [00:01, 39.1it/s]"));
}

TEST(ProgressText, HalvesOfFiguresAreHarmless) {
    for (const char* text : {"1", "45%|", "45%|##", "45%|##| ", "45%|##| 18", "45%|##| 18/", "1:",
                             "1:2", "2/s", "2it/", "0it/s", "?it/s", "40it [", ".5s", "\x1b[1m3/3"})
        EXPECT_TRUE(same(text, text)) << text;
}

// Bars of eight ranks, as the cell has them.
TEST(BarsOfRanksInStep, AreOneWhileTheyMoveAndOneWhenTheyEnd) {
    OutputMux mux({.world = 8});
    const auto pace = [](Rank rank) { return "00:00<00:00, 49." + std::to_string(rank) + "it/s"; };
    for (Rank rank = 0; rank < 8; ++rank)
        mux.add(rank, Stream::err, "\r" + tqdm(19 + rank % 2, pace(rank)), kStart);
    EXPECT_EQ(show(mux.live()), "[0-7] " + tqdm(19, pace(0)));
    for (Rank rank = 0; rank < 8; ++rank)
        mux.add(rank, Stream::err, "\r" + tqdm(40, pace(rank)) + "\n", kStart + 1s);
    EXPECT_EQ(show(mux.flush()), "{[0-7] " + tqdm(40, pace(0)) + "\n}");
}

TEST(BarsOfRanksInStep, AStragglerHasItsOwn) {
    OutputMux mux({.world = 3});
    const std::string pace = "00:05<00:00, 8.0it/s";
    for (Rank rank = 0; rank < 3; ++rank)
        mux.add(rank, Stream::err, "\r" + tqdm(rank == 1 ? 10 : 40, pace), kStart);
    EXPECT_EQ(show(mux.live()), "[0,2] " + tqdm(40, pace) + "|[1] " + tqdm(10, pace));
}

TEST(BarsOfRanksInStep, TwoBarsOfOneRankStayTwo) {
    OutputMux mux({.world = 2});
    const std::string pace = "00:00<00:00, 8.0it/s";
    const std::string outer = tqdm(4, pace);
    const std::string inner = tqdm(5, pace);
    add_to_all(mux, 2, "\r" + outer + "\n\r" + inner + "\x1b[A", kStart);
    EXPECT_EQ(show(mux.live()), "[0-1] " + outer + "|[0-1] " + inner);
}

}  // namespace
}  // namespace sgpu
