/* manifest.c - the text of a manifest: reading, writing, and the list of files. The files of a model
 * are in manifest_model.c. */
#include "format/manifest.h"

#include "base/file.h"
#include "base/mem.h"

#include <stdlib.h>

enum {
    MAX_BYTES = 4 << 20, /* of a manifest */
    MAX_FILES = 20000,
    MAX_NAME = 1024
};

void manifest_release(struct manifest *m)
{
    for (size_t i = 0; i < m->n; i++) mem_free(m->files[i].name);
    mem_free(m->files);
    *m = (struct manifest){ 0 };
}

/* Components are neither empty nor "." nor "..", and no character needs sha256sum's escapes. */
static bool is_name(struct str s)
{
    size_t from = 0;

    if (s.n == 0 || s.n > MAX_NAME) return false;
    for (size_t i = 0; i <= s.n; i++) {
        struct str part = str_of(s.p + from, i - from);
        if (i < s.n && ((unsigned char)s.p[i] < ' ' || s.p[i] == '\\' || s.p[i] == 0x7f))
            return false;
        if (i < s.n && s.p[i] != '/') continue;
        if (part.n == 0 || str_is(part, ".") || str_is(part, "..")) return false;
        from = i + 1;
    }
    return true;
}

static int add_file(struct manifest *m, struct str name, const struct manifest_file *f,
                    struct err *e)
{
    struct manifest_file *to;

    if (!mem_ensure(m->files, m->cap, m->n + 1)) return err_nomem(e, "a manifest");
    to = &m->files[m->n];
    *to = *f;
    if (!(to->name = mem_alloc(name.n + 1))) return err_nomem(e, "a manifest");
    memcpy(to->name, name.p, name.n);
    m->n++;
    return OK;
}

int manifest_add(struct manifest *m, struct str name, uint64_t bytes,
                 const unsigned char sum[CRYPTO_SUM], struct err *e)
{
    struct manifest_file f = { .bytes = bytes, .has_bytes = bytes != UINT64_MAX };

    if (!is_name(name))
        return err_set(e, E_INVALID, "'%.*s': not a name that a manifest can have",
                       STR_ARG(str_take(name, 100)));
    memcpy(f.sum, sum, sizeof f.sum);
    return add_file(m, name, &f, e);
}

const struct manifest_file *manifest_get(const struct manifest *m, const char *name)
{
    for (size_t i = 0; i < m->n; i++)
        if (strcmp(m->files[i].name, name) == 0) return &m->files[i];
    return NULL;
}

static int compare_files(const void *a, const void *b)
{
    return strcmp(((const struct manifest_file *)a)->name, ((const struct manifest_file *)b)->name);
}

/* By bytes, not by locale: the file is the same on every machine. */
static void sort_files(struct manifest *m)
{
    if (m->n) qsort(m->files, m->n, sizeof *m->files, compare_files);
}

/* ---- reading ---- */

struct reader {
    struct manifest *m;
    const char *path;
    int line;
    uint64_t bytes; /* of the next file */
    bool has_bytes;
};

static int fail_line(const struct reader *r, const char *what, struct err *e)
{
    return err_set(e, E_FORMAT, "%s: line %d: %s", r->path, r->line, what);
}

/* "# 1432576 bytes" is the size of the next file; other comments are skipped. */
static int read_comment(struct reader *r, struct str line, struct err *e)
{
    struct str s = str_trim(str_skip(line, 1));
    int64_t n;

    if (!str_ends(s, STR(" bytes"))) return OK;
    s.n -= strlen(" bytes");
    if (s.n == 0 || s.p[0] < '0' || s.p[0] > '9') return OK;
    if (!str_to_i64(s, &n)) return fail_line(r, "expected a number of bytes below 2^63", e);
    if (r->has_bytes) return fail_line(r, "the size of a file is given twice", e);
    r->bytes = (uint64_t)n;
    r->has_bytes = true;
    return OK;
}

/* "SUM  NAME", or with an asterisk before the name (sha256sum --binary). */
static int read_file_line(struct reader *r, struct str line, struct err *e)
{
    struct manifest_file f = { .line = r->line, .bytes = r->bytes, .has_bytes = r->has_bytes };
    struct str name = str_skip(line, 2 * CRYPTO_SUM + 2);
    const char *p = line.p;

    if (line.n < 2 * CRYPTO_SUM + 3 || p[2 * CRYPTO_SUM] != ' ' ||
        (p[2 * CRYPTO_SUM + 1] != ' ' && p[2 * CRYPTO_SUM + 1] != '*') ||
        !crypto_unhex(f.sum, CRYPTO_SUM, str_take(line, 2 * CRYPTO_SUM)))
        return fail_line(r, "expected a SHA-256 of 64 hex digits, two spaces and a file name", e);
    if (str_starts(name, STR("./"))) name = str_skip(name, 2);
    if (!is_name(name))
        return fail_line(r,
                         "expected the name of a file inside the folder, without '..', '\\' and "
                         "control characters",
                         e);
    if (r->m->n >= MAX_FILES) return fail_line(r, "more than 20000 files", e);
    r->has_bytes = false;
    return add_file(r->m, name, &f, e);
}

/* Sorted: two of the same name are neighbours. */
static int check_twice(const struct manifest *m, const char *path, struct err *e)
{
    for (size_t i = 1; i < m->n; i++)
        if (strcmp(m->files[i - 1].name, m->files[i].name) == 0)
            return err_set(e, E_FORMAT, "%s: lines %d and %d: '%.200s' is listed twice", path,
                           m->files[i - 1].line, m->files[i].line, m->files[i].name);
    return OK;
}

int manifest_parse(struct manifest *m, struct str text, const char *path, struct err *e)
{
    struct reader r = { .m = m, .path = path };
    int rc = OK;

    while (text.n > 0 && rc == OK) {
        const char *end = memchr(text.p, '\n', text.n);
        struct str line = str_of(text.p, end ? (size_t)(end - text.p) : text.n);

        text = str_skip(text, line.n + 1);
        r.line++;
        if (line.n && line.p[line.n - 1] == '\r') line.n--;
        if (line.n == 0) continue;
        rc = line.p[0] == '#' ? read_comment(&r, line, e) : read_file_line(&r, line, e);
    }
    if (rc == OK && r.has_bytes) rc = fail_line(&r, "a size without a file after it", e);
    if (rc == OK && m->n == 0) rc = err_set(e, E_FORMAT, "%s: lists no file", path);
    if (rc != OK) return rc;
    sort_files(m);
    return check_twice(m, path, e);
}

int manifest_read(struct manifest *m, const char *path, struct err *e)
{
    struct buf text = { 0 };
    int rc = file_read(&text, path, MAX_BYTES, e);

    if (rc == OK) rc = manifest_parse(m, buf_str(&text), path, e);
    buf_release(&text);
    return rc;
}

/* ---- writing ---- */

int manifest_save(struct manifest *m, const char *path, struct err *e)
{
    struct buf out = { 0 };
    char hex[CRYPTO_HEX];
    int rc;

    sort_files(m);
    for (size_t i = 0; i < m->n; i++) {
        const struct manifest_file *f = &m->files[i];
        crypto_hex(hex, f->sum, CRYPTO_SUM);
        if (f->has_bytes) buf_printf(&out, "# %llu bytes\n", (unsigned long long)f->bytes);
        buf_printf(&out, "%s  %s\n", hex, f->name);
    }
    rc = buf_check(&out, e);
    if (rc == OK) rc = file_replace(path, buf_str(&out), e);
    buf_release(&out);
    return rc;
}
