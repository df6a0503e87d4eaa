/* manifest_model.c - which files a model has, their sums, and the comparison with the manifest. */
#include "format/manifest.h"

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/par.h"
#include "format/onnxfile.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <strings.h>

enum {
    MAX_DEPTH = 4, /* folders below that of the model */
    MAX_FILES = 20000,
    MAX_THREADS = 8,
    PART_TAIL = 20 /* bytes of "-00001-of-00002.gguf" */
};

/* ---- one file ---- */

static int add_piece(void *arg, const void *p, size_t n, struct err *e)
{
    (void)e;
    crypto_sha_add(arg, p, n);
    return OK;
}

int manifest_hash(const char *path, unsigned char sum[CRYPTO_SUM], uint64_t *bytes, struct err *e)
{
    struct crypto_sha *h = NULL;
    int rc = crypto_sha_open(&h, e);

    if (rc == OK) rc = file_scan(path, add_piece, h, bytes, e);
    if (rc == OK) rc = crypto_sha_end(h, sum, e);
    crypto_sha_close(h);
    return rc;
}

/* ---- the files of a model ---- */

struct model_files {
    char *dir;          /* the folder of the manifest */
    char *own, *shared; /* its manifest, and the one that is asked where that is missing, or NULL */
    bool is_folder;     /* every file of dir belongs to it */
    struct manifest list; /* names only */
};

static void release_files(struct model_files *f)
{
    mem_free(f->dir);
    mem_free(f->own);
    mem_free(f->shared);
    manifest_release(&f->list);
}

static int add_name(struct model_files *f, const char *name, struct err *e)
{
    static const unsigned char none[CRYPTO_SUM];

    if (f->list.n >= MAX_FILES)
        return err_set(e, E_UNSUPPORTED, "%s: has more than %d files", f->dir, MAX_FILES);
    return manifest_add(&f->list, str_c(name), UINT64_MAX, none, e);
}

/* Hidden files, unfinished ones and manifests belong to no model. */
static bool is_left_out(const char *name)
{
    return name[0] == '.' || strstr(name, ".part-") || strcmp(name, MANIFEST_FOLDER) == 0 ||
           str_ends(str_c(name), STR(MANIFEST_SUFFIX));
}

static int list_folder(struct model_files *f, const char *below, int depth, struct err *e);

/* below: the folder of the entry relative to that of the model, "" or "onnx/". */
static int list_entry(struct model_files *f, const char *below, const char *name, int depth,
                      struct err *e)
{
    struct buf b = { 0 };
    struct stat st;
    char *path = NULL;
    int rc;

    if (is_left_out(name)) return OK;
    buf_printf(&b, "%s%s", below, name);
    buf_cstr(&b);
    if ((rc = buf_check(&b, e)) != OK) goto out;
    if (!(path = path_join(f->dir, b.p))) rc = err_nomem(e, "the path of a file to hash");
    else if (!file_stat(path, &st)) rc = err_set(e, E_IO, "%s: %s", path, strerror(errno));
    else if (S_ISREG(st.st_mode)) rc = add_name(f, b.p, e);
    else if (S_ISDIR(st.st_mode) && depth < MAX_DEPTH) {
        buf_putc(&b, '/');
        buf_cstr(&b);
        rc = buf_check(&b, e);
        if (rc == OK) rc = list_folder(f, b.p, depth + 1, e);
    }
out:
    mem_free(path);
    buf_release(&b);
    return rc;
}

static int list_folder(struct model_files *f, const char *below, int depth, struct err *e)
{
    char *path = *below ? path_join(f->dir, below) : mem_strdup(f->dir);
    DIR *d = path ? file_opendir(path) : NULL;
    int rc = OK;

    if (!path) rc = err_nomem(e, "the path of a folder");
    else if (!d) rc = err_set(e, E_IO, "%s: cannot list the folder: %s", path, strerror(errno));
    for (struct dirent *x; rc == OK && (x = readdir(d));)
        rc = list_entry(f, below, x->d_name, depth, e);
    if (d) closedir(d);
    mem_free(path);
    return rc;
}

/* "m-00002-of-00003.gguf" is part 2 of 3. */
static bool read_part(const char *name, unsigned *count)
{
    size_t n = strlen(name);
    unsigned no;
    int end = 0;

    return n > PART_TAIL &&
           sscanf(name + n - PART_TAIL, "-%5u-of-%5u.gguf%n", &no, count, &end) == 2 &&
           end == PART_TAIL && *count > 0 && *count <= MAX_FILES;
}

