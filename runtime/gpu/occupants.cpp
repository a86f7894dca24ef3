#include "runtime/gpu/occupants.h"

#include <pwd.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <fstream>

namespace sgpu {
namespace {

std::string user_name(uid_t uid) {
    std::array<char, 4096> text{};
    passwd entry{};
    passwd* found = nullptr;
    if (::getpwuid_r(uid, &entry, text.data(), text.size(), &found) == 0 && found)
        return found->pw_name;
    return "uid " + std::to_string(uid);
}

}  // namespace

std::vector<Occupant> occupants(const GpuReading& reading) {
    std::vector<Occupant> list;
    for (const GpuProcess& process : reading.processes) {
        Occupant one{process.pid, process.bytes, "", ""};
        const std::string folder = "/proc/" + std::to_string(process.pid);
        struct stat owner {};
        if (::stat(folder.c_str(), &owner) == 0) {
            one.user = user_name(owner.st_uid);
            std::ifstream comm(folder + "/comm");
            std::getline(comm, one.name);
        }
        list.push_back(std::move(one));
    }
    std::stable_sort(list.begin(), list.end(), [](const Occupant& a, const Occupant& b) {
        return a.bytes.value_or(0) > b.bytes.value_or(0);
    });
    return list;
}

}  // namespace sgpu
