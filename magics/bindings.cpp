// bindings.cpp: what Python sees of the magics. The only file here that knows Python.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "magics/help.h"
#include "magics/parse.h"

namespace py = pybind11;
using namespace py::literals;

namespace sgpu::magics {

void bind_magics(py::module_& m);

namespace {

template <class T>
const T& value_or_raise(const Result<T>& result) {
    if (!result) throw py::value_error(result.error().message);
    return result.value();
}

py::dict cell_command(const std::string& line) {
    const auto parsed = parse_cell_line(line);
    const CellCommand& c = value_or_raise(parsed);
    py::dict d("gpus"_a = c.gpus, "gpu_type"_a = c.gpu_type, "ranks"_a = c.ranks, "push"_a = c.push,
               "pull"_a = c.pull, "fresh"_a = c.fresh, "name"_a = c.name, "mlflow"_a = py::none(),
               "output"_a = "merged", "output_ranks"_a = "");
    if (c.timeout) {
        const auto& limit = c.timeout->limit;
        d["timeout"] = limit ? py::object(py::float_(std::chrono::duration<double>(*limit).count()))
                             : py::object(py::none());
    }
    d["wait"] = c.wait ? py::object(py::float_(std::chrono::duration<double>(*c.wait).count()))
                       : py::object(py::none());
    constexpr const char* kMlflow[] = {"always", "lazy", "off"};
    if (c.mlflow) d["mlflow"] = kMlflow[static_cast<std::size_t>(*c.mlflow)];
    constexpr const char* kOutput[] = {"merged", "all", "none", "ranks"};
    if (c.output) {
        d["output"] = kOutput[static_cast<std::size_t>(c.output->kind)];
        d["output_ranks"] = c.output->ranks;
    }
    return d;
}

py::tuple line_command(const std::string& line) {
    const auto parsed = parse_line(line);
    const LineCommand& c = value_or_raise(parsed);
    constexpr const char* kVerbs[] = {"status", "restart", "stop", "logs", "doctor"};
    return py::make_tuple(kVerbs[static_cast<std::size_t>(c.verb)], c.ranks);
}

}  // namespace

void bind_magics(py::module_& m) {
    m.def("parse_cell_line", &cell_command, "line"_a,
          "The flags of a %%distributed cell as a dict; `timeout` (seconds or None) only if it was "
          "written. ValueError with one line for the user.");
    m.def("parse_line", &line_command, "line"_a, "(verb, ranks or None). ValueError likewise.");
    m.def(
        "split_cell",
        [](const std::string& cell) -> std::optional<std::pair<std::string, std::string>> {
            const auto parts = split_cell(cell);
            if (!parts) return std::nullopt;
            return std::pair(std::string(parts->line), std::string(parts->body));
        },
        "cell"_a, "The magic's line and the code below it; None if it is another cell.");
    m.def("cell_help", &cell_help);
    m.def("line_help", &line_help);
    m.def("complete_cell_line", [](const std::string& s) { return complete_cell_line(s); });
    m.def("complete_line", [](const std::string& s) { return complete_line(s); });
    m.def("wants_variables", [](const std::string& s) { return wants_variables(s); });
}

}  // namespace sgpu::magics