/* The file, or all parts of its split set. */
static int list_parts(struct model_files *f, const char *name, struct err *e)
{
    size_t n = strlen(name);
    unsigned count = 0;
    int rc = OK;

    if (!read_part(name, &count)) return add_name(f, name, e);
    for (unsigned no = 1; no <= count && rc == OK; no++) {
        struct buf part = { 0 };
        buf_printf(&part, "%.*s-%05u-of-%05u.gguf", (int)(n - PART_TAIL), name, no, count);
        buf_cstr(&part);
        rc = buf_check(&part, e);
        if (rc == OK) rc = add_name(f, part.p, e);
        buf_release(&part);
    }
    return rc;
}

/* The folder that a file's path names, from mem_alloc; NULL: no memory. */
static char *folder_of(const char *path)
{
    size_t n = (size_t)(path_base(path) - path);
    char *dir = n ? mem_dup(path, n + 1) : mem_strdup(".");

    if (dir && n) dir[n > 1 ? n - 1 : 1] = 0;
    return dir;
}

/* Does the file belong to a folder with a configuration, which *dir is then? */
static int find_config(char **dir, const char *model, struct err *e)
{
    bool is_gguf = strlen(model) > 5 && strcasecmp(model + strlen(model) - 5, ".gguf") == 0;
    char *config;

    *dir = str_ends(str_c(model), STR(".onnx")) ? onnxfile_folder(model) : folder_of(model);
    config = *dir ? path_join(*dir, "config.json") : NULL;
    if (!config) return err_nomem(e, "the path of a model");
    if (is_gguf || !file_exists(config)) {
        mem_free(*dir);
        *dir = NULL;
    }
    mem_free(config);
    return OK;
}

/* The manifest of a file is named after it, or after its first part. */
static int name_manifest(struct model_files *f, struct err *e)
{
    struct buf b = { 0 };

    if (f->is_folder) {
        f->own = path_join(f->dir, MANIFEST_FOLDER);
        return f->own ? OK : err_nomem(e, "the path of a manifest");
    }
    buf_printf(&b, "%s" MANIFEST_SUFFIX, f->list.files[0].name);
    buf_cstr(&b);
    if (!b.failed) f->own = path_join(f->dir, b.p);
    f->shared = path_join(f->dir, MANIFEST_FOLDER);
    buf_release(&b);
    return f->own && f->shared ? OK : err_nomem(e, "the path of a manifest");
}

static int find_files(struct model_files *f, const char *model, struct err *e)
{
    int rc = OK;

    if (file_is_dir(model)) {
        if (!(f->dir = mem_strdup(model))) return err_nomem(e, "the path of a model");
    } else if (!file_exists(model)) {
        return err_set(e, E_NOTFOUND, "%s: no such file or folder", model);
    } else if ((rc = find_config(&f->dir, model, e)) != OK) {
        return rc;
    }
    f->is_folder = f->dir != NULL;
    if (!f->dir && !(f->dir = folder_of(model))) return err_nomem(e, "the path of a model");
    rc = f->is_folder ? list_folder(f, "", 0, e) : list_parts(f, path_base(model), e);
    if (rc == OK && f->list.n == 0) rc = err_set(e, E_NOTFOUND, "%s: the folder is empty", f->dir);
    return rc == OK ? name_manifest(f, e) : rc;
}

/* ---- hashing ---- */

/* Files are handed out one by one; the first of the list that fails is reported. */
struct summing {
    const char *dir;
    struct manifest *list; /* gets sums and sizes */
    const struct manifest_opt *opt;
    struct par *par;
    pthread_mutex_t lock;
    uint64_t done, total; /* under the lock, as are the next */
    size_t failed;        /* the least index of a file that failed; SIZE_MAX: none did */
    struct err err;
};

struct summed_file {
    struct summing *all;
    struct crypto_sha *hash;
    const char *name;
};

static int hash_piece(void *arg, const void *p, size_t n, struct err *e)
{
    struct summed_file *f = arg;
    struct summing *h = f->all;

    if (h->opt->stop && atomic_load_explicit(h->opt->stop, memory_order_relaxed))
        return err_set(e, E_CANCELLED, "%s: the hashing was stopped", f->name);
    crypto_sha_add(f->hash, p, n);
    if (!h->opt->progress) return OK;
    pthread_mutex_lock(&h->lock);
    h->done += n;
    h->opt->progress(h->opt->arg, h->done, h->total, f->name);
    pthread_mutex_unlock(&h->lock);
    return OK;
}

