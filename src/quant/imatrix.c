/* imatrix.c - reads, writes and applies importance matrices. Files are untrusted: every size and
 * every value is checked. */
#include "quant/imatrix.h"

#include "base/buf.h"
#include "base/cursor.h"
#include "base/file.h"
#include "base/mem.h"
#include "format/gguf.h"
#include "format/ggufw.h"

#include <math.h>
#include <stdio.h>

#define MAX_BYTES (1u << 30) /* of a file */
#define MAX_NAME 4096        /* bytes of a tensor name or data set name */

struct imatrix_entry *imatrix_find(const struct imatrix *m, struct str name)
{
    uint64_t i;
    return map_get(&m->by_name, name, &i) ? &m->entries[i] : NULL;
}

struct imatrix_entry *imatrix_add(struct imatrix *m, struct str name, int64_t cols, int n_mats)
{
    struct imatrix_entry *old = imatrix_find(m, name);
    struct imatrix_entry en = { .n_mats = n_mats, .cols = cols };

    if (old) return old;
    if (!mem_ensure(m->entries, m->cap, m->n + 1)) return NULL;
    en.name = arena_str(&m->arena, name);
    en.sums = arena_array(&m->arena, (size_t)n_mats * (size_t)cols, sizeof *en.sums);
    en.counts = arena_array(&m->arena, (size_t)n_mats, sizeof *en.counts);
    if (!en.name.p || !en.sums || !en.counts) return NULL;
    if (map_put(&m->by_name, en.name, (uint64_t)m->n) == E_NOMEM) return NULL;
    m->entries[m->n] = en;
    return &m->entries[m->n++];
}

void imatrix_release(struct imatrix *m)
{
    map_release(&m->by_name);
    arena_release(&m->arena);
    mem_free(m->entries);
    *m = (struct imatrix){ 0 };
}

/* ---- reading ---- */

/* All values are finite and not negative, as sums of squares and counts are. */
static bool are_valid(const float *v, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isfinite(v[i]) || v[i] < 0) return false;
    return true;
}

/* The older form, little-endian: u32 n; n entries of u32 length, name, u32 calls, u32 number of
 * values, F32 values (mean squares times calls); then u32 chunks, u32 length and name of the text. */
static int parse_old_entry(struct imatrix *m, struct cursor *c, int i, const char *name,
                           struct err *e)
{
    uint32_t len = cursor_u32(c);
    const char *p = len <= MAX_NAME ? cursor_take(c, len) : NULL;
    uint32_t calls = cursor_u32(c), n = cursor_u32(c);
    const void *values = cursor_take(c, (uint64_t)n * 4);

    if (!p || c->bad || len == 0 || n == 0 || calls > INT32_MAX)
        return err_set(e, E_FORMAT, "%s: entry %d is truncated or invalid (byte %zu)", name, i,
                       cursor_at(c));
    if (map_get(&m->by_name, str_of(p, len), &(uint64_t){ 0 }))
        return err_set(e, E_FORMAT, "%s: '%.*s' has two entries", name, (int)len, p);
    struct imatrix_entry *en = imatrix_add(m, str_of(p, len), n, 1);
    if (!en) return err_nomem(e, "an importance matrix");
    memcpy(en->sums, values, (size_t)n * 4);
    en->counts[0] = calls ? (float)calls : 1;
    if (are_valid(en->sums, n)) return OK;
    return err_set(e, E_FORMAT, "%s: '%.*s' has a sum of squares that is negative or not finite",
                   name, (int)len, p);
}

/* Trailing information (chunks, text) is optional: the oldest files end after the entries. */
static int parse_old(struct imatrix *m, struct str bytes, const char *name, struct err *e)
{
    struct cursor c = cursor_of(bytes.p, bytes.n);
    uint32_t n = cursor_u32(&c);
    int rc = OK;

    if (c.bad || n == 0 || n > bytes.n / 12)
        return err_set(e, E_FORMAT,
                       "%s: not an importance matrix (neither GGUF nor the older .dat form)", name);
    for (uint32_t i = 0; i < n && rc == OK; i++) rc = parse_old_entry(m, &c, (int)i, name, e);
    if (rc != OK || cursor_left(&c) < 8) return rc;
    m->n_chunks = (int)(cursor_u32(&c) & INT32_MAX);
    uint32_t len = cursor_u32(&c);
    const char *text = len <= MAX_NAME ? cursor_take(&c, len) : NULL;
    if (text) m->dataset = arena_cstr(&m->arena, str_of(text, len));
    return arena_check(&m->arena, e);
}

