/* pull.c - the order of a pull: the list of files, the choice, sizes and checksums, the blobs, and at
 * the end the snapshot. */
#include "pull/pull.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "pull/request.h"
#include "pull/store.h"
#include "pull/transfer.h"

#include <stdio.h>

struct pull {
    const struct pull_opt *opt;
    struct pull_result *out;
    struct session s;
    struct store store;
    struct hf_ref ref;
    struct hub_files files;
    struct hub_choice choice;
    struct buf name; /* "ORG/NAME", for URLs and messages */
    struct buf base; /* "ENDPOINT/ORG/NAME/resolve/COMMIT/" */
    struct err *e;
};

static void tell(const struct pull *p, struct pull_event ev)
{
    if (p->opt->tell) p->opt->tell(p->opt->arg, &ev);
}

/* ---- the list ---- */

static int read_list(struct pull *p)
{
    struct buf url = { 0 }, body = { 0 };
    struct hub_head h;
    int rc;

    buf_printf(&url, "%s/api/models/%s/revision/", p->opt->endpoint, p->name.p);
    transfer_escape(&url, p->ref.rev, true);
    buf_puts(&url, "?blobs=true");
    buf_cstr(&url);
    if ((rc = buf_check(&url, p->e)) == OK)
        rc = session_ask(&p->s, url.p, p->name.p, &h, &body, p->e);
    if (rc == OK && h.status != 200) rc = session_fail(&p->s, &h, p->name.p, p->e);
    if (rc == OK) rc = hubreply_files(&p->files, p->out->commit, buf_str(&body), p->e);
    if (rc == E_FORMAT) err_wrap(p->e, "%s", p->name.p);
    buf_release(&url);
    buf_release(&body);
    return rc;
}

static void offer_models(const struct pull *p)
{
    for (int i = 0; i < p->files.n; i++)
        if (hub_name_is_gguf(str_c(p->files.at[i].name)))
            tell(p, (struct pull_event){ PULL_OFFER, .file = p->files.at[i].name,
                                         .total = p->files.at[i].bytes });
}

static int choose_files(struct pull *p)
{
    int rc = hub_choose(&p->files, p->ref.file, &p->choice, p->e), n = 0;

    for (int i = 0; i < p->files.n; i++) n += hub_name_is_gguf(str_c(p->files.at[i].name));
    if (rc == E_INVALID || rc == E_NOTFOUND ||
        (rc == OK && !p->ref.file.p && n > 1 && p->choice.kind == HUB_GGUF))
        offer_models(p);
    if (rc != OK && rc != E_NOMEM) err_wrap(p->e, "hf:%s", p->name.p);
    if (rc == OK && p->choice.head >= 0 && !hub_file_is_whole(&p->files, p->choice.head))
        rc = err_set(p->e, E_NOTFOUND, "hf:%s: parts of %s are missing on the hub", p->name.p,
                     p->files.at[p->choice.head].name);
    return rc;
}

/* ---- sizes and checksums ---- */

/* The hub's headers about a file, where its list did not say enough. */
static int ask_about(struct pull *p, struct hub_file *f)
{
    struct buf url = { 0 };
    struct hub_head h;
    int64_t size;
    int rc;

    buf_put_str(&url, buf_str(&p->base));
    transfer_escape(&url, str_c(f->name), false);
    buf_cstr(&url);
    if ((rc = buf_check(&url, p->e)) == OK) rc = session_ask(&p->s, url.p, f->name, &h, NULL, p->e);
    buf_release(&url);
    if (rc != OK) return rc;
    if (h.status >= 400) return session_fail(&p->s, &h, f->name, p->e);
    size = h.linked_size >= 0 ? h.linked_size : h.length;
    snprintf(f->sum, sizeof f->sum, "%s", h.linked_etag[0] ? h.linked_etag : h.etag);
    if (size < 0 || !f->sum[0])
        return err_set(p->e, E_FORMAT, "%s: the hub tells no size or no checksum of it", f->name);
    f->bytes = (uint64_t)size;
    return OK;
}

