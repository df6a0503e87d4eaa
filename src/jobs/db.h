/* db.h - one SQLite database in WAL mode, and queries on it.
 *
 * libsqlite3 is opened by dlopen when the first database is: a server that has no jobs never loads
 * it, and tern starts without it. Where it is missing, db_open says so (E_UNSUPPORTED).
 *
 * Errors are typed: E_FULL (no space on the disk), E_READONLY, E_FORMAT (the file is not a
 * database), E_DAMAGED, E_NOMEM, else E_IO. One thread uses a database. */
#ifndef TERN_JOBS_DB_H
#define TERN_JOBS_DB_H

#include "base/err.h"
#include "base/str.h"

struct db;

/* Opens or makes the file. Commits are on the disk when db_commit returns (synchronous=FULL). */
int db_open(struct db **out, const char *path, struct err *e);
void db_close(struct db *d); /* NULL is allowed */
int db_exec(struct db *d, const char *sql, struct err *e);
/* The first column of the first row; 0: there is none. */
int db_get_int(struct db *d, const char *sql, int64_t *out, struct err *e);
/* Has a failed statement ended the transaction by itself? */
bool db_is_in_transaction(struct db *d);

/* One statement: query_begin, values in the order of its question marks, query_row until false,
 * query_end. Statements stay prepared, found by the address of their text: sql is a literal. */
struct query {
    struct db *db;
    void *stmt;
    int n; /* values bound so far */
    int rc;
};
void query_begin(struct query *q, struct db *d, const char *sql);
void query_int(struct query *q, int64_t v);
void query_text(struct query *q, struct str s); /* valid until query_end; p NULL: null */
bool query_row(struct query *q);                /* false: no more rows, or an error */
int64_t query_get_int(struct query *q, int column);
struct str query_get_text(struct query *q, int column); /* valid until the next row */
int query_end(struct query *q, struct err *e);
/* Runs the statement to its end; *changed: rows that it changed; may be NULL. */
int query_run(struct query *q, int *changed, struct err *e);
int64_t db_last_id(struct db *d); /* of the row that was inserted last */
#endif
