// Functions of riffle_session_file.h: sessions on disk.
#include "api/api_handles.h"
#include "kv/file/session_writer.h"

using namespace riffle;

extern "C" {

riffle_status riffle_session_save(riffle_session* session, const char* path, size_t n_tokens,
                                  const void* data, size_t data_size, uint64_t* save_id,
                                  const riffle_options* options) {
  return on_session(session, [&] {
    require(path, "path");
    require(data || data_size == 0, "data");
    Engine& engine = *session->context->engine;
    const std::string_view bytes(static_cast<const char*>(data), data_size);
    const ContextOptions& o = options_or_defaults(options).context;
    const auto progress = progress_of(RIFFLE_PHASE_SAVE_SESSION, o.progress, o.progress_user);
    if (n_tokens == 0) return engine.save(*session->sequence, path, bytes, progress, save_id);
    require_length(*session, n_tokens);
    engine.save_beginning(*session->sequence, static_cast<int64_t>(n_tokens), path, bytes, progress,
                          save_id);
  });
}

riffle_status riffle_context_fingerprint(riffle_context* context, uint64_t* fingerprint) {
  return on_context(context, [&] {
    require(fingerprint, "fingerprint");
    *fingerprint = context->engine->fingerprint();
  });
}

riffle_status riffle_session_check_path(const char* path, char* err, size_t err_size) {
  return guarded(err, err_size, [&] {
    require(path, "path");
    check_session_path(path);
  });
}

riffle_status riffle_session_file_open(const char* path, riffle_session_file** file, char* err,
                                       size_t err_size) {
  if (file) *file = nullptr;
  return guarded(err, err_size, [&] {
    require(path, "path");
    require(file, "file");
    auto f = std::make_unique<riffle_session_file>();
    f->file = SessionFile::open(path);
    f->data = f->file->read(f->file->content().data);
    f->info = facts_of(*f->file);
    *file = f.release();
  });
}

void riffle_session_file_free(riffle_session_file* file) { delete file; }

const riffle_info* riffle_session_file_info(const riffle_session_file* file) {
  return file ? &file->info : nullptr;
}

uint64_t riffle_session_file_save_id(const riffle_session_file* file) {
  return file ? file->file->content().save_id() : 0;
}

const void* riffle_session_file_data(const riffle_session_file* file, size_t* data_size) {
  const bool held = file && !file->data.empty();
  if (data_size) *data_size = held ? file->data.size() : 0;
  return held ? file->data.data() : nullptr;
}

riffle_status riffle_session_file_tokens(const riffle_session_file* file, int32_t* out,
                                         size_t capacity, size_t* n_out) {
  return guarded(nullptr, 0, [&] {
    require(file, "file");
    require(n_out, "n_out");
    const std::vector<int32_t>& tokens = file->file->content().tokens;
    hand_out(tokens.data(), tokens.size(), out, capacity, n_out);
  });
}

riffle_status riffle_session_load(riffle_context* context, riffle_session_file* file,
                                  riffle_session** session, riffle_progress_fn progress,
                                  void* user) {
  if (session) *session = nullptr;
  return on_context(context, [&] {
    require(file, "file");
    require(session, "session");
    auto s = std::make_unique<riffle_session>();
    s->context = context;
    s->sequence =
        context->engine->load(file->file, progress_of(RIFFLE_PHASE_LOAD_SESSION, progress, user));
    s->sequence->session = s.get();
    *session = s.release();
  });
}

}  // extern "C"
