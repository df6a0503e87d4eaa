/* gguf.h - GGUF files: metadata and a directory of tensors, mapped.
 *
 * Versions 2 and 3, little-endian. A file is: magic, version, counts; the keys with their values;
 * the directory of tensors (name, dimensions, type, offset); then the data, aligned. Strings, lists
 * and tensors stay in the mapped file; only tables of their positions are built. What is handed out
 * is borrowed and lives until gguf_close. Every length, count, offset and overlap is checked while
 * the file is opened, so that no later read can leave the map. Read-only once open. */
#ifndef TERN_FORMAT_GGUF_H
#define TERN_FORMAT_GGUF_H

#include "base/file.h"
#include "format/source.h"

enum gguf_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STR,
    GGUF_LIST,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    GGUF_N_TYPES
};

#define GGUF_ALIGN 32 /* alignment of tensor data without the key general.alignment */
#define GGUF_MAX_ALIGN (1u << 20)

struct gguf;

/* path: a file, or any part of a split set (NAME-00001-of-0000N.gguf), which opens all parts. */
int gguf_open(struct gguf **out, const char *path, struct err *e);
/* One file that is in memory, 8-byte aligned, and outlives g; name is used in messages. */
int gguf_parse(struct gguf **out, const void *p, size_t n, const char *name, struct err *e);
void gguf_close(struct gguf *g); /* NULL is allowed */
/* If the file is encrypted (base/sealed.h), gguf_open decrypts the keys and the directory. gguf_fill
 * decrypts the tensors of all parts, before anyone reads them; see filemap_fill. gguf_unfilled: bytes
 * that are left to do. */
int gguf_fill(struct gguf *g, file_step_fn *step, void *arg, struct err *e);
uint64_t gguf_unfilled(const struct gguf *g);
bool gguf_is_sealed(const struct gguf *g);
/* filemap_check of all its files. */
int gguf_check(const struct gguf *g, bool look, struct err *e);

size_t gguf_n_tensors(const struct gguf *g);
const struct source_tensor *gguf_tensor(const struct gguf *g, size_t i);
const struct source_tensor *gguf_find(const struct gguf *g, struct str name); /* or NULL */

size_t gguf_n_keys(const struct gguf *g);
const char *gguf_key_name(const struct gguf *g, size_t i);
enum gguf_type gguf_key_type(const struct gguf *g, size_t i);
bool gguf_key(const struct gguf *g, struct str key, struct value *out);
/* The bytes of a value as they are in the file: type, then value. p is NULL: no such key. */
struct str gguf_key_raw(const struct gguf *g, struct str key);
#endif
