/* registry_scan.c - the models below a folder.
 *
 * A GGUF or ONNX file is a model; a folder with config.json and weights is one; a folder whose only
 * model is a GGUF file is one that has the folder's name. Other folders are descended into, up to
 * SCAN_DEPTH levels, and name their models folder/name. Hidden names are not looked at.
 *
 * The folder's contents are foreign: every name is checked before it is used, links are followed
 * only to places inside the folder, and depth and counts are bounded. What is refused is logged
 * once and left out; only the lack of memory ends a scan. Names are read in sorted order, so two
 * scans of one folder give the same list. */
#include "base/buf.h"
#include "base/confine.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "pool/modelname.h"
#include "pool/registry_impl.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

enum {
    SCAN_DEPTH = 2,     /* levels of folders below the root whose files are listed */
    SCAN_NAMES = 65536, /* names that are looked at */
    WARNED_MAX = 1000   /* paths that are warned about */
};

/* A name of a folder. */
struct entry {
    char *name;
    enum file_kind kind; /* of files */
    bool is_folder, is_link;
};

/* A folder while it is looked at. */
struct folder {
    char *path, *real, *rel; /* rel: below the root, "" for the root itself */
    bool is_link;            /* it, or a folder above it, is a link */
    int depth;
    struct entry *entries; /* [n], without those that were refused */
    int n, cap;
    int n_gguf, n_folders; /* entries that are GGUF models, and folders */
    bool config, safetensors, onnx, onnx_folder;
};

/* ---- warnings ---- */

/* Text for the log: control characters and bytes that are not UTF-8 are shown as '?'. */
static void put_shown(struct buf *b, const char *text)
{
    for (struct str s = str_c(text); s.n && b->n < 600;) {
        int32_t cp;
        int n = utf8_next(s, &cp);

        if (cp < 0x20 || cp == 0x7f) buf_putc(b, '?');
        else buf_put_str(b, str_take(s, (size_t)n));
        s = str_skip(s, (size_t)n);
    }
}

/* Notes the path. One for which there is no memory is warned about again. */
static bool was_warned(struct scan_warned *w, const char *path)
{
    char *key;

    if (map_get(&w->map, str_c(path), NULL) || w->n >= WARNED_MAX) return true;
    if (!mem_ensure(w->paths, w->cap, w->n + 1) || !(key = mem_strdup(path))) return false;
    if (map_put(&w->map, str_c(key), 1) == MAP_ADDED) w->paths[w->n++] = key;
    else mem_free(key);
    return false;
}

void scan_warned_release(struct scan_warned *w)
{
    while (w->n > 0) mem_free(w->paths[--w->n]);
    mem_free(w->paths);
    map_release(&w->map);
}

void scan_warn(struct scan *s, const char *path, const char *what)
{
    struct buf b = { 0 };

    s->n_refused++;
    if (was_warned(s->warned, path)) return;
    put_shown(&b, path);
    buf_printf(&b, ": %s", what);
    buf_putc(&b, 0);
    if (!b.failed) confine_clean(b.p);
    log_warn("folder of models: %s", buf_cstr(&b));
    buf_release(&b);
}

/* ---- one name ---- */

/* The reason why a name cannot be that of a model; NULL: it can. */
static const char *refuse_name(struct str name)
{
    if (utf8_bad(name) >= 0) return "the name is not UTF-8; it is left out";
    for (size_t i = 0; i < name.n; i++)
        if ((unsigned char)name.p[i] < 0x20 || name.p[i] == 0x7f)
            return "the name has control characters; it is left out";
    return NULL;
}

/* A link is followed only to a place inside the root, and not to a folder that contains it. */
static const char *refuse_link(const struct folder *f, const char *path)
{
    char real[PATH_MAX];
    struct stat st;

    if (!file_stat(path, &st) && errno == EXDEV)
        return "a symbolic link that leaves the folder of models; it is left out";
    if (!realpath(path, real))
        return errno == ELOOP    ? "a symbolic link in a loop; it is left out"
               : errno == ENOENT ? "a symbolic link to nothing; it is left out"
                                 : "a symbolic link that cannot be followed; it is left out";
    if (place_is_inside(real, f->real)) return "a symbolic link to a folder above it; left out";
    return NULL;
}

