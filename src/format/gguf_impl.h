/* gguf_impl.h - what the files of the GGUF reader share. */
#ifndef TERN_FORMAT_GGUF_IMPL_H
#define TERN_FORMAT_GGUF_IMPL_H

#include "base/arena.h"
#include "base/cursor.h"
#include "base/file.h"
#include "base/map.h"
#include "format/gguf.h"

struct gguf_list {
    enum gguf_type elem;
    size_t n;
    const unsigned char *p;        /* the elements */
    const uint32_t *at;            /* strings: where each begins, counted from p */
    const struct gguf_list *lists; /* lists of lists */
};

struct gguf_key {
    const char *name; /* in the arena, NUL-terminated */
    enum gguf_type type;
    const unsigned char *p; /* a scalar's bytes, a string's length and text */
    struct str raw;
    struct gguf_list list;
};

struct gguf {
    const char *name; /* of the file, for errors */
    struct arena arena;
    struct filemap file;
    struct gguf_key *keys;
    size_t n_keys;
    struct map key_map;
    struct source_tensor *tensors; /* of all parts */
    size_t n_tensors;
    struct map tensor_map;
    size_t n_items;
    struct gguf **parts; /* the second and later ones; their files stay mapped */
    size_t n_parts;
};

/* One file, be it part of a split set or not. */
int gguf_open_one(struct gguf **out, const char *path, struct err *e);

/* gguf_meta.c: the name of a key or tensor, a key, the error for what is not all there. */
int gguf_read_name(const struct gguf *g, struct cursor *c, const char *what, struct str *out,
                   struct err *e);
int gguf_read_key(struct gguf *g, struct cursor *c, struct gguf_key *k, struct err *e);
int gguf_cut_short(const struct gguf *g, const struct cursor *c, const char *where, struct str name,
                   struct err *e);
#endif
