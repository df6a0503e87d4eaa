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

#define WRITE_BUF (1u << 20)

struct entry {
    const char *name;
    enum dtype type;
    int n_dims;
    int64_t dims[SOURCE_MAX_DIMS];
    uint64_t bytes, offset; /* offset: in its shard's data */
    size_t shard;
};

struct shard {
    char *name, *path, *temp;
    size_t first, end; /* tensors */
    struct buf head;   /* length, JSON and padding */
    uint64_t bytes;    /* of data */
    bool there;        /* whole, from an earlier run */
};

struct safetensorsw {
    char *dir;
    uint64_t shard_bytes, total;
    struct err first;
    struct arena arena;
    struct map names;
    struct entry *tensors;
    size_t n, cap;
    struct shard *shards; /* made when the first data is wanted */
    size_t n_shards;
    bool planned, resume;
    FILE *f;
    size_t at; /* the tensor that data goes to */
    uint64_t done_bytes;
};

static void fail(struct safetensorsw *w, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static void fail(struct safetensorsw *w, int code, const char *fmt, ...)
{
    char text[400];
    va_list ap;

    if (w->first.code != OK) return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    err_set(&w->first, code, "%s: %s", w->dir, text);
}

int safetensorsw_open(struct safetensorsw **out, const char *dir, uint64_t shard_bytes,
                      struct err *e)
{
    if (!file_is_dir(dir)) return err_set(e, E_NOTFOUND, "%s: is no folder", dir);
    struct safetensorsw *w = mem_new(struct safetensorsw);
    w->dir = mem_strdup(dir);
    w->shard_bytes = shard_bytes;
    *out = w;
    return OK;
}

void safetensorsw_resume(struct safetensorsw *w) { w->resume = true; }

void safetensorsw_tensor(struct safetensorsw *w, const char *name, enum dtype t,
                         const int64_t *dims, int n_dims)
{
    struct str key = arena_str(&w->arena, str_c(name));
    const struct dtype_info *info = dtype_info((int)t);
    uint64_t bytes = 1;
    bool good = info && !info->quantized && n_dims >= 0 && n_dims <= SOURCE_MAX_DIMS;

    for (int i = 0; good && i < n_dims; i++)
        good = dims[i] >= 0 && !__builtin_mul_overflow(bytes, (uint64_t)dims[i], &bytes);
    good =
        good && !__builtin_mul_overflow(bytes, (uint64_t)info->bytes, &bytes) && bytes < INT64_MAX;
    if (w->planned) fail(w, E_INTERNAL, "tensor '%.100s' comes after the first data", name);
    else if (!good)
        fail(w, E_UNSUPPORTED, "tensor '%.100s': safetensors cannot hold this shape as %s", name,
             dtype_name((int)t));
    else if (!map_put(&w->names, key, 0))
        fail(w, E_INTERNAL, "tensor '%.100s' is written twice", name);
    if (w->first.code != OK) return;
    if (w->n == w->cap) {
        w->cap = w->cap ? 2 * w->cap : 64;
        w->tensors = mem_grow(w->tensors, w->cap * sizeof *w->tensors);
    }
    struct entry *en = &w->tensors[w->n++];
    *en = (struct entry){ .name = key.p, .type = t, .n_dims = n_dims, .bytes = bytes };
    memcpy(en->dims, dims, (size_t)n_dims * sizeof *dims);
    w->total += bytes;
}

/* ---- the shards ---- */

static void write_head(struct safetensorsw *w, struct shard *s)
{
    struct buf json = { 0 };
    struct jsonw j = { .out = &json };
    uint64_t n;

    jsonw_obj(&j);
    jsonw_key(&j, "__metadata__"), jsonw_obj(&j);
    jsonw_key(&j, "format"), jsonw_str(&j, STR("pt"));
    jsonw_end(&j);
    for (size_t i = s->first; i < s->end; i++) {
        const struct entry *en = &w->tensors[i];
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
    while (json.n % 8) buf_putc(&json, ' ');
    n = json.n;
    buf_add(&s->head, &n, 8);
    buf_put_str(&s->head, buf_str(&json));
    buf_release(&json);
}

/* A file of the right length that begins with the very header is one that an earlier run finished.
 */
static bool is_there(const struct shard *s)
{
    struct filemap m = { 0 };
    bool same = filemap_open(&m, s->path, NULL) == OK && m.n == s->head.n + s->bytes &&
                memcmp(m.p, s->head.p, s->head.n) == 0;

    filemap_release(&m);
    return same;
}

static void name_shard(struct safetensorsw *w, size_t i)
{
    struct shard *s = &w->shards[i];
    struct buf b = { 0 };

    if (w->n_shards == 1) s->name = arena_printf(&w->arena, "model.safetensors");
    else s->name = arena_printf(&w->arena, "model-%05zu-of-%05zu.safetensors", i + 1, w->n_shards);
    s->path = path_join(w->dir, s->name);
    buf_printf(&b, "%s.part-%ld", s->path, (long)getpid());
    buf_cstr(&b);
    s->temp = b.p;
}

static void plan(struct safetensorsw *w)
{
    uint64_t sum = 0;

    if (w->planned) return;
    w->planned = true;
    w->shards = mem_array(w->n + 1, sizeof *w->shards);
    w->n_shards = 1;
    for (size_t i = 0; i < w->n; i++) {
        struct entry *en = &w->tensors[i];
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
    for (size_t i = 0; i < w->n_shards; i++) {
        name_shard(w, i);
        write_head(w, &w->shards[i]);
        w->shards[i].there = w->resume && is_there(&w->shards[i]);
    }
}

static void put(struct safetensorsw *w, const void *p, size_t n)
{
    if (w->first.code == OK && n && fwrite(p, 1, n, w->f) != n)
        fail(w, E_IO, "%s", strerror(errno));
}

static void begin_shard(struct safetensorsw *w, struct shard *s)
{
    w->f = fopen(s->temp, "wbe");
    if (!w->f) {
        fail(w, E_IO, "%s: %s", s->name, strerror(errno));
        return;
    }
    setvbuf(w->f, NULL, _IOFBF, WRITE_BUF);
    put(w, s->head.p, s->head.n);
}

static void end_shard(struct safetensorsw *w, struct shard *s)
{
    if (!w->f) return;
    if (fclose(w->f) != 0) fail(w, E_IO, "%s: %s", s->name, strerror(errno));
    w->f = NULL;
    if (w->first.code == OK && rename(s->temp, s->path) != 0)
        fail(w, E_IO, "%s: %s", s->name, strerror(errno));
    if (w->first.code != OK) unlink(s->temp);
}

/* To the next tensor that takes bytes: opens and ends shards on the way, passes over those that are
 * there. */
static void settle(struct safetensorsw *w)
{
    while (w->first.code == OK && w->at < w->n) {
        struct entry *en = &w->tensors[w->at];
        struct shard *s = &w->shards[en->shard];
        if (s->there) {
            w->at = s->end;
            continue;
        }
        if (w->at == s->first && w->done_bytes == 0 && !w->f) begin_shard(w, s);
        if (w->done_bytes < en->bytes) return;
        w->at++;
        w->done_bytes = 0;
        if (w->at == s->end) end_shard(w, s);
    }
}

bool safetensorsw_wants(struct safetensorsw *w, size_t i)
{
    plan(w);
    settle(w);
    return w->first.code == OK && i < w->n && !w->shards[w->tensors[i].shard].there;
}

void safetensorsw_data(struct safetensorsw *w, const void *p, size_t n)
{
    const char *from = p;

    plan(w);
    settle(w);
    while (n && w->first.code == OK) {
        if (w->at == w->n) {
            fail(w, E_INTERNAL, "%zu bytes more than the tensors hold", n);
            return;
        }
        const struct entry *en = &w->tensors[w->at];
        size_t part = n < en->bytes - w->done_bytes ? n : (size_t)(en->bytes - w->done_bytes);
        put(w, from, part);
        from += part;
        n -= part;
        w->done_bytes += part;
        settle(w);
    }
}

size_t safetensorsw_n_files(const struct safetensorsw *w) { return w->n_shards; }
const char *safetensorsw_file(const struct safetensorsw *w, size_t i) { return w->shards[i].name; }

static void write_index(struct safetensorsw *w)
{
    struct buf json = { 0 };
    struct jsonw j = { .out = &json };
    char *path = path_join(w->dir, "model.safetensors.index.json");
    struct err e = { 0 };

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
    buf_putc(&json, '\n');
    if (w->n_shards > 1 && file_replace(path, buf_str(&json), &e) != OK)
        fail(w, e.code, "%s", e.msg);
    if (w->n_shards == 1) unlink(path); /* of an earlier run with smaller shards */
    mem_free(path);
    buf_release(&json);
}

static void release(struct safetensorsw *w)
{
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
    plan(w);
    settle(w);
    if (w->at < w->n)
        fail(w, E_INTERNAL, "tensor '%.100s' got %llu of its %llu bytes", w->tensors[w->at].name,
             (unsigned long long)w->done_bytes, (unsigned long long)w->tensors[w->at].bytes);
    if (w->first.code == OK) write_index(w);
    int rc = w->first.code;
    if (rc != OK) err_set(e, rc, "%s", w->first.msg);
    if (w->f) {
        fclose(w->f);
        unlink(w->shards[w->tensors[w->at < w->n ? w->at : w->n - 1].shard].temp);
    }
    release(w);
    return rc;
}

void safetensorsw_abort(struct safetensorsw *w)
{
    if (!w) return;
    if (w->f) {
        fclose(w->f);
        unlink(w->shards[w->tensors[w->at < w->n ? w->at : w->n - 1].shard].temp);
    }
    release(w);
}
