#include "cluster/storelink.h"

#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    WAIT_MS = 1500,
    TRIES = 3,
    RETRY_AFTER_MS = 2000,
    PIECE_BYTES = 512 << 10,
    PIECE_SPARE = 4096, /* of a message, for its subject and headers */
    IDS_MAX = 1000000
};

int storelink_fail(const struct storelink *k, enum ledger_result r, struct err *e)
{
    switch (r) {
    case LEDGER_DONE: return OK;
    case LEDGER_FULL: return err_set(e, E_FULL, "the NATS server has no room: %s", k->why);
    case LEDGER_MISSING: return err_set(e, E_NOTFOUND, "it is not stored");
    case LEDGER_EXISTS: return err_set(e, E_CONCURRENCY, "it was changed meanwhile");
    case LEDGER_TOO_LARGE:
        return err_set(e, E_INVALID, "a message of the NATS server has at most %zu bytes",
                       k->api->max_bytes(k->link));
    default:
        err_set(e, E_STORE, "files and batches are not available now: %s", k->why);
        if (e) e->retry_ms = RETRY_AFTER_MS;
        return E_STORE;
    }
}

/* ---- messages ---- */

struct copy {
    struct buf *out;
    uint64_t seq;
};

static void copy_msg(void *arg, const struct ledger_msg *m)
{
    struct copy *c = arg;

    buf_add(c->out, m->p, m->n);
    c->seq = m->seq;
}

int storelink_get(struct storelink *k, enum ledger_stream st, const char *subject, struct buf *out,
                  uint64_t *seq, struct err *e)
{
    struct copy c = { .out = out };
    int rc = storelink_fail(
        k, k->api->get(k->link, st, subject, copy_msg, &c, k->why, sizeof k->why), e);

    if (rc == OK && seq) *seq = c.seq;
    return rc == OK ? buf_check(out, e) : rc;
}

/* An addition without a reply is repeated: that the subject exists then says that it was written. */
int storelink_add(struct storelink *k, enum ledger_stream st, const char *subject, struct str data,
                  struct err *e)
{
    enum ledger_result r = LEDGER_UNSURE;
    bool unsure = false;

    for (int i = 0; i < TRIES && r == LEDGER_UNSURE; i++) {
        r = k->api->add(k->link, st, subject, data.p, data.n, WAIT_MS, k->why, sizeof k->why);
        if (r == LEDGER_EXISTS && unsure) r = LEDGER_DONE;
        unsure |= r == LEDGER_UNSURE;
    }
    return storelink_fail(k, r, e);
}

/* A change without a reply: the record says whether it was made. */
static int put_record(struct storelink *k, const char *subject, const struct buf *data,
                      uint64_t *seq, struct err *e)
{
    int rc = buf_check(data, e);

    for (int i = 0; rc == OK && i < TRIES; i++) {
        struct buf now = { 0 };
        uint64_t found = 0;
        enum ledger_result r = k->api->put(k->link, LEDGER_RECORDS, subject, data->p, data->n, seq,
                                           WAIT_MS, k->why, sizeof k->why);
        if (r != LEDGER_UNSURE) return storelink_fail(k, r, e);
        rc = storelink_get(k, LEDGER_RECORDS, subject, &now, &found, e);
        if (rc == E_NOTFOUND) rc = OK;
        if (rc == OK && found && str_eq(buf_str(&now), buf_str(data))) {
            buf_release(&now);
            *seq = found;
            return OK;
        }
        buf_release(&now);
        if (rc == OK && found != *seq) return storelink_fail(k, LEDGER_EXISTS, e);
    }
    return rc == OK ? storelink_fail(k, LEDGER_UNSURE, e) : rc;
}

int storelink_erase(struct storelink *k, enum ledger_stream st, const char *pattern, struct err *e)
{
    enum ledger_result r = k->api->erase(k->link, st, pattern, k->why, sizeof k->why);

    return storelink_fail(k, r == LEDGER_MISSING ? LEDGER_DONE : r, e);
}

