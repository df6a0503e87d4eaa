/* mut_tensors.c - random choices, and changes of tensors: types, shapes, places, names. */
#include "mutants.h"

#include "base/mem.h"
#include "kernel/quant.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_BYTES = 8 << 20 }; /* of a tensor that a mutation makes larger */

/* ---- choosing ---- */

uint64_t pick(struct mutation *m, uint64_t n) { return n ? rng_u64(&m->rng) % n : 0; }
bool chance(struct mutation *m, int percent) { return (int)pick(m, 100) < percent; }

int64_t odd_int(struct mutation *m, int64_t v)
{
    static const int64_t odd[] = { 0,         1,         -1,        2,         3,
                                   7,         8,         16,        31,        32,
                                   33,        64,        100,       255,       256,
                                   1000,      65535,     65536,     1 << 20,   INT32_MAX,
                                   INT32_MIN, 1ll << 31, 1ll << 32, 1ll << 53, INT64_MAX };
    uint64_t u = (uint64_t)v;

    switch (pick(m, 8)) {
    case 0: return (int64_t)(u + 1);
    case 1: return (int64_t)(u - 1);
    case 2: return (int64_t)(u * 2);
    case 3: return v / 2;
    case 4: return (int64_t)(0 - u);
    default: return odd[pick(m, sizeof odd / sizeof *odd)];
    }
}

double odd_float(struct mutation *m, double v)
{
    static const double odd[] = { 0,    -0.0, 1,     -1,    0.5,  1e-30, 1e-300,  1e30,
                                  1e38, 1e39, 1e300, -1e30, 1e-5, 3,     1.0 / 3, 65504 };

    return chance(m, 20) ? v * 2 : chance(m, 10) ? -v : odd[pick(m, sizeof odd / sizeof *odd)];
}

struct str odd_string(struct mutation *m)
{
    static const char *const odd[] = { "",
                                       "x",
                                       "llama",
                                       "gpt2",
                                       "silu",
                                       "gelu",
                                       "relu2",
                                       "yarn",
                                       "linear",
                                       "dynamic",
                                       "longrope",
                                       "llama3",
                                       "su",
                                       "none",
                                       "bpe",
                                       "spm",
                                       "BertModel",
                                       "qwen2",
                                       "gemma3",
                                       "deepseek2",
                                       "mamba2",
                                       "default",
                                       "mean",
                                       "../x",
                                       "%s%n%d",
                                       "\xff\xfe",
                                       "<unk>",
                                       "\xe2\x96\x81",
                                       "0",
                                       "-1",
                                       "F32",
                                       "bert",
                                       "sliding_attention",
                                       "full_attention",
                                       "linear_attention",
                                       "sigmoid",
                                       "noaux_tc" };
    size_t n = 1 + pick(m, 5000);
    char *p;

    if (!chance(m, 8)) return str_c(odd[pick(m, sizeof odd / sizeof *odd)]);
    if (!(p = arena_alloc(m->arena, n))) abort();
    memset(p, 'a', n);
    return str_of(p, n);
}

void note(struct mutation *m, const char *fmt, ...)
{
    char text[400];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    buf_printf(&m->what, "%s%s", m->what.n ? "; " : "", text);
}

/* ---- tensors ---- */

void tensors_of(struct mutation *m, struct mut_tensors *out, const struct source *s)
{
    out->n = (int)source_n_tensors(s);
    out->cap = out->n + 16;
    out->v = arena_array(m->arena, (size_t)out->cap, sizeof *out->v);
    if (!out->v) abort();
    for (int i = 0; i < out->n; i++) {
        const struct source_tensor *t = source_tensor(s, (size_t)i);
        struct mut_tensor *x = &out->v[i];
        *x = (struct mut_tensor){ .name = t->name,
                                  .type = t->type,
                                  .file_type = -1,
                                  .n_dims = t->n_dims,
                                  .data = str_of(t->data, t->bytes) };
        memcpy(x->dims, t->dims, sizeof t->dims);
    }
}

/* Bytes of the tensor as it is now; false: nonsense, or more than a mutant may have. */
static bool count_bytes(const struct mut_tensor *t, uint64_t *bytes)
{
    uint64_t rows = 1;

    if (t->n_dims < 1 || !dtype_row_bytes(t->type, (uint64_t)t->dims[t->n_dims - 1], bytes))
        return false;
    for (int i = 0; i + 1 < t->n_dims; i++)
        if (t->dims[i] < 0 || __builtin_mul_overflow(rows, (uint64_t)t->dims[i], &rows))
            return false;
    return !__builtin_mul_overflow(*bytes, rows, bytes) && *bytes <= MOST_BYTES;
}

/* The data gets the size that type and shape say, from the bytes that were there, in turn. Where
 * that is too large it stays as it is, and the file does not hold what it says. */
static void fit_data(struct mutation *m, struct mut_tensor *t)
{
    uint64_t bytes = 0;
    char *p;

    if (!count_bytes(t, &bytes) || bytes == t->data.n) return;
    if (!(p = arena_alloc(m->arena, bytes ? bytes : 1))) abort();
    for (uint64_t i = 0; i < bytes && t->data.n; i += t->data.n)
        memcpy(p + i, t->data.p, bytes - i < t->data.n ? bytes - i : t->data.n);
    t->data = str_of(p, bytes);
}

