// JSON from hostile files: nesting and number of values are capped, keys given twice and broken
// text are errors.
#pragma once
#include "util/checked.h"
#include "util/json.h"

namespace riffle {

// The file's text, which must be one JSON object. Its members are in the order of their keys, as
// are those of objects in it. Throws RIFFLE_BAD_MODEL.
Json parse_json_object(const FileView& file);

// The same of a part of the file; field names it in errors.
Json parse_json_object(const FileView& file, std::string_view text, const char* field);

// As JSON in ASCII, cut to what an error text has room for.
std::string shown(const Json& value);

// The member of this name. Null counts as absent throughout, as it does in transformers.
const Json* find(const Json& object, std::string_view key);

}  // namespace riffle
