#include "runtime/gpu/lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <array>
#include <csignal>
#include <nlohmann/json.hpp>
#include <optional>

namespace sgpu {
namespace {

constexpr mode_t kFolderMode = 01777;  // everybody makes files, nobody removes another's
constexpr mode_t kFileMode = 0666;     // everybody who holds it says so
constexpr int kTries = 20;             // files that vanish between opening and locking
constexpr std::size_t kMaxText = 1024;

Result<UniqueFd> open_folder(const std::string& path) {
    // mkdir's mode is narrowed by the umask.
    if (::mkdir(path.c_str(), kFolderMode) == 0) ::chmod(path.c_str(), kFolderMode);
    UniqueFd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!folder) return os_error("folder of GPU locks " + path);
    ::flock(folder.get(), LOCK_SH | LOCK_NB);
    return folder;
}

std::string file_name(const std::string& uuid) {
    std::string name = uuid + ".lock";
    for (char& c : name)
        if (c == '/') c = '-';
    return name;
}

// Not O_CREAT on a file that may be there: in a sticky folder the system refuses that for a file of
// another user (fs.protected_regular).
UniqueFd open_file(int folder, const std::string& name) {
    for (int i = 0; i < kTries; ++i) {
        constexpr int kFlags = O_NOFOLLOW | O_CLOEXEC;
        UniqueFd file(::openat(folder, name.c_str(), O_RDWR | kFlags));
        if (!file && errno == EACCES)  // made unwritable; to be locked it need not be written
            file.reset(::openat(folder, name.c_str(), O_RDONLY | kFlags));
        if (file || errno != ENOENT) return file;
        file.reset(::openat(folder, name.c_str(), O_RDWR | O_CREAT | O_EXCL | kFlags, kFileMode));
        if (file) ::fchmod(file.get(), kFileMode);
        if (file || errno != EEXIST) return file;
    }
    return {};
}

bool still_named(int folder, const std::string& name, int file) {
    struct stat opened {};
    struct stat named {};
    return ::fstat(file, &opened) == 0 &&
           ::fstatat(folder, name.c_str(), &named, AT_SYMLINK_NOFOLLOW) == 0 &&
           opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
}

HeldGpu read_holder(const std::string& uuid, int file) {
    HeldGpu holder{uuid, 0, ""};
    std::array<char, kMaxText> text{};
    const ssize_t n = ::pread(file, text.data(), text.size(), 0);
    const auto json =
        nlohmann::json::parse(text.data(), text.data() + std::max<ssize_t>(n, 0), nullptr, false);
    if (!json.is_object() || !json.value("pid", nlohmann::json()).is_number_integer())
        return holder;
    const auto pid = json["pid"].get<pid_t>();
    // The one who has just locked it may not have written yet: what stands there is from before.
    if (::kill(pid, 0) != 0 && errno == ESRCH) return holder;
    holder.pid = pid;
    if (json.value("notebook", nlohmann::json()).is_string()) holder.notebook = json["notebook"];
    return holder;
}

void write_holder(int file, const std::string& notebook) {
    const std::string text =
        nlohmann::json{{"pid", ::getpid()}, {"notebook", notebook.substr(0, kMaxText / 4)}}.dump(
            -1, ' ', false, nlohmann::json::error_handler_t::replace);
    if (::ftruncate(file, 0) != 0) return;  // opened for reading: others see no name
    (void)!::pwrite(file, text.data(), text.size(), 0);
}

// The lock, or who has it.
struct Attempt {
    UniqueFd file;
    std::optional<HeldGpu> holder;
};

Result<Attempt> attempt(int folder, const std::string& uuid) {
    const std::string name = file_name(uuid);
    for (int i = 0; i < kTries; ++i) {
        UniqueFd file = open_file(folder, name);
        if (!file) return os_error("lock of GPU " + uuid);
        if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
            if (errno != EWOULDBLOCK) return os_error("lock of GPU " + uuid);
            return Attempt{{}, read_holder(uuid, file.get())};
        }
        // A file that somebody removed meanwhile is no lock: others make and lock a new one.
        if (still_named(folder, name, file.get())) return Attempt{std::move(file), std::nullopt};
    }
    return Error{Errc::os_failure, "lock of GPU " + uuid + ": somebody keeps removing it", EAGAIN};
}

}  // namespace

Result<std::vector<HeldGpu>> GpuLocks::try_take(const std::vector<std::string>& uuids,
                                                const std::string& notebook) {
    if (!folder_fd_) {
        auto folder = open_folder(folder_);
        if (!folder) return folder.error();
        folder_fd_ = std::move(folder.value());
    }
    std::map<std::string, UniqueFd> taken;
    std::vector<HeldGpu> held;
    for (const std::string& uuid : uuids) {
        if (locks_.count(uuid) != 0) continue;
        auto one = attempt(folder_fd_.get(), uuid);
        if (!one) return one.error();
        if (one.value().holder)
            held.push_back(*one.value().holder);
        else
            taken[uuid] = std::move(one.value().file);
    }
    if (!held.empty()) return held;
    for (auto& [uuid, file] : taken) {
        write_holder(file.get(), notebook);
        locks_[uuid].file = std::move(file);
    }
    for (const std::string& uuid : uuids) ++locks_[uuid].times;
    return held;
}

void GpuLocks::give_back(const std::vector<std::string>& uuids) {
    for (const std::string& uuid : uuids) {
        const auto found = locks_.find(uuid);
        if (found == locks_.end() || --found->second.times > 0) continue;
        (void)!::ftruncate(found->second.file.get(), 0);
        // Not by closing alone: a child that the notebook forked may have the file too.
        ::flock(found->second.file.get(), LOCK_UN);
        locks_.erase(found);
    }
}

void GpuLocks::give_back_all() {
    std::vector<std::string> all;
    for (auto& [uuid, lock] : locks_) {
        lock.times = 1;
        all.push_back(uuid);
    }
    give_back(all);
}

void GpuLocks::forget() {
    locks_.clear();
    folder_fd_.reset();
}

}  // namespace sgpu
