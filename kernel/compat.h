// compat.h: what differs between the generations of xeus. Every `#if XEUS_VERSION_MAJOR` is here.
//
// Of xeus we use the core (it parses requests and forms replies), the interpreter, and the server
// interface; the sockets are our own (server.h), so that xeus-zmq is not needed from xeus 3 on.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <xeus/xeus.hpp>
#include <xeus/xinterpreter.hpp>
#include <xeus/xkernel.hpp>
#include <xeus/xkernel_configuration.hpp>
#include <xeus/xserver.hpp>
#if XEUS_VERSION_MAJOR >= 3
#include <xeus/xeus_context.hpp>
#endif

namespace sgpu::compat {

namespace nl = nlohmann;

// What update_config_impl of a server takes.
#if XEUS_VERSION_MAJOR >= 6
using KernelConfig = xeus::xkernel_configuration;
#else
using KernelConfig = xeus::xconfiguration;
#endif

// One execute_request.
struct CellRequest {
    std::string code;
    bool silent = false;
    bool store_history = true;
    bool allow_stdin = false;
    nl::json user_expressions;
};

// An interpreter with one signature for all generations.
class Interpreter : public xeus::xinterpreter {
protected:
    // Returns the content of the execute_reply. Never throws.
    virtual nl::json run_cell(CellRequest request) = 0;

private:
    void configure_impl() override {}
#if XEUS_VERSION_MAJOR >= 5
    void execute_request_impl(send_reply_callback reply, int /*count*/, const std::string& code,
                              xeus::execute_request_config config,
                              nl::json user_expressions) override {
        reply(run_cell({code, config.silent, config.store_history, config.allow_stdin,
                        std::move(user_expressions)}));
    }
#else
    nl::json execute_request_impl(int /*count*/, const std::string& code, bool silent,
                                  bool store_history, nl::json user_expressions,
                                  bool allow_stdin) override {
        return run_cell({code, silent, store_history, allow_stdin, std::move(user_expressions)});
    }
#endif
    // The server answers shutdown and interrupt itself; these are never reached.
#if XEUS_VERSION_MAJOR >= 6
    nl::json shutdown_request_impl(bool restart) override {
        return {{"status", "ok"}, { "restart", restart }};
    }
    nl::json interrupt_request_impl() override {
        return {{ "status", "ok" }};
    }
#else
    void shutdown_request_impl() override {}
#endif
};

}  // namespace sgpu::compat
