#include "kernel/json_convert.h"

#include <pybind11/pytypes.h>

#include <cmath>
#include <string>

namespace py = pybind11;

namespace sgpu {
namespace {

// Turns endless recursion (a list that holds itself) into Python's RecursionError.
class RecursionGuard {
public:
    RecursionGuard() {
        if (Py_EnterRecursiveCall(" while converting to JSON") != 0) throw py::error_already_set();
    }
    ~RecursionGuard() { Py_LeaveRecursiveCall(); }
    RecursionGuard(const RecursionGuard&) = delete;
    RecursionGuard& operator=(const RecursionGuard&) = delete;
};

// Lone surrogates have no UTF-8 form; they are replaced by question marks.
std::string utf8(py::handle text) {
    Py_ssize_t size = 0;
    if (const char* const bytes = PyUnicode_AsUTF8AndSize(text.ptr(), &size)) {
        return {bytes, static_cast<std::size_t>(size)};
    }
    PyErr_Clear();
    const auto replaced =
        py::reinterpret_steal<py::bytes>(PyUnicode_AsEncodedString(text.ptr(), "utf-8", "replace"));
    if (!replaced) throw py::error_already_set();
    return replaced;
}

nlohmann::json from_integer(py::handle number) {
    int overflow = 0;
    const long long value = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
    if (overflow == 0) return value;
    const unsigned long long large = PyLong_AsUnsignedLongLong(number.ptr());
    if (!PyErr_Occurred()) return large;
    PyErr_Clear();
    const double approximate = PyLong_AsDouble(number.ptr());
    if (!PyErr_Occurred()) return approximate;
    PyErr_Clear();
    return utf8(py::str(number));
}

nlohmann::json from_float(py::handle number) {
    const double value = PyFloat_AsDouble(number.ptr());
    return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json(nullptr);
}

nlohmann::json from_mapping(py::handle mapping) {
    nlohmann::json object = nlohmann::json::object();
    for (const py::handle item : mapping.attr("items")()) {
        const auto pair = py::reinterpret_borrow<py::tuple>(item);
        object[utf8(py::str(py::object(pair[0])))] = to_json(py::object(pair[1]));
    }
    return object;
}

nlohmann::json from_iterable(py::handle iterable) {
    nlohmann::json array = nlohmann::json::array();
    for (const py::handle item : iterable) array.push_back(to_json(item));
    return array;
}

bool is_bytes(py::handle object) {
    return PyBytes_Check(object.ptr()) != 0 || PyByteArray_Check(object.ptr()) != 0 ||
           PyMemoryView_Check(object.ptr()) != 0;
}

nlohmann::json from_other(py::handle object) {
    if (is_bytes(object)) {
        const py::object base64 = py::module_::import("base64").attr("b64encode")(object);
        return utf8(base64.attr("decode")("ascii"));
    }
    if (PyIndex_Check(object.ptr()) != 0) {
        const auto index = py::reinterpret_steal<py::object>(PyNumber_Index(object.ptr()));
        if (index) return from_integer(index);
        PyErr_Clear();  // an array has the slot too, but is no number
    }
    if (py::hasattr(object, "isoformat")) return utf8(py::str(object.attr("isoformat")()));
    if (py::hasattr(object, "items") && py::hasattr(object, "keys")) return from_mapping(object);
    if (py::hasattr(object, "__iter__")) return from_iterable(object);
    if (py::hasattr(object, "__float__")) {
        return from_float(py::float_(py::reinterpret_borrow<py::object>(object)));
    }
    return utf8(py::str(object));
}

}  // namespace

py::object to_python(const nlohmann::json& json) {
    switch (json.type()) {
        case nlohmann::json::value_t::boolean:
            return py::bool_(json.get<bool>());
        case nlohmann::json::value_t::number_integer:
            return py::int_(json.get<std::int64_t>());
        case nlohmann::json::value_t::number_unsigned:
            return py::int_(json.get<std::uint64_t>());
        case nlohmann::json::value_t::number_float:
            return py::float_(json.get<double>());
        case nlohmann::json::value_t::string:
            return py::str(json.get_ref<const std::string&>());
        case nlohmann::json::value_t::array: {
            py::list list;
            for (const auto& item : json) list.append(to_python(item));
            return list;
        }
        case nlohmann::json::value_t::object: {
            py::dict dict;
            for (const auto& [key, value] : json.items()) dict[py::str(key)] = to_python(value);
            return dict;
        }
        default:
            return py::none();
    }
}

nlohmann::json to_json(py::handle object) {
    const RecursionGuard guard;
    if (object.is_none()) return nullptr;
    if (py::isinstance<py::str>(object)) return utf8(object);
    if (PyBool_Check(object.ptr()) != 0) return object.ptr() == Py_True;
    if (PyLong_Check(object.ptr()) != 0) return from_integer(object);
    if (PyFloat_Check(object.ptr()) != 0) return from_float(object);
    if (py::isinstance<py::dict>(object)) return from_mapping(object);
    if (py::isinstance<py::list>(object) || py::isinstance<py::tuple>(object)) {
        return from_iterable(object);
    }
    return from_other(object);
}

}  // namespace sgpu
