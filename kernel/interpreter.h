// interpreter.h: what xeus's core asks for, answered by Python.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <string>
#include <xeus/xhistory_manager.hpp>

#include "kernel/compat.h"
#include "kernel/message.h"

namespace sgpu {

// The Python half of the kernel: an object with the methods of
// serverless_gpu.kernel.front.Front. Turns each call into an error reply if it raises.
//
// Threads: the main thread, without the GIL.
class Front {
public:
    explicit Front(pybind11::object object) : object_(std::move(object)) {}

    // Content of the reply: what `method` returns for `request`, called with these arguments.
    nl::json call(const char* method, const nl::json& arguments);

    // For comms: the whole message, with its buffers as a list of bytes.
    nl::json comm(const Message& message);

    pybind11::object& object() { return object_; }

private:
    pybind11::object object_;
};

// The content of kernel_info_reply; needs neither Python nor the core.
nl::json kernel_info(const std::string& version, const std::string& python_version);

class Interpreter final : public compat::Interpreter {
public:
    // `request` gives the request that is being handled; it outlives this object.
    Interpreter(Front& front, const std::function<const Message&()>& request, nl::json info);

private:
    nl::json run_cell(compat::CellRequest request) override;
    nl::json complete_request_impl(const std::string& code, int cursor) override;
    nl::json inspect_request_impl(const std::string& code, int cursor, int detail) override;
    nl::json is_complete_request_impl(const std::string& code) override;
    nl::json kernel_info_request_impl() override { return info_; }

    Front& front_;
    std::function<const Message&()> request_;
    nl::json info_;
};

// IPython's history. It stores what cells run by itself.
class History final : public xeus::xhistory_manager {
public:
    explicit History(Front& front) : front_(front) {}

private:
    void configure_impl() override {}
    void store_inputs_impl(int, int, const std::string&, const std::string&) override {}
    nl::json get_tail_impl(int n, bool raw, bool output) const override;
    nl::json get_range_impl(int session, int start, int stop, bool raw, bool output) const override;
    nl::json search_impl(const std::string& pattern, bool raw, bool output, int n,
                         bool unique) const override;

    Front& front_;
};

}  // namespace sgpu
