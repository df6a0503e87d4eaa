/* gguf.c - opens a GGUF file: header, directory of tensors, and the checks of their data.
 *
 *   "GGUF"  version u32  n_tensors u64  n_keys u64
 *   n_keys times:     name (u64 length, bytes)  type u32  value
 *   n_tensors times:  name  n_dims u32  dims u64 each, fastest first  type u32  offset u64
 *   padding to general.alignment, then the data; offsets count from here
 *
 * The file is foreign: counts are bounded by the bytes that are left before anything is allocated
 * for them, and no offset is used before it is checked. */
#include "format/gguf_impl.h"

#include "base/mem.h"

#include <stdlib.h>

/* Bounds for hostile headers, well above any real model. */
#define MAX_KEYS (1u << 16)
#define MAX_TENSORS (1u << 20)

/* The least bytes that a key (length and one byte of the name, type, one byte of the value) and a
 * tensor (length and one byte of the name, rank, one dimension, type, offset) take in the file. */
#define MIN_KEY_BYTES 14
#define MIN_TENSOR_BYTES 33

/* *bytes: the size of the data, by shape and type. */
static int check_shape(const struct gguf *g, const struct source_tensor *t, uint64_t *bytes,
                       struct err *e)
{
    int64_t rows = 1, cols = t->dims[t->n_dims - 1];
    const struct dtype_info *d = dtype_info((int)t->type);
    struct str name = str_take(t->name, 100);

    for (int i = 0; i < t->n_dims; i++)
        if (t->dims[i] <= 0)
            return err_set(e, E_FORMAT,
                           "%s: tensor '%.*s' has the dimension %llu, expected 1 to 2^63-1",
                           g->name, STR_ARG(name), (unsigned long long)t->dims[i]);
    if (cols % d->block)
        return err_set(
            e, E_FORMAT,
            "%s: tensor '%.*s' has rows of %lld elements, expected a multiple of %s's %d", g->name,
            STR_ARG(name), (long long)cols, d->name, d->block);
    bool fits = dtype_row_bytes(t->type, (uint64_t)cols, bytes);
    for (int i = 0; i + 1 < t->n_dims; i++)
        fits = fits && !__builtin_mul_overflow(rows, t->dims[i], &rows);
    fits = fits && !__builtin_mul_overflow(*bytes, (uint64_t)rows, bytes);
    if (t->type == DT_I2_S) fits = fits && !__builtin_add_overflow(*bytes, I2_S_TAIL, bytes);
    if (!fits || *bytes > PTRDIFF_MAX)
        return err_set(e, E_FORMAT, "%s: tensor '%.*s' is too large: its dimensions overflow",
                       g->name, STR_ARG(name));
    return OK;
}

/* One entry of the directory. Its offset is left in *at: the data starts after the last entry, so
 * its address is known only then. */
static int read_tensor(struct gguf *g, struct cursor *c, struct source_tensor *t, uint64_t *at,
                       struct err *e)
{
    uint32_t n_dims, type;
    uint64_t bytes = 0;
    int rc = gguf_read_name(g, c, "the name of a tensor", &t->name, e);
    struct str name = str_take(t->name, 100);

