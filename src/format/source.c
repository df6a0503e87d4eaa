/* source.c - recognizes the format of a model and forwards to its reader. */
#include "format/source.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "format/gguf.h"
#include "format/hfconfig.h"
#include "format/hfquant.h"
#include "format/modelref.h"
#include "format/onnxfile.h"
#include "format/safetensors.h"

#include <ctype.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

/* The one part of a source that changes once it is open. */
struct damage {
    atomic_bool is; /* reason is written, and stays */
    pthread_mutex_t lock;
    char reason[sizeof(((struct err *)0)->msg)];
    atomic_uint_least64_t looked_ns; /* when the files were looked at */
    source_check_fn *check;          /* source_watch */
    const void *arg;
};

enum { LOOK_NS = 1000000000 };

struct source {
    struct damage *damage;
    enum source_kind kind;
    char *path;        /* of the file or folder; of an ONNX file: of its folder */
    char *dir;         /* the folder with config.json; NULL: none */
    struct gguf *gguf; /* one of gguf, tensors and onnx is set */
    struct safetensors *tensors;
    char *onnx; /* path of the ONNX file */
    uint64_t onnx_bytes;
    struct hfquant *quant;   /* NULL: the folder is not quantized */
    struct hfconfig *config; /* NULL: GGUF, or a .safetensors or .onnx file without config.json */
};

#define EXPECTED_FORMATS "a GGUF file, a safetensors file, an ONNX file or a Hugging Face folder"

enum { HEAD_BYTES = 9 }; /* first bytes of a file that tell its format */

static int fail_unknown(const char *path, const unsigned char *p, size_t n, struct err *e)
{
    char hex[3 * HEAD_BYTES + 1] = "", text[HEAD_BYTES + 1] = "";

    if (n == 0)
        return err_set(e, E_FORMAT, "%s: is an empty file, expected " EXPECTED_FORMATS, path);
    if (n > 8) n = 8;
    for (size_t i = 0; i < n; i++) {
        snprintf(hex + 3 * i, sizeof hex - 3 * i, "%02x ", p[i]);
        text[i] = isprint(p[i]) && p[i] < 0x80 ? (char)p[i] : '.';
    }
    return err_set(e, E_FORMAT, "%s: begins with the bytes %s'%s', expected " EXPECTED_FORMATS,
                   path, hex, text);
}

/* The ONNX file that tern.json names; empty: none. */
static struct str find_named_onnx(const struct source *s)
{
    struct value v;
    return hfconfig_key(s->config, "tern:file", &v) && v.kind == VALUE_STR ? v.s : str_of(NULL, 0);
}

/* Configuration first: its tern.json may name the ONNX file. A folder has an ONNX model or
 * safetensors. */
static int open_folder(struct source *s, struct err *e)
{
    int rc = hfconfig_open(&s->config, s->path, e);

    if (rc != OK) return rc;
    s->kind = SOURCE_HF;
    if (!(s->dir = mem_strdup(s->path))) return err_nomem(e, "the path of a model");
    if ((rc = onnxfile_find(&s->onnx, s->path, find_named_onnx(s), e)) != OK) return rc;
    if (s->onnx) {
        s->onnx_bytes = onnxfile_bytes(s->onnx);
        return OK;
    }
    rc = safetensors_open_dir(&s->tensors, s->path, e);
    return rc == OK ? hfquant_open(&s->quant, s->config, s->tensors, e) : rc;
}

/* Reads the configuration in dir where it has one of the two files, and takes dir over; otherwise
 * frees it. NULL: no memory. name2 may be NULL. */
static int open_config_beside(struct source *s, char *dir, const char *name, const char *name2,
                              struct err *e)
{
    char *config = dir ? path_join(dir, name) : NULL;
    char *other = dir && name2 ? path_join(dir, name2) : NULL;
    int rc = OK;

    if (!config || (name2 && !other)) {
        rc = err_nomem(e, "the path of a model");
    } else if (file_exists(config) || (other && file_exists(other))) {
        s->dir = dir;
        dir = NULL;
        rc = hfconfig_open(&s->config, s->dir, e);
    }
    mem_free(dir);
    mem_free(config);
    mem_free(other);
    return rc;
}

/* The path of the source becomes that of the folder: that is where its tokenizer is. */
static int open_onnx(struct source *s, struct err *e)
{
    char *dir = onnxfile_folder(s->path);

    s->kind = SOURCE_HF;
    s->onnx = s->path;
    s->onnx_bytes = onnxfile_bytes(s->onnx);
    s->path = dir ? mem_strdup(dir) : NULL;
    if (!s->path) {
        mem_free(dir);
        return err_nomem(e, "the path of a model");
    }
    return open_config_beside(s, dir, "config.json", "tern.json", e);
}

/* A lone file works without config.json, for tensors only; with one beside it it is a model. */
static int open_safetensors(struct source *s, struct err *e)
{
    size_t n = (size_t)(path_base(s->path) - s->path);
    char *dir;
    int rc = safetensors_open(&s->tensors, s->path, e);

    s->kind = SOURCE_HF;
    if (rc != OK) return rc;
    dir = n ? mem_dup(s->path, n + 1) : mem_strdup(".");
    if (dir && n) dir[n] = 0;
    rc = open_config_beside(s, dir, "config.json", NULL, e);
    return rc == OK ? hfquant_open(&s->quant, s->config, s->tensors, e) : rc;
}

