/* storelink.h - what operations on files and batches ask JetStream for. On the ledger's thread: every call
 * blocks until the NATS server has answered, for some seconds at most.
 *
 * Errors: E_STORE: NATS is away; E_FULL: it has no room; E_NOTFOUND; E_CONCURRENCY: somebody else has
 * changed it; E_FORMAT, E_UNSUPPORTED: what stands there cannot be read; E_NOMEM. */
#ifndef TERN_CLUSTER_STORELINK_H
#define TERN_CLUSTER_STORELINK_H

#include "cluster/storerec.h"

struct storelink {
    const struct ledger_api *api;
    struct ledger_link *link;
    char why[256];
};

/* The error of a result; OK for LEDGER_DONE. */
int storelink_fail(const struct storelink *k, enum ledger_result r, struct err *e);
/* Appends the message; seq NULL: not wanted. */
int storelink_get(struct storelink *k, enum ledger_stream st, const char *subject, struct buf *out,
                  uint64_t *seq, struct err *e);
/* Only if the subject has no message. */
int storelink_add(struct storelink *k, enum ledger_stream st, const char *subject, struct str data,
                  struct err *e);
int storelink_erase(struct storelink *k, enum ledger_stream st, const char *pattern, struct err *e);
int storelink_piece_bytes(const struct storelink *k); /* of files that are written now */

/* Records. *seq: of the record that was read, or is replaced (0: there is none); then of the new one. */
int storelink_get_file(struct storelink *k, const char *tenant, const char *id, struct filerec *out,
                       uint64_t *seq, struct err *e);
int storelink_put_file(struct storelink *k, const struct filerec *r, uint64_t *seq, struct err *e);
/* Removes the pieces and the record of a file. A file that is gone is no error. */
int storelink_drop_file(struct storelink *k, const char *tenant, const char *id, struct err *e);
int storelink_get_batch(struct storelink *k, const char *tenant, const char *id,
                        struct batchrec *out, uint64_t *seq, struct err *e);
int storelink_put_batch(struct storelink *k, const struct batchrec *r, uint64_t *seq,
                        struct err *e);

/* Ids of records, sorted: the latest first. */
struct storeids {
    char (*p)[STORE_ID];
    int n, cap;
    bool failed;
    const char *prefix;
};
/* kind "file" or "batch" of a tenant. */
int storelink_list(struct storelink *k, const char *kind, const char *tenant, struct storeids *out,
                   struct err *e);
void storeids_release(struct storeids *v);

/* Lines of a file, piece by piece. Zeroed: closed. */
struct linereader {
    struct filerec rec;
    int next; /* piece */
    struct buf data;
    size_t at, seen; /* of data: the next line; bytes without a line end */
    int64_t line;    /* of the last one, from 1 */
};
int linereader_open(struct storelink *k, struct linereader *r, const char *tenant, const char *id,
                    struct err *e);
/* The next line without its end, valid until the next call. *got false: the file has ended. E_INVALID: a
 * line is longer than STORE_LINE_MAX; E_DAMAGED: a piece is missing or cut. */
int linereader_next(struct storelink *k, struct linereader *r, struct str *out, bool *got,
                    struct err *e);
void linereader_close(struct linereader *r);
#endif
