/* jsonl.h - reads a file with one JSON value per line, plain or compressed with gzip. */
#ifndef TERN_TESTS_JSONL_H
#define TERN_TESTS_JSONL_H

#include "support.h"

#include "base/file.h"

#include <jansson.h>
#include <string.h>

struct jsonl {
    struct buf all;
    struct str rest;
};

static inline void jsonl_open(struct jsonl *j, const char *path)
{
    struct err e = { 0 };

    *j = (struct jsonl){ 0 };
    if (file_read_gz(&j->all, path, 64 << 20, &e) != OK) fail_msg("%s", e.msg);
    j->rest = buf_str(&j->all);
}

/* The next value, which the caller owns; NULL: the end of the file. */
static inline json_t *jsonl_next(struct jsonl *j)
{
    const char *end = j->rest.n ? memchr(j->rest.p, '\n', j->rest.n) : NULL;
    struct str line = str_take(j->rest, end ? (size_t)(end - j->rest.p) : j->rest.n);
    json_t *v;

    if (!line.n) return NULL;
    j->rest = str_skip(j->rest, line.n + (end != NULL));
    v = json_loadb(line.p, line.n, 0, NULL);
    assert_non_null(v);
    return v;
}

static inline void jsonl_close(struct jsonl *j) { buf_release(&j->all); }
#endif