/* The same numbers in another type where there is a way; else the same bytes. */
static void change_type(struct mutation *m, struct mut_tensor *t, enum dtype to)
{
    uint64_t from_bytes, bytes;
    enum dtype from = t->type;
    struct mut_tensor was = *t;
    float *f;
    char *p;
    int64_t n = 1;

    t->type = to;
    for (int i = 0; i < t->n_dims; i++) n *= t->dims[i];
    if (!quant_can_decode(from) || !quant_can_encode(to) || !count_bytes(&was, &from_bytes) ||
        from_bytes != t->data.n || !count_bytes(t, &bytes)) {
        fit_data(m, t);
        return;
    }
    f = malloc((size_t)n * sizeof *f + 1);
    p = arena_alloc(m->arena, bytes ? bytes : 1);
    if (!f || !p) abort();
    quant_decode(from, t->data.p, f, n);
    quant_encode(to, f, p, n);
    free(f);
    t->data = str_of(p, bytes);
}

static enum dtype pick_type(struct mutation *m, bool gguf)
{
    enum dtype t;

    do t = (enum dtype)pick(m, DT_COUNT);
    while (!dtype_info((int)t) || (gguf && t >= DT_F8_E4M3) ||
           (!gguf && dtype_info((int)t)->quantized));
    return t;
}

static void mutate_type(struct mutation *m, struct mut_tensors *t, struct mut_tensor *x, bool gguf)
{
    enum dtype to = pick_type(m, gguf);

    if (chance(m, 10)) {
        x->file_type = (int)odd_int(m, (int64_t)x->type) & 0xffff;
        note(m, "type of %.*s is %d", STR_ARG(x->name), x->file_type);
    } else if (chance(m, 20)) { /* all of a type */
        enum dtype from = x->type;
        for (int i = 0; i < t->n; i++)
            if (t->v[i].type == from) change_type(m, &t->v[i], to);
        note(m, "all %s are %s", dtype_name((int)from), dtype_name((int)to));
    } else {
        change_type(m, x, to);
        note(m, "%.*s is %s", STR_ARG(x->name), dtype_name((int)to));
    }
}

static void mutate_shape(struct mutation *m, struct mut_tensor *x)
{
    int i = (int)pick(m, (uint64_t)x->n_dims), j = (int)pick(m, (uint64_t)x->n_dims);
    int64_t d = x->dims[i];

    switch (pick(m, 5)) {
    case 0: x->dims[i] = x->dims[j], x->dims[j] = d; break;
    case 1:
        if (x->n_dims < 6) x->dims[x->n_dims++] = chance(m, 70) ? 1 : (int64_t)pick(m, 4);
        break;
    case 2:
        if (x->n_dims > 1) x->dims[x->n_dims - 2] *= x->dims[x->n_dims - 1], x->n_dims--;
        break;
    default: x->dims[i] = odd_int(m, d);
    }
    note(m, "shape of %.*s", STR_ARG(x->name));
    if (chance(m, 80)) fit_data(m, x);
}

static void mutate_name(struct mutation *m, struct mut_tensors *t, struct mut_tensor *x)
{
    struct mut_tensor *y = &t->v[pick(m, (uint64_t)t->n)];
    struct str name = x->name;

    switch (pick(m, 4)) {
    case 0:
        note(m, "%.*s and %.*s change names", STR_ARG(x->name), STR_ARG(y->name));
        x->name = y->name, y->name = name;
        break;
    case 1:
        note(m, "%.*s is missing", STR_ARG(name));
        x->gone = true;
        break;
    case 2:
        note(m, "%.*s is twice", STR_ARG(name));
        if (t->n < t->cap) t->v[t->n++] = *x;
        break;
    default:
        x->name = chance(m, 30) ? odd_string(m) : str_take(name, pick(m, name.n + 1));
        note(m, "%.*s has another name", STR_ARG(name));
    }
}

/* Some of its bytes: NaN, infinity, the largest. */
static void mutate_data(struct mutation *m, struct mut_tensor *x)
{
    char *p = arena_alloc(m->arena, x->data.n ? x->data.n : 1);
    int fill = chance(m, 50) ? 0xff : (int)pick(m, 256);

    if (!p) abort();
    if (x->data.n) memcpy(p, x->data.p, x->data.n);
    for (size_t at = pick(m, x->data.n), n = 1 + pick(m, 64); n-- && at < x->data.n; at++)
        p[at] = (char)fill;
    note(m, "data of %.*s", STR_ARG(x->name));
    x->data = str_of(p, x->data.n);
}

void tensors_mutate(struct mutation *m, struct mut_tensors *t, bool gguf)
{
    struct mut_tensor *x;

    if (t->n == 0) return;
    x = &t->v[pick(m, (uint64_t)t->n)];
    switch (pick(m, 10)) {
    case 0:
    case 1:
    case 2:
    case 3: mutate_type(m, t, x, gguf); break;
    case 4:
    case 5: mutate_shape(m, x); break;
    case 6:
    case 7: mutate_name(m, t, x); break;
    case 8: mutate_data(m, x); break;
    default:
        x->moved = true;
        x->offset = chance(m, 50) ? odd_int(m, 0) : (int64_t)pick(m, 1 << 20) / 32 * 32;
        note(m, "%.*s is at %lld", STR_ARG(x->name), (long long)x->offset);
    }
}

int64_t tensors_some_dim(struct mutation *m, const struct mut_tensors *t)
{
    const struct mut_tensor *x = &t->v[pick(m, (uint64_t)t->n)];
    return x->dims[pick(m, (uint64_t)x->n_dims)];
}

void tensors_resize(struct mutation *m, struct mut_tensors *t, int64_t from, int64_t to)
{
    for (int i = 0; i < t->n; i++) {
        for (int k = 0; k < t->v[i].n_dims; k++)
            if (t->v[i].dims[k] == from) t->v[i].dims[k] = to;
        fit_data(m, &t->v[i]);
    }
    note(m, "dimensions of %lld are %lld", (long long)from, (long long)to);
}
