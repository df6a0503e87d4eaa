/* hubcache_list.c - every whole model of the cache: repositories, their snapshots, the models in them.
 *
 * A model is whole if all its parts are there and can be read, so a download that is under way or was
 * interrupted is not listed, whichever program writes it. */
#include "format/hubcache.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"

#include <dirent.h>
#include <stdlib.h>
#include <sys/stat.h>

enum { REF_DEPTH = 3 };

/* One snapshot of a repository. */
struct snapshot {
    struct str org, name;
    const char *repo, *commit;
    char *dir;
    struct buf rev; /* "" for main, else "@REV" */
    struct hub_files files;
};

struct walk {
    struct hubcache_models *out;
    const char *cache;
    struct err *e;
    int rc;
};

static void free_model(struct hubcache_model *m)
{
    mem_free(m->name);
    mem_free(m->path);
    mem_free(m->commit);
}

void hubcache_models_release(struct hubcache_models *l)
{
    for (int i = 0; i < l->n; i++) free_model(&l->at[i]);
    mem_free(l->at);
    *l = (struct hubcache_models){ 0 };
}

/* ---- revisions ---- */

/* Finds a ref below repo/refs that holds the commit: main, else the last one that is found. */
static void find_ref(const char *dir, const char *below, const char *commit, int depth,
                     struct buf *out)
{
    char *path = *below ? path_join(dir, below) : mem_strdup(dir);
    DIR *d = path ? file_opendir(path) : NULL;

    out->failed |= !path;
    for (struct dirent *x; d && (x = readdir(d));) {
        char *rel, *file;
        struct buf text = { 0 };

        if (x->d_name[0] == '.') continue;
        rel = *below ? path_join(below, x->d_name) : mem_strdup(x->d_name);
        file = rel ? path_join(dir, rel) : NULL;
        if (!file) out->failed = true;
        else if (file_is_dir(file) && depth > 0) find_ref(dir, rel, commit, depth - 1, out);
        else if (!str_is(buf_str(out), "main") && file_read(&text, file, 256, NULL) == OK &&
                 str_is(str_trim(buf_str(&text)), commit)) {
            out->n = 0;
            buf_puts(out, rel);
        }
        buf_release(&text);
        mem_free(rel);
        mem_free(file);
    }
    if (d) closedir(d);
    mem_free(path);
}

static void name_revision(struct snapshot *s)
{
    struct buf ref = { 0 };
    char *refs = path_join(s->repo, "refs");

    s->rev.failed |= !refs;
    if (refs) find_ref(refs, "", s->commit, REF_DEPTH, &ref);
    if (ref.n == 0) buf_printf(&s->rev, "@%.12s", s->commit);
    else if (!str_is(buf_str(&ref), "main")) buf_printf(&s->rev, "@%s", buf_cstr(&ref));
    s->rev.failed |= ref.failed;
    buf_release(&ref);
    mem_free(refs);
}

/* ---- models ---- */

/* Appends the model of the chosen files. */
static int add_model(struct walk *w, const struct snapshot *s, const struct hub_choice *c)
{
    const char *file = c->kind == HUB_GGUF ? s->files.at[c->head].name : NULL;
    struct hubcache_model m = { .kind = c->kind };
    struct buf name = { 0 };
    struct stat st;

    for (int i = 0; i < s->files.n; i++)
        if (s->files.at[i].chosen) m.bytes += s->files.at[i].bytes;
    buf_printf(&name, "%.*s%s%.*s%.*s%s%s", STR_ARG(s->org), s->org.n ? "/" : "", STR_ARG(s->name),
               STR_ARG(buf_str(&s->rev)), file ? ":" : "", file ? file : "");
    buf_cstr(&name);
    m.name = name.p;
    m.path = file ? path_join(s->dir, file) : mem_strdup(s->dir);
    m.commit = mem_strdup(s->commit);
    if (m.path && file_stat(m.path, &st)) m.when = (int64_t)st.st_mtime;
    if (!name.failed && m.path && m.commit && mem_ensure(w->out->at, w->out->cap, w->out->n + 1)) {
        w->out->at[w->out->n++] = m;
        return OK;
    }
    free_model(&m);
    return err_nomem(w->e, "the list of models");
}

static bool chosen_are_whole(const struct hub_files *l)
{
    for (int i = 0; i < l->n; i++)
        if (l->at[i].chosen && !hub_file_is_whole(l, i)) return false;
    return true;
}

/* The folder as a model, if it is one. */
static int add_folder_model(struct walk *w, struct snapshot *s)
{
    struct hub_choice c;

    if (hub_choose(&s->files, str_of(NULL, 0), &c, NULL) != OK) return OK;
    if (c.kind == HUB_GGUF || !chosen_are_whole(&s->files)) return OK;
    return add_model(w, s, &c);
}

static int add_models(struct walk *w, struct snapshot *s)
{
    int rc = add_folder_model(w, s);

    for (int i = 0; i < s->files.n && rc == OK; i++) {
        struct str name = str_c(s->files.at[i].name);
        struct hub_choice c;

        if (!hub_name_is_gguf(name) || !hub_file_is_whole(&s->files, i)) continue;
        if (hub_choose(&s->files, name, &c, NULL) == OK) rc = add_model(w, s, &c);
    }
    return rc;
}

static int add_snapshot(struct walk *w, struct snapshot *s)
{
    int rc = hubcache_files(&s->files, s->dir, w->e);

    if (rc != OK && rc != E_NOMEM) return OK; /* another program removed it */
    if (rc == OK) name_revision(s);
    if (rc == OK) rc = buf_check(&s->rev, w->e);
    return rc == OK ? add_models(w, s) : rc;
}

static bool is_commit(struct str s) { return s.n == 40 && strspn(s.p, "0123456789abcdef") == 40; }

static bool add_repo(void *arg, struct str org, struct str name)
{
    struct walk *w = arg;
    struct hf_ref r = { .org = org, .name = name };
    char *repo = hubcache_repo(w->cache, &r), *all = repo ? path_join(repo, "snapshots") : NULL;
    DIR *d = all ? file_opendir(all) : NULL;

    if (!all) w->rc = err_nomem(w->e, "the list of models");
    for (struct dirent *x; d && w->rc == OK && (x = readdir(d));) {
        struct snapshot s = { .org = org, .name = name, .repo = repo, .commit = x->d_name };

        if (!is_commit(str_c(x->d_name))) continue;
        if ((s.dir = path_join(all, x->d_name))) w->rc = add_snapshot(w, &s);
        else w->rc = err_nomem(w->e, "the list of models");
        hub_files_release(&s.files);
        buf_release(&s.rev);
        mem_free(s.dir);
    }
    if (d) closedir(d);
    mem_free(repo);
    mem_free(all);
    return w->rc == OK;
}

static int compare_models(const void *a, const void *b)
{
    return strcmp(((const struct hubcache_model *)a)->name,
                  ((const struct hubcache_model *)b)->name);
}

int hubcache_list(struct hubcache_models *out, const char *cache, struct err *e)
{
    struct walk w = { .out = out, .cache = cache, .e = e };

    *out = (struct hubcache_models){ 0 };
    hubcache_each_repo(cache, add_repo, &w);
    if (w.rc != OK) hubcache_models_release(out);
    if (out->n > 1) qsort(out->at, (size_t)out->n, sizeof *out->at, compare_models);
    return w.rc;
}