    if (rc != OK) return rc;
    n_dims = cursor_u32(c);
    if (!c->bad && (n_dims == 0 || n_dims > SOURCE_MAX_DIMS))
        return err_set(e, E_FORMAT,
                       "%s: byte %zu: tensor '%.*s' has %u dimensions, expected 1 to %d", g->name,
                       cursor_at(c) - 4, STR_ARG(name), n_dims, SOURCE_MAX_DIMS);
    t->n_dims = (int)n_dims;
    for (int i = 0; i < SOURCE_MAX_DIMS; i++) t->dims[i] = 1;
    for (uint32_t i = 0; i < n_dims; i++) t->dims[n_dims - 1 - i] = (int64_t)cursor_u64(c);
    type = cursor_u32(c);
    *at = cursor_u64(c);
    if (c->bad) return gguf_fail_truncated(g, c, "the entry of tensor", t->name, e);
    t->type = dtype_by_ggml(type);
    if (t->type == DT_NONE)
        return err_set(e, E_UNSUPPORTED,
                       "%s: byte %zu: tensor '%.*s' has type %u, which is not supported", g->name,
                       cursor_at(c) - 12, STR_ARG(name), type);
    if ((rc = check_shape(g, t, &bytes, e)) != OK) return rc;
    t->bytes = (size_t)bytes;
    rc = map_put(&g->tensor_map, t->name, (uint64_t)(t - g->tensors));
    if (rc == MAP_REPLACED)
        return err_set(e, E_FORMAT, "%s: tensor '%.*s' appears twice", g->name, STR_ARG(name));
    return rc == MAP_ADDED ? OK : err_nomem(e, "the tensors of a GGUF file");
}

/* For qsort over pointers to tensors. */
static int compare_data(const void *a, const void *b)
{
    const struct source_tensor *x = *(const struct source_tensor *const *)a;
    const struct source_tensor *y = *(const struct source_tensor *const *)b;
    return x->data < y->data ? -1 : x->data > y->data;
}

/* Files list tensors in the order of their data, mostly; only others are sorted to be checked. */
static int check_overlap(const struct gguf *g, struct err *e)
{
    const struct source_tensor **order;
    bool sorted = true;
    int rc = OK;

    for (size_t i = 1; i < g->n_tensors && sorted; i++)
        sorted = (const char *)g->tensors[i - 1].data + g->tensors[i - 1].bytes <=
                 (const char *)g->tensors[i].data;
    if (sorted) return OK;

    order = mem_array(g->n_tensors, sizeof *order);
    if (!order) return err_nomem(e, "the tensors of a GGUF file");
    for (size_t i = 0; i < g->n_tensors; i++) order[i] = &g->tensors[i];
    qsort(order, g->n_tensors, sizeof *order, compare_data);
    for (size_t i = 1; i < g->n_tensors && rc == OK; i++) {
        const struct source_tensor *a = order[i - 1], *b = order[i];
        if ((const char *)a->data + a->bytes > (const char *)b->data)
            rc = err_set(e, E_FORMAT, "%s: tensors '%.*s' and '%.*s' overlap", g->name,
                         STR_ARG(str_take(a->name, 100)), STR_ARG(str_take(b->name, 100)));
    }
    mem_free(order);
    return rc;
}

/* Sets the addresses of the tensors, after the last entry of the directory was read. */
static int locate_tensors(struct gguf *g, const struct cursor *c, const uint64_t *at, struct err *e)
{
    struct value v;
    uint64_t align = GGUF_ALIGN, start, size = cursor_at(c) + cursor_left(c);

    if (gguf_key(g, STR("general.alignment"), &v) && !value_u64(&v, &align)) align = 0;
    if (align < 8 || align > GGUF_MAX_ALIGN || (align & (align - 1)))
        return err_set(e, E_FORMAT,
                       "%s: general.alignment is %llu, expected a power of two from 8 to %u",
                       g->name, (unsigned long long)align, GGUF_MAX_ALIGN);
    start = (cursor_at(c) + align - 1) & ~(align - 1);
    for (size_t i = 0; i < g->n_tensors; i++) {
        struct source_tensor *t = &g->tensors[i];
        struct str name = str_take(t->name, 100);
        if (at[i] % align)
            return err_set(
                e, E_FORMAT, "%s: tensor '%.*s' is at offset %llu, expected a multiple of %llu",
                g->name, STR_ARG(name), (unsigned long long)at[i], (unsigned long long)align);
        if (start > size || at[i] > size - start || t->bytes > size - start - at[i])
            return err_set(e, E_FORMAT,
                           "%s: tensor '%.*s' ends past the end of the file: %zu bytes at offset "
                           "%llu of the data at byte %llu, in a file of %llu",
                           g->name, STR_ARG(name), t->bytes, (unsigned long long)at[i],
                           (unsigned long long)start, (unsigned long long)size);
        t->data = c->start + start + at[i];
    }
    return check_overlap(g, e);
}