/* One matrix of the GGUF form: the tensors NAME.in_sum2 [mats][cols] and NAME.counts [mats]. */
static int parse_pair(struct imatrix *m, const struct gguf *g, const struct source_tensor *sums,
                      const char *name, struct err *e)
{
    struct str base = str_take(sums->name, sums->name.n - strlen(".in_sum2"));
    char key[MAX_NAME];
    const struct source_tensor *counts;
    int64_t cols = sums->dims[sums->n_dims - 1], mats = 1;

    snprintf(key, sizeof key, "%.*s.counts", STR_ARG(str_take(base, MAX_NAME - 16)));
    counts = gguf_find(g, str_c(key));
    for (int d = 0; d + 1 < sums->n_dims; d++) mats *= sums->dims[d];
    if (sums->type != DT_F32 || !counts || counts->type != DT_F32 ||
        counts->bytes != (uint64_t)mats * 4 || base.n == 0 || mats > INT32_MAX)
        return err_set(e, E_FORMAT,
                       "%s: '%.*s' needs F32 sums, and F32 counts for each of its %lld matrices",
                       name, STR_ARG(str_take(base, 100)), (long long)mats);
    struct imatrix_entry *en = imatrix_add(m, base, cols, (int)mats);
    if (!en) return err_nomem(e, "an importance matrix");
    memcpy(en->sums, sums->data, sums->bytes);
    memcpy(en->counts, counts->data, counts->bytes);
    if (!are_valid(en->sums, (size_t)(cols * mats)) || !are_valid(en->counts, (size_t)mats))
        return err_set(e, E_FORMAT, "%s: '%.*s' has a sum or count that is negative or not finite",
                       name, STR_ARG(str_take(base, 100)));
    return OK;
}

/* Tensors with other names are ignored. */
static int parse_gguf(struct imatrix *m, struct str bytes, const char *name, struct err *e)
{
    struct gguf *g = NULL;
    struct value v, first;
    uint64_t u;
    void *copy = NULL;
    int rc;

    if ((uintptr_t)bytes.p % 8) { /* the GGUF reader wants aligned data */
        if (!(copy = mem_dup(bytes.p, bytes.n))) return err_nomem(e, "an importance matrix");
        bytes.p = copy;
    }
    if ((rc = gguf_parse(&g, bytes.p, bytes.n, name, e)) != OK) goto out;
    for (size_t i = 0; i < gguf_n_tensors(g) && rc == OK; i++) {
        const struct source_tensor *t = gguf_tensor(g, i);
        if (str_ends(t->name, STR(".in_sum2"))) rc = parse_pair(m, g, t, name, e);
    }
    if (rc == OK && m->n == 0)
        rc = err_set(e, E_FORMAT,
                     "%s: not an importance matrix: a GGUF file without tensors *.in_sum2", name);
    if (gguf_key(g, STR("imatrix.chunk_count"), &v) && value_u64(&v, &u) && u < INT32_MAX)
        m->n_chunks = (int)u;
    if (gguf_key(g, STR("imatrix.chunk_size"), &v) && value_u64(&v, &u) && u < INT32_MAX)
        m->chunk_tokens = (int)u;
    if (gguf_key(g, STR("imatrix.datasets"), &v) && value_at(&v, 0, &first) &&
        first.kind == VALUE_STR)
        m->dataset = arena_cstr(&m->arena, first.s);
    if (rc == OK) rc = arena_check(&m->arena, e);
out:
    gguf_close(g);
    mem_free(copy);
    return rc;
}

int imatrix_parse(struct imatrix *m, struct str bytes, const char *name, struct err *e)
{
    m->path = arena_cstr(&m->arena, str_c(name));
    m->dataset = "";
    if (!m->path) return err_nomem(e, "an importance matrix");
    return str_starts(bytes, STR("GGUF")) ? parse_gguf(m, bytes, name, e)
                                          : parse_old(m, bytes, name, e);
}

int imatrix_read(struct imatrix *m, const char *path, struct err *e)
{
    struct buf b = { 0 };
    int rc = file_read(&b, path, MAX_BYTES, e);

    if (rc == OK) rc = imatrix_parse(m, buf_str(&b), path, e);
    buf_release(&b);
    return rc;
}

/* ---- writing ---- */

static void put_u32(struct buf *b, uint32_t v) { buf_add(b, &v, 4); }

/* Length and bytes. */
static void put_text(struct buf *b, struct str s)
{
    put_u32(b, (uint32_t)s.n);
    buf_put_str(b, s);
}

