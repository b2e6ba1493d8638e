/* riffle_session_file.h: sessions on disk. The rules of riffle.h hold.
 *
 * A text that was read once need not be read again: a saved session continues as if the program had
 * never ended. The next logits are those that the session itself would give, bit for bit, with
 * every selector, on any device, pool and number of threads that computes the same bits. A file
 * fits the model that it was made with (its shape, some bytes of every matrix, its tokenizer, its
 * RoPE) and contexts with the same kv and block. The index (digests, codes) is rebuilt; scores that
 * selector lfps has learnt from past attention are in the file. The file holds the text: each save
 * leaves it readable by its owner only (mode 0600).
 */
#ifndef RIFFLE_SESSION_FILE_H
#define RIFFLE_SESSION_FILE_H

#include "riffle.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct riffle_session_file riffle_session_file; /* a saved session, open for reading */

/* Saves the session to a file. If the session was loaded from this file or saved to it before, and
 * no other program has saved to it since, only new data is appended. Else a new file takes the
 * place of the old one. If path is a link, its target is written, and made if it does not exist.
 * If the program or the machine stops during a save, the file holds either the previous save or the
 * new one. Saving drops the selection that selector tokenselect would use again: the next step
 * selects again.
 *
 * n_tokens: 0 saves the whole session. Any other number saves a session of its first n_tokens, as
 * riffle_session_fork would make it, in a new file. data: bytes of the application that the file
 * keeps, at most 1 GiB; may be NULL. save_id: NULL: any session at path may be replaced. Else, in:
 * the id of the save expected at path (riffle_session_file_save_id), or 0: no file. If path has
 * another save, the call returns RIFFLE_FILE_CHANGED and changes nothing; if there is no file, the
 * session is saved. Out: the id of the new save.
 *
 * Errors: RIFFLE_IO, also if the disk is full, which leaves no partial file; RIFFLE_BAD_ARGUMENT if
 * there is a file of another kind at path; RIFFLE_FILE_CHANGED; RIFFLE_ABORTED if the callback
 * returns false. The file is then as before. */
RIFFLE_API riffle_status riffle_session_save(riffle_session* session, const char* path,
                                             size_t n_tokens, const void* data, size_t data_size,
                                             uint64_t* save_id, const riffle_options* options);

/* Checks a path before work whose result will be saved there. Returns RIFFLE_OK, or the error that
 * riffle_session_save would give because of this path: RIFFLE_BAD_ARGUMENT if it names something
 * other than a session, RIFFLE_IO if its folder is missing or cannot be written to. Changes
 * nothing. */
RIFFLE_API riffle_status riffle_session_check_path(const char* path, char* err, size_t err_size);

/* Opens a saved session. Everything except the keys and values is read and checked here. The file
 * must not be shortened or written to by others while it is open or a session of it lives: on the
 * CPU its blocks are read from the file's mapping, so reading a part that was cut off raises
 * SIGBUS. riffle itself never writes over saved bytes. Errors: RIFFLE_IO, RIFFLE_BAD_SESSION,
 * RIFFLE_UNSUPPORTED (another version). */
RIFFLE_API riffle_status riffle_session_file_open(const char* path, riffle_session_file** file,
                                                  char* err, size_t err_size);
/* Closes the file. Sessions loaded from it stay valid. */
RIFFLE_API void riffle_session_file_free(riffle_session_file* file);

/* Facts of the file, valid while it is open:
 *   model, architecture: names of the model that it was made with
 *   n_tokens, n_layers, n_kv_heads, head_dim, vocab_size, block_size
 *   kv: the type of keys and values: "f16", "f32" or "q8"
 *   has_logits: the next token can be drawn without running the last one again
 *   list_positions: keys are stored without RoPE, as positions list needs them
 *   chose_tiles: queries of a prompt read chosen tiles of keys (`prefill_selector` tiles). A
 *   context that reads all keys refuses such a session
 *   state: selector and settings whose learnt scores are in it; "": none
 *   created, saved: the first and the last save: seconds since 1970; saves: their number
 *   newest_damaged: the newest save is damaged, and these facts are those of the save before it
 *   file_bytes; kv_bytes: of the blocks that are in use
 *   n_states: saved states of recurrent layers; state_bytes: their bytes, with those of the logits
 *     that were saved with them */
RIFFLE_API const riffle_info* riffle_session_file_info(const riffle_session_file* file);
/* Returns the id of the save, never 0. Two saves have different ids, unless they saved exactly the
 * same data. */
RIFFLE_API uint64_t riffle_session_file_save_id(const riffle_session_file* file);
/* Returns the bytes that riffle_session_save was given; NULL: none. */
RIFFLE_API const void* riffle_session_file_data(const riffle_session_file* file, size_t* data_size);
RIFFLE_API riffle_status riffle_session_file_tokens(const riffle_session_file* file, int32_t* out,
                                                    size_t capacity, size_t* n_out);

/* Contexts with the same number can load each other's sessions, and compute the same keys and
 * values from the same tokens, bit for bit. With isa auto the last bits may differ, since auto may
 * choose other sets in each process. It is computed from the version of riffle, the model, kv,
 * block, the instruction set (with auto: the CPU's best) or the type of GPU, and on a GPU
 * prefill-chunk. */
RIFFLE_API riffle_status riffle_context_fingerprint(riffle_context* context, uint64_t* fingerprint);

/* Makes a new session that continues where the saved one ended. Sessions of one file share its
 * blocks in memory: on the CPU its mapping, which other processes share too; on a GPU fork the
 * session instead of loading it again. All blocks are read and checked here, before any step: the
 * first step needs the keys of all of them, and keys and values share checksums. riffle does not
 * search the file for infinities and NaN. If they make logits NaN, drawing a token from these
 * logits fails with RIFFLE_BAD_SESSION, and the error names the file. Errors: RIFFLE_UNSUPPORTED if
 * the file does not fit the context, RIFFLE_BAD_SESSION, RIFFLE_CONTEXT_FULL, RIFFLE_ABORTED (also
 * by riffle_abort). progress: RIFFLE_PHASE_LOAD_SESSION; may be NULL. */
RIFFLE_API riffle_status riffle_session_load(riffle_context* context, riffle_session_file* file,
                                             riffle_session** session, riffle_progress_fn progress,
                                             void* user);

#ifdef __cplusplus
}
#endif
#endif
