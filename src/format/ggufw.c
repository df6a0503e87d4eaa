/* ggufw.c - writes a GGUF file: keys and directory are collected in two buffers, data goes straight
 * to the file. */
#include "format/ggufw.h"

#include "base/arena.h"
#include "base/buf.h"
#include "base/file.h"
#include "base/map.h"
#include "base/mem.h"
#include "format/gguf.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#define WRITE_BUF (1u << 20) /* bytes of stdio's buffer */

struct ggufw_tensor {
    const char *name; /* in the arena */
    uint64_t bytes;
};

struct ggufw {
    char *path, *temp; /* the final and the temporary name */
    FILE *f;
    struct err first;       /* the first failure; code OK: none yet */
    struct arena arena;     /* names of keys and tensors */
    struct map keys, names; /* of keys and of tensors that were written, to refuse duplicates */
    struct buf meta, dir;   /* keys and directory as they will be in the file */
    struct ggufw_tensor *tensors;
    size_t n_tensors, cap;
    uint64_t next_offset; /* of the next tensor that is declared */
    bool started;         /* header, keys and directory are in the file */
    size_t at;            /* index of the tensor that the next data belongs to */
    uint64_t done_bytes;  /* of that tensor */
};

static void note_failure(struct ggufw *w, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Remembers a failure, if it is the first. */
static void note_failure(struct ggufw *w, int code, const char *fmt, ...)
{
    char text[300];
    va_list ap;

    if (w->first.code != OK) return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    err_set(&w->first, code, "%s: %s", w->path, text);
}

static void note_nomem(struct ggufw *w)
{
    if (w->first.code == OK) err_nomem(&w->first, "a GGUF file");
}

static uint64_t count_padding(uint64_t n) { return -n % GGUF_ALIGN; }

static void free_writer(struct ggufw *w)
{
    map_release(&w->keys);
    map_release(&w->names);
    arena_release(&w->arena);
    buf_release(&w->meta);
    buf_release(&w->dir);
    mem_free(w->tensors);
    mem_free(w->path);
    mem_free(w->temp);
    mem_free(w);
}

void ggufw_abort(struct ggufw *w)
{
    if (!w) return;
    if (w->f) {
        fclose(w->f);
        unlink(w->temp);
    }
    free_writer(w);
}

int ggufw_open(struct ggufw **out, const char *path, struct err *e)
{
    struct ggufw *w = mem_new(struct ggufw);
    struct buf temp = { 0 };
    int fd, rc;

    buf_printf(&temp, "%s.part-%ld", path, (long)getpid());
    buf_cstr(&temp);
    if (!w || temp.failed || !(w->path = mem_strdup(path))) {
        buf_release(&temp);
        ggufw_abort(w);
        return err_nomem(e, "a GGUF file");
    }
    w->temp = temp.p;
    if ((rc = file_create(&fd, w->temp, path, e)) == OK && !(w->f = fdopen(fd, "wb"))) {
        rc = err_nomem(e, "a GGUF file");
        close(fd);
        unlink(w->temp);
    }
    if (rc != OK) {
        ggufw_abort(w);
        return rc;
    }
    setvbuf(w->f, NULL, _IOFBF, WRITE_BUF);
    *out = w;
    return OK;
}

/* ---- keys ---- */

static void put_u32(struct buf *b, uint32_t v) { buf_add(b, &v, 4); }
static void put_u64(struct buf *b, uint64_t v) { buf_add(b, &v, 8); }

/* A string in GGUF: its length (u64), then its bytes. */
static void put_str(struct buf *b, struct str s)
{
    put_u64(b, s.n);
    buf_put_str(b, s);
}

/* Adds a name to a set; false: no memory, or it is there already (then *twice). */
static bool add_name(struct ggufw *w, struct map *names, struct str name, bool *twice)
{
    int rc = name.p ? map_put(names, name, 0) : E_NOMEM;

    *twice = rc == MAP_REPLACED;
    if (rc < 0) note_nomem(w);
    return rc == MAP_ADDED;
}

/* Starts a key: its name. false: a failure was noted, nothing is to be written. */
static bool start_key(struct ggufw *w, const char *key)
{
    struct str name = arena_str(&w->arena, str_c(key));
    bool twice = false;

    if (w->n_tensors) note_failure(w, E_INTERNAL, "key '%.100s' comes after the tensors", key);
    else if (!*key) note_failure(w, E_INTERNAL, "a key has no name");
    else if (!add_name(w, &w->keys, name, &twice) && twice)
        note_failure(w, E_INTERNAL, "key '%.100s' is written twice", key);
    if (w->first.code != OK) return false;
    put_str(&w->meta, name);
    return true;
}

static void put_scalar(struct ggufw *w, const char *key, enum gguf_type type, const void *v,
                       size_t n)
{
    if (!start_key(w, key)) return;
    put_u32(&w->meta, type);
    buf_add(&w->meta, v, n);
}

/* A list: the type LIST, the type of elements, their number; the elements follow. */
static bool start_list(struct ggufw *w, const char *key, enum gguf_type elem, size_t n)
{
    if (!start_key(w, key)) return false;
    put_u32(&w->meta, GGUF_LIST);
    put_u32(&w->meta, elem);
    put_u64(&w->meta, n);
    return true;
}

static void put_list(struct ggufw *w, const char *key, enum gguf_type elem, const void *v, size_t n,
                     size_t size)
{
    if (start_list(w, key, elem, n)) buf_add(&w->meta, v, n * size);
}

void ggufw_u16(struct ggufw *w, const char *key, uint16_t v)
{
    put_scalar(w, key, GGUF_U16, &v, 2);
}
void ggufw_u32(struct ggufw *w, const char *key, uint32_t v)
{
    put_scalar(w, key, GGUF_U32, &v, 4);
}
void ggufw_u64(struct ggufw *w, const char *key, uint64_t v)
{
    put_scalar(w, key, GGUF_U64, &v, 8);
}
void ggufw_i32(struct ggufw *w, const char *key, int32_t v) { put_scalar(w, key, GGUF_I32, &v, 4); }
void ggufw_f32(struct ggufw *w, const char *key, float v) { put_scalar(w, key, GGUF_F32, &v, 4); }
void ggufw_bool(struct ggufw *w, const char *key, bool v) { put_scalar(w, key, GGUF_BOOL, &v, 1); }

void ggufw_str(struct ggufw *w, const char *key, struct str v)
{
    if (!start_key(w, key)) return;
    put_u32(&w->meta, GGUF_STR);
    put_str(&w->meta, v);
}

void ggufw_strs(struct ggufw *w, const char *key, const struct str *v, size_t n)
{
    if (!start_list(w, key, GGUF_STR, n)) return;
    for (size_t i = 0; i < n; i++) put_str(&w->meta, v[i]);
}

void ggufw_i32s(struct ggufw *w, const char *key, const int32_t *v, size_t n)
{
    put_list(w, key, GGUF_I32, v, n, 4);
}
void ggufw_u32s(struct ggufw *w, const char *key, const uint32_t *v, size_t n)
{
    put_list(w, key, GGUF_U32, v, n, 4);
}
void ggufw_f32s(struct ggufw *w, const char *key, const float *v, size_t n)
{
    put_list(w, key, GGUF_F32, v, n, 4);
}
void ggufw_u8s(struct ggufw *w, const char *key, const uint8_t *v, size_t n)
{
    put_list(w, key, GGUF_U8, v, n, 1);
}
void ggufw_bools(struct ggufw *w, const char *key, const bool *v, size_t n)
{
    put_list(w, key, GGUF_BOOL, v, n, 1);
}

bool ggufw_copy(struct ggufw *w, const struct source *from, const char *key)
{
    const struct gguf *g = source_gguf(from);
    struct str raw = g ? gguf_key_raw(g, str_c(key)) : str_of(NULL, 0);

    if (!raw.p) return false;
    if (start_key(w, key)) buf_put_str(&w->meta, raw);
    return true;
}

/* ---- tensors ---- */

/* false: GGUF cannot hold such a tensor. */
static bool find_tensor_bytes(enum dtype t, const int64_t *dims, int n_dims, uint64_t *bytes)
{
    if (n_dims < 1 || n_dims > SOURCE_MAX_DIMS || (int)t >= DT_F8_E4M3 || t == DT_I2_S)
        return false;
    for (int i = 0; i < n_dims; i++)
        if (dims[i] < 1) return false;
    if (!dtype_row_bytes(t, (uint64_t)dims[n_dims - 1], bytes)) return false;
    for (int i = 0; i + 1 < n_dims; i++)
        if (__builtin_mul_overflow(*bytes, (uint64_t)dims[i], bytes)) return false;
    return *bytes < INT64_MAX;
}

/* Offsets follow from the sizes, so the directory is complete before any data. GGUF lists the
 * fastest dimension first. */
void ggufw_tensor(struct ggufw *w, const char *name, enum dtype t, const int64_t *dims, int n_dims)
{
    struct str n = arena_str(&w->arena, str_c(name));
    uint64_t bytes = 0;
    bool twice = false;

    if (w->started) note_failure(w, E_INTERNAL, "tensor '%.100s' comes after the first data", name);
    else if (!*name) note_failure(w, E_INTERNAL, "a tensor has no name");
    else if (!add_name(w, &w->names, n, &twice) && twice)
        note_failure(w, E_INTERNAL, "tensor '%.100s' is written twice", name);
    else if (!find_tensor_bytes(t, dims, n_dims, &bytes))
        note_failure(w, E_UNSUPPORTED, "tensor '%.100s': GGUF cannot hold this shape as %s", name,
                     dtype_name((int)t));
    if (w->first.code == OK && !mem_ensure(w->tensors, w->cap, w->n_tensors + 1)) note_nomem(w);
    if (w->first.code != OK) return;

    put_str(&w->dir, n);
    put_u32(&w->dir, (uint32_t)n_dims);
    for (int i = n_dims - 1; i >= 0; i--) put_u64(&w->dir, (uint64_t)dims[i]);
    put_u32(&w->dir, (uint32_t)t);
    put_u64(&w->dir, w->next_offset);
    w->next_offset += bytes + count_padding(bytes);
    w->tensors[w->n_tensors++] = (struct ggufw_tensor){ n.p, bytes };
}

/* ---- the file ---- */

static void write_bytes(struct ggufw *w, const void *p, size_t n)
{
    if (w->first.code != OK || n == 0) return;
    if (fwrite(p, 1, n, w->f) != n) note_failure(w, E_IO, "%s", strerror(errno));
}

/* Zeros up to the next multiple of GGUF_ALIGN. */
static void write_padding(struct ggufw *w, uint64_t written)
{
    static const char zeros[GGUF_ALIGN];
    write_bytes(w, zeros, (size_t)count_padding(written));
}

/* Writes header, keys and directory before the first data. */
static void write_head(struct ggufw *w)
{
    struct buf head = { 0 };

    if (w->started) return;
    w->started = true;
    buf_puts(&head, "GGUF");
    put_u32(&head, 3);
    put_u64(&head, w->n_tensors);
    put_u64(&head, w->keys.n);
    if (head.failed || w->meta.failed || w->dir.failed) note_nomem(w);
    write_bytes(w, head.p, head.n);
    write_bytes(w, w->meta.p, w->meta.n);
    write_bytes(w, w->dir.p, w->dir.n);
    write_padding(w, head.n + w->meta.n + w->dir.n);
    buf_release(&head);
}

/* A chunk may end within a tensor or cover several; each tensor is padded when its last byte came. */
void ggufw_data(struct ggufw *w, const void *p, size_t n)
{
    const char *from = p;

    write_head(w);
    while (n && w->first.code == OK) {
        if (w->at == w->n_tensors) {
            note_failure(w, E_INTERNAL, "%zu bytes more than the tensors have", n);
            return;
        }
        const struct ggufw_tensor *t = &w->tensors[w->at];
        size_t part = n < t->bytes - w->done_bytes ? n : (size_t)(t->bytes - w->done_bytes);
        write_bytes(w, from, part);
        from += part;
        n -= part;
        w->done_bytes += part;
        if (w->done_bytes == t->bytes) {
            write_padding(w, t->bytes);
            w->at++;
            w->done_bytes = 0;
        }
    }
}

int ggufw_close(struct ggufw *w, struct err *e)
{
    int rc;

    write_head(w);
    if (w->at < w->n_tensors)
        note_failure(w, E_INTERNAL, "tensor '%.100s' got %llu of its %llu bytes",
                     w->tensors[w->at].name, (unsigned long long)w->done_bytes,
                     (unsigned long long)w->tensors[w->at].bytes);
    if (fclose(w->f) != 0) note_failure(w, E_IO, "%s", strerror(errno));
    if (w->first.code == OK) file_rename(w->temp, w->path, &w->first);
    if (w->first.code != OK) unlink(w->temp);
    rc = w->first.code;
    if (rc != OK) err_set(e, rc, "%s", w->first.msg);
    free_writer(w);
    return rc;
}
