// json_convert.h: between Python objects and JSON.
#pragma once

#include <pybind11/pybind11.h>

#include <nlohmann/json.hpp>

namespace sgpu {

// REQUIRES: the GIL.
pybind11::object to_python(const nlohmann::json& json);

// Content of messages comes from users' objects, so nothing is refused that has a sensible form:
// bytes become base64, dates ISO 8601, other mappings objects, other iterables arrays, numbers of
// libraries numbers, and all else its str(). Keys become strings. NaN and infinities become null.
//
// REQUIRES: the GIL.
// Errors: throws pybind11::error_already_set if the object's own methods raise, and for nesting
// deeper than the recursion limit.
nlohmann::json to_json(pybind11::handle object);

}  // namespace sgpu
