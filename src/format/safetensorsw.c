/* safetensorsw.c - writes safetensors shards.
 *
 * The header of a shard needs the sizes of all its tensors, so shards are planned when the first
 * data comes: which tensors go where, the headers, and which shards exist already. Then data moves
 * through the tensors one by one (advance), opening and completing shards on the way. */
#include "format/safetensorsw.h"

#include "base/arena.h"
#include "base/buf.h"
#include "base/file.h"
#include "base/jsonw.h"
#include "base/map.h"
#include "base/mem.h"
#include "format/source.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#define WRITE_BUF (1u << 20) /* bytes of stdio's buffer */

struct declared_tensor {
    const char *name; /* in the arena */
    enum dtype type;
    int n_dims;
    int64_t dims[SOURCE_MAX_DIMS];
    uint64_t bytes, offset; /* offset: within the data of its shard */
    size_t shard;
};

struct shard {
    char *name;        /* in the arena */
    char *path, *temp; /* the final and the temporary path */
    size_t first, end; /* its tensors */
    struct buf head;   /* length, JSON and padding */
    uint64_t bytes;    /* of data */
    bool complete;     /* exists, from an earlier run */
};

struct safetensorsw {
    char *dir;
    uint64_t shard_bytes, total; /* bytes of data: most of a shard, of all tensors */
    struct err first;            /* the first failure; code OK: none yet */
    struct arena arena;          /* names */
    struct map names;            /* of tensors that were declared, to refuse duplicates */
    struct declared_tensor *tensors;
    size_t n, cap;
    struct shard *shards; /* [n_shards] made by plan_shards */
    size_t n_shards;
    bool planned, resume;
    FILE *f;             /* the open shard, or NULL */
    size_t at;           /* index of the tensor that the next data belongs to */
    uint64_t done_bytes; /* of that tensor */
};