static int complete_files(struct pull *p)
{
    int rc = OK;

    for (int i = 0; i < p->files.n && rc == OK; i++) {
        struct hub_file *f = &p->files.at[i];
        if (!f->chosen) continue;
        if (!f->sum[0] || !f->bytes) rc = ask_about(p, f);
        if (rc == OK && f->bytes > (uint64_t)1 << 50)
            rc = err_set(p->e, E_FORMAT, "%s: the hub says that it has %llu bytes", f->name,
                         (unsigned long long)f->bytes);
        p->out->n_files++;
        p->out->bytes += f->bytes;
    }
    return rc;
}

static void tell_plan(const struct pull *p)
{
    uint64_t have = 0;

    for (int i = 0; i < p->files.n; i++)
        if (p->files.at[i].chosen && store_has_blob(&p->store, &p->files.at[i]))
            have += p->files.at[i].bytes;
    tell(p, (struct pull_event){ PULL_PLAN, .done = have, .total = p->out->bytes,
                                 .n_files = p->out->n_files });
}

/* ---- the order ---- */

static int name_model(struct pull *p)
{
    char *all = path_join(p->store.repo, "snapshots"), *dir = NULL, *path = NULL;
    bool ok;

    dir = all ? path_join(all, p->out->commit) : NULL;
    if (dir && p->choice.head >= 0) path = path_join(dir, p->files.at[p->choice.head].name);
    ok = dir && (path || p->choice.head < 0);
    if (ok) snprintf(p->out->path, sizeof p->out->path, "%s", path ? path : dir);
    mem_free(all);
    mem_free(dir);
    mem_free(path);
    return ok ? OK : err_nomem(p->e, "the path of a model");
}

static int run(struct pull *p)
{
    int rc = modelref_parse(&p->ref, str_c(p->opt->name), p->e);

    if (rc != OK) return rc;
    buf_printf(&p->name, "%.*s%s%.*s", STR_ARG(p->ref.org), p->ref.org.n ? "/" : "",
               STR_ARG(p->ref.name));
    buf_cstr(&p->name);
    if ((rc = buf_check(&p->name, p->e)) != OK) return rc;
    if ((rc = session_open(&p->s, p->opt, p->e)) != OK) return rc;
    if ((rc = read_list(p)) != OK) return rc;
    if ((rc = choose_files(p)) != OK) return rc;
    buf_printf(&p->base, "%s/%s/resolve/%s/", p->opt->endpoint, p->name.p, p->out->commit);
    buf_cstr(&p->base);
    if ((rc = buf_check(&p->base, p->e)) != OK) return rc;
    if ((rc = complete_files(p)) != OK) return rc;
    if ((rc = store_open(&p->store, p->opt->cache, &p->ref, p->e)) != OK) return rc;
    tell_plan(p);
    rc = transfer_run(&p->s, &p->store, &p->files, p->base.p, &p->out->downloaded, p->e);
    if (rc == OK) rc = store_publish(&p->store, &p->files, &p->choice, p->out->commit, p->e);
    return rc == OK ? name_model(p) : rc;
}

__attribute__((visibility("default"))) pull_run_fn tern_pull_run;

int tern_pull_run(const struct pull_opt *opt, struct pull_result *out, struct err *e)
{
    struct pull p = { .opt = opt, .out = out, .store = { .lock = -1 }, .e = e };
    int rc;

    *out = (struct pull_result){ 0 };
    if (opt->size != sizeof *opt)
        return err_set(e, E_UNSUPPORTED,
                       "tern-pull.so belongs to another build of tern: run `make` again");
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        return err_set(e, E_NOMEM, "libcurl does not start");
    rc = run(&p);
    out->no_connection = rc != OK && p.s.no_connection;
    store_release(&p.store);
    session_release(&p.s);
    hub_files_release(&p.files);
    buf_release(&p.name);
    buf_release(&p.base);
    curl_global_cleanup();
    return rc;
}
