// archive_probe.cpp: linked once while CMake configures, to see whether the system's archives of
// xeus and ZeroMQ can go into a shared module. Never run.
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <zmq.h>

#include <xeus/xguid.hpp>
#include <xeus/xhistory_manager.hpp>
#include <xeus/xkernel.hpp>
#include <xeus/xkernel_configuration.hpp>

extern "C" __attribute__((visibility("default"))) void* PyInit__kernel() {
    (void)xeus::new_xguid();
    (void)xeus::load_configuration("");
    (void)xeus::make_in_memory_history_manager();
    (void)HMAC(EVP_get_digestbyname("sha256"), "", 0, nullptr, 0, nullptr, nullptr);
    return zmq_ctx_new();
}