static int hash_one(struct summing *h, struct manifest_file *f, struct err *e)
{
    struct summed_file job = { .all = h, .name = f->name };
    char *path = path_join(h->dir, f->name);
    int rc = path ? crypto_sha_open(&job.hash, e) : err_nomem(e, "the path of a file to hash");

    if (rc == OK) rc = file_scan(path, hash_piece, &job, &f->bytes, e);
    if (rc == OK) rc = crypto_sha_end(job.hash, f->sum, e);
    f->has_bytes = true;
    crypto_sha_close(job.hash);
    mem_free(path);
    return rc;
}

static void hash_share(void *arg, int thread, int n_threads)
{
    struct summing *h = arg;
    int i, end;

    (void)thread, (void)n_threads;
    while (par_next(h->par, (int)h->list->n, 1, &i, &end)) {
        struct err why = { 0 };
        if (hash_one(h, &h->list->files[i], &why) == OK) continue;
        pthread_mutex_lock(&h->lock);
        if ((size_t)i < h->failed) h->failed = (size_t)i, h->err = why;
        pthread_mutex_unlock(&h->lock);
    }
}

static uint64_t sum_sizes(const char *dir, const struct manifest *m)
{
    uint64_t sum = 0;
    struct stat st;

    for (size_t i = 0; i < m->n; i++) {
        char *path = path_join(dir, m->files[i].name);
        if (path && file_stat(path, &st)) sum += (uint64_t)st.st_size;
        mem_free(path);
    }
    return sum;
}

static int choose_threads(const struct manifest_opt *opt, size_t n_files)
{
    int n = opt->n_threads ? opt->n_threads : par_cores();

    if (n > MAX_THREADS) n = MAX_THREADS;
    return n_files < (size_t)n ? (int)n_files : n;
}

/* Sums and sizes of all files of the list. */
static int hash_files(const char *dir, struct manifest *list, const struct manifest_opt *opt,
                      struct err *e)
{
    static const struct manifest_opt none;
    struct summing h = { .dir = dir,
                         .list = list,
                         .opt = opt ? opt : &none,
                         .failed = SIZE_MAX,
                         .total = sum_sizes(dir, list),
                         .lock = PTHREAD_MUTEX_INITIALIZER };
    struct par_opt team = { .n_threads = choose_threads(h.opt, list->n) };
    int rc = crypto_open(e);

    if (rc == OK) rc = par_open(&h.par, team, e);
    if (rc != OK) return rc;
    par_run_any(h.par, hash_share, &h);
    par_close(h.par);
    if (h.failed == SIZE_MAX) return OK;
    if (e) *e = h.err;
    return h.err.code;
}

/* ---- writing and checking ---- */

static int fill_result(struct manifest_result *r, const char *path, const struct manifest *m,
                       struct err *e)
{
    unsigned char sum[CRYPTO_SUM];
    int rc = OK;

    if (!r) return OK;
    *r = (struct manifest_result){ .n_files = m->n };
    snprintf(r->path, sizeof r->path, "%s", path);
    for (size_t i = 0; i < m->n; i++) r->bytes += m->files[i].bytes;
    if (m->n == 1) memcpy(sum, m->files[0].sum, sizeof sum);
    else rc = manifest_hash(path, sum, NULL, e);
    if (rc == OK) crypto_hex(r->sum, sum, sizeof sum);
    return rc;
}

int manifest_write(const char *model, const struct manifest_opt *opt, struct manifest_result *r,
                   struct err *e)
{
    struct model_files f = { 0 };
    int rc = find_files(&f, model, e);

    if (rc == OK) rc = hash_files(f.dir, &f.list, opt, e);
    if (rc == OK) rc = manifest_save(&f.list, f.own, e);
    if (rc == OK) rc = fill_result(r, f.own, &f.list, e);
    release_files(&f);
    return rc;
}

/* A manifest for several models (SHA256SUMS beside GGUF files) counts as far as it lists the files
 * of this one. */
static void keep_listed(struct manifest *m, const struct model_files *f)
{
    size_t n = 0;

    for (size_t i = 0; i < m->n; i++) {
        if (manifest_get(&f->list, m->files[i].name)) m->files[n++] = m->files[i];
        else mem_free(m->files[i].name);
    }
    m->n = n;
}

static int read_manifest(struct manifest *m, const char **path, const struct model_files *f,
                         struct err *e)
{
    int rc;

    *path = f->own;
    if (file_exists(f->own)) return manifest_read(m, f->own, e);
    if (f->shared && file_exists(f->shared)) {
        *path = f->shared;
        if ((rc = manifest_read(m, f->shared, e)) != OK) return rc;
        keep_listed(m, f);
        if (m->n > 0) return OK;
    }
    return err_set(e, E_NOTFOUND, "%s: the model has no manifest; tern manifest writes one",
                   f->own);
}

