/* db.c - SQLite behind a table of functions that dlopen fills. */
#include "jobs/db.h"

#include "base/mem.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>

#if defined(__has_include) && __has_include(<sqlite3.h>)
#include <sqlite3.h>

enum { STATEMENTS = 96, BUSY_MS = 2000 };

#define LIBRARY "libsqlite3.so.0"
/* clang-format off */
#define EACH_FUNCTION(X) \
    X(open_v2) X(close_v2) X(errmsg) X(extended_errcode) X(system_errno) X(exec) X(prepare_v2) \
    X(step) X(reset) X(clear_bindings) X(finalize) X(bind_int64) X(bind_text) X(bind_null) \
    X(column_int64) X(column_text) X(column_bytes) X(changes) X(get_autocommit) X(busy_timeout) \
    X(last_insert_rowid)
/* clang-format on */

static struct {
    void *library;
#define MEMBER(name) __typeof__(&sqlite3_##name) name;
    EACH_FUNCTION(MEMBER)
} lite;
static pthread_mutex_t lite_lock = PTHREAD_MUTEX_INITIALIZER;

struct db {
    sqlite3 *p;
    char *path;
    struct {
        const char *sql;
        sqlite3_stmt *s;
    } cache[STATEMENTS];
    int n_cache;
};

static int load_library(struct err *e)
{
    const char *missing = NULL;

    pthread_mutex_lock(&lite_lock);
    if (!lite.library) {
        void *lib = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
#define FIND(name)                                                                 \
    if (lib && !(*(void **)&lite.name = dlsym(lib, "sqlite3_" #name)) && !missing) \
        missing = "sqlite3_" #name;
        EACH_FUNCTION(FIND)
        if (lib && missing) dlclose(lib);
        else lite.library = lib;
    }
    pthread_mutex_unlock(&lite_lock);
    if (missing) return err_set(e, E_UNSUPPORTED, LIBRARY " has no %s: it is too old", missing);
    if (lite.library) return OK;
    return err_set(e, E_UNSUPPORTED,
                   "files, batches and durable requests need " LIBRARY
                   ", which is not installed (Debian: libsqlite3-0)");
}

/* The code of a failed call. Under SQLITE_IOERR the errno of the system call tells a full disk. */
static int code_of(const struct db *d, int rc)
{
    int os = d->p ? lite.system_errno(d->p) : 0;

    switch (rc & 0xff) {
    case SQLITE_FULL: return E_FULL;
    case SQLITE_NOMEM: return E_NOMEM;
    case SQLITE_READONLY: return E_READONLY;
    case SQLITE_NOTADB: return E_FORMAT;
    case SQLITE_CORRUPT: return E_DAMAGED;
    case SQLITE_IOERR:
    case SQLITE_CANTOPEN:
        if ((rc & 0xff) == SQLITE_IOERR && rc == SQLITE_IOERR_NOMEM) return E_NOMEM;
        if (os == ENOSPC || os == EDQUOT || os == EFBIG) return E_FULL;
        if (os == EROFS || os == EACCES || os == EPERM) return E_READONLY;
        return E_IO;
    default: return E_IO;
    }
}

static int fail(struct db *d, int rc, struct err *e)
{
    return err_set(e, code_of(d, rc), "%s: %s", d->path, d->p ? lite.errmsg(d->p) : "no memory");
}

int db_exec(struct db *d, const char *sql, struct err *e)
{
    int rc = lite.exec(d->p, sql, NULL, NULL, NULL);
    return rc == SQLITE_OK ? OK : fail(d, lite.extended_errcode(d->p), e);
}

int db_open(struct db **out, const char *path, struct err *e)
{
    struct db *d;
    int rc = load_library(e);

    if (rc != OK) return rc;
    if (!(d = mem_new(struct db)) || !(d->path = mem_strdup(path))) {
        mem_free(d);
        return err_nomem(e, "the database of jobs");
    }
    rc = lite.open_v2(path, &d->p, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX,
                      NULL);
    if (rc != SQLITE_OK) rc = fail(d, d->p ? lite.extended_errcode(d->p) : rc, e);
    else {
        lite.busy_timeout(d->p, BUSY_MS);
        rc = db_exec(d, "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA foreign_keys=ON",
                     e);
    }
    if (rc == OK) *out = d;
    else db_close(d);
    return rc;
}

void db_close(struct db *d)
{
    if (!d) return;
    for (int i = 0; i < d->n_cache; i++) lite.finalize(d->cache[i].s);
    if (d->p) lite.close_v2(d->p);
    mem_free(d->path);
    mem_free(d);
}

bool db_is_in_transaction(struct db *d) { return !lite.get_autocommit(d->p); }
int64_t db_last_id(struct db *d) { return lite.last_insert_rowid(d->p); }

void query_begin(struct query *q, struct db *d, const char *sql)
{
    *q = (struct query){ .db = d };
    for (int i = 0; i < d->n_cache; i++)
        if (d->cache[i].sql == sql) q->stmt = d->cache[i].s;
    if (q->stmt) return;
    if (d->n_cache == STATEMENTS) lite.finalize(d->cache[--d->n_cache].s);
    q->rc = lite.prepare_v2(d->p, sql, -1, (sqlite3_stmt **)&q->stmt, NULL);
    if (q->rc != SQLITE_OK) {
        q->rc = lite.extended_errcode(d->p);
        return;
    }
    d->cache[d->n_cache].sql = sql;
    d->cache[d->n_cache++].s = q->stmt;
}

static void note_bound(struct query *q, int rc)
{
    if (rc != SQLITE_OK) q->rc = lite.extended_errcode(q->db->p);
}

void query_int(struct query *q, int64_t v)
{
    if (q->rc == SQLITE_OK) note_bound(q, lite.bind_int64(q->stmt, ++q->n, v));
}

/* SQLITE_STATIC: SQLite reads the text in place. */
void query_text(struct query *q, struct str s)
{
    if (q->rc != SQLITE_OK) return;
    if (!s.p) note_bound(q, lite.bind_null(q->stmt, ++q->n));
    else note_bound(q, lite.bind_text(q->stmt, ++q->n, s.p, (int)s.n, SQLITE_STATIC));
}

bool query_row(struct query *q)
{
    int rc;

    if (q->rc != SQLITE_OK) return false;
    if ((rc = lite.step(q->stmt)) == SQLITE_ROW) return true;
    if (rc != SQLITE_DONE) q->rc = lite.extended_errcode(q->db->p);
    return false;
}

int64_t query_get_int(struct query *q, int column) { return lite.column_int64(q->stmt, column); }

struct str query_get_text(struct query *q, int column)
{
    const char *p = (const char *)lite.column_text(q->stmt, column);
    return str_of(p, p ? (size_t)lite.column_bytes(q->stmt, column) : 0);
}

int query_end(struct query *q, struct err *e)
{
    int rc = OK;

    if (q->rc != SQLITE_OK) rc = fail(q->db, q->rc, e);
    if (!q->stmt) return rc;
    lite.reset(q->stmt);
    lite.clear_bindings(q->stmt);
    return rc;
}

int query_run(struct query *q, int *changed, struct err *e)
{
    while (query_row(q)) continue;
    if (changed) *changed = q->rc == SQLITE_OK ? lite.changes(q->db->p) : 0;
    return query_end(q, e);
}

int db_get_int(struct db *d, const char *sql, int64_t *out, struct err *e)
{
    struct query q;

    *out = 0;
    query_begin(&q, d, sql);
    if (query_row(&q)) *out = query_get_int(&q, 0);
    return query_end(&q, e);
}

#else /* built without SQLite's header */

static int refuse(struct err *e)
{
    return err_set(e, E_UNSUPPORTED,
                   "tern was built without SQLite: install libsqlite3-dev and run make");
}
int db_open(struct db **out, const char *path, struct err *e)
{
    (void)out, (void)path;
    return refuse(e);
}
void db_close(struct db *d) { (void)d; }
int db_exec(struct db *d, const char *sql, struct err *e)
{
    (void)d, (void)sql;
    return refuse(e);
}
int db_get_int(struct db *d, const char *sql, int64_t *out, struct err *e)
{
    (void)d, (void)sql, (void)out;
    return refuse(e);
}
bool db_is_in_transaction(struct db *d)
{
    (void)d;
    return false;
}
int64_t db_last_id(struct db *d)
{
    (void)d;
    return 0;
}
void query_begin(struct query *q, struct db *d, const char *sql) { (void)q, (void)d, (void)sql; }
void query_int(struct query *q, int64_t v) { (void)q, (void)v; }
void query_text(struct query *q, struct str s) { (void)q, (void)s; }
bool query_row(struct query *q)
{
    (void)q;
    return false;
}
int64_t query_get_int(struct query *q, int column)
{
    (void)q, (void)column;
    return 0;
}
struct str query_get_text(struct query *q, int column)
{
    (void)q, (void)column;
    return (struct str){ 0 };
}
int query_end(struct query *q, struct err *e)
{
    (void)q;
    return refuse(e);
}
int query_run(struct query *q, int *changed, struct err *e)
{
    (void)q, (void)changed;
    return refuse(e);
}
#endif
