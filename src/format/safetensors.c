/* safetensors.c - reads safetensors files and the index of sharded ones.
 *
 * The header is JSON from a foreign file: jsonload bounds its tree, and each tensor is checked for
 * type, shape and place. The format demands that tensors cover the data without gaps or overlaps;
 * check_cover holds files to it. A sharded model is a struct safetensors without a file of its own
 * that owns one struct per shard and copies their entries. */
#include "format/safetensors.h"

#include "base/arena.h"
#include "base/file.h"
#include "base/map.h"
#include "base/mem.h"
#include "format/jsonload.h"

#include <stdlib.h>

#define MAX_HEADER_BYTES 100000000u /* the bound of the format */
#define MAX_TENSORS (1u << 20)

/* The copy of a tensor that was not aligned in the file; in the arena. */
struct aligned_copy {
    struct aligned_copy *next;
    size_t n;
    void *p;
};

struct safetensors {
    const char *name;    /* of the file or index, for messages */
    struct arena arena;  /* names of tensors */
    struct filemap file; /* empty for an index */
    json_t *meta;        /* the metadata object, or NULL */
    struct source_tensor *tensors;
    size_t n_tensors;
    struct map map; /* name → index into tensors */
    struct aligned_copy *copies;
    struct safetensors **shards; /* of an index */
    size_t n_shards, cap_shards;
};

void safetensors_close(struct safetensors *s)
{
    if (!s) return;
    for (size_t i = 0; i < s->n_shards; i++) safetensors_close(s->shards[i]);
    for (struct aligned_copy *a = s->copies; a; a = a->next) mem_free_aligned(a->p, a->n);
    mem_free(s->shards);
    mem_free(s->tensors);
    json_decref(s->meta);
    map_release(&s->map);
    filemap_release(&s->file);
    arena_release(&s->arena);
    mem_free(s);
}

int safetensors_check(const struct safetensors *s, bool look, struct err *e)
{
    int rc = filemap_check(&s->file, look, s->name, e);

    for (size_t i = 0; i < s->n_shards && rc == OK; i++)
        rc = safetensors_check(s->shards[i], look, e);
    return rc;
}

static struct safetensors *new_safetensors(const char *name, struct err *e)
{
    struct safetensors *s = mem_new(struct safetensors);

    if (s && (s->name = arena_cstr(&s->arena, str_c(name)))) return s;
    safetensors_close(s);
    err_nomem(e, "a safetensors file");
    return NULL;
}

static int fail_tensor(const struct safetensors *s, const char *tensor, const char *what,
                       struct err *e)
{
    return err_set(e, E_FORMAT, "%s: tensor '%.100s': %s", s->name, tensor, what);
}

/* Names become parts of messages on a terminal: no control characters. */
static bool is_printable(struct str s)
{
    for (size_t i = 0; i < s.n; i++)
        if ((unsigned char)s.p[i] < 0x20 || s.p[i] == 0x7f) return false;
    return true;
}

/* jansson has refused integers beyond 63 bits already. */
static bool read_u64(const json_t *j, uint64_t *out)
{
    if (!json_is_integer(j) || json_integer_value(j) < 0) return false;
    *out = (uint64_t)json_integer_value(j);
    return true;
}

/* Names of types are those of dtype.h, but for the block formats of GGUF, which have no place here. */
static int read_dtype(const struct safetensors *s, struct source_tensor *t, const json_t *entry,
                      struct err *e)
{
    const json_t *j = json_object_get(entry, "dtype");
    const struct dtype_info *d;
    struct str name = { 0 };

    if (!json_is_string(j)) return fail_tensor(s, t->name.p, "expected \"dtype\" with a name", e);
    name = str_of(json_string_value(j), json_string_length(j));
    t->type = dtype_by_name(name);
    d = dtype_info((int)t->type);
    if (!d || d->quantized || !str_is(name, d->name))
        return err_set(e, E_UNSUPPORTED,
                       "%s: tensor '%.100s': dtype '%.40s' is not one of F64 F32 F16 BF16 F8_E4M3 "
                       "F8_E5M2 F8_E8M0 I64 I32 I16 I8 U64 U32 U16 U8 BOOL",
                       s->name, t->name.p, name.p);
    return OK;
}

