/* jobstore.c - the folder, its lock, the schema, and transactions. */
#include "jobs/jobstore_impl.h"

#include "base/file.h"
#include "base/jsonw.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define APPLICATION 0x7465726e /* "tern", in the header of the database */
#define TEXT_OF(x) TEXT_OF_(x)
#define TEXT_OF_(x) #x

static const char schema[] = "PRAGMA application_id=" TEXT_OF(
    APPLICATION) ";"
                 "PRAGMA user_version=1;"
                 "CREATE TABLE files("
                 "  seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, tenant TEXT "
                 "NOT NULL,"
                 "  name TEXT NOT NULL, purpose TEXT NOT NULL, bytes INTEGER NOT NULL,"
                 "  created INTEGER NOT NULL, expires INTEGER NOT NULL);"
                 "CREATE INDEX files_tenant ON files(tenant, seq);"
                 "CREATE TABLE batches("
                 "  seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, tenant TEXT "
                 "NOT NULL,"
                 "  endpoint TEXT NOT NULL, input TEXT NOT NULL, window TEXT NOT NULL, metadata "
                 "TEXT,"
                 "  status INTEGER NOT NULL, ends_as INTEGER NOT NULL, output TEXT NOT NULL,"
                 "  error TEXT NOT NULL, has_output INTEGER NOT NULL DEFAULT 0,"
                 "  has_error INTEGER NOT NULL DEFAULT 0, created INTEGER NOT NULL, expires "
                 "INTEGER NOT NULL,"
                 "  in_progress INTEGER, finalizing INTEGER, cancelling INTEGER, ended INTEGER,"
                 "  total INTEGER NOT NULL DEFAULT 0, completed INTEGER NOT NULL DEFAULT 0,"
                 "  failed INTEGER NOT NULL DEFAULT 0, read_bytes INTEGER NOT NULL DEFAULT 0,"
                 "  read_lines INTEGER NOT NULL DEFAULT 0, n_errors INTEGER NOT NULL DEFAULT 0);"
                 "CREATE INDEX batches_tenant ON batches(tenant, seq);"
                 "CREATE INDEX batches_status ON batches(status);"
                 "CREATE TABLE errors("
                 "  batch TEXT NOT NULL, line INTEGER NOT NULL, code TEXT NOT NULL, message TEXT "
                 "NOT NULL,"
                 "  param TEXT);"
                 "CREATE INDEX errors_batch ON errors(batch, line);"
                 "CREATE TABLE jobs("
                 "  seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, batch TEXT NOT "
                 "NULL,"
                 "  tenant TEXT NOT NULL, endpoint TEXT NOT NULL, custom_id TEXT, key TEXT,"
                 "  at INTEGER NOT NULL DEFAULT 0, bytes INTEGER NOT NULL DEFAULT 0, body TEXT,"
                 "  created INTEGER NOT NULL, deadline INTEGER NOT NULL DEFAULT 0,"
                 "  state INTEGER NOT NULL DEFAULT 0, ended INTEGER, status INTEGER, request_id "
                 "TEXT,"
                 "  reply TEXT, error TEXT);"
                 "CREATE INDEX jobs_queue ON jobs(batch, state, seq);"
                 "CREATE INDEX jobs_tenant ON jobs(tenant, state);"
                 "CREATE UNIQUE INDEX jobs_custom ON jobs(batch, custom_id) WHERE custom_id IS NOT "
                 "NULL;"
                 "CREATE UNIQUE INDEX jobs_key ON jobs(tenant, key) WHERE key IS NOT NULL;";

/* ---- small things ---- */

int64_t jobstore_now(void) { return (int64_t)time(NULL); }

void jobstore_make_id(char out[STORE_ID], const char *prefix)
{
    static const char letters[] =
        "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ01";
    unsigned char raw[24];
    struct timespec now;
    size_t at;

    if (getrandom(raw, sizeof raw, 0) != (ssize_t)sizeof raw) {
        memset(raw, 0, sizeof raw);
        clock_gettime(CLOCK_MONOTONIC, &now);
        memcpy(raw, &now, sizeof now < sizeof raw ? sizeof now : sizeof raw);
    }
    at = (size_t)snprintf(out, STORE_ID - sizeof raw, "%s", prefix);
    for (size_t i = 0; i < sizeof raw; i++) out[at++] = letters[raw[i] & 63];
    out[at] = 0;
}

void jobstore_path(const struct jobstore *s, char *out, size_t cap, const char *sub, const char *id)
{
    snprintf(out, cap, "%s/%s/%s", s->dir, sub, id);
}

void jobstore_copy(char *out, size_t cap, struct str s)
{
    snprintf(out, cap, "%.*s", STR_ARG(str_take(s, cap - 1)));
}