/* Fills e for the file at path; false: it was refused. */
static bool look_at(struct scan *s, const struct folder *f, const char *path, struct entry *e)
{
    const char *why = refuse_name(str_c(e->name));
    struct stat st = { 0 };
    char text[100];

    if (!why && lstat(path, &st) != 0) why = "cannot be read; it is left out";
    if (!why && S_ISLNK(st.st_mode)) {
        e->is_link = true;
        why = refuse_link(f, path);
        if (!why && !file_stat(path, &st)) {
            if (place_is_shortage(errno)) s->shortage = errno;
            why = "cannot be read; it is left out";
        }
    }
    if (!why && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)) {
        snprintf(text, sizeof text, "%s; it is left out", place_type_name(st.st_mode));
        why = text;
    }
    if (why) {
        if (!s->shortage) scan_warn(s, path, why);
        return false;
    }
    e->is_folder = S_ISDIR(st.st_mode);
    if (!e->is_folder) e->kind = file_kind_of(str_c(e->name));
    return true;
}

/* ---- one folder ---- */

static void release_folder(struct folder *f)
{
    for (int i = 0; i < f->n; i++) mem_free(f->entries[i].name);
    mem_free(f->entries);
    mem_free(f->path);
    mem_free(f->real);
    mem_free(f->rel);
}

static int add_entry(struct scan *s, struct folder *f, const char *name, struct err *e)
{
    struct entry x = { 0 };
    char *path;

    if (!mem_ensure(f->entries, f->cap, f->n + 1)) return err_nomem(e, "a folder of models");
    if (!(path = path_join(f->path, name)) || !(x.name = mem_strdup(name))) {
        mem_free(path);
        return err_nomem(e, "a folder of models");
    }
    if (look_at(s, f, path, &x)) f->entries[f->n++] = x;
    else mem_free(x.name);
    mem_free(path);
    if (!s->shortage) return OK;
    return err_set(e, E_NOMEM, "%s: %s", s->root, strerror(s->shortage));
}

static int compare_entries(const void *a, const void *b)
{
    return strcmp(((const struct entry *)a)->name, ((const struct entry *)b)->name);
}

static void sum_up(struct folder *f)
{
    for (int i = 0; i < f->n; i++) {
        const struct entry *x = &f->entries[i];

        f->n_folders += x->is_folder;
        f->onnx_folder |= x->is_folder && strcmp(x->name, "onnx") == 0;
        f->n_gguf += x->kind == FILE_GGUF;
        f->config |= x->kind == FILE_CONFIG;
        f->safetensors |= x->kind == FILE_SAFETENSORS;
        f->onnx |= x->kind == FILE_ONNX;
    }
}

static int read_folder(struct scan *s, struct folder *f, struct err *e)
{
    DIR *d = file_opendir(f->path);
    int rc = OK;

    if (!d) {
        if (place_is_shortage(errno))
            return err_set(e, E_NOMEM, "%s: %s", s->root, strerror(errno));
        if (f->depth == 0) return err_set(e, E_IO, "%s: %s", s->root, strerror(errno));
        scan_warn(s, f->path, "the folder cannot be read; it is left out");
        return OK;
    }
    for (struct dirent *x; rc == OK && (x = readdir(d));) {
        if (x->d_name[0] == '.') continue;
        if (++s->n_looked > SCAN_NAMES) {
            if (s->n_looked == SCAN_NAMES + 1)
                scan_warn(s, s->root, "more than 65536 files; the rest is left out");
            break;
        }
        rc = add_entry(s, f, x->d_name, e);
    }
    closedir(d);
    if (f->n > 1) qsort(f->entries, (size_t)f->n, sizeof *f->entries, compare_entries);
    sum_up(f);
    return rc;
}

/* ---- models ---- */

/* Takes id over; NULL: no memory. path: of the file or folder. */
static int add_model(struct scan *s, char *id, const char *path, bool is_link, struct err *e)
{
    struct scan_model m = { .id = id, .is_link = is_link };
    struct err why = { 0 };
    int rc = id ? place_check(s->root, path, &why) : err_nomem(&why, "the name of a model");

    if (rc == OK && s->n == REGISTRY_FOLDER_MAX) {
        scan_warn(s, s->root, "more than 1000 models; the others are left out");
        s->n_looked = SCAN_NAMES + 2; /* the scan ends */
        mem_free(id);
        return OK;
    }
    if (rc == OK) rc = place_resolve(&m.real, path, &why);
    if (rc == OK && !(m.path = mem_strdup(path))) rc = err_nomem(&why, "the path of a model");
    if (rc == OK && !mem_ensure(s->models, s->cap, s->n + 1))
        rc = err_nomem(&why, "the list of models");
    if (rc == OK) {
        s->models[s->n++] = m;
        return OK;
    }
    mem_free(m.id);
    mem_free(m.path);
    mem_free(m.real);
    if (rc == E_NOMEM) return err_set(e, rc, "%s", why.msg);
    scan_warn(s, path, why.msg);
    return OK;
}

