/* fingerprint.c - a model's settings and samples of its tensors, as 16 bytes. */
#include "format/fingerprint.h"

#include "base/file.h"
#include "base/mem.h"
#include "format/source.h"

#include <string.h>

enum {
    SAMPLES = 8,       /* pieces of a tensor that the fingerprint covers */
    SAMPLE_BYTES = 64, /* of each piece */
    LIST_MOST = 64     /* items of a list of settings, likewise */
};

void fingerprint_add_bytes(struct fingerprint *d, const void *data, size_t n)
{
    static const uint64_t m[2] = { 0x9e3779b97f4a7c15u, 0xd6e8feb86659fd93u };
    const char *p = data;

    for (size_t at = 0; at <= n; at += 8) { /* one word more than needed: the length */
        uint64_t w = n;
        if (at < n) memcpy(&w, p + at, n - at < 8 ? n - at : 8);
        for (int i = 0; i < 2; i++) {
            d->h[i] = (d->h[i] ^ w) * m[i];
            d->h[i] ^= d->h[i] >> (29 + 3 * i);
        }
    }
}

void fingerprint_add_text(struct fingerprint *d, const char *s)
{
    fingerprint_add_bytes(d, s, s ? strlen(s) : 0);
}
void fingerprint_add_number(struct fingerprint *d, uint64_t n)
{
    fingerprint_add_bytes(d, &n, sizeof n);
}

static void add_tensor(struct fingerprint *d, const struct source_tensor *t, bool with_bytes)
{
    size_t piece = t->bytes < SAMPLE_BYTES ? t->bytes : SAMPLE_BYTES;

    fingerprint_add_bytes(d, t->name.p, t->name.n);
    fingerprint_add_number(d, (uint64_t)t->type);
    fingerprint_add_bytes(d, t->dims, sizeof t->dims);
    for (size_t i = 0; i < SAMPLES && piece && with_bytes; i++)
        fingerprint_add_bytes(d, (const char *)t->data + (t->bytes - piece) / (SAMPLES - 1) * i,
                              piece);
}

static void add_value(struct fingerprint *d, const struct value *v, int depth)
{
    struct value item;

    fingerprint_add_number(d, (uint64_t)v->kind);
    switch (v->kind) {
    case VALUE_BOOL: fingerprint_add_number(d, v->b); break;
    case VALUE_STR: fingerprint_add_bytes(d, v->s.p, v->s.n); break;
    case VALUE_INT:
    case VALUE_UINT:
    case VALUE_FLOAT: fingerprint_add_bytes(d, &v->u, sizeof v->u); break;
    case VALUE_LIST:
        fingerprint_add_number(d, v->n);
        for (size_t i = 0; i < v->n && i < LIST_MOST && depth < 4; i++)
            if (value_at(v, i, &item)) add_value(d, &item, depth + 1);
        break;
    case VALUE_NONE: break;
    }
}

static int add_piece(void *arg, const void *p, size_t n, struct err *e)
{
    (void)e;
    fingerprint_add_bytes(arg, p, n);
    return OK;
}

/* Members of objects have no keys in the list: a folder's file is read as a whole. */
static int add_settings(struct fingerprint *d, const struct source *s, struct err *e)
{
    char *path = source_kind(s) == SOURCE_HF ? source_file(s, "config.json") : NULL;
    struct value v;
    int rc = OK;

    for (size_t i = 0; i < source_n_keys(s); i++) {
        fingerprint_add_text(d, source_key_name(s, i));
        if (source_key(s, source_key_name(s, i), &v)) add_value(d, &v, 0);
    }
    if (path) rc = file_scan(path, add_piece, d, NULL, e); /* needs no key, if it is encrypted */
    mem_free(path);
    return rc;
}

int fingerprint_add_model(struct fingerprint *d, const struct source *s, struct err *e)
{
    bool with_bytes = !source_is_sealed(s);
    int rc = add_settings(d, s, e);

    for (size_t i = 0; rc == OK && i < source_n_tensors(s); i++)
        add_tensor(d, source_tensor(s, i), with_bytes);
    return rc;
}
