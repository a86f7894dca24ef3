#include "runtime/memory_watch.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <sstream>
#include <string_view>

#include "runtime/unique_fd.h"

namespace sgpu {
namespace {

constexpr std::uint64_t kSmall = 64ULL << 20;  // to look costs less than a tenth of copying this
constexpr double kGibibyte = 1024.0 * 1024 * 1024;
constexpr std::uint64_t kNoLimit = 1ULL << 60;  // version 1 writes a huge number for none

std::string read_file(const std::string& path) {
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    std::string text;
    char part[4096];
    for (ssize_t n = 0; fd && (n = ::read(fd.get(), part, sizeof part)) > 0;)
        text.append(part, static_cast<std::size_t>(n));
    return text;
}

std::optional<std::uint64_t> number_of(std::string_view text) {
    std::uint64_t number = 0;
    const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
    return read.ec == std::errc() ? std::optional(number) : std::nullopt;
}

// The number in the line `name` NUMBER.
std::optional<std::uint64_t> field(const std::string& path, const std::string& name) {
    std::istringstream lines(read_file(path));
    for (std::string line; std::getline(lines, line);)
        if (line.starts_with(name + ' '))
            return number_of(std::string_view(line).substr(name.size() + 1));
    return std::nullopt;
}

// The number in a file that holds nothing else. Nothing if it is "max" or not there.
std::optional<std::uint64_t> value(const std::string& path) {
    return number_of(read_file(path));
}

// A field of /proc/meminfo, in bytes; 0 if it is not there.
std::uint64_t meminfo(const std::string& proc, const std::string& name) {
    std::istringstream lines(read_file(proc + "/meminfo"));
    for (std::string line; std::getline(lines, line);) {
        if (!line.starts_with(name + ':')) continue;
        const auto digits = line.find_first_of("0123456789");
        if (digits == std::string::npos) return 0;
        return number_of(std::string_view(line).substr(digits)).value_or(0) * 1024;
    }
    return 0;
}

// What one cgroup still has under its own limit, swap apart; kNoLimit if it has none.
std::uint64_t room_in(const std::string& folder) {
    const bool version_2 = value(folder + "/memory.current").has_value();
    const std::string prefix = version_2 ? "" : "total_";
    const auto limit = value(folder + (version_2 ? "/memory.max" : "/memory.limit_in_bytes"));
    const auto used = value(folder + (version_2 ? "/memory.current" : "/memory.usage_in_bytes"));
    if (!limit || !used || *limit >= kNoLimit) return kNoLimit;
    std::uint64_t room = *limit;
    for (const char* files : {"inactive_file", "active_file"})
        room += field(folder + "/memory.stat", prefix + files).value_or(0);
    return room > *used ? room - *used : 0;
}

std::string gibibytes(std::uint64_t bytes) {
    char text[32];
    std::snprintf(text, sizeof text, "%.1f GiB", static_cast<double>(bytes) / kGibibyte);
    return text;
}

struct Place {
    std::string top;   // where the tree of cgroups is mounted
    std::string path;  // of the cgroup in it, "" or "/…"
    std::string file;  // that has the counter
};

// Where the counter may be, best first. A container may see its own cgroup as the top of the tree
// while /proc names it by its place on the host.
std::vector<Place> places(const std::string& proc, const std::string& cgroups) {
    std::vector<Place> found;
    std::istringstream lines(read_file(proc + "/self/cgroup"));
    for (std::string line; std::getline(lines, line);) {
        const auto first = line.find(':');
        const auto second = line.find(':', first + 1);
        if (second == std::string::npos) continue;
        const std::string controllers = ',' + line.substr(first + 1, second - first - 1) + ',';
        std::string path = line.substr(second + 1);
        if (path == "/") path.clear();
        const bool version_2 = controllers == ",,";
        if (!version_2 && controllers.find(",memory,") == std::string::npos) continue;
        const std::string top = version_2 ? cgroups : cgroups + "/memory";
        const std::string file = version_2 ? "memory.events" : "memory.oom_control";
        found.push_back({top, path, file});
        if (!path.empty()) found.push_back({top, "", file});
    }
    return found;
}

}  // namespace

MemoryWatch::MemoryWatch(const std::string& proc, const std::string& cgroups) : proc_(proc) {
    for (const Place& place : places(proc, cgroups)) {
        const std::string folder = place.top + place.path;
        if (!field(folder + '/' + place.file, "oom_kill")) continue;
        counter_ = folder + '/' + place.file;
        folder_ = folder;
        top_ = place.top;
        return;
    }
    if (field(proc + "/vmstat", "oom_kill")) counter_ = proc + "/vmstat";
}

std::optional<std::uint64_t> MemoryWatch::count() const {
    return counter_.empty() ? std::nullopt : field(counter_, "oom_kill");
}

OutOfMemory MemoryWatch::verdict(std::optional<std::uint64_t> before,
                                 std::optional<std::uint64_t> now) const {
    if (!before || !now) return OutOfMemory::unknown;
    if (*now <= *before) return OutOfMemory::no;
    return folder_.empty() ? OutOfMemory::likely : OutOfMemory::yes;
}

std::uint64_t MemoryWatch::limit() const {
    if (folder_.empty()) return 0;
    // Version 1 knows the least of all limits above; version 2 has to be asked level by level.
    std::uint64_t least =
        field(folder_ + "/memory.stat", "hierarchical_memory_limit").value_or(kNoLimit);
    for (const std::string& level : levels())
        least = std::min(least, value(level + "/memory.max").value_or(kNoLimit));
    return least < kNoLimit ? least : 0;
}

std::uint64_t MemoryWatch::held() const {
    const std::uint64_t least = limit();
    if (least == 0) return 0;
    for (const std::string& level : levels()) {
        if (value(level + "/memory.max") == least)
            return value(level + "/memory.current").value_or(0);
        if (value(level + "/memory.limit_in_bytes") == least)
            return value(level + "/memory.usage_in_bytes").value_or(0);
    }
    return 0;
}

std::uint64_t MemoryWatch::room() const {
    std::uint64_t least = meminfo(proc_, "MemAvailable");
    if (least == 0) return kNoLimit;  // a system that does not say
    for (const std::string& level : levels()) least = std::min(least, room_in(level));
    return least + meminfo(proc_, "SwapFree");
}

// The cgroup and those above it, as far up as they can be seen.
std::vector<std::string> MemoryWatch::levels() const {
    std::vector<std::string> found;
    if (folder_.empty()) return found;
    for (std::string folder = folder_; folder.size() >= top_.size();
         folder.resize(folder.rfind('/')))
        found.push_back(folder);
    return found;
}

std::optional<Error> lack_of_memory(std::uint64_t bytes, const MemoryWatch& watch) {
    if (bytes < kSmall) return std::nullopt;
    const std::uint64_t room = watch.room();
    if (bytes <= room) return std::nullopt;
    const std::uint64_t limit = watch.limit();
    const std::string of = limit != 0 ? " of the cgroup's " + gibibytes(limit) : "";
    return Error{Errc::os_failure,
                 gibibytes(bytes) + " of shared memory are needed and " + gibibytes(room) + of +
                     " are left: send less, or pass it through a file",
                 ENOMEM};
}

}  // namespace sgpu