/* By the first bytes; the name counts only where they do not tell. The map is released again: each
 * reader maps the file itself. */
static int open_file(struct source *s, struct err *e)
{
    struct filemap m = { 0 };
    unsigned char head[HEAD_BYTES] = { 0 };
    size_t n, size;
    int rc = filemap_open_head(&m, s->path, sizeof head, e);

    if (rc != OK) return rc;
    size = m.n;
    n = size < sizeof head ? size : sizeof head;
    if (n) memcpy(head, m.p, n);
    filemap_release(&m);
    if (n >= 4 && memcmp(head, "GGUF", 4) == 0) {
        rc = gguf_open(&s->gguf, s->path, e);
        return rc == OK ? hfquant_open_gguf(&s->quant, s->gguf, e) : rc;
    }
    if (safetensors_looks(head, n, size) || str_ends(str_c(s->path), STR(".safetensors")))
        return open_safetensors(s, e);
    if (onnxfile_looks(head, n) || str_ends(str_c(s->path), STR(".onnx"))) return open_onnx(s, e);
    return fail_unknown(s->path, head, n, e);
}

static struct source *new_source(void)
{
    struct source *s = mem_new(struct source);

    if (s && (s->damage = mem_new(struct damage))) {
        pthread_mutex_init(&s->damage->lock, NULL);
        return s;
    }
    mem_free(s);
    return NULL;
}

int source_open_head(struct source **out, const char *path, struct err *e)
{
    struct source *s = new_source();
    int rc = OK;

    if (!s) return err_nomem(e, "a model file");
    if (modelref_is(str_c(path)) && !file_exists(path))
        rc = modelref_resolve(&s->path, str_c(path), e);
    else if (!(s->path = mem_strdup(path))) rc = err_nomem(e, "the path of a model");
    if (rc == OK) rc = file_is_dir(s->path) ? open_folder(s, e) : open_file(s, e);
    if (rc == OK && source_is_damaged(s, e)) rc = E_DAMAGED; /* while its header was read */
    if (rc == OK) *out = s;
    else source_close(s);
    return rc;
}

int source_open(struct source **out, const char *path, struct err *e)
{
    struct source *s = NULL;
    int rc = source_open_head(&s, path, e);

    if (rc == OK) rc = source_fill(s, NULL, NULL, e);
    if (rc == OK) *out = s;
    else source_close(s);
    return rc;
}

struct filling {
    source_progress_fn *progress;
    void *arg;
    uint64_t done, total;
};

static void count_step(void *arg, uint64_t bytes)
{
    struct filling *f = arg;

    f->done += bytes;
    if (f->progress) f->progress(f->arg, f->done, f->total);
}

int source_fill(struct source *s, source_progress_fn *progress, void *arg, struct err *e)
{
    struct filling f = { .progress = progress, .arg = arg };

    if (s->gguf) f.total = gguf_unfilled(s->gguf);
    else if (s->tensors) f.total = safetensors_unfilled(s->tensors);
    if (f.total == 0) return OK;
    return s->gguf ? gguf_fill(s->gguf, count_step, &f, e)
                   : safetensors_fill(s->tensors, count_step, &f, e);
}

bool source_is_sealed(const struct source *s)
{
    return s->gguf ? gguf_is_sealed(s->gguf) : s->tensors && safetensors_is_sealed(s->tensors);
}

void source_close(struct source *s)
{
    if (!s) return;
    pthread_mutex_destroy(&s->damage->lock);
    mem_free(s->damage);
    hfquant_close(s->quant);
    gguf_close(s->gguf);
    safetensors_close(s->tensors);
    hfconfig_close(s->config);
    mem_free(s->path);
    mem_free(s->onnx);
    mem_free(s->dir);
    mem_free(s);
}

/* ---- damage ---- */

void source_watch(struct source *s, source_check_fn *check, const void *arg)
{
    s->damage->check = check;
    s->damage->arg = arg;
}

void source_set_damaged(const struct source *s, const char *reason)
{
    struct damage *d = s->damage;

    pthread_mutex_lock(&d->lock);
    if (!atomic_load(&d->is)) {
        snprintf(d->reason, sizeof d->reason, "%s", reason);
        atomic_store(&d->is, true);
    }
    pthread_mutex_unlock(&d->lock);
}

static int check_files(const struct source *s, bool look, struct err *e)
{
    int rc = s->gguf      ? gguf_check(s->gguf, look, e)
             : s->tensors ? safetensors_check(s->tensors, look, e)
                          : OK;

    return rc == OK && s->damage->check ? s->damage->check(s->damage->arg, look, e) : rc;
}

