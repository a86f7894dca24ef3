#include "kernel/interpreter.h"

#include "kernel/json_convert.h"

namespace py = pybind11;

namespace sgpu {
namespace {

// The last resort: the front has its own handling of what user code raises.
nl::json error_content(const std::string& what) {
    return {{"status", "error"},
            {"ename", "KernelError"},
            {"evalue", what},
            {"traceback", nl::json::array({"KernelError: " + what})}};
}

template <class Call>
nl::json guarded(Call call) {
    const py::gil_scoped_acquire gil;
    try {
        return to_json(call());
    } catch (const std::exception& error) {  // error_already_set is one
        return error_content(error.what());
    }
}

}  // namespace

nl::json Front::call(const char* method, const nl::json& arguments) {
    return guarded([&] { return object_.attr(method)(**py::dict(to_python(arguments))); });
}

nl::json Front::comm(const Message& message) {
    return guarded([&] {
        py::list buffers;
        for (const auto& buffer : message.buffers) {
            buffers.append(py::bytes(buffer.data(), buffer.size()));
        }
        return object_.attr("comm")(to_python(message.header), to_python(message.content),
                                    to_python(message.metadata), buffers);
    });
}

nl::json kernel_info(const std::string& version, const std::string& python_version) {
    const nl::json language = {{"name", "python"},
                               {"version", python_version},
                               {"mimetype", "text/x-python"},
                               {"file_extension", ".py"},
                               {"pygments_lexer", "ipython3"},
                               {"nbconvert_exporter", "python"},
                               {"codemirror_mode", {{"name", "ipython"}, {"version", 3}}}};
    return {{"status", "ok"},
            {"protocol_version", "5.3"},
            {"implementation", "serverless-gpu"},
            {"implementation_version", version},
            {"banner", "Serverless GPU " + version + ", Python " + python_version},
            {"debugger", false},
            {"help_links", nl::json::array()},
            {"language_info", language}};
}

Interpreter::Interpreter(Front& front, const std::function<const Message&()>& request,
                         nl::json info)
    : front_(front), request_(request), info_(std::move(info)) {
    xeus::register_interpreter(this);
}

nl::json Interpreter::run_cell(compat::CellRequest request) {
    return front_.call("execute", {{"header", request_().header},
                                   {"metadata", request_().metadata},
                                   {"code", std::move(request.code)},
                                   {"silent", request.silent},
                                   {"store_history", request.store_history},
                                   {"allow_stdin", request.allow_stdin},
                                   {"user_expressions", std::move(request.user_expressions)}});
}

nl::json Interpreter::complete_request_impl(const std::string& code, int cursor) {
    return front_.call("complete", {{"code", code}, {"cursor", cursor}});
}

nl::json Interpreter::inspect_request_impl(const std::string& code, int cursor, int detail) {
    return front_.call("inspect", {{"code", code}, {"cursor", cursor}, {"detail", detail}});
}

nl::json Interpreter::is_complete_request_impl(const std::string& code) {
    return front_.call("is_complete", {{"code", code}});
}

nl::json History::get_tail_impl(int n, bool raw, bool output) const {
    return front_.call("history_tail", {{"n", n}, {"raw", raw}, {"output", output}});
}

nl::json History::get_range_impl(int session, int start, int stop, bool raw, bool output) const {
    return front_.call(
        "history_range",
        {{"session", session}, {"start", start}, {"stop", stop}, {"raw", raw}, {"output", output}});
}

nl::json History::search_impl(const std::string& pattern, bool raw, bool output, int n,
                              bool unique) const {
    return front_.call(
        "history_search",
        {{"pattern", pattern}, {"raw", raw}, {"output", output}, {"n", n}, {"unique", unique}});
}

}  // namespace sgpu
