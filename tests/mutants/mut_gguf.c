/* mut_gguf.c - mutants of GGUF files: keys, their types and values, and the tensors. */
#include "mutants.h"

#include "format/gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct mut_key {
    struct str name;
    struct str raw; /* type and value, as in the file */
    bool gone;
};

struct mut_gguf {
    struct mut_key *keys;
    int n_keys, cap_keys;
    struct mut_tensors tensors;
};

static uint32_t get_u32(const char *p)
{
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}

static uint64_t get_u64(const char *p)
{
    uint64_t v;
    memcpy(&v, p, 8);
    return v;
}

/* Bytes of a scalar of the type; 0: a string or a list. */
static size_t scalar_bytes(uint32_t type)
{
    static const size_t n[] = { [GGUF_U8] = 1,  [GGUF_I8] = 1,  [GGUF_U16] = 2, [GGUF_I16] = 2,
                                [GGUF_U32] = 4, [GGUF_I32] = 4, [GGUF_F32] = 4, [GGUF_BOOL] = 1,
                                [GGUF_U64] = 8, [GGUF_I64] = 8, [GGUF_F64] = 8 };
    return type < sizeof n / sizeof *n ? n[type] : 0;
}

static char *copy_raw(struct mutation *m, struct str s, size_t room)
{
    char *p = arena_alloc(m->arena, room + 1);

    if (!p) abort();
    memcpy(p, s.p, s.n < room ? s.n : room);
    return p;
}

static void put_number(char *p, uint32_t type, int64_t i, double f)
{
    float f32 = (float)f;

    if (type == GGUF_F32) memcpy(p, &f32, 4);
    else if (type == GGUF_F64) memcpy(p, &f, 8);
    else memcpy(p, &i, scalar_bytes(type)); /* little-endian, as the file */
}

static int64_t get_int(const char *p, uint32_t type)
{
    int64_t v = 0;

    memcpy(&v, p, scalar_bytes(type));
    if (type == GGUF_I32) v = (int32_t)v;
    return v;
}

static void mutate_scalar(struct mutation *m, struct mut_key *k, uint32_t type)
{
    char *p = copy_raw(m, k->raw, 16);
    uint32_t to = type;
    float f = 0;

    if (chance(m, 15)) do
            to = (uint32_t)pick(m, GGUF_N_TYPES);
        while (!scalar_bytes(to));
    if (type == GGUF_F32) memcpy(&f, p + 4, 4);
    memcpy(p, &to, 4);
    put_number(p + 4, to, odd_int(m, get_int(k->raw.p + 4, type)), odd_float(m, (double)f));
    k->raw = str_of(p, 4 + scalar_bytes(to));
}

static void mutate_text(struct mutation *m, struct mut_key *k)
{
    struct str s = odd_string(m);
    char *p = copy_raw(m, str_take(k->raw, 4), 12 + s.n);
    uint64_t n = s.n;

    memcpy(p + 4, &n, 8);
    if (n) memcpy(p + 12, s.p, n);
    k->raw = str_of(p, 12 + s.n);
}

/* Where the first n items of a list end. raw: type, element type, count, items. */
static size_t end_of_items(struct str raw, uint32_t elem, uint64_t n)
{
    size_t at = 16;

    if (scalar_bytes(elem)) return at + n * scalar_bytes(elem);
    while (n-- && elem == GGUF_STR) at += 8 + get_u64(raw.p + at);
    return at;
}