static int check_listed(const struct manifest *m, const char *path, const struct model_files *f,
                        struct err *e)
{
    for (size_t i = 0; i < f->list.n; i++)
        if (!manifest_get(m, f->list.files[i].name))
            return err_set(e, E_DAMAGED,
                           "%s: does not list %s, which belongs to the model (tern manifest writes "
                           "the manifest again)",
                           path, f->list.files[i].name);
    return OK;
}

/* Before anything is hashed: cheap, and a truncated file is the usual damage. */
static int check_sizes(const struct manifest *m, const char *path, const char *dir, struct err *e)
{
    struct stat st;

    for (size_t i = 0; i < m->n; i++) {
        const struct manifest_file *x = &m->files[i];
        char *file = path_join(dir, x->name);
        bool there = file && file_stat(file, &st);

        mem_free(file);
        if (!file) return err_nomem(e, "the path of a file to hash");
        if (!there)
            return err_set(e, E_DAMAGED, "%s: line %d: %s: the file is missing", path, x->line,
                           x->name);
        if (x->has_bytes && (uint64_t)st.st_size != x->bytes)
            return err_set(e, E_DAMAGED, "%s: line %d: %s: expected %llu bytes, found %llu", path,
                           x->line, x->name, (unsigned long long)x->bytes,
                           (unsigned long long)st.st_size);
    }
    return OK;
}

static int check_sums(struct manifest *m, const char *path, const char *dir,
                      const struct manifest_opt *opt, struct err *e)
{
    struct manifest_file *want = mem_dup(m->files, m->n * sizeof *want);
    char expected[CRYPTO_HEX], found[CRYPTO_HEX];
    int rc = want ? hash_files(dir, m, opt, e) : err_nomem(e, "a manifest");

    for (size_t i = 0; i < m->n && rc == OK; i++) {
        if (memcmp(want[i].sum, m->files[i].sum, CRYPTO_SUM) == 0) continue;
        crypto_hex(expected, want[i].sum, CRYPTO_SUM);
        crypto_hex(found, m->files[i].sum, CRYPTO_SUM);
        rc = err_set(e, E_DAMAGED, "%s: line %d: %s: expected SHA-256 %s, found %s", path,
                     want[i].line, want[i].name, expected, found);
    }
    mem_free(want);
    return rc;
}

int manifest_check(const char *model, const struct manifest_opt *opt, struct manifest_result *r,
                   struct err *e)
{
    struct model_files f = { 0 };
    struct manifest m = { 0 };
    const char *path = NULL;
    int rc = find_files(&f, model, e);

    if (r) *r = (struct manifest_result){ 0 };
    if (rc == OK) rc = read_manifest(&m, &path, &f, e);
    if (rc == OK) rc = check_sizes(&m, path, f.dir, e);
    if (rc == OK) rc = check_listed(&m, path, &f, e);
    if (rc == OK) rc = check_sums(&m, path, f.dir, opt, e);
    if (rc == OK) rc = fill_result(r, path, &m, e);
    manifest_release(&m);
    release_files(&f);
    return rc;
}

int manifest_list(const char *model, struct manifest *list, char **dir, bool *is_folder,
                  struct err *e)
{
    struct model_files f = { 0 };
    int rc = find_files(&f, model, e);

    if (rc == OK) {
        *list = f.list, *dir = f.dir, *is_folder = f.is_folder;
        f.list = (struct manifest){ 0 };
        f.dir = NULL;
    }
    release_files(&f);
    return rc;
}

bool manifest_mode_by_name(const char *word, enum manifest_mode *out)
{
    static const char *const words[] = { "off", "warn", "require" };

    for (int i = 0; i < 3; i++)
        if (strcmp(word, words[i]) == 0) {
            *out = (enum manifest_mode)i;
            return true;
        }
    return false;
}

int manifest_enforce(const char *model, enum manifest_mode mode, struct err *e)
{
    struct manifest_result r;
    struct err why = { 0 };
    int rc;

    if (mode == MANIFEST_OFF) return OK;
    rc = manifest_check(model, NULL, &r, &why);
    if (rc == OK) log_info("%s: %zu files match the manifest", r.path, r.n_files);
    if (rc == OK || rc == E_NOMEM || mode == MANIFEST_REQUIRE) {
        if (rc != OK && e) *e = why;
        return rc;
    }
    log_warn("%s", why.msg);
    return OK;
}
