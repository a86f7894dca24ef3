#include "runtime/output_mux.h"

#include <gtest/gtest.h>

namespace sgpu {
namespace {

TEST(OutputMux, HasNothingToShowAtFirst) {
    OutputMux mux({.world = 2});
    EXPECT_TRUE(mux.flush().empty());
}

}  // namespace
}  // namespace sgpu
