/* jobstore_files.c - rows of files. The bytes are moved into place before the row is committed: a row
 * always has its bytes, and bytes without a row are removed when the store opens. */
#include "jobs/jobstore_impl.h"

#include "base/jsonw.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#define COLUMNS "id,tenant,name,purpose,bytes,created,expires"

static void read_row(struct query *q, struct jobstore_file *f)
{
    jobstore_copy(f->id, sizeof f->id, query_get_text(q, 0));
    jobstore_copy(f->tenant, sizeof f->tenant, query_get_text(q, 1));
    jobstore_copy(f->name, sizeof f->name, query_get_text(q, 2));
    jobstore_copy(f->purpose, sizeof f->purpose, query_get_text(q, 3));
    f->bytes = query_get_int(q, 4);
    f->created = query_get_int(q, 5);
    f->expires = query_get_int(q, 6);
}

static int sync_file(const char *path, struct err *e)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC), rc = OK;

    if (fd < 0 || fsync(fd) != 0) rc = jobstore_errno(e, "sync", path);
    if (fd >= 0) close(fd);
    return rc;
}

int jobstore_move_file(struct jobstore *s, const struct jobstore_file *f, struct err *e)
{
    char from[3200], to[3200];
    struct query q;
    int rc;

    jobstore_path(s, from, sizeof from, "tmp", f->id);
    jobstore_path(s, to, sizeof to, "files", f->id);
    if ((rc = sync_file(from, e)) != OK) return rc;
    if (rename(from, to) != 0) return jobstore_errno(e, "move", from);
    jobstore_path(s, to, sizeof to, "files", "");
    if ((rc = jobstore_sync_folder(to, e)) != OK) return rc;
    query_begin(&q, s->db, "INSERT INTO files(" COLUMNS ") VALUES(?,?,?,?,?,?,?)");
    query_text(&q, str_c(f->id));
    query_text(&q, str_c(f->tenant));
    query_text(&q, str_c(f->name));
    query_text(&q, str_c(f->purpose));
    query_int(&q, f->bytes);
    query_int(&q, f->created);
    query_int(&q, f->expires               ? f->expires
                  : s->lim.retention_s > 0 ? f->created + s->lim.retention_s
                                           : 0);
    return query_run(&q, NULL, e);
}

int jobstore_add_file(struct jobstore *s, const struct jobstore_file *f, struct err *e)
{
    int rc = jobstore_check_limit(s, "SELECT coalesce(sum(bytes),0) FROM files WHERE tenant=?",
                                  f->tenant, f->bytes, s->lim.tenant_bytes,
                                  "bytes of files of this tenant are stored", e);

    return rc == OK ? jobstore_move_file(s, f, e) : rc;
}

int jobstore_find_file(struct jobstore *s, const char *tenant, const char *id,
                       struct jobstore_file *out, struct err *e)
{
    struct query q;
    bool found;
    int rc;

    query_begin(&q, s->db, "SELECT " COLUMNS " FROM files WHERE id=? AND tenant=?");
    query_text(&q, str_c(id));
    query_text(&q, str_c(tenant));
    if ((found = query_row(&q))) read_row(&q, out);
    if ((rc = query_end(&q, e)) != OK || found) return rc;
    return err_set(e, E_NOTFOUND, "there is no file '%s'", id);
}

int jobstore_delete_file(struct jobstore *s, const char *tenant, const char *id, struct err *e)
{
    struct jobstore_file f;
    char batch[STORE_ID] = "";
    struct query q;
    int rc = jobstore_find_file(s, tenant, id, &f, e);

    if (rc != OK) return rc;
    query_begin(&q, s->db, "SELECT id FROM batches WHERE input=? AND status<4");
    query_text(&q, str_c(id));
    if (query_row(&q)) jobstore_copy(batch, sizeof batch, query_get_text(&q, 0));
    if ((rc = query_end(&q, e)) != OK) return rc;
    if (*batch)
        return err_set(e, E_CONCURRENCY, "the file '%s' is the input of %s, which has not ended",
                       id, batch);
    query_begin(&q, s->db, "DELETE FROM files WHERE id=?");
    query_text(&q, str_c(id));
    if ((rc = query_run(&q, NULL, e)) != OK) return rc;
    jobstore_unlink_later(s, id);
    return OK;
}

void jobstore_write_file(const struct jobstore_file *f, struct buf *out)
{
    struct jsonw w = { .out = out };

    jsonw_obj(&w);
    jsonw_key(&w, "id"), jsonw_str(&w, str_c(f->id));
    jsonw_key(&w, "object"), jsonw_str(&w, STR("file"));
    jsonw_key(&w, "bytes"), jsonw_int(&w, f->bytes);
    jsonw_key(&w, "created_at"), jsonw_int(&w, f->created);
    jsonw_key(&w, "expires_at");
    if (f->expires) jsonw_int(&w, f->expires);
    else jsonw_null(&w);
    jsonw_key(&w, "filename"), jsonw_str(&w, str_c(f->name));
    jsonw_key(&w, "purpose"), jsonw_str(&w, str_c(f->purpose));
    jsonw_key(&w, "status"), jsonw_str(&w, STR("processed"));
    jsonw_key(&w, "status_details"), jsonw_null(&w);
    jsonw_end(&w);
}

/* The place of the page: rows behind `after`. An id that is gone is an error, as it would begin
 * the list again. */
static int find_place(struct jobstore *s, const struct jobstore_page *p, int64_t *seq,
                      struct err *e)
{
    struct query q;
    bool found;
    int rc;

    *seq = p->oldest_first ? 0 : INT64_MAX;
    if (!*p->after) return OK;
    query_begin(&q, s->db, "SELECT seq FROM files WHERE id=? AND tenant=?");
    query_text(&q, str_c(p->after));
    query_text(&q, str_c(p->tenant));
    if ((found = query_row(&q))) *seq = query_get_int(&q, 0);
    if ((rc = query_end(&q, e)) != OK || found) return rc;
    return err_set(e, E_INVALID, "after: there is no file '%s'", p->after);
}

int jobstore_list_files(struct jobstore *s, const struct jobstore_page *p, struct buf *out,
                        struct err *e)
{
    struct jsonw w = { .out = out };
    char first[STORE_ID] = "";
    struct jobstore_file f = { 0 };
    struct query q;
    int64_t seq;
    int n = 0, rc = find_place(s, p, &seq, e);

    if (rc != OK) return rc;
    if (p->oldest_first)
        query_begin(&q, s->db,
                    "SELECT " COLUMNS " FROM files WHERE tenant=? AND seq>? AND (?3='' OR "
                    "purpose=?3) ORDER BY seq LIMIT ?");
    else
        query_begin(&q, s->db,
                    "SELECT " COLUMNS " FROM files WHERE tenant=? AND seq<? AND (?3='' OR "
                    "purpose=?3) ORDER BY seq DESC LIMIT ?");
    query_text(&q, str_c(p->tenant));
    query_int(&q, seq);
    query_text(&q, str_c(p->purpose));
    query_int(&q, p->limit + 1);
    jobstore_begin_list(&w);
    while (query_row(&q) && n++ < p->limit) {
        struct buf one = { 0 };
        read_row(&q, &f);
        if (n == 1) memcpy(first, f.id, sizeof first);
        jobstore_write_file(&f, &one);
        if (one.failed) out->failed = true;
        else jsonw_raw(&w, buf_str(&one));
        buf_release(&one);
    }
    jobstore_end_list(&w, first, f.id, n > p->limit);
    return query_end(&q, e);
}
