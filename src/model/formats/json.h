// JSON from hostile files: nesting and number of values are capped, keys given twice and broken
// text are errors.
#pragma once
#include <nlohmann/json.hpp>

#include "model/formats/checked.h"

namespace riffle {

// The file's text, which must be one JSON object. Throws RIFFLE_BAD_MODEL.
nlohmann::json parse_json_object(const FileView& file);

// The same of a part of the file; field names it in errors.
nlohmann::json parse_json_object(const FileView& file, std::string_view text, const char* field);

}  // namespace riffle