/* Leading dimensions beyond SOURCE_MAX_DIMS are multiplied into the first. */
static int read_shape(const struct safetensors *s, struct source_tensor *t, const json_t *entry,
                      struct err *e)
{
    const json_t *j = json_object_get(entry, "shape");
    size_t n = json_array_size(j), fold = n > SOURCE_MAX_DIMS ? n - SOURCE_MAX_DIMS : 0;
    uint64_t all = (uint64_t)dtype_info((int)t->type)->bytes;

    if (!json_is_array(j)) return fail_tensor(s, t->name.p, "expected \"shape\" with a list", e);
    for (int i = 0; i < SOURCE_MAX_DIMS; i++) t->dims[i] = 1;
    t->n_dims = (int)(n - fold);
    for (size_t i = 0; i < n; i++) {
        int64_t *dim = &t->dims[i < fold ? 0 : i - fold];
        uint64_t d;
        if (!read_u64(json_array_get(j, i), &d))
            return fail_tensor(s, t->name.p, "expected integers >= 0 in \"shape\"", e);
        if (__builtin_mul_overflow(all, d, &all) || __builtin_mul_overflow(*dim, (int64_t)d, dim))
            return fail_tensor(s, t->name.p, "the product of its shape overflows", e);
    }
    t->bytes = (size_t)all;
    return OK;
}

/* data_offsets are relative to the data, end exclusive, and must agree with shape and type. */
static int read_offsets(const struct safetensors *s, struct source_tensor *t, const json_t *entry,
                        struct str data, struct err *e)
{
    const json_t *j = json_object_get(entry, "data_offsets");
    uint64_t a, b;

    if (json_array_size(j) != 2 || !read_u64(json_array_get(j, 0), &a) ||
        !read_u64(json_array_get(j, 1), &b))
        return fail_tensor(s, t->name.p, "expected \"data_offsets\" with two integers", e);
    if (a > b || b > data.n)
        return err_set(
            e, E_FORMAT,
            "%s: tensor '%.100s': data_offsets %llu to %llu, expected them in order and inside "
            "the %zu bytes of data",
            s->name, t->name.p, (unsigned long long)a, (unsigned long long)b, data.n);
    if (b - a != t->bytes)
        return err_set(
            e, E_FORMAT,
            "%s: tensor '%.100s': data_offsets span %llu bytes, expected %zu by shape and dtype",
            s->name, t->name.p, (unsigned long long)(b - a), t->bytes);
    t->data = data.p + a;
    return OK;
}

/* One member of the header. s->n_tensors counts it only when all of it is valid. */
static int read_tensor(struct safetensors *s, const char *name, const json_t *entry,
                       struct str data, struct err *e)
{
    struct source_tensor *t = &s->tensors[s->n_tensors];
    int rc;

    t->name = arena_str(&s->arena, str_c(name));
    if (!t->name.p) return err_nomem(e, "the tensors of a safetensors file");
    if (t->name.n == 0 || !is_printable(t->name))
        return err_set(e, E_FORMAT, "%s: a tensor whose name is empty or has control characters",
                       s->name);
    if (!json_is_object(entry)) return fail_tensor(s, name, "expected an object", e);
    if ((rc = read_dtype(s, t, entry, e)) != OK) return rc;
    if ((rc = read_shape(s, t, entry, e)) != OK) return rc;
    if ((rc = read_offsets(s, t, entry, data, e)) != OK) return rc;
    if (map_put(&s->map, t->name, s->n_tensors) < 0) /* jansson refuses duplicate names */
        return err_nomem(e, "the tensors of a safetensors file");
    s->n_tensors++;
    return OK;
}

/* For qsort over copies of the entries: the original order is that of the header. */
static int compare_data(const void *a, const void *b)
{
    const struct source_tensor *x = a, *y = b;
    if (x->data != y->data) return x->data < y->data ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes; /* empty ones first */
}

