// JSON from hostile files: nesting and number of values are capped, keys given twice and broken
// text are errors.
#pragma once
#include "util/checked.h"
#include "util/json.h"

namespace riffle {

// Reads the file's text, one JSON object. Its members are in the order of their keys, as are those
// of objects in it. Throws RIFFLE_BAD_MODEL, also if it is anything else.
Json parse_json_object(const FileView& file);

// Reads a part of the file; field names it in errors.
Json parse_json_object(const FileView& file, std::string_view text, const char* field);

// Returns the value as JSON in ASCII, cut to the length that an error text has room for.
std::string shown(const Json& value);

// Returns the member of this name, or null. A value of null counts as absent throughout, as it does
// in transformers.
const Json* find(const Json& object, std::string_view key);

}  // namespace riffle