/* Magic, version and counts. A version in the high bytes is a big-endian file. */
static int read_head(const struct gguf *g, struct cursor *c, uint64_t *n_tensors, uint64_t *n_keys,
                     struct err *e)
{
    const unsigned char *magic = cursor_take(c, 4);
    uint32_t version;

    if (!magic) return gguf_fail_truncated(g, c, "the GGUF header", STR(""), e);
    if (memcmp(magic, "GGUF", 4) != 0)
        return err_set(e, E_FORMAT,
                       "%s: begins with the bytes %02x %02x %02x %02x, expected 'GGUF'", g->name,
                       magic[0], magic[1], magic[2], magic[3]);
    version = cursor_u32(c);
    if (!c->bad && version && (version & 0xffff) == 0)
        return err_set(e, E_UNSUPPORTED,
                       "%s: is a big-endian GGUF file; tern reads little-endian ones", g->name);
    if (!c->bad && version != 2 && version != 3)
        return err_set(e, E_UNSUPPORTED, "%s: is GGUF version %u, expected 2 or 3", g->name,
                       version);
    *n_tensors = cursor_u64(c);
    *n_keys = cursor_u64(c);
    if (c->bad) return gguf_fail_truncated(g, c, "the GGUF header", STR(""), e);
    if (*n_tensors > MAX_TENSORS || *n_tensors > cursor_left(c) / MIN_TENSOR_BYTES)
        return err_set(
            e, E_FORMAT,
            "%s: says it has %llu tensors, expected at most %u, and %zu in the %zu bytes left",
            g->name, (unsigned long long)*n_tensors, MAX_TENSORS, cursor_left(c) / MIN_TENSOR_BYTES,
            cursor_left(c));
    if (*n_keys > MAX_KEYS || *n_keys > cursor_left(c) / MIN_KEY_BYTES)
        return err_set(
            e, E_FORMAT,
            "%s: says it has %llu keys, expected at most %u, and %zu in the %zu bytes left",
            g->name, (unsigned long long)*n_keys, MAX_KEYS, cursor_left(c) / MIN_KEY_BYTES,
            cursor_left(c));
    return OK;
}

/* Reads header, keys and directory in one pass; g is filled as far as it came. *seen: how many bytes
 * were looked at. */
static int parse_file(struct gguf *g, const void *p, size_t n, size_t *seen, struct err *e)
{
    struct cursor c = cursor_of(p, n);
    uint64_t n_tensors = 0, n_keys = 0, *at;
    int rc = read_head(g, &c, &n_tensors, &n_keys, e);

    *seen = cursor_at(&c);
    if (rc != OK) return rc;
    g->keys = mem_array((size_t)n_keys, sizeof *g->keys);
    g->tensors = mem_array((size_t)n_tensors, sizeof *g->tensors);
    at = mem_array((size_t)n_tensors, sizeof *at);
    if (!g->keys || !g->tensors || !at || !map_reserve(&g->tensor_map, (size_t)n_tensors))
        rc = err_nomem(e, "the tensors of a GGUF file");
    for (; rc == OK && g->n_keys < n_keys; g->n_keys += rc == OK)
        rc = gguf_read_key(g, &c, &g->keys[g->n_keys], e);
    for (; rc == OK && g->n_tensors < n_tensors; g->n_tensors += rc == OK)
        rc = read_tensor(g, &c, &g->tensors[g->n_tensors], &at[g->n_tensors], e);
    if (rc == OK) rc = locate_tensors(g, &c, at, e);
    *seen = cursor_at(&c);
    mem_free(at);
    return rc;
}

static struct gguf *new_gguf(const char *name, struct err *e)
{
    struct gguf *g = mem_new(struct gguf);

