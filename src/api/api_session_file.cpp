// riffle.h: sessions on disk.
#include "api/api_handles.h"
#include "api/struct_sizes.h"
#include "kv/file/session_writer.h"

using namespace riffle;

namespace {

riffle_session_file_info info_of(const riffle_session_file& file) {
  riffle_session_file_info info{};
  const SessionContent& c = file.file->content();
  info.model = c.origin.model.c_str();
  info.architecture = c.origin.architecture.c_str();
  info.n_tokens = c.tokens.size();
  info.n_layers = static_cast<int32_t>(c.origin.layers.size());
  info.n_kv_heads = c.origin.layers[0].n_kv_heads;
  info.head_dim = c.origin.layers[0].head_dim;
  info.vocab_size = c.origin.vocab_size;
  info.block_size = c.origin.block_size;
  info.kv_type = static_cast<riffle_kv_type>(c.origin.type);
  info.has_logits = c.logits.bytes > 0;
  info.list_positions = c.unrotated;
  info.state = c.state_kind.c_str();
  info.created = c.created;
  info.saved = c.saved;
  info.saves = c.generation;
  info.newest_damaged = c.newest_damaged;
  info.save_id = c.save_id();
  info.file_bytes = file.file->size();
  info.kv_bytes = c.kv_bytes();
  info.data = file.data.empty() ? nullptr : file.data.data();
  info.data_size = file.data.size();
  return info;
}

}  // namespace

extern "C" {

void riffle_save_defaults_sized(riffle_save_options* o, size_t struct_size) {
  give_defaults(o, struct_size, [](riffle_save_options&) {});
}

riffle_status riffle_session_save(riffle_session* session, const char* path,
                                  const riffle_save_options* options) {
  return on_session(session, [&] {
    require(path, "path");
    const riffle_save_options o = known(options, riffle_save_defaults_sized, "save options");
    require(o.data || o.data_size == 0, "data");
    Engine& engine = *session->context->engine;
    const std::string_view data(static_cast<const char*>(o.data), o.data_size);
    const auto progress = progress_of(RIFFLE_PHASE_SAVE_SESSION, o.progress, o.progress_user);
    if (o.n_tokens == 0) return engine.save(*session->sequence, path, data, progress, o.save_id);
    require_length(*session, o.n_tokens);
    engine.save_beginning(*session->sequence, static_cast<int64_t>(o.n_tokens), path, data,
                          progress, o.save_id);
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
    *file = f.release();
  });
}

void riffle_session_file_free(riffle_session_file* file) { delete file; }

riffle_status riffle_session_file_get_info(const riffle_session_file* file,
                                           riffle_session_file_info* info) {
  if (!file || !info) return RIFFLE_BAD_ARGUMENT;
  return guarded(nullptr, 0, [&] { give(info, info_of(*file), "session info"); });
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
