// help.h: what `%%distributed?` and `%distributed?` print, written from the table in flags.h.
#pragma once

#include <string>

namespace sgpu::magics {

// Plain text of several lines, at most 100 columns wide, ending with a line end.
std::string cell_help();
std::string line_help();

}  // namespace sgpu::magics
