#include "runtime/progress_text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>

namespace sgpu {
namespace {

constexpr char kFigure = '\x01';  // marks; no control character comes this far in a line
constexpr char kCount = '\x02';
constexpr double kSlack = 2.0;  // seconds
constexpr double kSlackShare = 0.25;
constexpr double kRateShare = 0.5;
constexpr double kStepShare = 0.05;

bool is_digit(char c) {
    return c >= '0' && c <= '9';
}
bool is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

// Seconds in a unit of time; absent for other words.
std::optional<double> unit_of_time(std::string_view word) {
    constexpr std::array<std::pair<std::string_view, double>, 3> kUnits = {
        {{"s", 1.0}, {"ms", 1e-3}, {"us", 1e-6}}};
    for (const auto& [name, seconds] : kUnits)
        if (word == name) return seconds;
    return {};
}

double scale_of(char suffix) {
    constexpr std::string_view kSuffixes = "kMGT";
    const std::size_t at = kSuffixes.find(suffix);
    return at == std::string_view::npos ? 1.0 : std::pow(1000.0, static_cast<double>(at + 1));
}

// Reads a line from its start to its end into a ProgressText.
class Reader {
public:
    explicit Reader(std::string_view line) : left_(line) {}

    ProgressText read() {
        char before = ' ';
        while (!left_.empty()) {
            const char next = left_.front();
            const bool begins = is_digit(next) && !is_digit(before) && !is_letter(before) &&
                                before != '.' && before != '_';
            if (!begins || !figure()) {
                text_.rest += next;
                left_.remove_prefix(1);
            }
            before = next;
        }
        return std::move(text_);
    }

private:
    // Takes what begins with a number, if it is a figure; else takes nothing.
    bool figure() { return time() || bar() || rate() || open_count(); }

    std::optional<double> number(std::string_view& from) const {
        double value = 0;
        const auto parsed = std::from_chars(from.data(), from.data() + from.size(), value,
                                            std::chars_format::fixed);
        if (parsed.ec != std::errc{} || !is_digit(from.front())) return {};
        from.remove_prefix(static_cast<std::size_t>(parsed.ptr - from.data()));
        return value;
    }
    static std::string_view word(std::string_view& from) {
        const auto end = std::find_if_not(from.begin(), from.end(), is_letter);
        const std::string_view found = from.substr(0, static_cast<std::size_t>(end - from.begin()));
        from.remove_prefix(found.size());
        return found;
    }

    void take_figure(ProgressText::Figure figure, std::string_view left) {
        text_.pace.push_back(figure);
        text_.rest += kFigure;
        left_ = left;
    }

    // 01:23, 1:02:03
    bool time() {
        std::string_view left = left_;
        double seconds = number(left).value_or(0);
        bool parts = false;
        while (left.size() >= 3 && left[0] == ':' && is_digit(left[1]) && is_digit(left[2])) {
            seconds = seconds * 60 + (left[1] - '0') * 10 + (left[2] - '0');
            left.remove_prefix(3);
            parts = true;
        }
        if (parts) take_figure({seconds, true}, left);
        return parts;
    }

    // 45%|####      | 18/40, 45%|####      | 1.20M/2.66M
    bool bar() {
        std::string_view left = left_;
        number(left);
        if (!left.starts_with("%|")) return false;
        left.remove_prefix(2);
        const std::size_t end = left.find('|');
        if (end == std::string_view::npos) return false;
        left.remove_prefix(end + 1);
        left.remove_prefix(std::min(left.find_first_not_of(' '), left.size()));
        const auto done = count(left);
        if (!done || !left.starts_with("/")) return false;
        left.remove_prefix(1);
        const auto total = count(left);
        if (!total) return false;
        text_.done = done;
        text_.total = total;
        text_.rest += kCount;
        left_ = left;
        return true;
    }
    std::optional<double> count(std::string_view& left) const {
        auto value = left.empty() ? std::nullopt : number(left);
        if (!value || left.empty()) return value;
        const double scale = scale_of(left.front());
        if (scale > 1) left.remove_prefix(1);
        return *value * scale;
    }

    // 49.25it/s, 3.40kB/s, 1.20s/it, 2ms/step; and 12s, which Keras has
    bool rate() {
        std::string_view left = left_;
        const double value = number(left).value_or(0);
        const std::string_view what = word(left);
        const auto unit = unit_of_time(what);
        if (left.starts_with("/")) {
            std::string_view behind = left.substr(1);
            const std::string_view per = word(behind);
            if (per == "s" && value > 0) {
                take_figure({1 / value, false}, behind);
                text_.rest += what;  // steps, whichever way round the rate is told
                return true;
            }
            if (!unit || per.empty()) return false;
            take_figure({value * *unit, false}, behind);
            text_.rest += per;
            return true;
        }
        if (!unit) return false;
        take_figure({value * *unit, true}, left);
        return true;
    }

    // 40it [00:01, as tqdm counts what has no known end
    bool open_count() {
        std::string_view left = left_;
        const double value = number(left).value_or(0);
        const std::string_view what = word(left);
        if (what.empty() || !left.starts_with(" [") || left.size() < 3 || !is_digit(left[2]))
            return false;
        text_.done = value;
        text_.rest += kCount;
        text_.rest += what;
        left_ = left;
        return true;
    }

    std::string_view left_;
    ProgressText text_;
};

bool about_equal(const ProgressText::Figure& a, const ProgressText::Figure& b) {
    const double larger = std::max(a.value, b.value);
    const double slack = a.elapsed ? std::max(kSlack, kSlackShare * larger) : kRateShare * larger;
    return std::abs(a.value - b.value) <= slack;
}

bool alike_but_for_count(const ProgressText& a, const ProgressText& b) {
    return a.rest == b.rest && a.total == b.total && a.done.has_value() == b.done.has_value() &&
           std::equal(a.pace.begin(), a.pace.end(), b.pace.begin(), b.pace.end(), about_equal);
}

}  // namespace

ProgressText read_progress(std::string_view line) {
    return Reader(line).read();
}

bool same_state(const ProgressText& a, const ProgressText& b) {
    return a.done == b.done && alike_but_for_count(a, b);
}

bool in_step(const ProgressText& a, const ProgressText& b) {
    if (!alike_but_for_count(a, b)) return false;
    if (!a.done) return true;
    const double all = a.total.value_or(std::max(*a.done, *b.done));
    return std::abs(*a.done - *b.done) <= std::max(1.0, kStepShare * all);
}

}  // namespace sgpu