bool source_is_damaged(const struct source *s, struct err *e)
{
    struct damage *d = s->damage;
    struct err why;

    if (!atomic_load(&d->is)) {
        uint64_t now = clock_ns(), then = atomic_load(&d->looked_ns);
        bool look = now - then >= LOOK_NS;
        if (look) atomic_store(&d->looked_ns, now);
        if (check_files(s, look, &why) == OK) return false;
        source_set_damaged(s, why.msg);
    }
    err_set(e, E_DAMAGED, "%s", d->reason);
    return true;
}

enum source_kind source_kind(const struct source *s) { return s->kind; }
const char *source_path(const struct source *s) { return s->path; }
const struct gguf *source_gguf(const struct source *s) { return s->gguf; }
const char *source_onnx(const struct source *s) { return s->onnx; }

/* Without a folder there is nothing beside the model. */
char *source_file(const struct source *s, const char *name)
{
    char *path = s->dir ? path_join(s->dir, name) : NULL;

    if (path && file_exists(path)) return path;
    mem_free(path);
    return NULL;
}

size_t source_n_tensors(const struct source *s)
{
    return s->gguf ? gguf_n_tensors(s->gguf) : s->tensors ? safetensors_n_tensors(s->tensors) : 0;
}

const struct source_tensor *source_tensor(const struct source *s, size_t i)
{
    return s->gguf ? gguf_tensor(s->gguf, i) : safetensors_tensor(s->tensors, i);
}

const struct source_tensor *source_find(const struct source *s, const char *name)
{
    const struct source_tensor *t = hfquant_find(s->quant, str_c(name));

    if (t || s->onnx) return t;
    return s->gguf ? gguf_find(s->gguf, str_c(name)) : safetensors_find(s->tensors, str_c(name));
}

const struct hfquant *source_quant(const struct source *s) { return s->quant; }

bool source_quant_method(const struct source *s, struct str *out)
{
    return s->config && hfquant_method(s->config, out);
}

uint64_t source_bytes(const struct source *s)
{
    uint64_t sum = s->onnx_bytes;

    for (size_t i = 0; i < source_n_tensors(s); i++) sum += source_tensor(s, i)->bytes;
    return sum;
}

/* "metadata:" is answered by the safetensors header, all else by the configuration. */
bool source_key(const struct source *s, const char *key, struct value *out)
{
    static const char metadata[] = "metadata:";

    if (s->gguf) return gguf_key(s->gguf, str_c(key), out);
    if (strncmp(key, metadata, sizeof metadata - 1) == 0) {
        *out = (struct value){ .kind = VALUE_STR };
        return s->tensors && safetensors_meta(s->tensors, key + sizeof metadata - 1, &out->s);
    }
    return s->config && hfconfig_key(s->config, key, out);
}

size_t source_n_keys(const struct source *s)
{
    return s->gguf ? gguf_n_keys(s->gguf) : s->config ? hfconfig_n_keys(s->config) : 0;
}

const char *source_key_name(const struct source *s, size_t i)
{
    return s->gguf ? gguf_key_name(s->gguf, i) : hfconfig_key_name(s->config, i);
}

bool value_u64(const struct value *v, uint64_t *out)
{
    int64_t i;

    if (v->kind == VALUE_UINT) *out = v->u;
    else if (value_i64(v, &i) && i >= 0) *out = (uint64_t)i;
    else return false;
    return true;
}

/* A real number converts only if it is an integer in range. */
bool value_i64(const struct value *v, int64_t *out)
{
    switch (v->kind) {
    case VALUE_INT: *out = v->i; return true;
    case VALUE_UINT: *out = (int64_t)v->u; return v->u <= INT64_MAX;
    case VALUE_FLOAT:
        if (!(v->f >= -0x1p63 && v->f < 0x1p63) || (double)(int64_t)v->f != v->f) return false;
        *out = (int64_t)v->f;
        return true;
    default: return false;
    }
}

/* An integer converts only if the double is exactly equal to it. */
bool value_f64(const struct value *v, double *out)
{
    switch (v->kind) {
    case VALUE_FLOAT: *out = v->f; return true;
    case VALUE_INT: *out = (double)v->i; return *out < 0x1p63 && (int64_t)*out == v->i;
    case VALUE_UINT: *out = (double)v->u; return *out < 0x1p64 && (uint64_t)*out == v->u;
    default: return false;
    }
}

bool source_u64(const struct source *s, const char *key, uint64_t *out)
{
    struct value v;
    return source_key(s, key, &v) && value_u64(&v, out);
}

bool source_i64(const struct source *s, const char *key, int64_t *out)
{
    struct value v;
    return source_key(s, key, &v) && value_i64(&v, out);
}

bool source_f64(const struct source *s, const char *key, double *out)
{
    struct value v;
    return source_key(s, key, &v) && value_f64(&v, out);
}

bool source_bool(const struct source *s, const char *key, bool *out)
{
    struct value v;

    if (!source_key(s, key, &v) || v.kind != VALUE_BOOL) return false;
    *out = v.b;
    return true;
}

bool source_str(const struct source *s, const char *key, struct str *out)
{
    struct value v;

    if (!source_key(s, key, &v) || v.kind != VALUE_STR) return false;
    *out = v.s;
    return true;
}