/* The tensors must cover the data: no overlap, no gap, nothing after the last. */
static int check_cover(const struct safetensors *s, struct str data, struct err *e)
{
    struct source_tensor *order = mem_dup(s->tensors, s->n_tensors * sizeof *order);
    const char *end = data.p;
    int rc = OK;

    if (!order) return err_nomem(e, "the tensors of a safetensors file");
    qsort(order, s->n_tensors, sizeof *order, compare_data);
    for (size_t i = 0; i < s->n_tensors && rc == OK; i++) {
        const char *p = order[i].data;
        if (p != end)
            rc = err_set(e, E_FORMAT,
                         "%s: tensor '%.100s': begins at offset %zu of the data, %s %zu", s->name,
                         order[i].name.p, (size_t)(p - data.p),
                         p < end ? "overlapping the one that ends at" : "after a gap from",
                         (size_t)(end - data.p));
        end = p + order[i].bytes;
    }
    if (rc == OK && end != data.p + data.n)
        rc = err_set(e, E_FORMAT, "%s: the tensors end at offset %zu of %zu bytes of data", s->name,
                     (size_t)(end - data.p), data.n);
    mem_free(order);
    return rc;
}

/* Copies every tensor that is not aligned to its element size. */
static int align_tensors(struct safetensors *s, struct err *e)
{
    for (size_t i = 0; i < s->n_tensors; i++) {
        struct source_tensor *t = &s->tensors[i];
        if ((uintptr_t)t->data % (size_t)dtype_info((int)t->type)->bytes == 0) continue;
        int rc = filemap_fill(&s->file, SIZE_MAX, NULL, NULL, e); /* before it is copied */
        if (rc != OK) return rc;
        struct aligned_copy *a = arena_new(&s->arena, struct aligned_copy);
        if (a) *a = (struct aligned_copy){ s->copies, t->bytes, mem_aligned(t->bytes) };
        if (!a || !a->p)
            return err_set(e, E_NOMEM,
                           "%s: tensor '%.100s': no memory for an aligned copy of %zu bytes",
                           s->name, t->name.p, t->bytes);
        s->copies = a;
        t->data = memcpy(a->p, t->data, t->bytes);
    }
    return OK;
}

/* "__metadata__" is the one member that is not a tensor. */
static int read_header(struct safetensors *s, json_t *header, struct str data, struct err *e)
{
    const char *name;
    json_t *entry;
    size_t n = json_object_size(header);
    int rc = OK;

    if (n > MAX_TENSORS)
        return err_set(e, E_UNSUPPORTED, "%s: has %zu tensors, expected at most %u", s->name, n,
                       MAX_TENSORS);
    s->tensors = mem_array(n, sizeof *s->tensors);
    if (!s->tensors || !map_reserve(&s->map, n))
        return err_nomem(e, "the tensors of a safetensors file");
    json_object_foreach (header, name, entry) {
        if (strcmp(name, "__metadata__") != 0) {
            rc = read_tensor(s, name, entry, data, e);
        } else if (json_is_object(entry)) {
            s->meta = json_incref(entry);
        } else {
            rc = err_set(e, E_FORMAT, "%s: expected an object in \"__metadata__\"", s->name);
        }
        if (rc != OK) return rc;
    }
    if ((rc = check_cover(s, data, e)) != OK) return rc;
    return align_tensors(s, e);
}

/* A plausible length of the header, then '{'. */
bool safetensors_looks(const void *p, size_t n, uint64_t file_bytes)
{
    uint64_t len;

    if (n < 9) return false;
    memcpy(&len, p, 8);
    return len >= 2 && len <= MAX_HEADER_BYTES && len <= file_bytes - 8 &&
           ((const char *)p)[8] == '{';
}

/* The header may be padded with spaces at its end; it must start with '{'. */
static int parse_file(struct safetensors *s, const void *p, size_t n, struct err *e)
{
    struct str text;
    json_t *header;
    uint64_t len;
    int rc;

    if (n < 8)
        return err_set(e, E_FORMAT,
                       "%s: has %zu bytes, expected a safetensors header of at least 8", s->name,
                       n);
    memcpy(&len, p, 8);
    if (len > MAX_HEADER_BYTES || len > n - 8)
        return err_set(
            e, E_FORMAT,
            "%s: says its header has %llu bytes, expected at most %u, and %zu in this file",
            s->name, (unsigned long long)len, MAX_HEADER_BYTES, n - 8);
    if (len < 2 || ((const char *)p)[8] != '{')
        return err_set(e, E_FORMAT, "%s: expected a header that begins with '{' at byte 8",
                       s->name);
    text = str_of((const char *)p + 8, (size_t)len);
    if ((rc = jsonload(&header, text, JSON_REJECT_DUPLICATES, s->name, e)) != OK) return rc;
    rc = read_header(s, header, str_of(text.p + len, n - 8 - (size_t)len), e);
    json_decref(header);
    return rc;
}