/* The older form has one count for all matrices, so each mean is scaled to that count. */
static int write_old(const struct imatrix *m, const char *path, struct err *e)
{
    struct buf b = { 0 };
    uint32_t calls = m->n_chunks > 0 ? (uint32_t)m->n_chunks : 1;

    put_u32(&b, (uint32_t)m->n);
    for (int i = 0; i < m->n; i++) {
        const struct imatrix_entry *en = &m->entries[i];
        put_text(&b, en->name);
        put_u32(&b, calls);
        put_u32(&b, (uint32_t)(en->n_mats * en->cols));
        for (int64_t k = 0; k < en->n_mats * en->cols; k++) {
            float n = en->counts[k / en->cols],
                  v = n > 0 ? en->sums[k] / n * (float)calls : (float)calls;
            buf_add(&b, &v, 4);
        }
    }
    put_u32(&b, calls);
    put_text(&b, str_c(m->dataset ? m->dataset : ""));
    int rc = buf_check(&b, e);
    if (rc == OK) rc = file_replace(path, buf_str(&b), e);
    buf_release(&b);
    return rc;
}

int imatrix_write(const struct imatrix *m, const char *path, struct err *e)
{
    struct str dataset = str_c(m->dataset ? m->dataset : "");
    struct ggufw *w;
    char name[MAX_NAME];
    int rc;

    if (str_ends(str_c(path), STR(".dat"))) return write_old(m, path, e);
    if ((rc = ggufw_open(&w, path, e)) != OK) return rc;
    ggufw_str(w, "general.type", STR("imatrix"));
    ggufw_strs(w, "imatrix.datasets", &dataset, 1);
    ggufw_u32(w, "imatrix.chunk_count", (uint32_t)m->n_chunks);
    ggufw_u32(w, "imatrix.chunk_size", (uint32_t)m->chunk_tokens);
    for (int i = 0; i < m->n; i++) {
        const struct imatrix_entry *en = &m->entries[i];
        snprintf(name, sizeof name, "%.*s.in_sum2", STR_ARG(str_take(en->name, MAX_NAME - 16)));
        ggufw_tensor(w, name, DT_F32, (int64_t[]){ en->n_mats, en->cols }, 2);
        snprintf(name, sizeof name, "%.*s.counts", STR_ARG(str_take(en->name, MAX_NAME - 16)));
        ggufw_tensor(w, name, DT_F32, (int64_t[]){ en->n_mats, 1 }, 2);
    }
    for (int i = 0; i < m->n; i++) {
        const struct imatrix_entry *en = &m->entries[i];
        ggufw_data(w, en->sums, (size_t)(en->n_mats * en->cols) * sizeof *en->sums);
        ggufw_data(w, en->counts, (size_t)en->n_mats * sizeof *en->counts);
    }
    return ggufw_close(w, e);
}

/* ---- use ---- */

/* An entry with the columns of one matrix serves all experts alike. */
int imatrix_weights(const struct imatrix *m, struct arena *a, struct str name, int64_t cols,
                    int n_mats, const float **out, struct err *e)
{
    uint64_t i;

    *out = NULL;
    if (!map_get(&m->by_name, name, &i)) return OK;
    const struct imatrix_entry *en = &m->entries[i];
    int64_t has = en->n_mats * en->cols, want = cols * n_mats;
    if (has != want && has != cols)
        return err_set(e, E_FORMAT,
                       "%s: '%.*s' has %lld columns, expected %lld; the importance matrix was made "
                       "for another model",
                       m->path, STR_ARG(name), (long long)has, (long long)want);
    float *w = arena_array(a, (size_t)want, sizeof *w);
    if (!w) return err_nomem(e, "the weights of an importance matrix");
    for (int64_t mat = 0; mat < n_mats; mat++) {
        int64_t from = has == want ? mat * cols : 0;
        float count = en->counts[from / en->cols];
        double mean = 0;
        for (int64_t k = 0; k < cols; k++) {
            /* An expert that was never selected has no statistics: all columns count the same. */
            float v = count > 0 ? fminf(en->sums[from + k] / count, 1e30f) : 1;
            w[mat * cols + k] = v;
            mean += (double)v / (double)cols;
        }
        /* The small base keeps columns of zeros from having no weight at all. */
        float scale = mean > 1e-30 ? (float)(1 / mean) : 0, base = mean > 1e-30 ? 1e-4f : 1;
        for (int64_t k = 0; k < cols; k++) w[mat * cols + k] = w[mat * cols + k] * scale + base;
    }
    *out = w;
    return OK;
}
