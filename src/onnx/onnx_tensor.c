/* onnx_tensor.c - reading TensorProto: types, dimensions, and the elements wherever they are.
 *
 * Elements are in raw_data (little-endian bytes), in a typed list (float_data, int32_data,
 * int64_data, double_data), or in an external file. Those whose type an operator can compute with
 * stay in place in the mapped file; others are converted once, into memory of the model.
 *
 * Sizes are checked before memory is allocated: the product of the dimensions is limited, and a
 * list must have at least a byte per element, so a short file cannot ask for much memory.
 *
 * Field numbers of TensorProto: 1 dims  2 data_type  3 segment  4 float_data  5 int32_data
 * 6 string_data  7 int64_data  8 name  9 raw_data  10 double_data  11 uint64_data
 * 13 external_data (entries: 1 key, 2 value)  14 data_location (1: external) */
#include "base/mem.h"
#include "kernel/quant.h"
#include "onnx/graph_impl.h"

enum { /* TensorProto.DataType */
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

/* File types that are read; the others have zero bytes and ONNX_NONE. */
static const struct {
    unsigned char bytes, type; /* of an element in the file; enum onnx_type that computes it */
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

enum { LIST_FLOAT, LIST_INT32, LIST_INT64, LIST_DOUBLE, LISTS };
static const uint32_t list_fields[LISTS] = { 4, 5, 7, 10 }; /* float_data, int32_data, ... */

/* The fields of a TensorProto. */
struct proto {
    struct onnx *m;
    struct str name;
    struct str raw; /* raw_data, or the bytes in the external file */
    int64_t type;   /* DataType */
    bool external;  /* the elements are in the file `location` */
    struct str location;
    int64_t offset, length;  /* in that file; length -1: not given */
    struct str lists[LISTS]; /* the first packed piece of each list */
    bool pieces;             /* a list is not packed, or in several pieces */
    bool unread;             /* fields that tern does not read */
};

static int fail_tensor(const struct proto *w, struct err *e, int code, const char *what)
{
    return err_set(e, code, "%s: tensor '%.*s': %s", w->m->path, STR_ARG(str_take(w->name, 120)),
                   what);
}

/* Memory of the model for the elements of t. */
static int alloc_elements(const struct proto *w, struct onnx_tensor *t, struct err *e)
{
    if ((t->data = heap_own(&w->m->impl->owned, t->n * onnx_size(t->type)))) return OK;
    return fail_tensor(w, e, E_NOMEM, "out of memory: no room for its elements");
}

void onnx_tensor_release(struct onnx_impl *p)
{
    heap_release_owned(&p->owned);
    for (int i = 0; i < p->n_files; i++) {
        mem_free(p->files[i].path);
        filemap_release(&p->files[i].map);
    }
}

/* ---- the message ---- */

/* An entry of external_data: a key and a value, both text. A bad number becomes an invalid one. */
static void read_entry(struct proto *w, struct str bytes)
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

/* Dimensions fit into 31 bits, so that kernels can count with int. */
static int add_dim(const struct proto *w, struct onnx_tensor *t, uint64_t v, struct err *e)
{
    if (t->n_dims == ONNX_DIMS) return fail_tensor(w, e, E_UNSUPPORTED, "more than 8 dimensions");
    if (v > INT32_MAX)
        return fail_tensor(w, e, E_FORMAT, "a dimension is negative or larger than 2^31");
    t->dims[t->n_dims++] = (int64_t)v;
    return OK;
}

/* dims is a repeated field: packed, or one varint per occurrence. */
static int read_dims(const struct proto *w, struct onnx_tensor *t, const struct pb *m,
                     struct err *e)
{
    int rc = OK;

    if (m->wire == PB_VARINT) return add_dim(w, t, m->v, e);
    for (struct cursor c = pb_cursor(m->bytes); cursor_left(&c) && rc == OK && !c.bad;)
        rc = add_dim(w, t, pb_varint(&c), e);
    return rc;
}

/* Collects the fields of the message; nothing is allocated. */
static int read_fields(struct proto *w, struct str bytes, struct onnx_tensor *t, struct err *e)
{
    struct pb m;
    int rc = OK;

    for (m = pb_of(bytes); pb_next(&m);) /* the name first: error messages use it */
        if (m.field == 8) w->name = m.bytes;
    for (m = pb_of(bytes); rc == OK && pb_next(&m);) {
        bool is_bytes = m.wire == PB_BYTES;
        for (int i = 0; i < LISTS; i++) {
            if (m.field != list_fields[i]) continue;
            if (!is_bytes || w->lists[i].p) w->pieces = true;
            else w->lists[i] = m.bytes;
        }
        switch (m.field) {
        case 1: rc = read_dims(w, t, &m, e); break;
        case 2: w->type = (int64_t)m.v; break;
        case 3: /* segment */
        case 6: /* string_data */
        case 11: /* uint64_data */ w->unread = true; break;
        case 9:
            if (is_bytes) w->raw = m.bytes;
            break;
        case 13:
            if (is_bytes) read_entry(w, m.bytes);
            break;
        case 14: w->external = m.v == 1; break;
        }
    }
    if (rc == OK && m.at.bad) rc = fail_tensor(w, e, E_FORMAT, "the message is truncated");
    return rc;
}

/* ---- external data ---- */

/* Maps the file of external data, once for all tensors in it. */
static int map_external(const struct proto *w, struct str *out, struct err *e)
{
    struct onnx_impl *p = w->m->impl;
    char *path = NULL;
    int i, rc;

    if (!p->dir)
        return fail_tensor(w, e, E_UNSUPPORTED, "external data needs a model that is a file");
    if ((rc = path_under(&path, p->dir, w->location, e)) != OK)
        return err_wrap(e, "%s: tensor '%.*s': external data", w->m->path,
                        STR_ARG(str_take(w->name, 120)));
    for (i = 0; i < p->n_files && strcmp(p->files[i].path, path) != 0; i++) {}
    if (i == p->n_files) {
        if (i == ONNX_FILES)
            rc = fail_tensor(w, e, E_UNSUPPORTED, "external data is in more than 64 files");
        else if ((rc = filemap_open(&p->files[i].map, path, e)) == OK) {
            p->files[p->n_files++].path = path;
            path = NULL;
        }
    }
    mem_free(path);
    if (rc == OK) *out = str_of((const char *)p->files[i].map.p, p->files[i].map.n);
    return rc;
}

/* Points w->raw at the elements if they are in an external file. */
static int find_external(struct proto *w, size_t bytes, struct err *e)
{
    struct str file = { 0 };
    int rc;

    if (!w->external) return OK;
    if ((rc = map_external(w, &file, e)) != OK) return rc;
    if (w->offset < 0 || (uint64_t)w->offset > file.n || bytes > file.n - (size_t)w->offset ||
        (w->length != -1 && w->length != (int64_t)bytes))
        return err_set(e, E_FORMAT,
                       "%s: tensor '%.*s': its %zu bytes from offset %lld on do not match %.*s, "
                       "which has %zu bytes",
                       w->m->path, STR_ARG(str_take(w->name, 120)), bytes, (long long)w->offset,
                       STR_ARG(str_take(w->location, 120)), file.n);
    w->raw = str_take(str_skip(file, (size_t)w->offset), bytes);
    if (!w->raw.p) w->raw.p = "";
    return OK;
}

/* ---- conversion ---- */

#define EACH(ctype, to, expr)                   \
    for (size_t i = 0; i < n; i++) {            \
        ctype v;                                \
        memcpy(&v, p + i * sizeof v, sizeof v); \
        ((to *)out)[i] = (to)(expr);            \
    }

/* Converts n elements of a file type to F32 or I64. p may be unaligned. */
static void convert_elements(int64_t type, const char *p, size_t n, void *out)
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

/* int32_data and int64_data are varints; halves are stored in them as 16 bits. false: the list does
 * not have exactly t->n elements. */
static bool read_varints(const struct proto *w, struct str list, const struct onnx_tensor *t)
{
    struct cursor c = pb_cursor(list);

    for (size_t i = 0; i < t->n; i++) {
        int64_t v = (int64_t)pb_varint(&c);
        uint16_t half = (uint16_t)v;
        switch (t->type) {
        case ONNX_F32:
            convert_elements(w->type, (const char *)&half, 1, (float *)t->data + i);
            break;
        case ONNX_I64: ((int64_t *)t->data)[i] = v; break;
        default: ((uint8_t *)t->data)[i] = (uint8_t)v;
        }
    }
    return !c.bad && cursor_left(&c) == 0;
}

/* The list that has the elements of a type. */
static struct str list_of(const struct proto *w)
{
    return w->lists[w->type == FLOAT    ? LIST_FLOAT
                    : w->type == DOUBLE ? LIST_DOUBLE
                    : w->type == INT64  ? LIST_INT64
                                        : LIST_INT32];
}

static int read_typed_list(const struct proto *w, struct onnx_tensor *t, struct err *e)
{
    struct str list = list_of(w);
    bool good;
    int rc;

    if (w->pieces)
        return fail_tensor(w, e, E_UNSUPPORTED, "its elements are not in one packed list");
    if (list.n < t->n) /* an element has at least a byte */
        return fail_tensor(w, e, E_FORMAT, "it has fewer elements than its dimensions require");
    if ((rc = alloc_elements(w, t, e)) != OK) return rc;
    if (w->type == FLOAT) {
        if ((good = list.n == t->n * sizeof(float)) && t->n) memcpy(t->data, list.p, list.n);
    } else if (w->type == DOUBLE) {
        if ((good = list.n == t->n * sizeof(double)))
            convert_elements(DOUBLE, list.p, t->n, t->data);
    } else {
        good = read_varints(w, list, t);
    }
    return good ? OK
                : fail_tensor(w, e, E_FORMAT,
                              "the number of its elements does not match its dimensions");
}

/* Points t at the elements in the file, or converts them. */
static int read_elements(struct proto *w, struct onnx_tensor *t, struct err *e)
{
    size_t bytes = t->n * kinds[w->type].bytes;
    int rc;

    if ((rc = find_external(w, bytes, e)) != OK) return rc;
    if (!w->raw.p && t->n > 0) return read_typed_list(w, t, e);
    if (w->raw.n != bytes)
        return fail_tensor(w, e, E_FORMAT, "the number of its bytes does not match its dimensions");
    if (kinds[w->type].bytes == onnx_size(t->type) && w->type != UINT64) {
        t->data = t->n ? (void *)w->raw.p : (void *)"";
        t->is_file = true;
        return OK;
    }
    if ((rc = alloc_elements(w, t, e)) != OK) return rc;
    convert_elements(w->type, w->raw.p, t->n, t->data);
    return OK;
}

int onnx_tensor_align(struct onnx *m, struct onnx_tensor *t, struct err *e)
{
    size_t bytes = t->n * onnx_size(t->type);
    void *p;

    if (!t->is_file || (uintptr_t)t->data % onnx_size(t->type) == 0) return OK;
    if (!(p = heap_own(&m->impl->owned, bytes))) return err_nomem(e, "a tensor");
    if (bytes) memcpy(p, t->data, bytes);
    t->data = p;
    t->is_file = false;
    return OK;
}

/* The dimensions are checked before any byte of the elements is looked at. */
int onnx_tensor_read(struct onnx *m, struct str bytes, struct onnx_tensor *t, struct str *name,
                     struct err *e)
{
    struct proto w = { .m = m, .length = -1 };
    size_t n = 1;
    int rc;

    *t = (struct onnx_tensor){ .block = -1 };
    if ((rc = read_fields(&w, bytes, t, e)) != OK) return rc;
    *name = w.name;
    if (w.unread)
        return fail_tensor(&w, e, E_UNSUPPORTED,
                           "segments, strings and lists of unsigned integers are not supported");
    if ((t->type = onnx_type_of(w.type)) == ONNX_NONE)
        return err_set(e, E_UNSUPPORTED, "%s: tensor '%.*s': data type %lld is not supported",
                       m->path, STR_ARG(str_take(w.name, 120)), (long long)w.type);
    for (int d = 0; d < t->n_dims; d++)
        if (!mem_mul(n, (size_t)t->dims[d], &n) || n > (size_t)1 << 40)
            return fail_tensor(&w, e, E_FORMAT, "its dimensions give more than 2^40 elements");
    t->n = n;
    m->n_params += n;
    m->weight_bytes += n * kinds[w.type].bytes;
    return read_elements(&w, t, e);
}