static void note_failure(struct safetensorsw *w, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Remembers a failure, if it is the first. */
static void note_failure(struct safetensorsw *w, int code, const char *fmt, ...)
{
    char text[400];
    va_list ap;

    if (w->first.code != OK) return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    err_set(&w->first, code, "%s: %s", w->dir, text);
}

static void note_nomem(struct safetensorsw *w)
{
    if (w->first.code == OK) err_nomem(&w->first, "a safetensors file");
}

int safetensorsw_open(struct safetensorsw **out, const char *dir, uint64_t shard_bytes,
                      struct err *e)
{
    struct safetensorsw *w;

    if (!file_is_dir(dir)) return err_set(e, E_NOTFOUND, "%s: is not a folder", dir);
    w = mem_new(struct safetensorsw);
    if (!w || !(w->dir = mem_strdup(dir))) {
        mem_free(w);
        return err_nomem(e, "a safetensors file");
    }
    w->shard_bytes = shard_bytes;
    *out = w;
    return OK;
}

void safetensorsw_resume(struct safetensorsw *w) { w->resume = true; }

/* false: safetensors cannot hold such a tensor. */
static bool find_tensor_bytes(enum dtype t, const int64_t *dims, int n_dims, uint64_t *bytes)
{
    const struct dtype_info *info = dtype_info((int)t);

    if (!info || info->quantized || n_dims < 0 || n_dims > SOURCE_MAX_DIMS) return false;
    *bytes = (uint64_t)info->bytes;
    for (int i = 0; i < n_dims; i++)
        if (dims[i] < 0 || __builtin_mul_overflow(*bytes, (uint64_t)dims[i], bytes)) return false;
    return *bytes < INT64_MAX;
}

void safetensorsw_tensor(struct safetensorsw *w, const char *name, enum dtype t,
                         const int64_t *dims, int n_dims)
{
    struct str key = arena_str(&w->arena, str_c(name));
    uint64_t bytes = 0;
    int rc;

    if (!find_tensor_bytes(t, dims, n_dims, &bytes))
        note_failure(w, E_UNSUPPORTED, "tensor '%.100s': safetensors cannot hold this shape as %s",
                     name, dtype_name((int)t));
    else if (w->planned)
        note_failure(w, E_INTERNAL, "tensor '%.100s' comes after the first data", name);
    else if (!key.p || !mem_ensure(w->tensors, w->cap, w->n + 1) ||
             (rc = map_put(&w->names, key, 0)) < 0)
        note_nomem(w);
    else if (rc == MAP_REPLACED)
        note_failure(w, E_INTERNAL, "tensor '%.100s' is written twice", name);
    if (w->first.code != OK) return;
    struct declared_tensor *en = &w->tensors[w->n++];
    *en = (struct declared_tensor){ .name = key.p, .type = t, .n_dims = n_dims, .bytes = bytes };
    memcpy(en->dims, dims, (size_t)n_dims * sizeof *dims);
    w->total += bytes;
}

/* ---- planning the shards ---- */

/* The header of a shard: its length, the JSON, and spaces up to a multiple of 8. */
static void make_head(struct safetensorsw *w, struct shard *s)
{
    struct buf json = { 0 };
    struct jsonw j = { .out = &json };
    uint64_t n;

    jsonw_obj(&j);
    jsonw_key(&j, "__metadata__"), jsonw_obj(&j);
    jsonw_key(&j, "format"), jsonw_str(&j, STR("pt"));
    jsonw_end(&j);
    for (size_t i = s->first; i < s->end; i++) {
        const struct declared_tensor *en = &w->tensors[i];
        jsonw_key(&j, en->name), jsonw_obj(&j);
        jsonw_key(&j, "dtype"), jsonw_str(&j, str_c(dtype_name((int)en->type)));
        jsonw_key(&j, "shape"), jsonw_arr(&j);
        for (int d = 0; d < en->n_dims; d++) jsonw_int(&j, en->dims[d]);
        jsonw_end(&j);
        jsonw_key(&j, "data_offsets"), jsonw_arr(&j);
        jsonw_int(&j, (int64_t)en->offset), jsonw_int(&j, (int64_t)(en->offset + en->bytes));
        jsonw_end(&j);
        jsonw_end(&j);
    }
    jsonw_end(&j);
    while (json.n % 8 && !json.failed) buf_putc(&json, ' ');
    n = json.n;
    buf_add(&s->head, &n, 8);
    buf_put_str(&s->head, buf_str(&json));
    if (json.failed || s->head.failed) note_nomem(w);
    buf_release(&json);
}

/* Did an earlier run complete this shard? A file of the right size with the same header is one. */
static bool is_complete(const struct shard *s)
{
    struct filemap m = { 0 };
    bool same = filemap_open(&m, s->path, NULL) == OK && m.n == s->head.n + s->bytes &&
                memcmp(m.p, s->head.p, s->head.n) == 0;

    filemap_release(&m);
    return same;
}

/* Names as Hugging Face's tools write them. */
static void name_shard(struct safetensorsw *w, size_t i)
{
    struct shard *s = &w->shards[i];
    struct buf b = { 0 };

    if (w->n_shards == 1) s->name = arena_printf(&w->arena, "model.safetensors");
    else s->name = arena_printf(&w->arena, "model-%05zu-of-%05zu.safetensors", i + 1, w->n_shards);
    if (!s->name || !(s->path = path_join(w->dir, s->name))) {
        note_nomem(w);
        return;
    }
    buf_printf(&b, "%s.part-%ld", s->path, (long)getpid());
    buf_cstr(&b);
    s->temp = b.p;
    if (b.failed) note_nomem(w);
}

/* Assigns the tensors to shards and makes the headers, once. */
static void plan_shards(struct safetensorsw *w)
{
    uint64_t sum = 0;

    if (w->planned) return;
    w->planned = true;
    if (!(w->shards = mem_array(w->n + 1, sizeof *w->shards))) {
        note_nomem(w);
        return;
    }
    w->n_shards = 1;
    for (size_t i = 0; i < w->n; i++) {
        struct declared_tensor *en = &w->tensors[i];
        if (w->shard_bytes && sum && sum + en->bytes > w->shard_bytes) {
            w->shards[w->n_shards++].first = i;
            sum = 0;
        }
        en->shard = w->n_shards - 1;
        en->offset = sum;
        sum += en->bytes;
        w->shards[en->shard].end = i + 1;
        w->shards[en->shard].bytes = sum;
    }
    for (size_t i = 0; i < w->n_shards && w->first.code == OK; i++) {
        name_shard(w, i);
        make_head(w, &w->shards[i]);
        w->shards[i].complete = w->resume && is_complete(&w->shards[i]);
    }
}

/* ---- writing ---- */

static void write_bytes(struct safetensorsw *w, const void *p, size_t n)
{
    if (w->first.code == OK && n && fwrite(p, 1, n, w->f) != n)
        note_failure(w, E_IO, "%s", strerror(errno));
}

static void open_shard(struct safetensorsw *w, struct shard *s)
{
    int fd;

    if (w->first.code != OK || file_create(&fd, s->temp, s->path, &w->first) != OK) return;
    if (!(w->f = fdopen(fd, "wb"))) {
        note_failure(w, E_NOMEM, "%s: out of memory: no room for a file", s->name);
        close(fd);
        unlink(s->temp);
        return;
    }
    setvbuf(w->f, NULL, _IOFBF, WRITE_BUF);
    write_bytes(w, s->head.p, s->head.n);
}

/* Renames the shard to its final name, or removes it after a failure. */
static void complete_shard(struct safetensorsw *w, struct shard *s)
{
    if (!w->f) return;
    if (fclose(w->f) != 0) note_failure(w, E_IO, "%s: %s", s->name, strerror(errno));
    w->f = NULL;
    if (w->first.code == OK) file_rename(s->temp, s->path, &w->first);
    if (w->first.code != OK) unlink(s->temp);
}

/* Moves on to the next tensor that needs bytes: opens and completes shards on the way, and skips
 * shards that exist. */
static void advance(struct safetensorsw *w)
{
    while (w->first.code == OK && w->at < w->n) {
        struct declared_tensor *en = &w->tensors[w->at];
        struct shard *s = &w->shards[en->shard];
        if (s->complete) {
            w->at = s->end;
            continue;
        }
        if (w->at == s->first && w->done_bytes == 0 && !w->f) open_shard(w, s);
        if (w->done_bytes < en->bytes) return;
        w->at++;
        w->done_bytes = 0;
        if (w->at == s->end) complete_shard(w, s);
    }
}

bool safetensorsw_wants(struct safetensorsw *w, size_t i)
{
    plan_shards(w);
    advance(w);
    return w->first.code == OK && i < w->n && !w->shards[w->tensors[i].shard].complete;
}

void safetensorsw_data(struct safetensorsw *w, const void *p, size_t n)
{
    const char *from = p;

    plan_shards(w);
    advance(w);
    while (n && w->first.code == OK) {
        if (w->at == w->n) {
            note_failure(w, E_INTERNAL, "%zu bytes more than the tensors have", n);
            return;
        }
        const struct declared_tensor *en = &w->tensors[w->at];
        size_t part = n < en->bytes - w->done_bytes ? n : (size_t)(en->bytes - w->done_bytes);
        write_bytes(w, from, part);
        from += part;
        n -= part;
        w->done_bytes += part;
        advance(w);
    }
}

size_t safetensorsw_n_files(const struct safetensorsw *w) { return w->n_shards; }
const char *safetensorsw_file(const struct safetensorsw *w, size_t i) { return w->shards[i].name; }

/* Which shard has which tensor. */
static void make_index(const struct safetensorsw *w, struct buf *json)
{
    struct jsonw j = { .out = json };

    jsonw_obj(&j);
    jsonw_key(&j, "metadata"), jsonw_obj(&j);
    jsonw_key(&j, "total_size"), jsonw_int(&j, (int64_t)w->total);
    jsonw_end(&j);
    jsonw_key(&j, "weight_map"), jsonw_obj(&j);
    for (size_t i = 0; i < w->n; i++)
        jsonw_key(&j, w->tensors[i].name),
            jsonw_str(&j, str_c(w->shards[w->tensors[i].shard].name));
    jsonw_end(&j);
    jsonw_end(&j);
    buf_putc(json, '\n');
}

/* One file needs no index; that of an earlier run with smaller shards is removed. */
static void write_index(struct safetensorsw *w)
{
    char *path = path_join(w->dir, "model.safetensors.index.json");
    struct buf json = { 0 };
    struct err e = { 0 };

    if (!path) note_nomem(w);
    else if (w->n_shards == 1) unlink(path);
    else {
        make_index(w, &json);
        if (json.failed) note_nomem(w);
        else if (file_replace(path, buf_str(&json), &e) != OK) note_failure(w, e.code, "%s", e.msg);
    }
    mem_free(path);
    buf_release(&json);
}

/* Closes and removes an incomplete shard, and frees the writer. */
static void free_writer(struct safetensorsw *w)
{
    if (w->f) {
        fclose(w->f);
        unlink(w->shards[w->tensors[w->at < w->n ? w->at : w->n - 1].shard].temp);
    }
    for (size_t i = 0; i < w->n_shards; i++) {
        mem_free(w->shards[i].path);
        mem_free(w->shards[i].temp);
        buf_release(&w->shards[i].head);
    }
    map_release(&w->names);
    arena_release(&w->arena);
    mem_free(w->shards);
    mem_free(w->tensors);
    mem_free(w->dir);
    mem_free(w);
}

int safetensorsw_close(struct safetensorsw *w, struct err *e)
{
    int rc;

    plan_shards(w);
    advance(w);
    if (w->at < w->n)
        note_failure(w, E_INTERNAL, "tensor '%.100s' got %llu of its %llu bytes",
                     w->tensors[w->at].name, (unsigned long long)w->done_bytes,
                     (unsigned long long)w->tensors[w->at].bytes);
    if (w->first.code == OK) write_index(w);
    rc = w->first.code;
    if (rc != OK) err_set(e, rc, "%s", w->first.msg);
    free_writer(w);
    return rc;
}

void safetensorsw_abort(struct safetensorsw *w)
{
    if (w) free_writer(w);
}
