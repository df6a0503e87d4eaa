/* safetens.h - for tests: writes small Hugging Face folders tensor by tensor.
 *
 * folder_begin, folder_add for each tensor, then folder_end writes model.safetensors and
 * config.json. */
#ifndef TERN_TESTS_SAFETENS_H
#define TERN_TESTS_SAFETENS_H

#include "base/buf.h"
#include "base/dtype.h"
#include "base/file.h"
#include "base/mem.h"
#include "format/source.h"
#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

struct folder {
    struct buf head, data;
    char dir[256];
};

static inline void folder_begin(struct folder *f, const char *name)
{
    *f = (struct folder){ 0 };
    snprintf(f->dir, sizeof f->dir, "%s/%s", temp_dir(), name);
    mkdir(f->dir, 0755);
}

static inline void folder_add(struct folder *f, const char *name, const char *type,
                              const int64_t *dims, int n_dims, const void *data, size_t bytes)
{
    buf_printf(&f->head, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", f->head.n ? "," : "", name,
               type);
    for (int i = 0; i < n_dims; i++)
        buf_printf(&f->head, "%s%lld", i ? "," : "", (long long)dims[i]);
    buf_printf(&f->head, "],\"data_offsets\":[%zu,%zu]}", f->data.n, f->data.n + bytes);
    if (data) buf_add(&f->data, data, bytes);
    else
        for (size_t i = 0; i < bytes; i++) buf_putc(&f->data, 0);
}

/* Adds a matrix of bf16 zeros; cols 0: a vector. */
static inline void folder_zeros(struct folder *f, const char *name, int rows, int cols)
{
    int64_t dims[2] = { rows, cols };
    folder_add(f, name, "BF16", dims, cols ? 2 : 1, NULL,
               (size_t)rows * (size_t)(cols ? cols : 1) * 2);
}

static inline void folder_write(const struct folder *f, const char *name, struct str text)
{
    char *path = path_join(f->dir, name);
    assert_int_equal(file_replace(path, text, NULL), OK);
    mem_free(path);
}

/* Writes the folder. The returned path is valid as long as f. */
static inline const char *folder_end(struct folder *f, struct str config)
{
    struct buf all = { 0 };
    uint64_t n = f->head.n + 2;
    buf_add(&all, &n, 8);
    buf_putc(&all, '{');
    buf_put_str(&all, buf_str(&f->head));
    buf_putc(&all, '}');
    buf_put_str(&all, buf_str(&f->data));
    folder_write(f, "model.safetensors", buf_str(&all));
    folder_write(f, "config.json", config);
    buf_release(&all);
    buf_release(&f->head);
    buf_release(&f->data);
    return f->dir;
}
#endif
