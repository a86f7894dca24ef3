#include "runtime/gpu/warm.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "runtime/gpu/warm_plan.h"

namespace sgpu {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;
using Spares = std::deque<ChildId>;

TEST(WarmPlan, SpreadsTheSparesOverTheGpusAndTellsEachOnce) {
    WarmPlan plan;
    const Spares spares = {11, 12, 13};
    EXPECT_THAT(plan.assign(spares), IsEmpty()) << "nobody wants it";
    plan.begin(2, std::nullopt);
    EXPECT_THAT(plan.assign(spares), ElementsAre(Pair(11, 0), Pair(12, 1)));
    EXPECT_THAT(plan.assign(spares), IsEmpty());
    EXPECT_TRUE(plan.is_warm(12));
    EXPECT_FALSE(plan.is_warm(13)) << "there is no third GPU";
}

TEST(WarmPlan, ARankGetsTheSpareThatIsWarmOnItsGpu) {
    WarmPlan plan;
    Spares spares = {1, 2, 3, 4};
    plan.begin(4, "4,5,6,7");
    (void)plan.assign(spares);
    EXPECT_EQ(plan.take(spares, 2), 3U);
    EXPECT_EQ(plan.take(spares, 0), 1U);
    spares.push_back(5);
    spares.push_back(6);
    // New ones take the places of those that are gone.
    EXPECT_THAT(plan.assign(spares), ElementsAre(Pair(5, 0), Pair(6, 2)));
    EXPECT_EQ(plan.take(spares, 0), 5U);
}

TEST(WarmPlan, ARankWithoutAWarmOneGetsAColdOneIfThereIsOne) {
    WarmPlan plan;
    Spares spares = {1, 2, 3};
    plan.begin(2, std::nullopt);
    (void)plan.assign(spares);
    EXPECT_EQ(plan.take(spares, 5), 3U);
    EXPECT_EQ(plan.take(spares, 5), 1U) << "all are warm elsewhere";
}

TEST(WarmPlan, ASpareThatDiesIsReplacedOnItsGpu) {
    WarmPlan plan;
    plan.begin(2, std::nullopt);
    (void)plan.assign({1, 2});
    EXPECT_THAT(plan.assign({2, 7}), ElementsAre(Pair(7, 0)));
}

TEST(WarmPlan, ColdSparesAreTakenInOrder) {
    WarmPlan plan;
    Spares spares = {4, 2, 3};
    EXPECT_EQ(plan.take(spares, 1), 4U);
    plan.begin(2, std::nullopt);
    (void)plan.assign(spares);
    plan.end();
    EXPECT_FALSE(plan.active());
    EXPECT_EQ(plan.take(spares, 1), 2U);
}

// Runs `work` in a child, since CUDA is initialised once in a process; what it told the fake
// driver.
template <class Work>
std::vector<std::string> told_by(Work work) {
    const std::string log = testing::TempDir() + "sgpu-cuda-" + std::to_string(::getpid());
    std::ofstream(log, std::ios::trunc).flush();
    const pid_t child = ::fork();
    if (child == 0) {
        ::setenv("SGPU_FAKE_CUDA_LOG", log.c_str(), 1);
        work();
        ::_exit(0);
    }
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    std::vector<std::string> lines;
    std::ifstream file(log);
    for (std::string line; std::getline(file, line);)
        lines.push_back(line.substr(line.find(' ') + 1));
    ::unlink(log.c_str());
    return lines;
}

// Returns once the driver's context of `device` was asked for.
void await_line(const std::string& wanted) {
    for (;;) {  // bounded by the test's own limit
        std::ifstream file(std::getenv("SGPU_FAKE_CUDA_LOG"));
        for (std::string line; std::getline(file, line);)
            if (line.substr(line.find(' ') + 1) == wanted) return;
        ::usleep(1000);
    }
}

TEST(ContextWarmer, RetainsTheContextOfTheDeviceThatIsWanted) {
    const auto told = told_by([] {
        ContextWarmer warmer(SGPU_FAKE_CUDA_LIBRARY);
        warmer.want(3, "4,5,6,7");
        await_line("retain 3");
    });
    EXPECT_THAT(told, ElementsAre("init 4,5,6,7", "retain 3"));
}

TEST(ContextWarmer, GivesUpAContextForAnother) {
    const auto told = told_by([] {
        ::setenv("CUDA_VISIBLE_DEVICES", "0", 1);
        ContextWarmer warmer(SGPU_FAKE_CUDA_LIBRARY);
        warmer.want(1, std::nullopt);
        await_line("retain 1");
        warmer.want(1, std::nullopt);
        warmer.want(2, std::nullopt);
        await_line("release 1");
    });
    EXPECT_THAT(told, ElementsAre("init all", "retain 1", "retain 2", "release 1"));
}

TEST(ContextWarmer, SettledItIsNotInTheDriverAnyMore) {
    const auto told = told_by([] {
        ContextWarmer warmer(SGPU_FAKE_CUDA_LIBRARY);
        warmer.settle();  // nothing was wanted
        warmer.want(0, std::nullopt);
        await_line("init all");
        warmer.settle();
        std::ifstream file(std::getenv("SGPU_FAKE_CUDA_LOG"));
        const std::string text{std::istreambuf_iterator<char>(file), {}};
        if (text.find("retain 0") == std::string::npos) ::_exit(1);
        warmer.want(1, std::nullopt);
        await_line("release 0");
        warmer.settle();
    });
    EXPECT_THAT(told, ElementsAre("init all", "retain 0", "retain 1", "release 0"));
}

TEST(ContextWarmer, WithoutADriverNothingHappens) {
    const auto told = told_by([] {
        ContextWarmer warmer("libno-such-thing.so.1");
        warmer.want(0, std::nullopt);
        warmer.settle();
        warmer.want(1, std::nullopt);
        warmer.settle();
    });
    EXPECT_THAT(told, IsEmpty());
}

TEST(ContextWarmer, AForkedChildOnlyLetsGo) {
    const auto told = told_by([] {
        auto warmer = std::make_unique<ContextWarmer>(SGPU_FAKE_CUDA_LIBRARY);
        warmer->want(0, std::nullopt);
        await_line("retain 0");
        const pid_t child = ::fork();
        if (child == 0) {
            warmer.reset();
            ::_exit(0);
        }
        int status = -1;
        ::waitpid(child, &status, 0);
        if (status != 0) ::_exit(1);
    });
    EXPECT_THAT(told, ElementsAre("init all", "retain 0"));
}

TEST(CudaInUse, IsSeenWithoutInitialisingIt) {
    const auto told = told_by([] {
        const auto require = [](bool truth) {
            if (!truth) ::_exit(1);
        };
        require(!cuda_in_use("libno-such-thing.so.1"));
        require(!cuda_in_use(SGPU_FAKE_CUDA_LIBRARY));  // nobody has loaded it
        void* library = ::dlopen(SGPU_FAKE_CUDA_LIBRARY, RTLD_NOW);
        require(!cuda_in_use(SGPU_FAKE_CUDA_LIBRARY));
        reinterpret_cast<int (*)(unsigned)>(::dlsym(library, "cuInit"))(0);
        require(cuda_in_use(SGPU_FAKE_CUDA_LIBRARY));
    });
    EXPECT_THAT(told, ElementsAre("init all"));
}

}  // namespace
}  // namespace sgpu
