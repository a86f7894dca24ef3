#include "runtime/rank_log.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace sgpu {
namespace {

// Files of this process may be no longer, while it lives: writes then fail as on a full disk.
class LongestFile {
public:
    explicit LongestFile(rlim_t bytes) {
        ::getrlimit(RLIMIT_FSIZE, &before_);
        const rlimit low{bytes, before_.rlim_max};
        ::setrlimit(RLIMIT_FSIZE, &low);
        handler_ = ::signal(SIGXFSZ, SIG_IGN);
    }
    ~LongestFile() {
        ::setrlimit(RLIMIT_FSIZE, &before_);
        ::signal(SIGXFSZ, handler_);
    }
    LongestFile(const LongestFile&) = delete;
    LongestFile& operator=(const LongestFile&) = delete;

private:
    rlimit before_{};
    sighandler_t handler_ = SIG_DFL;
};

class RankLogTest : public ::testing::Test {
protected:
    RankLogTest() {
        std::string path = std::filesystem::temp_directory_path() / "sgpu-log-XXXXXX";
        EXPECT_NE(::mkdtemp(path.data()), nullptr);
        folder_ = path;
    }
    ~RankLogTest() override { std::filesystem::remove_all(folder_); }

    std::string path() const { return folder_ / "logs" / "call-1" / "rank-0.log"; }
    std::string content(const std::string& part = "") const {
        std::ifstream file(path() + part);
        std::stringstream all;
        all << file.rdbuf();
        return all.str();
    }

    std::filesystem::path folder_;
};

TEST_F(RankLogTest, HoldsEveryByteInAFileOfTheUsersOwn) {
    RankLog log(path());
    EXPECT_FALSE(std::filesystem::exists(path())) << "a silent rank has no file";
    log.write("one\n");
    log.write(std::string("\0\xff", 2));
    EXPECT_EQ(content(), std::string("one\n\0\xff", 6));
    struct stat info {};
    ASSERT_EQ(::stat(path().c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777U, 0600U);
}

TEST_F(RankLogTest, KeepsTheBeginAndTheEndAndSaysWhatIsGone) {
    RankLog log(path(), 32);  // 8 for the begin, 12 for each of two parts
    log.write("0123456");
    log.write("7abcdefghijklmnopqrstuvwxyzABCDEFGHIJ");
    EXPECT_EQ(content(), "01234567");
    EXPECT_EQ(content(".1"), "mnopqrstuvwx");
    const std::string last = content(".2");
    EXPECT_TRUE(last.starts_with("(log rotated at 2")) << last;
    EXPECT_NE(last.find(": 12 bytes between the first part and the last two are gone)\n"),
              std::string::npos)
        << last;
    EXPECT_TRUE(last.ends_with("yzABCDEFGHIJ")) << last;
    EXPECT_LE(log.size(), 32U);
    EXPECT_EQ(log.loss().rotated, 12U);
    EXPECT_EQ(log.loss().refused, 0U);
}

TEST_F(RankLogTest, CountsWhatTheSystemRefuses) {
    RankLog log(path());
    {
        const LongestFile limit(10);
        log.write("one\ntwo\nthree\n");
        log.write("four\n");
    }
    EXPECT_EQ(content(), "one\ntwo\nth");
    EXPECT_EQ(log.size(), 10U);
    EXPECT_EQ(log.loss().refused, 9U);
    EXPECT_EQ(log.loss().error, EFBIG);
    EXPECT_EQ(log.loss().rotated, 0U);
}

TEST_F(RankLogTest, TheFileSaysWhatIsMissingWhereItGoesOn) {
    RankLog log(path());
    {
        const LongestFile limit(4);
        log.write("one\ntwo\n");
    }
    {
        const LongestFile limit(20);  // no room for the note: then none for the line either
        log.write("three\n");
    }
    EXPECT_EQ(content(), "one\n");
    log.write("four\n");
    EXPECT_EQ(content(), "one\n\n(10 bytes are missing here: File too large)\nfour\n");
    log.write("five\n");
    EXPECT_TRUE(content().ends_with("four\nfive\n")) << "it is said once";
    EXPECT_EQ(log.loss().refused, 10U);
}

TEST_F(RankLogTest, IsOneFileUntilTheBeginIsFull) {
    RankLog log(path(), 32);
    log.write("01234567");
    EXPECT_FALSE(std::filesystem::exists(path() + ".2"));
    log.write("8");
    EXPECT_EQ(content(".2"), "8") << "nothing is gone, so nothing is said";
}

TEST_F(RankLogTest, GoesOnAfterARest) {
    RankLog log(path());
    log.write("a");
    log.rest();
    log.write("b");
    EXPECT_EQ(content(), "ab");
}

TEST_F(RankLogTest, AMovedLogGoesOn) {
    RankLog first(path());
    first.write("a");
    RankLog second = std::move(first);
    second.write("b");
    EXPECT_EQ(content(), "ab");
}

TEST_F(RankLogTest, AFileThatCannotBeMadeStopsNobody) {
    std::ofstream(folder_ / "logs") << "a file where the folder should be";
    RankLog log(path());
    log.write("lost");
    log.write("lost too");
    EXPECT_FALSE(std::filesystem::exists(path()));
    EXPECT_EQ(log.loss().refused, 12U);
    EXPECT_EQ(log.loss().error, ENOTDIR);
    EXPECT_EQ(log.size(), 0U);
    RankLog nowhere;
    nowhere.write("lost");
}

}  // namespace
}  // namespace sgpu
