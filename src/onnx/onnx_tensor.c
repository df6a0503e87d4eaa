/* onnx_tensor.c - tensors of an ONNX file: in place where they can be, else turned into what runs.
 */
#include "base/mem.h"
#include "kernel/quant.h"
#include "onnx/graph_impl.h"

enum {
    FLOAT = 1,
    UINT8 = 2,
    INT8 = 3,
    UINT16 = 4,
    INT16 = 5,
    INT32 = 6,
    INT64 = 7,
    BOOL = 9,
    FLOAT16 = 10,
    DOUBLE = 11,
    UINT32 = 12,
    UINT64 = 13,
    BFLOAT16 = 16
};

static const struct {
    unsigned char bytes, type;
} kinds[] = {
    [FLOAT] = { 4, ONNX_F32 },    [UINT8] = { 1, ONNX_U8 },    [INT8] = { 1, ONNX_I8 },
    [UINT16] = { 2, ONNX_I64 },   [INT16] = { 2, ONNX_I64 },   [INT32] = { 4, ONNX_I64 },
    [INT64] = { 8, ONNX_I64 },    [BOOL] = { 1, ONNX_BOOL },   [DOUBLE] = { 8, ONNX_F32 },
    [UINT32] = { 4, ONNX_I64 },   [FLOAT16] = { 2, ONNX_F32 }, [UINT64] = { 8, ONNX_I64 },
    [BFLOAT16] = { 2, ONNX_F32 },
};

enum onnx_type onnx_type_of(int64_t t)
{
    return t >= 0 && t < (int64_t)(sizeof kinds / sizeof *kinds) ? (enum onnx_type)kinds[t].type
                                                                 : ONNX_NONE;
}

size_t onnx_size(enum onnx_type t) { return t == ONNX_F32 ? 4 : t == ONNX_I64 ? 8 : 1; }

const char *onnx_type_name(enum onnx_type t)
{
    static const char *const names[] = { "nothing", "float", "int64", "bool", "uint8", "int8" };
    return names[t];
}

/* What a TensorProto says, before anything is made of it. */
struct raw {
    struct onnx *m;
    struct str name, raw, location;
    int64_t type, offset, length; /* length -1: not said */
    struct str lists[4]; /* the first of each kind of list, packed: float, int32, int64, double */
    uint64_t count;      /* numbers in lists that are not packed, or in several pieces */
    bool external, pieces, more; /* more: fields that are not read */
};

static const struct {
    uint32_t field;
    int type;
} list_fields[4] = { { 4, 0 }, { 5, 1 }, { 7, 2 }, { 10, 3 } };

static int fail(const struct raw *w, struct err *e, int code, const char *what)
{
    return err_set(e, code, "%s: tensor '%.*s': %s", w->m->path, STR_ARG(str_take(w->name, 120)),
                   what);
}

static void *own(struct onnx *m, size_t bytes)
{
    struct onnx_owned *o = mem_new(struct onnx_owned);

    o->bytes = bytes ? bytes : 1;
    o->p = mem_aligned(o->bytes);
    if (!o->p) {
        mem_free(o);
        return NULL;
    }
    o->next = m->impl->owned;
    m->impl->owned = o;
    return o->p;
}

void onnx_tensor_release(struct onnx_impl *p)
{
    for (struct onnx_owned *o = p->owned, *next; o; o = next) {
        next = o->next;
        mem_free_aligned(o->p, o->bytes);
        mem_free(o);
    }
    for (int i = 0; i < p->n_files; i++) {
        mem_free(p->files[i].path);
        filemap_release(&p->files[i].map);
    }
}

/* ---- the message ---- */

static void read_entry(struct raw *w, struct str bytes)
{
    struct str key = { 0 }, value = { 0 };

    for (struct pb m = pb_of(bytes); pb_next(&m);) {
        if (m.field == 1 && m.wire == PB_BYTES) key = m.bytes;
        if (m.field == 2 && m.wire == PB_BYTES) value = m.bytes;
    }
    if (str_is(key, "location")) w->location = value;
    else if (str_is(key, "offset") && !str_to_i64(value, &w->offset)) w->offset = -1;
    else if (str_is(key, "length") && !str_to_i64(value, &w->length)) w->length = -2;
}

static int add_dim(const struct raw *w, struct onnx_tensor *t, uint64_t v, struct err *e)
{
    if (t->n_dims == ONNX_DIMS) return fail(w, e, E_UNSUPPORTED, "more than 8 dimensions");
    if (v > INT32_MAX) return fail(w, e, E_FORMAT, "a dimension is negative or beyond 2^31");
    t->dims[t->n_dims++] = (int64_t)v;
    return OK;
}

