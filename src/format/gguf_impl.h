/* gguf_impl.h - struct gguf, shared by the files of the GGUF reader: gguf.c (header, directory,
 * lookups), gguf_meta.c (keys and values), gguf_split.c (split sets). */
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
    const unsigned char *p;        /* the elements, in the file */
    const uint32_t *at;            /* [n] GGUF_STR: position of each string, from p; in the arena */
    const struct gguf_list *lists; /* [n] GGUF_LIST; in the arena */
};

struct gguf_key {
    const char *name; /* in the arena, NUL-terminated */
    enum gguf_type type;
    const unsigned char *p; /* the bytes of a scalar; the length and bytes of a string */
    struct str raw;         /* type and value, in the file */
    struct gguf_list list;  /* GGUF_LIST */
};

struct gguf {
    const char *name;    /* of the file, for messages */
    struct arena arena;  /* names of keys, tables of lists */
    struct filemap file; /* empty for gguf_parse */
    struct gguf_key *keys;
    size_t n_keys;
    struct map key_map;
    struct source_tensor *tensors; /* of all parts */
    size_t n_tensors;
    struct map tensor_map;
    size_t n_items;      /* table entries for lists so far, see charge_items */
    struct gguf **parts; /* [n_parts] the second and later parts, which keep their files mapped */
    size_t n_parts;
};

/* Opens one file, whether it is part of a split set or not. */
int gguf_open_one(struct gguf **out, const char *path, struct err *e);

/* gguf_meta.c. Readers leave the cursor after what they read. what: "the name of a key". */
int gguf_read_name(const struct gguf *g, struct cursor *c, const char *what, struct str *out,
                   struct err *e);
int gguf_read_key(struct gguf *g, struct cursor *c, struct gguf_key *k, struct err *e);
/* E_FORMAT: the file ends within `where` of `name` (may be empty). */
int gguf_fail_truncated(const struct gguf *g, const struct cursor *c, const char *where,
                        struct str name, struct err *e);
#endif
