// end_test.cpp: the end of the notebook, in whatever way, leaves no process and no folder.
#include <fcntl.h>
#include <sys/stat.h>

#include <csignal>
#include <fstream>

#include "tests/support/owner.h"
#include "tests/support/pool_test.h"

namespace sgpu::test {
namespace {

using namespace std::chrono_literals;

class End : public PoolTest {
protected:
    // A call of these ranks that has ended, then one in which they do not end.
    static void work(RankPool& pool, const std::string& first, const std::string& second,
                     int ranks) {
        const auto children = pool.take(ranks);
        const auto done = pool.begin_call(request(children, first));
        if (!readable(done->done_fd())) ::_exit(10);
        (void)pool.take_output();
        const auto running = pool.begin_call(request(children, second));
        std::string begun;
        while (begun.find("begun") == std::string::npos) {
            if (!readable(pool.output_fd())) ::_exit(11);
            for (const OutputEvent& event : pool.take_output()) begun += event.content;
        }
    }

    static CallRequest request(const std::vector<ChildId>& children, const std::string& deeds) {
        CallRequest request;
        for (std::size_t i = 0; i < children.size(); ++i)
            request.members.push_back({static_cast<int>(i), children[i]});
        request.world = request.output.world = static_cast<int>(children.size());
        request.mode = "function";
        request.frames = {deeds};
        return request;
    }

    void expect_nothing_left(const Owner& owner, const Watch& guards) {
        EXPECT_FALSE(owner.folder().empty()) << "the owner never came up";
        EXPECT_TRUE(guards.all_gone()) << "half of the guard is left";
        EXPECT_TRUE(lifeline_.all_gone()) << "a process is left";
        EXPECT_FALSE(exists(owner.folder())) << owner.folder();
    }
};

TEST_F(End, AKilledNotebookLeavesNothingWhateverItsRanksDo) {
    for (const std::string second :
         {"never", "ignore-signals", "stop-itself", "flood-for-ever|never"}) {
        Owner owner({options(), [&](RankPool& pool) {
                         pool.set_spares(2);
                         work(pool, "daemon|fork-and-leave|ok|respawn:100", second, 4);
                     }});
        const Watch guards({owner.warden(), owner.keeper()});
        owner.kill();
        expect_nothing_left(owner, guards);
    }
}

TEST_F(End, AKilledNotebookWhoseForkServerHangsAtItsStartLeavesNothing) {
    Owner owner({options({"--start=hang"}), [](RankPool& pool) { (void)pool.take(3); }});
    const Watch guards({owner.warden(), owner.keeper()});
    owner.kill();
    EXPECT_TRUE(guards.all_gone());
    EXPECT_FALSE(exists(owner.folder()));
}

TEST_F(End, ANotebookKilledRightAtItsStartLeavesNothing) {
    for (int i = 0; i < 10; ++i) {
        Owner owner({options(), [](RankPool& pool) { (void)pool.take(4); }});
        const Watch guards({owner.warden(), owner.keeper()});
        owner.kill();
        EXPECT_TRUE(guards.all_gone());
        EXPECT_FALSE(exists(owner.folder()));
    }
}

TEST_F(End, AStoppedKeeperDoesNotKeepAnythingAlive) {
    Owner owner({options(), [&](RankPool& pool) { work(pool, "daemon|ok", "ignore-signals", 2); }});
    const Watch guards({owner.warden(), owner.keeper()});
    ASSERT_TRUE(send_signal(owner.keeper(), SIGSTOP));
    owner.kill();
    expect_nothing_left(owner, guards);
}

TEST_F(End, AKilledHalfOfTheGuardEndsEverythingAtOnce) {
    for (const bool kill_keeper : {true, false}) {
        Owner owner({options(), [&](RankPool& pool) {
                         work(pool, "daemon|fork-and-leave", "stop-itself", 2);
                     }});
        const Watch guards({owner.warden(), owner.keeper()});
        ASSERT_TRUE(send_signal(kill_keeper ? owner.keeper() : owner.warden(), SIGKILL));
        EXPECT_TRUE(lifeline_.all_gone()) << "a process is left";
        // The notebook lives: what is a zombie still is its child.
        EXPECT_EQ(owner.finish(), "");
        EXPECT_TRUE(guards.all_gone());
        EXPECT_FALSE(exists(owner.folder()));
    }
}

class Linger : public End {
protected:
    // A service that writes its last words after `work` when the notebook is gone.
    void start_last_words(RankPool& pool, std::chrono::milliseconds work,
                          std::chrono::milliseconds linger) const {
        const nlohmann::json config = {
            {"notebook", ::getpid()}, {"work_ms", work.count()}, {"file", folder_ / "words"}};
        const auto [id, ready] =
            pool.start_service("last-words", config.dump(), linger, Imports::all);
        if (!readable(ready->done_fd())) ::_exit(12);
    }
    std::string words() const {
        std::string text;
        std::ifstream(folder_ / "words") >> text;
        return text;
    }
};

TEST_F(Linger, AServiceThatMayOutliveTheNotebookHasItsTime) {
    Owner owner({options(), [&](RankPool& pool) {
                     start_last_words(pool, 700ms, 3500ms);
                     work(pool, "ok", "never", 2);
                 }});
    const Watch guards({owner.warden(), owner.keeper()});
    owner.kill();
    expect_nothing_left(owner, guards);
    EXPECT_EQ(words(), "KILLED");
}

TEST_F(Linger, ItHasItsTimeThoughTheKeeperHangs) {
    Owner owner({options(), [&](RankPool& pool) { start_last_words(pool, 700ms, 3500ms); }});
    const Watch guards({owner.warden(), owner.keeper()});
    ASSERT_TRUE(send_signal(owner.keeper(), SIGSTOP));
    owner.kill();
    expect_nothing_left(owner, guards);
    EXPECT_EQ(words(), "KILLED");
}

TEST_F(Linger, ItsTimeIsBounded) {
    for (const auto linger : {300ms, 3'600'000ms}) {
        Owner owner(
            {options(), [&](RankPool& pool) { start_last_words(pool, 100'000ms, linger); }});
        const Watch guards({owner.warden(), owner.keeper()});
        owner.kill();
        expect_nothing_left(owner, guards);
        EXPECT_EQ(words(), "");
    }
}

TEST_F(End, ANotebookThatWasStoppedStillLearnsOfADeath) {
    const std::string go = folder_ / "go";
    ASSERT_EQ(::mkfifo(go.c_str(), 0600), 0);
    std::shared_ptr<CallTicket> ticket;
    const auto begin = [&](RankPool& pool) {
        ticket = pool.begin_call(request(pool.take(1), "orphans-then-exit:1300," + go));
        if (!readable(pool.output_fd())) ::_exit(11);
    };
    const auto end = [&](RankPool&) -> std::string {
        if (!readable(ticket->done_fd())) return "the call does not end";
        const auto outcomes = ticket->take_outcomes();
        return outcomes[0].exit_known ? "exit " + std::to_string(WEXITSTATUS(outcomes[0].status))
                                      : "unknown";
    };
    Owner owner({options(), begin, end});
    ASSERT_EQ(owner.ranks().size(), 1U);
    const Watch rank({owner.ranks()[0]});
    ASSERT_TRUE(send_signal(owner.pid(), SIGSTOP));
    const UniqueFd opened(::open(go.c_str(), O_WRONLY | O_CLOEXEC));
    EXPECT_TRUE(rank.all_gone());
    ASSERT_TRUE(send_signal(owner.pid(), SIGCONT));
    EXPECT_EQ(owner.finish(), "exit 9");
}

}  // namespace
}  // namespace sgpu::test