void jobstore_begin_list(struct jsonw *w)
{
    jsonw_obj(w);
    jsonw_key(w, "object"), jsonw_str(w, STR("list"));
    jsonw_key(w, "data"), jsonw_arr(w);
}

void jobstore_end_list(struct jsonw *w, const char *first, const char *last, bool more)
{
    jsonw_end(w);
    jsonw_key(w, "first_id");
    if (*first) jsonw_str(w, str_c(first));
    else jsonw_null(w);
    jsonw_key(w, "last_id");
    if (*last) jsonw_str(w, str_c(last));
    else jsonw_null(w);
    jsonw_key(w, "has_more"), jsonw_bool(w, more);
    jsonw_end(w);
}

int jobstore_errno(struct err *e, const char *what, const char *path)
{
    int n = errno;
    int code = n == ENOSPC || n == EDQUOT || n == EFBIG  ? E_FULL
               : n == EROFS || n == EACCES || n == EPERM ? E_READONLY
                                                         : E_IO;

    return err_set(e, code, "%s: cannot %s: %s", path, what, strerror(n));
}

int jobstore_check_limit(struct jobstore *s, const char *sql, const char *tenant, int64_t more,
                         int64_t max, const char *what, struct err *e)
{
    struct query q;
    int64_t n = 0;
    int rc;

    if (max <= 0) return OK;
    query_begin(&q, s->db, sql);
    query_text(&q, str_c(tenant));
    if (query_row(&q)) n = query_get_int(&q, 0);
    if ((rc = query_end(&q, e)) != OK) return rc;
    if (n + more <= max) return OK;
    return err_set(e, E_QUEUE_FULL, "%lld %s, and %lld more would exceed the limit of %lld",
                   (long long)n, what, (long long)more, (long long)max);
}

/* A new name is on the disk when its folder is. */
int jobstore_sync_folder(const char *path, struct err *e)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), rc = OK;

    if (fd < 0 || fsync(fd) != 0) rc = jobstore_errno(e, "sync", path);
    if (fd >= 0) close(fd);
    return rc;
}

/* ---- the folder ---- */

static int make_folder(const char *path, struct err *e)
{
    if (mkdir(path, 0700) == 0 || (errno == EEXIST && file_is_dir(path))) return OK;
    if (errno == EEXIST) return err_set(e, E_IO, "%s is not a folder", path);
    return jobstore_errno(e, "make the folder", path);
}

/* With the folders above it. */
int jobstore_make_folders(const char *path, struct err *e)
{
    char part[3000];
    size_t n = strlen(path);
    int rc = OK;

    if (n >= sizeof part - 100)
        return err_set(e, E_INVALID, "the path %.100s... is too long", path);
    for (size_t i = 1; i < n && rc == OK; i++) {
        if (path[i] != '/') continue;
        memcpy(part, path, i);
        part[i] = 0;
        if (!file_is_dir(part)) rc = make_folder(part, e);
    }
    return rc == OK ? make_folder(path, e) : rc;
}

static int lock_folder(struct jobstore *s, struct err *e)
{
    char path[3200];

    snprintf(path, sizeof path, "%s/lock", s->dir);
    s->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (s->lock < 0) return jobstore_errno(e, "open", path);
    if (flock(s->lock, LOCK_EX | LOCK_NB) == 0) return OK;
    if (errno != EWOULDBLOCK) return jobstore_errno(e, "lock", path);
    return err_set(e, E_STORE,
                   "%s is in use by another process: every server needs a --data-dir of its own",
                   s->dir);
}

/* Uploads and results that a killed process left behind. An upload of this process may be under way:
 * the first one comes before the store is open. */
static void empty_temp(const struct jobstore *s)
{
    char path[3200], own[32];
    const struct dirent *d;
    DIR *dir;

    snprintf(own, sizeof own, STORE_UPLOAD, (int)getpid());
    snprintf(path, sizeof path, "%s/tmp", s->dir);
    if (!(dir = file_opendir(path))) return;
    while ((d = readdir(dir)))
        if (d->d_name[0] != '.' && !str_starts(str_c(d->d_name), str_c(own)))
            unlinkat(dirfd(dir), d->d_name, 0);
    closedir(dir);
}

