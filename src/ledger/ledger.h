/* ledger.h - durable jobs between gateways: a queue and a store of answers in JetStream, asked by two
 * threads, since libnats blocks.
 *
 *     loop: ledger_add_op ─► queue ─► writer: one operation after the other ─► done list ─► loop
 *     loop: ledger_want   ─► puller: takes jobs while some are wanted ─► list of jobs ─► loop
 *
 * A job is accepted when JetStream has written it. It is delivered to one gateway at a time, again if
 * that gateway is silent for LEDGER_ACK_MS, and removed after its answer was stored. The store takes
 * one answer per job: of two gateways that computed it the second one is refused. A NATS server that is
 * away is no error of the ledger: operations fail with E_STORE, and it goes on trying. */
#ifndef TERN_LEDGER_LEDGER_H
#define TERN_LEDGER_LEDGER_H

#include "ledger/jobrecord.h"

struct ledger;

enum {
    LEDGER_ACK_MS = 5000,
    LEDGER_OP_MS = 3000,      /* an operation that a client waits for has ended by then, or fails */
    LEDGER_MAX_JOBS = 100000, /* in the queue */
    LEDGER_MAX_ANSWERS = 100000,
    LEDGER_ANSWER_S = 720 * 3600,
    LEDGER_PAGE_MAX = 100
};

enum ledger_kind {
    /* These four leave the JSON for the client in data: */
    LEDGER_OP_ADD,     /* writes the job of the record in data, if there is none of its id */
    LEDGER_OP_FIND,    /* the answer, or the job if it has none; E_NOTFOUND */
    LEDGER_OP_CANCEL,  /* writes an answer that says so; E_CONCURRENCY: there is one; E_NOTFOUND */
    LEDGER_OP_LIST,    /* the tenant's jobs, by id, the greatest first */
    LEDGER_OP_FINISH,  /* writes the answer in data, if there is none, and removes the job */
    LEDGER_OP_EXTEND,  /* the job of `reply` is still being computed */
    LEDGER_OP_RELEASE, /* it is to be delivered again, after delay_ms */
    LEDGER_OP_CALL     /* run, on the writer's thread */
};

struct ledger_op {
    enum ledger_kind kind;
    char tenant[64], id[JOBRECORD_ID]; /* ADD, FIND, CANCEL; LIST: the last id of the page before */
    char answer[LEDGER_SUBJECT];       /* FINISH: subject of the answer */
    char reply[LEDGER_REPLY];          /* FINISH, EXTEND, RELEASE */
    struct buf data;
    bool may_exist; /* ADD: the id was made from a key; look for its answer first */
    int delay_ms, limit;
    /* CALL: one step of an operation. more: it is called again after the others that wait. */
    int (*run)(const struct ledger_api *api, struct ledger_link *link, struct ledger_op *op);
    bool more, is_waited; /* is_waited: by a client, which gets an error if NATS is slow */
    void (*done)(struct ledger_op *op); /* on the loop; may free op and add others */
    /* the result */
    int rc;
    struct err err;
    bool is_new;    /* ADD, FINISH: data was written by this operation */
    bool too_large; /* with E_INVALID: for a message of this NATS server */

    bool begun;             /* the ledger's */
    uint64_t added_ns;      /* the ledger's */
    struct ledger_op *next; /* the ledger's */
};

/* A delivery; the receiver frees it. */
struct ledger_job {
    struct jobrecord rec; /* body: a part of message */
    char *message;
    char id[JOBRECORD_ID]; /* as its subject says */
    char answer[LEDGER_SUBJECT], reply[LEDGER_REPLY];
    uint64_t n_delivered;
    int rc; /* of reading the record */
    struct err err;
    struct ledger_job *next;
};

struct ledger_opt {
    const char *nats_url;
    const char *what; /* "durable requests": for messages; a literal */
    bool takes_jobs;  /* false: a ledger of operations alone */
    /* Called on a thread of the ledger when ledger_process or ledger_take has something. */
    void (*wake)(void *arg);
    void *arg;
};
/* E_UNSUPPORTED: tern-nats.so is missing. */
int ledger_open(struct ledger **out, const struct ledger_opt *opt, struct err *e);
/* Calls done of all operations, hands jobs that nobody took back, ends the threads. NULL is allowed. */
void ledger_close(struct ledger *l);
void ledger_add_op(struct ledger *l,
                   struct ledger_op *op);         /* done comes later, never from inside */
void ledger_process(struct ledger *l);            /* after a wake-up: calls done */
void ledger_want(struct ledger *l, int n);        /* jobs that the caller has room for */
struct ledger_job *ledger_take(struct ledger *l); /* NULL: none is there */
void ledger_free_job(struct ledger_job *j);       /* NULL is allowed */
bool ledger_is_connected(struct ledger *l);
size_t ledger_max_bytes(struct ledger *l); /* of one message; 0: not known yet */
/* E_INVALID: a message of the NATS server has at most so many bytes. */
int ledger_too_large(size_t most, struct err *e);
int64_t ledger_n_queued(
    struct ledger *l); /* jobs without an answer, some seconds ago; -1: not known */
#endif
