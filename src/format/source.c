#include "format/source.h"

#include "base/file.h"
#include "base/mem.h"
#include "format/gguf.h"
#include "format/hfconfig.h"
#include "format/modelref.h"
#include "format/onnxfile.h"
#include "format/safetensors.h"

#include <ctype.h>

struct source {
    enum source_kind kind;
    char *path;
    char *dir; /* where companion files lie; NULL: nowhere */
    struct gguf *gguf;
    struct safetensors *tensors;
    struct hfconfig *config; /* NULL: a lone .safetensors or .onnx file */
    char *onnx;              /* the model's graph; NULL: it has none */
    uint64_t onnx_bytes;
};

static int unknown_file(const char *path, const unsigned char *p, size_t n, struct err *e)
{
    struct buf seen = { 0 };
    int rc;

    for (size_t i = 0; i < n; i++) buf_printf(&seen, "%s%02x", i ? " " : "", p[i]);
    buf_puts(&seen, " '");
    for (size_t i = 0; i < n; i++) buf_putc(&seen, isprint(p[i]) && p[i] < 0x80 ? (char)p[i] : '.');
    buf_putc(&seen, '\'');
    rc = err_set(e, E_FORMAT,
                 "%s: begins with the bytes %s, expected a GGUF file, a safetensors file, an "
                 "ONNX file or a Hugging Face folder",
                 path, n ? buf_cstr(&seen) : "of an empty file");
    buf_release(&seen);
    return rc;
}

/* The file that tern.json names; empty: it names none. */
static struct str onnx_named(const struct source *s)
{
    struct value v;
    return hfconfig_key(s->config, "tern:file", &v) && v.kind == VALUE_STR ? v.s : str_of(NULL, 0);
}

static int open_folder(struct source *s, struct err *e)
{
    int rc = hfconfig_open(&s->config, s->path, e);

    if (rc != OK) return rc;
    s->kind = SOURCE_HF;
    s->dir = mem_strdup(s->path);
    if ((rc = onnxfile_find(&s->onnx, s->path, onnx_named(s), e)) != OK) return rc;
    if (s->onnx) {
        s->onnx_bytes = onnxfile_bytes(s->onnx);
        return OK;
    }
    return safetensors_open_dir(&s->tensors, s->path, e);
}

/* The path of the source becomes that of the folder with its companions. */
static int open_onnx(struct source *s, struct err *e)
{
    char *dir = onnxfile_folder(s->path), *config = path_join(dir, "config.json"),
         *card = path_join(dir, "tern.json");
    int rc = OK;

    s->kind = SOURCE_HF;
    s->onnx = s->path;
    s->onnx_bytes = onnxfile_bytes(s->onnx);
    s->path = mem_strdup(dir);
    if (file_exists(config) || file_exists(card)) {
        s->dir = mem_strdup(dir);
        rc = hfconfig_open(&s->config, s->dir, e);
    }
    mem_free(dir);
    mem_free(config);
    mem_free(card);
    return rc;
}

static int open_safetensors(struct source *s, struct err *e)
{
    size_t n = (size_t)(path_base(s->path) - s->path);
    char *dir = n ? mem_dup(s->path, n + 1) : mem_strdup(".");
    char *config;
    int rc = safetensors_open(&s->tensors, s->path, e);

    if (n) dir[n] = 0;
    config = path_join(dir, "config.json");
    s->kind = SOURCE_HF;
    if (rc == OK && file_exists(config)) {
        s->dir = dir;
        dir = NULL;
        rc = hfconfig_open(&s->config, s->dir, e);
    }
    mem_free(dir);
    mem_free(config);
    return rc;
}

static int open_file(struct source *s, struct err *e)
{
    struct filemap m = { 0 };
    unsigned char head[9] = { 0 };
    size_t n, size;
    int rc = filemap_open(&m, s->path, e);

    if (rc != OK) return rc;
    size = m.n;
    n = size < sizeof head ? size : sizeof head;
    if (n) memcpy(head, m.p, n);
    filemap_release(&m);
    if (n >= 4 && memcmp(head, "GGUF", 4) == 0) return gguf_open(&s->gguf, s->path, e);
    if (safetensors_looks(head, n, size) || str_ends(str_c(s->path), STR(".safetensors")))
        return open_safetensors(s, e);
    if (onnxfile_looks(head, n) || str_ends(str_c(s->path), STR(".onnx"))) return open_onnx(s, e);
    return unknown_file(s->path, head, n < 8 ? n : 8, e);
}

int source_open(struct source **out, const char *path, struct err *e)
{
    struct source *s = mem_new(struct source);
    int rc = OK;

    if (modelref_is(str_c(path)) && !file_exists(path))
        rc = modelref_resolve(&s->path, str_c(path), e);
    else s->path = mem_strdup(path);
    if (rc == OK) rc = file_is_dir(s->path) ? open_folder(s, e) : open_file(s, e);
    if (rc == OK) *out = s;
    else source_close(s);
    return rc;
}

void source_close(struct source *s)
{
    if (!s) return;
    gguf_close(s->gguf);
    safetensors_close(s->tensors);
    hfconfig_close(s->config);
    mem_free(s->path);
    mem_free(s->onnx);
    mem_free(s->dir);
    mem_free(s);
}

enum source_kind source_kind(const struct source *s) { return s->kind; }
const char *source_path(const struct source *s) { return s->path; }
const struct gguf *source_gguf(const struct source *s) { return s->gguf; }
const char *source_onnx(const struct source *s) { return s->onnx; }

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
    if (s->onnx) return NULL;
    return s->gguf ? gguf_find(s->gguf, str_c(name)) : safetensors_find(s->tensors, str_c(name));
}

uint64_t source_bytes(const struct source *s)
{
    uint64_t sum = s->onnx_bytes;

    for (size_t i = 0; i < source_n_tensors(s); i++) sum += source_tensor(s, i)->bytes;
    return sum;
}

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