/* Files whose row was never committed: the process was killed between the two. */
static int remove_orphans(struct jobstore *s, struct err *e)
{
    char path[3200];
    const struct dirent *d;
    struct query q;
    int rc = OK;
    DIR *dir;

    snprintf(path, sizeof path, "%s/files", s->dir);
    if (!(dir = file_opendir(path))) return OK;
    while (rc == OK && (d = readdir(dir))) {
        bool found;
        if (d->d_name[0] == '.') continue;
        query_begin(&q, s->db, "SELECT 1 FROM files WHERE id=?");
        query_text(&q, str_c(d->d_name));
        found = query_row(&q);
        rc = query_end(&q, e);
        if (rc == OK && !found) unlinkat(dirfd(dir), d->d_name, 0);
    }
    closedir(dir);
    return rc;
}

bool jobstore_exists(const char *dir)
{
    char path[3200];

    snprintf(path, sizeof path, "%s/jobs.db", dir);
    return file_exists(path);
}

/* ---- the schema ---- */

static int make_schema(struct jobstore *s, struct err *e)
{
    int rc = db_exec(s->db, "BEGIN IMMEDIATE", e);

    if (rc == OK) rc = db_exec(s->db, schema, e);
    if (rc == OK) return db_exec(s->db, "COMMIT", e);
    db_exec(s->db, "ROLLBACK", NULL);
    return rc;
}

/* quick_check reads every page: a damaged database is refused here and not in the middle of a job. */
static int check_pages(struct jobstore *s, struct err *e)
{
    struct query q;
    struct str said = { 0 };
    char text[200] = "";
    int rc;

    query_begin(&q, s->db, "PRAGMA quick_check(1)");
    if (query_row(&q)) said = query_get_text(&q, 0);
    jobstore_copy(text, sizeof text, said);
    if ((rc = query_end(&q, e)) != OK || strcmp(text, "ok") == 0) return rc;
    return err_set(e, E_DAMAGED, "%s/jobs.db is damaged: %s", s->dir, text);
}

static int check_schema(struct jobstore *s, struct err *e)
{
    int64_t app, version, tables;
    int rc;

    if ((rc = db_get_int(s->db, "PRAGMA application_id", &app, e)) != OK) return rc;
    if ((rc = db_get_int(s->db, "PRAGMA user_version", &version, e)) != OK) return rc;
    if ((rc = db_get_int(s->db, "SELECT count(*) FROM sqlite_master", &tables, e)) != OK) return rc;
    if (app == 0 && version == 0 && tables == 0) return make_schema(s, e);
    if (app != APPLICATION)
        return err_set(e, E_FORMAT, "%s/jobs.db is the database of another program", s->dir);
    if (version != STORE_VERSION)
        return err_set(e, E_UNSUPPORTED,
                       "%s/jobs.db has version %lld of the schema, and this tern reads version %d",
                       s->dir, (long long)version, STORE_VERSION);
    return check_pages(s, e);
}

int jobstore_open(struct jobstore **out, const char *dir, const struct jobstore_limits *lim,
                  struct err *e)
{
    struct jobstore *s = mem_new(struct jobstore);
    char path[3200];
    int rc;

    if (!s || !(s->dir = mem_strdup(dir))) {
        mem_free(s);
        return err_nomem(e, "the store of jobs");
    }
    s->lim = *lim;
    s->lock = -1;
    if ((rc = jobstore_make_folders(dir, e)) != OK || (rc = lock_folder(s, e)) != OK) goto out;
    snprintf(path, sizeof path, "%s/files", dir);
    if ((rc = make_folder(path, e)) != OK) goto out;
    snprintf(path, sizeof path, "%s/tmp", dir);
    if ((rc = make_folder(path, e)) != OK) goto out;
    snprintf(path, sizeof path, "%s/jobs.db", dir);
    if ((rc = db_open(&s->db, path, e)) != OK) goto out;
    if ((rc = check_schema(s, e)) != OK) goto out;
    empty_temp(s);
    if ((rc = remove_orphans(s, e)) != OK) goto out;
    *out = s;
    s = NULL;
out:
    jobstore_close(s);
    return rc;
}

void jobstore_close(struct jobstore *s)
{
    if (!s) return;
    db_close(s->db);
    if (s->lock >= 0) close(s->lock);
    buf_release(&s->gone);
    mem_free(s->dir);
    mem_free(s);
}

/* ---- transactions ---- */

int jobstore_begin(struct jobstore *s, struct err *e)
{
    return db_exec(s->db, "BEGIN IMMEDIATE", e);
}

/* Without memory for the id the bytes stay until the store opens again (remove_orphans). */
void jobstore_unlink_later(struct jobstore *s, const char *id)
{
    if (buf_reserve(&s->gone, strlen(id) + 1)) buf_add(&s->gone, id, strlen(id) + 1);
}

static void unlink_gone(struct jobstore *s)
{
    char path[3200];

    for (size_t i = 0; i < s->gone.n; i += strlen(s->gone.p + i) + 1) {
        jobstore_path(s, path, sizeof path, "files", s->gone.p + i);
        unlink(path);
    }
    buf_clear(&s->gone);
}

