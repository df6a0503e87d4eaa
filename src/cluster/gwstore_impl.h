/* gwstore_impl.h - files and batches of a gateway. Private to gwstore.c, gwstore_http.c, batchrun.c and
 * batchwork.c. */
#ifndef TERN_CLUSTER_GWSTORE_IMPL_H
#define TERN_CLUSTER_GWSTORE_IMPL_H

#include "base/arena.h"
#include "base/map.h"
#include "base/stat.h"
#include "cluster/gwstore.h"
#include "cluster/storelink.h"
#include "jobs/jobcall.h"
#include "ledger/ledger.h"

struct loop_timer;

enum {
    STORE_STEP = 64,         /* records or lines of one step of an operation */
    STORE_RENEW_MS = 1250,   /* between two signs of life of a batch's holder */
    STORE_SILENCE_MS = 5000, /* without one for so long the batch is taken over */
    LINE_BEGINS = 8          /* of a line whose worker is lost; then it has an error */
};

/* ---- lines ---- */

enum gwline_state { LINE_HELD, LINE_RUNNING, LINE_ANSWERED };

struct gwline {
    struct jobcall call; /* first */
    struct gwbatch *b;
    int n; /* of the batch, from 0 */
    enum gwline_state state;
    struct buf body;   /* of the request; read by the ledger's thread */
    struct buf answer; /* its message; read and written by the ledger's thread */
    int status;        /* of the answer */
    int n_begun, n_lost, n_tries;
    uint64_t not_before, missing_ns;
    struct gwline *next;
};
void gwline_free(struct gwline *l); /* one that does not run */

/* ---- batches that this gateway runs ---- */

/* While op is busy, all but the members of the loop belong to the ledger's thread. */
struct gwbatch {
    struct ledger_op op; /* first */
    struct gwstore *s;
    struct batchrec rec;
    uint64_t seq;            /* of the record */
    uint64_t put_ns;         /* when it was written */
    bool lost;               /* another gateway has it, or nobody can */
    struct gwline *answered; /* to be written; those that are left were not */
    struct gwline *fresh;    /* lines that were read, in order */
    int want;                /* lines to read */
    bool exhausted;          /* there are no more */
    int64_t now;             /* seconds since 1970, for its expiry */
    struct batchwork *work;  /* NULL: nothing has begun */

    /* the loop's: */
    char id[STORE_ID], tenant[STORE_TENANT], endpoint[64];
    bool busy, released;
    struct gwline *lines;
    int n_lines;
    int status; /* copy of rec.status */
    uint64_t next_ns, told_ns;
    struct gwbatch *next;
};

/* One step, on the ledger's thread (batchwork.c). */
int batchwork_run(const struct ledger_api *api, struct ledger_link *link, struct ledger_op *op);
/* The same, the last one: the answers there are, and then the batch is nobody's. */
int batchwork_release(const struct ledger_api *api, struct ledger_link *link, struct ledger_op *op);
void batchwork_free(struct batchwork *w); /* NULL is allowed */

/* ---- all ---- */

struct gwwatch { /* a batch that has not ended, as it was seen last */
    char subject[LEDGER_SUBJECT], input[STORE_ID];
    uint64_t seq, since_ns;
    bool seen;
};

struct gwstore {
    struct gateway *g;
    struct ledger *ledger;
    struct loop_timer *timer;
    char me[40];      /* holder of batches */
    char spool[3000]; /* folder of uploads on their way */
    struct jobstore_limits lim;
    int n_asked;
    struct gwbatch *batches;
    int n_batches, n_running;
    bool draining, closing;
    uint64_t scan_ns;
    struct ledger_op scan; /* for batches that nobody runs, and for what has expired */
    bool scan_busy;
    char (*held)[STORE_ID]; /* for the scan: batches of this gateway */
    int n_held, cap_held;
    struct {
        struct counter files, batches, taken_over, lines, failed, retried;
    } n;

    /* the ledger's thread's: */
    struct arena names; /* keys of both maps */
    struct map sizes;   /* bytes of files by id */
    struct map ended;   /* ids of batches that have ended */
    struct gwwatch *watch;
    int n_watch, cap_watch;
    char (*found)[LEDGER_SUBJECT]; /* subjects of a scan */
    int n_found, cap_found, at_found;
    bool found_failed;
    uint64_t last_seq;
    int64_t sweep_at;
    enum { SCAN_BEGIN, SCAN_BATCHES, SCAN_SWEEP } scan_state;

    /* from the thread to the loop, when scan is done: */
    struct gwbatch *claimed;
};

bool gwstore_note_ended(struct gwstore *s, const char *id); /* on the thread; false: no memory */
/* Runs the batch from now on, which has s->me as its holder; takes over rec. false: no memory. */
bool gwstore_add_batch(struct gwstore *s, struct batchrec *rec, uint64_t seq);
struct gwbatch *gwstore_find_batch(struct gwstore *s, const char *id);

/* ---- batchrun.c: on the loop ---- */
void batchrun_turn(struct gwstore *s);
void batchrun_stop(struct gwbatch *b); /* ends its lines */
void batchrun_free(struct gwbatch *b); /* not busy, and without lines that run */
#endif
