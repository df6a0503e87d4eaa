/* storerec.h - files, batches and answers of lines as messages of JetStream (docs/protocol.md).
 *
 *     tern.records.file.TENANT.ID    {"v":1,"kind":"file","id":"file-...","state":"ready",...}
 *     tern.records.batch.TENANT.ID   {"v":1,"kind":"batch","id":"batch_...","status":"in_progress",...}
 *     tern.files.ID.N                piece N of the file's bytes, as they are
 *     tern.lines.ID.N                a line of JSON, a line end, and the body of the answer to line N
 *
 * TENANT is a hash of the tenant's name. Whoever can write into the store could have written anything:
 * readers trust nothing of it. */
#ifndef TERN_CLUSTER_STOREREC_H
#define TERN_CLUSTER_STOREREC_H

#include "jobs/jobstore.h"
#include "ledger/ledgerapi.h"

/* ---- names ---- */
#define STOREREC_FILE "file-"
#define STOREREC_BATCH "batch_"
/* The prefix and 24 letters or digits. */
bool storerec_is_id(struct str id, const char *prefix);
void storerec_subject(char out[LEDGER_SUBJECT], const char *kind, const char *tenant,
                      const char *id); /* kind: "file", "batch"; id "*": of all */
void storerec_piece_subject(char out[LEDGER_SUBJECT], const char *file, int n); /* n -1: of all */
void storerec_line_subject(char out[LEDGER_SUBJECT], const char *batch, int n);
/* The last token of a subject, if it is a number from 0 to most - 1; else -1. */
int storerec_number_of(const char *subject, int most);
/* The last token of a subject if it is an id with the prefix; else "". */
const char *storerec_id_of(const char *subject, const char *prefix);

/* ---- files ---- */
enum filerec_state {
    FILEREC_WRITING, /* its pieces are being written: nobody sees it */
    FILEREC_READY,
    FILEREC_GONE /* its pieces are being removed */
};
struct filerec {
    struct jobstore_file file; /* expires: always set, unless nothing expires */
    enum filerec_state state;
    int piece; /* bytes of a piece; the last one may have less */
};
void filerec_write(const struct filerec *r, struct buf *out);
/* E_UNSUPPORTED: written by another version; E_FORMAT names what is wrong. */
int filerec_read(struct filerec *out, struct str message, struct err *e);
int filerec_n_pieces(const struct filerec *r);

/* ---- batches ---- */
enum { BATCHREC_ERRORS = 100 };
struct batchrec {
    char id[STORE_ID], tenant[STORE_TENANT], endpoint[64], input[STORE_ID], window[16];
    char output[STORE_ID], error[STORE_ID]; /* files of the results; "": none yet */
    bool has_output, has_error;             /* they are complete */
    int status, ends_as;                    /* enum batch_status */
    int64_t created, expires, in_progress, finalizing, cancelling, ended;
    int64_t total, completed, failed; /* lines */
    char holder[40];                  /* the gateway that runs it; "": none */
    struct buf metadata, errors;      /* JSON; n 0: none */
};
void batchrec_write(const struct batchrec *r, struct buf *out);
int batchrec_read(struct batchrec *out, struct str message, struct err *e); /* as filerec_read */
void batchrec_release(struct batchrec *r);
struct jsonw;
void batchrec_show(const struct batchrec *r, struct jsonw *w); /* as clients see it */
static inline bool batchrec_has_ended(const struct batchrec *r)
{
    return r->status >= BATCH_COMPLETED;
}

/* ---- answers of lines ---- */
struct linerec {
    int status;      /* of HTTP; 0: it got none, and error says why */
    char error[40];  /* code; "": none */
    struct str body; /* of the reply, or a sentence about the error; borrowed */
};
void linerec_write(const struct linerec *r, struct buf *out);
int linerec_read(struct linerec *out, struct str message, struct err *e);
#endif
