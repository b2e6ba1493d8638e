// Saving sessions to disk and loading them, where both must work.
#pragma once
#include "tests/engine/test_model.h"

namespace riffle::test {

// An open session file; whether it could be opened is in `status`.
struct SessionFile {
  riffle_session_file* handle = nullptr;
  char err[512] = "";
  riffle_status status;

  explicit SessionFile(const std::string& path)
      : status(riffle_session_file_open(path.c_str(), &handle, err, sizeof err)) {}
  ~SessionFile() { riffle_session_file_free(handle); }
  SessionFile(const SessionFile&) = delete;
  SessionFile& operator=(const SessionFile&) = delete;
  riffle_session_file_info info() const {
    riffle_session_file_info info{};
    info.struct_size = sizeof info;
    REQUIRE(riffle_session_file_get_info(handle, &info) == RIFFLE_OK);
    return info;
  }
};

inline void save(const Runtime& r, riffle_session* s, const std::string& path,
                 const std::string& data = "") {
  riffle_save_options o;
  riffle_save_defaults(&o);
  o.data = data.data();
  o.data_size = data.size();
  r.check(riffle_session_save(s, path.c_str(), &o));
}

inline riffle_session* load(Runtime& r, const std::string& path) {
  const SessionFile file(path);
  INFO(file.err);
  REQUIRE(file.status == RIFFLE_OK);
  r.sessions.push_back(nullptr);
  r.check(riffle_session_load(r.context, file.handle, &r.sessions.back(), nullptr, nullptr));
  return r.sessions.back();
}

}  // namespace riffle::test
