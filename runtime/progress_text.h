// progress_text.h: what a progress line says, so that those of ranks in step can be one.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sgpu {

// A progress line taken apart: what has been done, how long it took and how fast it goes, which two
// clocks never measure alike, and all the rest, which must be equal.
struct ProgressText {
    struct Figure {
        double value = 0;     // seconds, or seconds per step
        bool elapsed = true;  // false: a rate, which jumps about more than a time
    };

    std::string rest;            // with marks where a figure, a count or tqdm's bar stood
    std::optional<double> done;  // tqdm's count
    std::optional<double> total;
    std::vector<Figure> pace;
};

// Knows the times and rates of tqdm, rich and Keras, and tqdm's bar with its count. What it does
// not know stays in `rest`.
ProgressText read_progress(std::string_view line);

// Whether two ranks are at the same step, and have taken about as long for it: within 2 s or a
// quarter, with rates within a half.
bool same_state(const ProgressText& a, const ProgressText& b);

// The same, but for a step or a twentieth of all steps: bars are drawn ten times a second, and not
// at the same moments.
bool in_step(const ProgressText& a, const ProgressText& b);

}  // namespace sgpu