int storelink_piece_bytes(const struct storelink *k)
{
    size_t most = k->api->max_bytes(k->link);

    most = most > 2 * PIECE_SPARE ? most - PIECE_SPARE : PIECE_SPARE;
    return most < PIECE_BYTES ? (int)most : PIECE_BYTES;
}

/* ---- records ---- */

static int check_own(bool is_own, const char *id, struct err *e)
{
    return is_own ? OK : err_set(e, E_FORMAT, "under '%s' stands another record", id);
}

int storelink_get_file(struct storelink *k, const char *tenant, const char *id, struct filerec *out,
                       uint64_t *seq, struct err *e)
{
    char subject[LEDGER_SUBJECT];
    struct buf b = { 0 };
    int rc = E_NOTFOUND;

    if (storerec_is_id(str_c(id), STOREREC_FILE)) {
        storerec_subject(subject, "file", tenant, id);
        rc = storelink_get(k, LEDGER_RECORDS, subject, &b, seq, e);
    }
    if (rc == E_NOTFOUND) rc = err_set(e, E_NOTFOUND, "there is no file '%s'", id);
    if (rc == OK) rc = filerec_read(out, buf_str(&b), e);
    if (rc == OK)
        rc = check_own(!strcmp(out->file.id, id) && !strcmp(out->file.tenant, tenant), id, e);
    buf_release(&b);
    return rc;
}

int storelink_put_file(struct storelink *k, const struct filerec *r, uint64_t *seq, struct err *e)
{
    char subject[LEDGER_SUBJECT];
    struct buf b = { 0 };
    int rc;

    filerec_write(r, &b);
    storerec_subject(subject, "file", r->file.tenant, r->file.id);
    rc = put_record(k, subject, &b, seq, e);
    buf_release(&b);
    return rc;
}

int storelink_drop_file(struct storelink *k, const char *tenant, const char *id, struct err *e)
{
    char subject[LEDGER_SUBJECT];
    int rc;

    storerec_piece_subject(subject, id, -1);
    if ((rc = storelink_erase(k, LEDGER_FILES, subject, e)) != OK) return rc;
    storerec_subject(subject, "file", tenant, id);
    return storelink_erase(k, LEDGER_RECORDS, subject, e);
}

int storelink_get_batch(struct storelink *k, const char *tenant, const char *id,
                        struct batchrec *out, uint64_t *seq, struct err *e)
{
    char subject[LEDGER_SUBJECT];
    struct buf b = { 0 };
    int rc = E_NOTFOUND;

    *out = (struct batchrec){ 0 };
    if (storerec_is_id(str_c(id), STOREREC_BATCH)) {
        storerec_subject(subject, "batch", tenant, id);
        rc = storelink_get(k, LEDGER_RECORDS, subject, &b, seq, e);
    }
    if (rc == E_NOTFOUND) rc = err_set(e, E_NOTFOUND, "there is no batch '%s'", id);
    if (rc == OK) rc = batchrec_read(out, buf_str(&b), e);
    if (rc == OK && (rc = check_own(!strcmp(out->id, id) && !strcmp(out->tenant, tenant), id, e)))
        batchrec_release(out);
    buf_release(&b);
    return rc;
}

int storelink_put_batch(struct storelink *k, const struct batchrec *r, uint64_t *seq, struct err *e)
{
    char subject[LEDGER_SUBJECT];
    struct buf b = { 0 };
    int rc;

    batchrec_write(r, &b);
    storerec_subject(subject, "batch", r->tenant, r->id);
    rc = put_record(k, subject, &b, seq, e);
    buf_release(&b);
    return rc;
}

/* ---- lists ---- */