static int read_dims(const struct raw *w, struct onnx_tensor *t, const struct pb *m, struct err *e)
{
    int rc = OK;

    if (m->wire == PB_VARINT) return add_dim(w, t, m->v, e);
    for (struct cursor c = pb_cursor(m->bytes); cursor_left(&c) && rc == OK && !c.bad;)
        rc = add_dim(w, t, pb_varint(&c), e);
    return rc;
}

static int read_fields(struct raw *w, struct str bytes, struct onnx_tensor *t, struct err *e)
{
    struct pb m;
    int rc = OK;

    for (m = pb_of(bytes); pb_next(&m);) /* first, for messages */
        if (m.field == 8) w->name = m.bytes;
    for (m = pb_of(bytes); rc == OK && pb_next(&m);) {
        bool is_bytes = m.wire == PB_BYTES;
        for (int i = 0; i < 4; i++) {
            if (m.field != list_fields[i].field) continue;
            if (!is_bytes || w->lists[i].p) w->pieces = true;
            else w->lists[i] = m.bytes;
        }
        switch (m.field) {
        case 1: rc = read_dims(w, t, &m, e); break;
        case 2: w->type = (int64_t)m.v; break;
        case 3:
        case 6:
        case 11: w->more = true; break;
        case 9:
            if (is_bytes) w->raw = m.bytes;
            break;
        case 13:
            if (is_bytes) read_entry(w, m.bytes);
            break;
        case 14: w->external = m.v == 1; break;
        }
    }
    if (rc == OK && m.at.bad) rc = fail(w, e, E_FORMAT, "the message is cut short");
    return rc;
}

/* ---- where the bytes are ---- */

static int map_external(const struct raw *w, struct str *out, struct err *e)
{
    struct onnx_impl *p = w->m->impl;
    char *path = NULL;
    int i, rc;

    if (!p->dir)
        return fail(w, e, E_UNSUPPORTED, "external data, but there is no folder it could lie in");
    if ((rc = path_under(&path, p->dir, w->location, e)) != OK)
        return err_wrap(e, "%s: tensor '%.*s': external data", w->m->path,
                        STR_ARG(str_take(w->name, 120)));
    for (i = 0; i < p->n_files && strcmp(p->files[i].path, path) != 0; i++) {}
    if (i == p->n_files) {
        if (i == ONNX_FILES) rc = fail(w, e, E_UNSUPPORTED, "external data in more than 64 files");
        else if ((rc = filemap_open(&p->files[i].map, path, e)) == OK) {
            p->files[p->n_files++].path = path;
            path = NULL;
        }
    }
    mem_free(path);
    if (rc == OK) *out = str_of((const char *)p->files[i].map.p, p->files[i].map.n);
    return rc;
}

/* The tensor's bytes in w->raw, wherever they are. */
static int find_bytes(struct raw *w, size_t bytes, struct err *e)
{
    struct str file = { 0 };
    int rc;

    if (!w->external) return OK;
    if ((rc = map_external(w, &file, e)) != OK) return rc;
    if (w->offset < 0 || (uint64_t)w->offset > file.n || bytes > file.n - (size_t)w->offset ||
        (w->length != -1 && w->length != (int64_t)bytes))
        return err_set(e, E_FORMAT, "%s: tensor '%.*s': %zu bytes from %lld on, but %.*s has %zu",
                       w->m->path, STR_ARG(str_take(w->name, 120)), bytes, (long long)w->offset,
                       STR_ARG(str_take(w->location, 120)), file.n);
    w->raw = str_take(str_skip(file, (size_t)w->offset), bytes);
    if (!w->raw.p) w->raw.p = "";
    return OK;
}

/* ---- turning them into what runs ---- */

#define EACH(ctype, to, expr)                   \
    for (size_t i = 0; i < n; i++) {            \
        ctype v;                                \
        memcpy(&v, p + i * sizeof v, sizeof v); \
        ((to *)out)[i] = (to)(expr);            \
    }

static void widen(int64_t type, const char *p, size_t n, void *out)
{
    switch (type) {
    case DOUBLE: EACH(double, float, v); break;
    case UINT16: EACH(uint16_t, int64_t, v); break;
    case INT16: EACH(int16_t, int64_t, v); break;
    case INT32: EACH(int32_t, int64_t, v); break;
    case UINT32: EACH(uint32_t, int64_t, v); break;
    case UINT64: EACH(uint64_t, int64_t, v); break;
    case FLOAT16: EACH(uint16_t, float, f16_to_f32(v)); break;
    case BFLOAT16: EACH(uint16_t, float, pb_f32((uint32_t)v << 16)); break;
    default: break;
    }
}