int jobstore_commit(struct jobstore *s, struct err *e)
{
    int rc;

    if (!db_is_in_transaction(s->db))
        return err_set(e, E_IO, "%s/jobs.db: the transaction was rolled back", s->dir);
    if ((rc = db_exec(s->db, "COMMIT", e)) != OK) jobstore_rollback(s);
    else unlink_gone(s);
    return rc;
}

void jobstore_rollback(struct jobstore *s)
{
    buf_clear(&s->gone);
    if (db_is_in_transaction(s->db)) db_exec(s->db, "ROLLBACK", NULL);
}

int jobstore_save(struct jobstore *s, struct err *e)
{
    if (!db_is_in_transaction(s->db)) return err_set(e, E_IO, "the transaction was rolled back");
    return db_exec(s->db, "SAVEPOINT op", e);
}

int jobstore_release(struct jobstore *s, bool keep, struct err *e)
{
    if (!db_is_in_transaction(s->db)) return err_set(e, E_IO, "the transaction was rolled back");
    return db_exec(s->db, keep ? "RELEASE op" : "ROLLBACK TO op; RELEASE op", e);
}

/* ---- counts ---- */

static int count_batches(struct jobstore *s, struct jobstore_counts *out, struct err *e)
{
    struct query q;

    query_begin(&q, s->db, "SELECT status, count(*) FROM batches GROUP BY status");
    while (query_row(&q)) {
        int64_t status = query_get_int(&q, 0);
        if (status >= 0 && status < BATCH_STATUSES) out->batches[status] = query_get_int(&q, 1);
    }
    return query_end(&q, e);
}

int jobstore_count(struct jobstore *s, struct jobstore_counts *out, struct err *e)
{
    struct query q;
    int rc = count_batches(s, out, e);

    if (rc != OK) return rc;
    if ((rc = db_get_int(s->db, "SELECT count(*) FROM files", &out->files, e)) != OK) return rc;
    rc = db_get_int(s->db, "SELECT coalesce(sum(bytes),0) FROM files", &out->file_bytes, e);
    if (rc != OK) return rc;
    query_begin(
        &q, s->db,
        "SELECT batch='', state, count(*), min(created) FROM jobs GROUP BY batch='', state");
    while (query_row(&q)) {
        bool durable = query_get_int(&q, 0) != 0, queued = query_get_int(&q, 1) == JOB_QUEUED;
        int64_t n = query_get_int(&q, 2), at = query_get_int(&q, 3);
        if (queued && durable) out->queued = n;
        else if (queued) out->queued_lines = n;
        else if (durable) out->answered = n;
        if (queued && (!out->oldest || at < out->oldest)) out->oldest = at;
    }
    return query_end(&q, e);
}

/* ---- retention ---- */

static int purge_files(struct jobstore *s, int64_t now, struct err *e)
{
    struct query q;
    int rc;

    query_begin(&q, s->db,
                "SELECT id FROM files WHERE expires>0 AND expires<? AND NOT EXISTS(SELECT 1 FROM "
                "batches WHERE input=files.id AND status<4) ORDER BY seq LIMIT 1000");
    query_int(&q, now);
    while (query_row(&q)) jobstore_unlink_later(s, query_get_text(&q, 0).p);
    if ((rc = query_end(&q, e)) != OK) return rc;
    query_begin(&q, s->db,
                "DELETE FROM files WHERE seq IN(SELECT seq FROM files WHERE expires>0 AND expires<?"
                " AND NOT EXISTS(SELECT 1 FROM batches WHERE input=files.id AND status<4) ORDER BY "
                "seq LIMIT 1000)");
    query_int(&q, now);
    return query_run(&q, NULL, e);
}

int jobstore_purge(struct jobstore *s, int64_t now, struct err *e)
{
    int64_t before = now - s->lim.retention_s;
    struct query q;
    int rc = purge_files(s, now, e);

    if (rc != OK || s->lim.retention_s <= 0) return rc;
    query_begin(&q, s->db,
                "DELETE FROM errors WHERE batch IN(SELECT id FROM batches WHERE ended<?)");
    query_int(&q, before);
    if ((rc = query_run(&q, NULL, e)) != OK) return rc;
    query_begin(&q, s->db, "DELETE FROM batches WHERE ended<?");
    query_int(&q, before);
    if ((rc = query_run(&q, NULL, e)) != OK) return rc;
    query_begin(&q, s->db, "DELETE FROM jobs WHERE batch='' AND state=1 AND ended<?");
    query_int(&q, before);
    return query_run(&q, NULL, e);
}