    if (g && (g->name = arena_cstr(&g->arena, str_c(name)))) return g;
    gguf_close(g);
    err_nomem(e, "a GGUF file");
    return NULL;
}

int gguf_parse(struct gguf **out, const void *p, size_t n, const char *name, struct err *e)
{
    struct gguf *g = new_gguf(name, e);
    size_t seen;
    int rc;

    if (!g) return E_NOMEM;
    rc = parse_file(g, p, n, &seen, e);
    if (rc == OK) *out = g;
    else gguf_close(g);
    return rc;
}

/* The beginning of an encrypted file is decrypted at first. A parser that came further has read
 * zeros: what it found is dropped, more is decrypted, and it starts again. */
int gguf_open_one(struct gguf **out, const char *path, struct err *e)
{
    enum { HEAD_BYTES = 1 << 20 };
    struct filemap file = { 0 };
    struct gguf *g = NULL;
    size_t seen = 0;
    int rc = filemap_open_head(&file, path, HEAD_BYTES, e);

    if (rc != OK) return rc;
    do {
        gguf_close(g);
        if (seen)
            rc = filemap_fill(&file, seen < SIZE_MAX / 2 ? 2 * seen : SIZE_MAX, NULL, NULL, e);
        g = rc == OK ? new_gguf(path, e) : NULL;
        if (rc == OK) rc = g ? parse_file(g, file.p, file.n, &seen, e) : E_NOMEM;
    } while (g && seen > file.n_ready);
    if (g) g->file = file;
    else filemap_release(&file);
    if (rc == OK) *out = g;
    else gguf_close(g);
    return rc;
}

int gguf_fill(struct gguf *g, file_step_fn *step, void *arg, struct err *e)
{
    int rc = filemap_fill(&g->file, SIZE_MAX, step, arg, e);

    for (size_t i = 0; i < g->n_parts && rc == OK; i++) rc = gguf_fill(g->parts[i], step, arg, e);
    return rc;
}

uint64_t gguf_unfilled(const struct gguf *g)
{
    uint64_t sum = g->file.n - g->file.n_ready;

    for (size_t i = 0; i < g->n_parts; i++) sum += gguf_unfilled(g->parts[i]);
    return sum;
}

bool gguf_is_sealed(const struct gguf *g) { return filemap_is_sealed(&g->file); }

void gguf_close(struct gguf *g)
{
    if (!g) return;
    for (size_t i = 0; i < g->n_parts; i++) gguf_close(g->parts[i]);
    mem_free(g->parts);
    mem_free(g->keys);
    mem_free(g->tensors);
    map_release(&g->key_map);
    map_release(&g->tensor_map);
    filemap_release(&g->file);
    arena_release(&g->arena);
    mem_free(g);
}

int gguf_check(const struct gguf *g, bool look, struct err *e)
{
    int rc = filemap_check(&g->file, look, g->name, e);

    for (size_t i = 0; i < g->n_parts && rc == OK; i++) rc = gguf_check(g->parts[i], look, e);
    return rc;
}

size_t gguf_n_tensors(const struct gguf *g) { return g->n_tensors; }
const struct source_tensor *gguf_tensor(const struct gguf *g, size_t i) { return &g->tensors[i]; }
size_t gguf_n_keys(const struct gguf *g) { return g->n_keys; }
const char *gguf_key_name(const struct gguf *g, size_t i) { return g->keys[i].name; }
enum gguf_type gguf_key_type(const struct gguf *g, size_t i) { return g->keys[i].type; }

const struct source_tensor *gguf_find(const struct gguf *g, struct str name)
{
    uint64_t i;
    return map_get(&g->tensor_map, name, &i) ? &g->tensors[i] : NULL;
}

struct str gguf_key_raw(const struct gguf *g, struct str key)
{
    uint64_t i;
    return map_get(&g->key_map, key, &i) ? g->keys[i].raw : str_of(NULL, 0);
}
