// archive_needs.cpp: what static xeus and ZeroMQ archives want and a shared module cannot get.
//
// Linked only together with the archives; each part has its own reason. The names and linkage are
// those of the libraries that are stood in for.
#include <dlfcn.h>
#include <sys/random.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

// 1. GSSAPI. Debian's libzmq.a is built with Kerberos security for sockets, and Debian has no
// static GSSAPI. A Jupyter kernel never uses that security (its messages are signed with the key of
// the connection file), so every function fails. The arguments stay unread: their types do not
// matter.
namespace {
constexpr std::uint32_t kGssFailure = 13U << 16U;  // GSS_S_FAILURE
}

// NOLINTBEGIN
extern "C" {

void* GSS_C_NT_HOSTBASED_SERVICE = nullptr;
void* GSS_C_NT_USER_NAME = nullptr;
std::uint32_t gss_accept_sec_context() {
    return kGssFailure;
}
std::uint32_t gss_acquire_cred() {
    return kGssFailure;
}
std::uint32_t gss_delete_sec_context() {
    return kGssFailure;
}
std::uint32_t gss_display_name() {
    return kGssFailure;
}
std::uint32_t gss_import_name() {
    return kGssFailure;
}
std::uint32_t gss_init_sec_context() {
    return kGssFailure;
}
std::uint32_t gss_release_buffer() {
    return kGssFailure;
}
std::uint32_t gss_release_cred() {
    return kGssFailure;
}
std::uint32_t gss_release_name() {
    return kGssFailure;
}
std::uint32_t gss_unwrap() {
    return kGssFailure;
}
std::uint32_t gss_wrap() {
    return kGssFailure;
}

// 2. libuuid. Debian's archive of it cannot go into a shared module (its thread-local variables are
// those of an executable). xeus calls only this. Version 4: random, but for six bits.
void uuid_generate(unsigned char* uuid) {
    if (getrandom(uuid, 16, 0) != 16) std::abort();  // 16 bytes never come in part
    uuid[6] = static_cast<unsigned char>((uuid[6] & 0x0FU) | 0x40U);
    uuid[8] = static_cast<unsigned char>((uuid[8] & 0x3FU) | 0x80U);
}

// 3. Variables of libc. The archives are compiled for executables and read variables by a relative
// address, which in a shared module must end in the module itself. (For the same reason libstdc++
// is linked in.) Whether reference counts may do without atomic operations: never, the kernel has
// threads from its start.
__attribute__((visibility("hidden"))) char __libc_single_threaded = 0;

// The IPv6 address ::, as the C library defines it.
__attribute__((visibility("hidden"))) std::uint64_t in6addr_any[2] = {0, 0};

// stderr, where libzmq writes why it aborts. It is found before any other constructor runs:
// libstdc++ keeps its value in std::cerr.
__attribute__((visibility("hidden"))) FILE* sgpu_stderr __asm__("stderr") = nullptr;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wprio-ctor-dtor"
__attribute__((constructor(1))) void sgpu_find_stderr() {
    if (void* const variable = dlsym(RTLD_DEFAULT, "stderr")) {
        sgpu_stderr = *static_cast<FILE**>(variable);
    }
}
#pragma GCC diagnostic pop
}
// NOLINTEND