static void add_id(void *arg, const char *subject)
{
    struct storeids *v = arg;
    const char *id = storerec_id_of(subject, v->prefix);

    if (!*id || v->failed || v->n >= IDS_MAX) return;
    if (!mem_ensure(v->p, v->cap, v->n + 1)) v->failed = true;
    else snprintf(v->p[v->n++], STORE_ID, "%s", id);
}

static int compare_ids(const void *a, const void *b) { return strcmp(b, a); }

int storelink_list(struct storelink *k, const char *kind, const char *tenant, struct storeids *out,
                   struct err *e)
{
    char pattern[LEDGER_SUBJECT];
    int rc;

    storeids_release(out);
    out->prefix = strcmp(kind, "file") == 0 ? STOREREC_FILE : STOREREC_BATCH;
    storerec_subject(pattern, kind, tenant, "*");
    rc = storelink_fail(
        k, k->api->list(k->link, LEDGER_RECORDS, pattern, add_id, out, k->why, sizeof k->why), e);
    if (rc == OK && out->failed) rc = err_nomem(e, "a list");
    if (out->n) qsort(out->p, (size_t)out->n, sizeof *out->p, compare_ids);
    return rc;
}

void storeids_release(struct storeids *v)
{
    mem_free(v->p);
    *v = (struct storeids){ 0 };
}

/* ---- lines ---- */

int linereader_open(struct storelink *k, struct linereader *r, const char *tenant, const char *id,
                    struct err *e)
{
    uint64_t seq;
    int rc;

    linereader_close(r);
    rc = storelink_get_file(k, tenant, id, &r->rec, &seq, e);
    if (rc == OK && r->rec.state != FILEREC_READY)
        rc = err_set(e, E_NOTFOUND, "there is no file '%s'", id);
    return rc;
}

void linereader_close(struct linereader *r)
{
    buf_release(&r->data);
    *r = (struct linereader){ 0 };
}

static int read_piece(struct storelink *k, struct linereader *r, struct err *e)
{
    int64_t left = r->rec.file.bytes - (int64_t)r->next * r->rec.piece;
    size_t want = (size_t)(left < r->rec.piece ? left : r->rec.piece), have;
    char subject[LEDGER_SUBJECT];
    int rc;

    if (r->at) { /* lines that were read */
        memmove(r->data.p, r->data.p + r->at, r->data.n - r->at);
        r->data.n -= r->at;
        r->seen -= r->at;
        r->at = 0;
    }
    have = r->data.n;
    storerec_piece_subject(subject, r->rec.file.id, r->next);
    rc = storelink_get(k, LEDGER_FILES, subject, &r->data, NULL, e);
    if (rc == E_NOTFOUND || (rc == OK && r->data.n - have != want))
        rc = err_set(e, E_DAMAGED, "piece %d of the file '%s' is missing or cut", r->next,
                     r->rec.file.id);
    if (rc != OK) {
        r->data.n = have;
        return rc;
    }
    r->next++;
    return OK;
}

int linereader_next(struct storelink *k, struct linereader *r, struct str *out, bool *got,
                    struct err *e)
{
    const char *end;
    int rc;

    *got = false;
    for (;;) {
        size_t n = r->data.n - r->at;
        end = r->seen < r->data.n ? memchr(r->data.p + r->seen, '\n', r->data.n - r->seen) : NULL;
        if (end) break;
        r->seen = r->data.n;
        if (n >= STORE_LINE_MAX) {
            r->line++;
            return err_set(e, E_INVALID, "the line has more than %d bytes", STORE_LINE_MAX);
        }
        if (r->next >= filerec_n_pieces(&r->rec)) {
            if (n == 0) return OK;
            end = r->data.p + r->data.n;
            break;
        }
        if ((rc = read_piece(k, r, e)) != OK) return rc;
    }
    *out = str_of(r->data.p + r->at, (size_t)(end - (r->data.p + r->at)));
    r->at += out->n + (end < r->data.p + r->data.n);
    r->seen = r->at;
    r->line++;
    *got = true;
    return OK;
}
