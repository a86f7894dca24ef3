// fake_deeds.h: what a fake rank does when a call names it.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "runtime/rank_agent.h"

namespace sgpu::test {

inline constexpr int kSocketFd = 3;
inline constexpr int kLifelineFd = 60;

struct FakeRank {
    RankAgent& agent;
    CallId call = 0;
    int rank = 0;
    std::string key;  // of marks

    // The one right end of a call.
    void answer(bool ok, const std::string& text) const;
    // Until the pool interrupts this call. Returns why.
    std::string wait_for_interrupt() const;
};

// `argument` is what stands after the colon in a call's word.
using Deed = void (*)(const FakeRank&, const std::string& argument);
const std::map<std::string, Deed>& output_deeds();
const std::map<std::string, Deed>& family_deeds();  // of processes that a rank starts

// Does what `name` ("deed" or "deed:argument") says. An unknown name raises.
void do_deed(const FakeRank& rank, const std::string& name);

// All bytes, whatever it takes.
void print(int fd, std::string_view text);

// One line that no other rank prints, so that it is not merged with another's.
void say_begun();

// What a real rank does for interrupts and stack dumps.
void install_signals(RankAgent*& agent, int dump_fd);
int dump_signal();

}  // namespace sgpu::test
