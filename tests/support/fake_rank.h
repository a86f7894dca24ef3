// fake_rank.h: a rank without Python that misbehaves by name.
#pragma once

#include <sys/types.h>

#include <nlohmann/json.hpp>
#include <string>

#include "runtime/rank_register.h"

namespace sgpu::test {

// What the fork server hands to a child.
struct FakeSetup {
    nlohmann::json child;  // its entry in the order
    int out = -1;
    int err = -1;
    int socket = -1;
    pid_t guard = 0;
    int lifeline =
        -1;            // inherited by all that the child starts: its end shows that nothing is left
    std::string rank;  // how ranks behave from their start on; "" for what their calls ask
    RankRegister ranks;
};

// Never returns. A rank's call names in its first frame what the rank does: see fake_rank.cpp. A
// service does what its entry names.
[[noreturn]] void run_fake_child(FakeSetup setup);

// Sleeps until it is killed; an interrupt does not end it.
[[noreturn]] void pause_for_ever();

}  // namespace sgpu::test