/* The folder is a model: config.json and weights, or one GGUF file. false: it contains models. */
static bool is_model_folder(const struct folder *f)
{
    if (f->config && f->safetensors) return true;
    if (f->depth == 0) return false;
    return f->config && (f->onnx || f->onnx_folder);
}

static bool has_one_gguf(const struct folder *f)
{
    return f->depth > 0 && f->n_gguf == 1 && f->n_folders == 0 && !f->onnx;
}

static int add_file(struct scan *s, const struct folder *f, const struct entry *x, char *id,
                    struct err *e)
{
    char *path = path_join(f->path, x->name);
    int rc;

    if (!path) {
        mem_free(id);
        return err_nomem(e, "the path of a model");
    }
    rc = add_model(s, id, path, f->is_link || x->is_link, e);
    mem_free(path);
    return rc;
}

static int scan_folder(struct scan *s, struct folder *f, struct err *e);

/* Entry x is a folder of f. */
static int scan_below(struct scan *s, const struct folder *f, const struct entry *x, struct err *e)
{
    struct folder sub = { .is_link = f->is_link || x->is_link, .depth = f->depth + 1 };
    struct err why = { 0 };
    int rc;

    sub.path = path_join(f->path, x->name);
    sub.rel = *f->rel ? path_join(f->rel, x->name) : mem_strdup(x->name);
    rc = sub.path && sub.rel ? place_resolve(&sub.real, sub.path, &why)
                             : err_nomem(&why, "a folder of models");
    if (rc == OK) rc = scan_folder(s, &sub, e);
    else if (rc == E_NOMEM) err_set(e, rc, "%s", why.msg);
    else scan_warn(s, sub.path, why.msg), rc = OK;
    release_folder(&sub);
    return rc;
}

/* Files that are models, and folders. */
static int scan_entries(struct scan *s, const struct folder *f, struct err *e)
{
    int rc = OK;

    for (int i = 0; i < f->n && rc == OK && s->n_looked <= SCAN_NAMES; i++) {
        const struct entry *x = &f->entries[i];

        if (x->is_folder) {
            if (f->depth < SCAN_DEPTH) rc = scan_below(s, f, x, e);
        } else if (x->kind == FILE_GGUF || x->kind == FILE_ONNX) {
            char *rel = *f->rel ? path_join(f->rel, x->name) : mem_strdup(x->name);
            rc = add_file(s, f, x, rel ? model_id_below(rel) : NULL, e);
            mem_free(rel);
        }
    }
    return rc;
}

static int scan_folder(struct scan *s, struct folder *f, struct err *e)
{
    int rc = read_folder(s, f, e);

    if (rc != OK) return rc;
    if (is_model_folder(f)) {
        rc =
            add_model(s, mem_strdup(*f->rel ? f->rel : path_base(s->root)), f->path, f->is_link, e);
        if (rc != OK || f->depth > 0) return rc;
    }
    if (has_one_gguf(f)) {
        for (int i = 0; i < f->n; i++)
            if (f->entries[i].kind == FILE_GGUF)
                return add_file(s, f, &f->entries[i], mem_strdup(f->rel), e);
    }
    return scan_entries(s, f, e);
}

static int compare_models(const void *a, const void *b)
{
    const struct scan_model *x = a, *y = b;

    if (x->is_link != y->is_link) return x->is_link ? 1 : -1;
    return strcmp(x->id, y->id) ? strcmp(x->id, y->id) : strcmp(x->path, y->path);
}

int scan_run(struct scan *s, struct err *e)
{
    struct folder root = { .path = mem_strdup(s->base),
                           .real = mem_strdup(s->root),
                           .rel = mem_strdup("") };
    int rc = root.path && root.real && root.rel ? scan_folder(s, &root, e)
                                                : err_nomem(e, "a folder of models");

    release_folder(&root);
    if (rc == OK && s->n > 1) qsort(s->models, (size_t)s->n, sizeof *s->models, compare_models);
    return rc;
}

void scan_release(struct scan *s)
{
    for (int i = 0; i < s->n; i++) {
        mem_free(s->models[i].id);
        mem_free(s->models[i].path);
        mem_free(s->models[i].real);
    }
    mem_free(s->models);
    s->models = NULL;
    s->n = s->cap = 0;
}