static void mutate_list(struct mutation *m, struct mut_key *k)
{
    uint32_t elem = get_u32(k->raw.p + 4);
    uint64_t n = get_u64(k->raw.p + 8), fewer = pick(m, n + 1);
    char *p = copy_raw(m, k->raw, k->raw.n);
    size_t size = scalar_bytes(elem), at = 16 + pick(m, n) * size;

    if (chance(m, 20)) { /* a count that is not true */
        n = (uint64_t)odd_int(m, (int64_t)n);
        memcpy(p + 8, &n, 8);
    } else if (chance(m, 40)) { /* a shorter list */
        memcpy(p + 8, &fewer, 8);
        k->raw.n = end_of_items(k->raw, elem, fewer);
    } else if (size && n) {
        put_number(p + at, elem, odd_int(m, get_int(p + at, elem)), odd_float(m, 1));
        if (size == 4 && chance(m, 20)) p[4] = chance(m, 50) ? GGUF_F32 : GGUF_I32;
    } else if (elem == GGUF_STR && n) { /* an item is another item's text of that length, or odd */
        at = end_of_items(k->raw, elem, pick(m, n));
        for (uint64_t i = 0, len = get_u64(p + at); i < len; i++)
            p[at + 8 + i] = chance(m, 50) ? (char)pick(m, 256) : 'a';
    }
    k->raw.p = p;
}

static void mutate_key(struct mutation *m, struct mut_gguf *g)
{
    struct mut_key *k = &g->keys[pick(m, (uint64_t)g->n_keys)];
    struct mut_key *other = &g->keys[pick(m, (uint64_t)g->n_keys)];
    uint32_t type = get_u32(k->raw.p);

    note(m, "key %.*s", STR_ARG(k->name));
    switch (pick(m, 12)) {
    case 0: k->gone = true; return;
    case 1: k->raw = other->raw; return;
    case 2: k->name = chance(m, 50) ? other->name : odd_string(m); return;
    default: break;
    }
    if (scalar_bytes(type)) mutate_scalar(m, k, type);
    else if (type == GGUF_STR) mutate_text(m, k);
    else if (get_u32(k->raw.p + 4) != GGUF_LIST) mutate_list(m, k);
}

/* A key of another model, with this one's prefix or as it is. */
static void borrow_key(struct mutation *m, struct mut_gguf *g, const struct base *b)
{
    const struct base *other = &m->all[pick(m, (uint64_t)m->n_all)];
    struct gguf *x = NULL;
    struct str raw;
    const char *name;

    if (other->kind != BASE_GGUF || other == b || g->n_keys == g->cap_keys ||
        gguf_open(&x, other->path, NULL) != OK)
        return;
    name = gguf_key_name(x, pick(m, gguf_n_keys(x)));
    raw = gguf_key_raw(x, str_c(name));
    if (raw.n < 1 << 16 && raw.n >= 4) {
        const char *dot = strchr(name, '.'), *own = NULL;
        for (int i = 0; i < g->n_keys && !own; i++)
            if (str_ends(g->keys[i].name, STR(".block_count"))) own = g->keys[i].name.p;
        char *full = own && dot
                         ? arena_printf(m->arena, "%.*s%s", (int)(strchr(own, '.') - own), own, dot)
                         : arena_cstr(m->arena, str_c(name));
        note(m, "key %s of another model", full);
        g->keys[g->n_keys++] =
            (struct mut_key){ .name = str_c(full), .raw = str_of(copy_raw(m, raw, raw.n), raw.n) };
    }
    gguf_close(x);
}

/* One size everywhere: keys and tensors agree. */
static void resize(struct mutation *m, struct mut_gguf *g)
{
    int64_t from = tensors_some_dim(m, &g->tensors), to = odd_int(m, from);

    if (to < 0 || to > 4096 || from < 2) return;
    tensors_resize(m, &g->tensors, from, to);
    for (int i = 0; i < g->n_keys; i++) {
        struct mut_key *k = &g->keys[i];
        uint32_t type = get_u32(k->raw.p);
        if ((type != GGUF_U32 && type != GGUF_I32 && type != GGUF_U64) ||
            get_int(k->raw.p + 4, type) != from)
            continue;
        char *p = copy_raw(m, k->raw, 16);
        put_number(p + 4, type, to, 0);
        k->raw = str_of(p, k->raw.n);
    }
}

/* ---- the file ---- */