int safetensors_parse(struct safetensors **out, const void *p, size_t n, const char *name,
                      struct err *e)
{
    struct safetensors *s = new_safetensors(name, e);
    int rc;

    if (!s) return E_NOMEM;
    rc = parse_file(s, p, n, e);
    if (rc == OK) *out = s;
    else safetensors_close(s);
    return rc;
}

/* The header of an encrypted file is decrypted: its length first. */
static int open_header(struct safetensors *s, const char *path, struct err *e)
{
    int rc = filemap_open_head(&s->file, path, 8, e);
    uint64_t len = 0;

    if (rc != OK || s->file.n < 8) return rc;
    memcpy(&len, s->file.p, 8);
    if (len > MAX_HEADER_BYTES) len = 0; /* parse_file refuses it */
    return filemap_fill(&s->file, 8 + (size_t)len, NULL, NULL, e);
}

int safetensors_open(struct safetensors **out, const char *path, struct err *e)
{
    struct safetensors *s = new_safetensors(path, e);
    int rc;

    if (!s) return E_NOMEM;
    rc = open_header(s, path, e);
    if (rc == OK) rc = parse_file(s, s->file.p, s->file.n, e);
    if (rc == OK) *out = s;
    else safetensors_close(s);
    return rc;
}

int safetensors_fill(struct safetensors *s, file_step_fn *step, void *arg, struct err *e)
{
    int rc = filemap_fill(&s->file, SIZE_MAX, step, arg, e);

    for (size_t i = 0; i < s->n_shards && rc == OK; i++)
        rc = safetensors_fill(s->shards[i], step, arg, e);
    return rc;
}

uint64_t safetensors_unfilled(const struct safetensors *s)
{
    uint64_t sum = s->file.n - s->file.n_ready;

    for (size_t i = 0; i < s->n_shards; i++) sum += safetensors_unfilled(s->shards[i]);
    return sum;
}

bool safetensors_is_sealed(const struct safetensors *s)
{
    bool is = filemap_is_sealed(&s->file);

    for (size_t i = 0; i < s->n_shards; i++) is |= safetensors_is_sealed(s->shards[i]);
    return is;
}

/* ---- shards ---- */

/* The index is foreign, too: a file name must not lead out of the folder. */
static int open_shard(struct safetensors **out, const struct safetensors *s, const char *dir,
                      struct str file, struct err *e)
{
    char *path = NULL;
    int rc = path_under(&path, dir, file, NULL);

    if (rc == E_NOMEM) return err_nomem(e, "the path of a shard");
    if (rc != OK || !is_printable(file))
        rc = err_set(e, E_FORMAT, "%s: a shard's name must stay inside the folder, found '%.100s'",
                     s->name, is_printable(file) ? file.p : "control characters");
    else rc = safetensors_open(out, path, e);
    if (rc == E_NOTFOUND)
        rc = err_set(e, rc, "%s: the shard is missing, which %s names", path, path_base(s->name));
    mem_free(path);
    return rc;
}

/* The shard of that file name; it is opened when it is named first. shards: file name → index. */
static int find_or_open_shard(struct safetensors *s, struct map *shards, const char *dir,
                              struct str file, const struct safetensors **out, struct err *e)
{
    struct safetensors *shard = NULL;
    uint64_t i;
    int rc;

    if (map_get(shards, file, &i)) {
        *out = s->shards[i];
        return OK;
    }
    if (!mem_ensure(s->shards, s->cap_shards, s->n_shards + 1))
        return err_nomem(e, "the shards of a model");
    if ((rc = open_shard(&shard, s, dir, file, e)) != OK) return rc;
    if (map_put(shards, file, s->n_shards) < 0) {
        safetensors_close(shard);
        return err_nomem(e, "the shards of a model");
    }
    s->shards[s->n_shards++] = shard;
    *out = shard;
    return OK;
}