/* Whole numbers stand one by one in int32_data and int64_data, halves as their bits. */
static bool take_varints(const struct raw *w, struct str list, const struct onnx_tensor *t)
{
    struct cursor c = pb_cursor(list);

    for (size_t i = 0; i < t->n; i++) {
        int64_t v = (int64_t)pb_varint(&c);
        uint16_t half = (uint16_t)v;
        switch (t->type) {
        case ONNX_F32: widen(w->type, (const char *)&half, 1, (float *)t->data + i); break;
        case ONNX_I64: ((int64_t *)t->data)[i] = v; break;
        default: ((uint8_t *)t->data)[i] = (uint8_t)v;
        }
    }
    return !c.bad && cursor_left(&c) == 0;
}

static int take_list(const struct raw *w, struct onnx_tensor *t, struct err *e)
{
    bool good;

    if (w->pieces) return fail(w, e, E_UNSUPPORTED, "its numbers are not in one packed list");
    if (!(t->data = own(w->m, t->n * onnx_size(t->type))))
        return fail(w, e, E_NOMEM, "no memory for it");
    if (w->type == FLOAT) {
        if ((good = w->lists[0].n == t->n * sizeof(float)) && t->n)
            memcpy(t->data, w->lists[0].p, w->lists[0].n);
    } else if (w->type == DOUBLE) {
        if ((good = w->lists[3].n == t->n * sizeof(double)))
            widen(DOUBLE, w->lists[3].p, t->n, t->data);
    } else {
        good = take_varints(w, w->lists[w->type == INT64 ? 2 : 1], t);
    }
    return good ? OK : fail(w, e, E_FORMAT, "it has not as many numbers as its dimensions say");
}

/* The list a tensor without raw bytes has its numbers in: n numbers need n bytes there at least. */
static size_t list_bytes(const struct raw *w)
{
    return w->type == FLOAT    ? w->lists[0].n
           : w->type == DOUBLE ? w->lists[3].n
                               : w->lists[w->type == INT64 ? 2 : 1].n;
}

static int take_numbers(struct raw *w, struct onnx_tensor *t, struct err *e)
{
    size_t bytes = t->n * kinds[w->type].bytes;
    int rc;

    if ((rc = find_bytes(w, bytes, e)) != OK) return rc;
    if (!w->raw.p && t->n > 0) {
        if (list_bytes(w) < t->n && !w->pieces)
            return fail(w, e, E_FORMAT, "it has fewer numbers than its dimensions say");
        return take_list(w, t, e);
    }
    if (w->raw.n != bytes)
        return fail(w, e, E_FORMAT, "its bytes are not as many as its dimensions say");
    if (kinds[w->type].bytes == onnx_size(t->type) && w->type != UINT64) {
        t->data = t->n ? (void *)w->raw.p : (void *)"";
        t->is_file = true;
        return OK;
    }
    if (!(t->data = own(w->m, t->n * onnx_size(t->type))))
        return fail(w, e, E_NOMEM, "no memory for it");
    widen(w->type, w->raw.p, t->n, t->data);
    return OK;
}

int onnx_tensor_align(struct onnx *m, struct onnx_tensor *t, struct err *e)
{
    size_t bytes = t->n * onnx_size(t->type);
    void *p;

    if (!t->is_file || (uintptr_t)t->data % onnx_size(t->type) == 0) return OK;
    if (!(p = own(m, bytes))) return err_set(e, E_NOMEM, "%s: no memory for its tensors", m->path);
    if (bytes) memcpy(p, t->data, bytes);
    t->data = p;
    t->is_file = false;
    return OK;
}

int onnx_tensor_read(struct onnx *m, struct str bytes, struct onnx_tensor *t, struct str *name,
                     struct err *e)
{
    struct raw w = { .m = m, .length = -1 };
    size_t n = 1;
    int rc;

    *t = (struct onnx_tensor){ .block = -1 };
    if ((rc = read_fields(&w, bytes, t, e)) != OK) return rc;
    *name = w.name;
    if (w.more)
        return fail(&w, e, E_UNSUPPORTED, "segments, texts and unsigned lists are not read");
    if ((t->type = onnx_type_of(w.type)) == ONNX_NONE)
        return err_set(e, E_UNSUPPORTED,
                       "%s: tensor '%.*s': data type %lld is not one that is known", m->path,
                       STR_ARG(str_take(w.name, 120)), (long long)w.type);
    for (int d = 0; d < t->n_dims; d++)
        if (!mem_mul(n, (size_t)t->dims[d], &n) || n > (size_t)1 << 40)
            return fail(&w, e, E_FORMAT, "its dimensions multiply to more than 2^40 numbers");
    t->n = n;
    m->n_params += n;
    m->weight_bytes += n * kinds[w.type].bytes;
    return take_numbers(&w, t, e);
}
