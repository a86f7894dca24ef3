#include <gtest/gtest.h>

#include "magics/parse.h"

namespace sgpu::magics {
namespace {

TEST(CellLine, WithoutFlagsLeavesEverythingToTheSession) {
    const auto command = parse_cell_line("");
    ASSERT_TRUE(command);
    EXPECT_EQ(command.value(), CellCommand{});
}

}  // namespace
}  // namespace sgpu::magics