/* An entry of "weight_map": the tensor `name` is in `file`. */
static int read_index_entry(struct safetensors *s, struct map *shards, const char *dir,
                            const char *name, const json_t *file, struct err *e)
{
    const struct safetensors *shard = NULL;
    const struct source_tensor *t;
    int rc;

    if (!json_is_string(file) || !is_printable(str_c(name)))
        return fail_tensor(s, is_printable(str_c(name)) ? name : "?",
                           "expected the name of a tensor and that of a file", e);
    rc = find_or_open_shard(s, shards, dir,
                            str_of(json_string_value(file), json_string_length(file)), &shard, e);
    if (rc != OK) return rc;
    t = safetensors_find(shard, str_c(name));
    if (!t)
        return err_set(e, E_FORMAT, "%s: tensor '%.100s' is not in %.200s, where the index puts it",
                       s->name, name, json_string_value(file));
    if (map_put(&s->map, t->name, s->n_tensors) < 0) return err_nomem(e, "the tensors of a model");
    s->tensors[s->n_tensors++] = *t;
    return OK;
}

static int read_index(struct safetensors *s, const char *dir, const json_t *index, struct err *e)
{
    json_t *weights = json_object_get(index, "weight_map"), *file;
    size_t n = json_object_size(weights);
    struct map shards = { 0 };
    const char *name;
    int rc = OK;

    if (!json_is_object(weights) || n > MAX_TENSORS)
        return err_set(e, E_FORMAT,
                       "%s: expected \"weight_map\" with an object of at most %u tensors", s->name,
                       MAX_TENSORS);
    if (json_is_object(json_object_get(index, "metadata")))
        s->meta = json_incref(json_object_get(index, "metadata"));
    s->tensors = mem_array(n, sizeof *s->tensors);
    if (!s->tensors || !map_reserve(&s->map, n)) return err_nomem(e, "the tensors of a model");
    json_object_foreach (weights, name, file) {
        rc = read_index_entry(s, &shards, dir, name, file, e);
        if (rc != OK) break;
    }
    map_release(&shards);
    return rc;
}

int safetensors_open_index(struct safetensors **out, const char *dir, struct str json,
                           const char *name, struct err *e)
{
    struct safetensors *s = new_safetensors(name, e);
    json_t *index;
    int rc;

    if (!s) return E_NOMEM;
    rc = jsonload(&index, json, JSON_REJECT_DUPLICATES, name, e);
    if (rc == OK) rc = read_index(s, dir, index, e);
    json_decref(index);
    if (rc == OK) *out = s;
    else safetensors_close(s);
    return rc;
}

/* Of a single file and an index the single file counts. */
int safetensors_open_dir(struct safetensors **out, const char *dir, struct err *e)
{
    char *one = path_join(dir, "model.safetensors"),
         *index = path_join(dir, "model.safetensors.index.json");
    struct buf json = { 0 };
    int rc;

    if (!one || !index) {
        rc = err_nomem(e, "the path of a model");
    } else if (file_exists(one)) {
        rc = safetensors_open(out, one, e);
    } else if (!file_exists(index)) {
        rc = err_set(e, E_NOTFOUND,
                     "%s: a folder without model.safetensors or model.safetensors.index.json", dir);
    } else {
        rc = file_read(&json, index, MAX_HEADER_BYTES, e);
        if (rc == OK) rc = safetensors_open_index(out, dir, buf_str(&json), index, e);
    }
    buf_release(&json);
    mem_free(one);
    mem_free(index);
    return rc;
}

size_t safetensors_n_tensors(const struct safetensors *s) { return s->n_tensors; }
const struct source_tensor *safetensors_tensor(const struct safetensors *s, size_t i)
{
    return &s->tensors[i];
}

const struct source_tensor *safetensors_find(const struct safetensors *s, struct str name)
{
    uint64_t i;
    return map_get(&s->map, name, &i) ? &s->tensors[i] : NULL;
}

bool safetensors_meta(const struct safetensors *s, const char *key, struct str *out)
{
    const json_t *j = json_object_get(s->meta, key);

    if (!json_is_string(j)) return false;
    *out = str_of(json_string_value(j), json_string_length(j));
    return true;
}