static void put_u64(struct buf *b, uint64_t v) { buf_add(b, &v, 8); }
static void put_u32(struct buf *b, uint32_t v) { buf_add(b, &v, 4); }

static void put_name(struct buf *b, struct str s)
{
    put_u64(b, s.n);
    buf_put_str(b, s);
}

static void put_file(struct buf *b, const struct mut_gguf *g, int64_t n_tensors, int64_t n_keys)
{
    uint64_t at = 0;

    buf_puts(b, "GGUF");
    put_u32(b, 3), put_u64(b, (uint64_t)n_tensors), put_u64(b, (uint64_t)n_keys);
    for (int i = 0; i < g->n_keys; i++)
        if (!g->keys[i].gone) put_name(b, g->keys[i].name), buf_put_str(b, g->keys[i].raw);
    for (int i = 0; i < g->tensors.n; i++) {
        const struct mut_tensor *t = &g->tensors.v[i];
        if (t->gone) continue;
        put_name(b, t->name), put_u32(b, (uint32_t)t->n_dims);
        for (int k = t->n_dims; k--;) put_u64(b, (uint64_t)t->dims[k]);
        put_u32(b, t->file_type >= 0 ? (uint32_t)t->file_type : (uint32_t)t->type);
        put_u64(b, t->moved ? (uint64_t)t->offset : at);
        at += (t->data.n + 31) / 32 * 32;
    }
    while (b->n % 32) buf_putc(b, 0);
    for (int i = 0; i < g->tensors.n; i++) {
        if (g->tensors.v[i].gone) continue;
        buf_put_str(b, g->tensors.v[i].data);
        while (b->n % 32) buf_putc(b, 0);
    }
}

static void read_keys(struct mutation *m, struct mut_gguf *g, const struct gguf *f)
{
    g->cap_keys = (int)gguf_n_keys(f) + 8;
    g->keys = arena_array(m->arena, (size_t)g->cap_keys, sizeof *g->keys);
    if (!g->keys) abort();
    for (size_t i = 0; i < gguf_n_keys(f); i++) {
        struct str name = str_c(gguf_key_name(f, i));
        if (str_is(name, "general.alignment")) continue; /* tensors are aligned to 32 bytes here */
        g->keys[g->n_keys++] = (struct mut_key){ .name = name, .raw = gguf_key_raw(f, name) };
    }
}

const char *mutate_gguf(struct mutation *m, const struct base *b, const char *dir)
{
    struct mut_gguf g = { 0 };
    struct source *s = NULL;
    struct buf out = { 0 };
    int64_t n_tensors = 0, n_keys = 0;
    const char *path = arena_printf(m->arena, "%s/m.gguf", dir);

    if (!path || source_open(&s, b->path, NULL) != OK) abort();
    read_keys(m, &g, source_gguf(s));
    tensors_of(m, &g.tensors, s);
    for (int i = 1 + (int)pick(m, 3); i--;) {
        uint64_t what = pick(m, 10);
        if (what < 5) tensors_mutate(m, &g.tensors, true);
        else if (what < 8) mutate_key(m, &g);
        else if (what == 8) borrow_key(m, &g, b);
        else resize(m, &g);
    }
    for (int i = 0; i < g.n_keys; i++) n_keys += !g.keys[i].gone;
    for (int i = 0; i < g.tensors.n; i++) n_tensors += !g.tensors.v[i].gone;
    if (chance(m, 2)) n_keys = odd_int(m, n_keys), note(m, "%lld keys", (long long)n_keys);
    if (chance(m, 2))
        n_tensors = odd_int(m, n_tensors), note(m, "%lld tensors", (long long)n_tensors);
    put_file(&out, &g, n_tensors, n_keys);
    if (chance(m, 2)) out.n = pick(m, out.n), note(m, "cut at %zu", out.n);
    write_bytes(path, buf_str(&out));
    buf_release(&out);
    source_close(s);
    return path;
}
