// Which calls' logs are kept.
#include "runtime/call_logs.h"

#include <gtest/gtest.h>

#include <filesystem>

namespace sgpu {
namespace {

namespace fs = std::filesystem;

class CallLogsTest : public ::testing::Test {
protected:
    CallLogsTest() {
        std::string path = fs::temp_directory_path() / "sgpu-logs-XXXXXX";
        EXPECT_NE(::mkdtemp(path.data()), nullptr);
        folder_ = path;
    }
    ~CallLogsTest() override { fs::remove_all(folder_); }

    std::size_t kept() const {
        return static_cast<std::size_t>(
            std::distance(fs::directory_iterator(folder_ / "logs"), fs::directory_iterator{}));
    }

    fs::path folder_;
};

void write_log(CallLogs& logs, CallId call, std::uint64_t said_size) {
    RankLog(logs.path(call, 0), logs.begin(call, 1)).write("x\n");
    logs.set_size(call, said_size);
}

TEST_F(CallLogsTest, TheLastCallsAreKept) {
    CallLogs logs(folder_ / "logs");
    for (CallId call = 1; call <= CallLogs::kKeptCalls + 5; ++call) write_log(logs, call, 2);
    EXPECT_EQ(kept(), CallLogs::kKeptCalls);
    EXPECT_FALSE(fs::exists(logs.path(5, 0)));
    EXPECT_TRUE(fs::exists(logs.path(CallLogs::kKeptCalls + 5, 0)));
}

TEST_F(CallLogsTest, LargeLogsMakeRoom) {
    CallLogs logs(folder_ / "logs", 1000);
    write_log(logs, 1, 600);
    write_log(logs, 2, 600);
    EXPECT_TRUE(fs::exists(logs.path(1, 0)));
    write_log(logs, 3, 1);
    EXPECT_FALSE(fs::exists(logs.path(1, 0))) << "with the second it is too much";
    EXPECT_TRUE(fs::exists(logs.path(2, 0)));
}

TEST_F(CallLogsTest, ACallHasRoomForEachOfItsRanks) {
    CallLogs logs(folder_ / "logs");
    EXPECT_LE(logs.begin(1, 8) * 8, CallLogs::kMostBytes);
    EXPECT_GT(logs.begin(2, 8), 0U);
    EXPECT_LE(logs.begin(3, 1), RankLog::kMaxBytes);
}

TEST_F(CallLogsTest, AFolderThatIsGoneStopsNobody) {
    CallLogs logs("/proc/no/such/folder");
    EXPECT_GT(logs.begin(1, 8), 0U);
}

}  // namespace
}  // namespace sgpu
