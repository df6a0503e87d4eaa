/* ledgerapi.h - what tern-nats.so exports for durable work between gateways: streams of JetStream in
 * files.
 *
 *   tern-jobs      work queue: a message is delivered to one gateway at a time, again if it is not
 *                  acknowledged within ack_ms, and removed when it is
 *   tern-answers   one message per subject: an addition names 0 as the last sequence of its subject, so
 *                  that a second one is refused by the server
 *   tern-files     bytes of files, a message for each piece
 *   tern-records   files and batches, a message each: a change names the sequence of the message that it
 *                  replaces, so that of two changes the second one is refused
 *   tern-lines     answers of the lines of batches, one message per subject
 *
 * The plugin is plain C on libnats alone, so that nothing of the program is called from it. A link
 * belongs to one thread; all calls block, for wait_ms or a few seconds at most. Errors are texts. */
#ifndef TERN_LEDGER_LEDGERAPI_H
#define TERN_LEDGER_LEDGERAPI_H

#include <stddef.h>
#include <stdint.h>

#define LEDGER_SYMBOL "tern_nats_ledger_2"
#define LEDGER_CONSUMER "tern-gateways"

enum { LEDGER_REPLY = 256, LEDGER_SUBJECT = 128 };

enum ledger_stream {
    LEDGER_JOBS,
    LEDGER_ANSWERS,
    LEDGER_FILES,
    LEDGER_RECORDS,
    LEDGER_LINES,
    LEDGER_STREAMS
};

enum ledger_result {
    LEDGER_DONE,
    LEDGER_AWAY,      /* JetStream was not reached: nothing is written */
    LEDGER_UNSURE,    /* the message was sent and no reply came: it may be written */
    LEDGER_EXISTS,    /* add: the subject has a message; put: another one than was expected */
    LEDGER_MISSING,   /* get: the subject has none */
    LEDGER_FULL,      /* add: the stream has its most messages or bytes */
    LEDGER_TOO_LARGE, /* add: for one message of this server */
    LEDGER_REFUSED    /* the server said no, in words of its own */
};

struct ledger_limits {
    int64_t max_jobs, max_job_bytes; /* of the queue; beyond that an addition is refused */
    int64_t max_answers, answer_s;   /* of the store; beyond that the oldest are removed */
    int64_t line_s;                  /* age of answers of lines that nobody removed */
    int ack_ms;                      /* a job that is silent for so long is delivered again */
    int max_pending;                 /* jobs that all gateways together have taken */
};

struct ledger_link;

/* A delivery. Everything is valid during the call only. */
struct ledger_msg {
    const char *subject;
    const char *reply; /* subject for ack, extend and release */
    const char *p;
    size_t n;
    uint64_t n_delivered; /* with this one */
    uint64_t seq;         /* get: its number in the stream */
};

struct ledger_api {
    /* Connects, and makes the streams that do not exist. NULL: the text says why. */
    struct ledger_link *(*open)(const char *url, const struct ledger_limits *lim, char *why,
                                size_t n);
    void (*close)(struct ledger_link *l);
    int (*is_connected)(struct ledger_link *l); /* -1: and never will be: close it */
    size_t (*max_bytes)(struct ledger_link *l); /* of one message */
    enum ledger_result (*add)(struct ledger_link *l, enum ledger_stream st, const char *subject,
                              const char *p, size_t n, int wait_ms, char *why, size_t n_why);
    enum ledger_result (*get)(struct ledger_link *l, enum ledger_stream st, const char *subject,
                              void (*each)(void *arg, const struct ledger_msg *m), void *arg,
                              char *why, size_t n_why);
    /* Replaces the message *seq of the subject; *seq: of the new one. */
    enum ledger_result (*put)(struct ledger_link *l, enum ledger_stream st, const char *subject,
                              const char *p, size_t n, uint64_t *seq, int wait_ms, char *why,
                              size_t n_why);
    /* Removes all messages whose subjects match the pattern. */
    enum ledger_result (*erase)(struct ledger_link *l, enum ledger_stream st, const char *pattern,
                                char *why, size_t n_why);
    /* The number of the stream's last message, also of one that was removed. */
    enum ledger_result (*last)(struct ledger_link *l, enum ledger_stream st, uint64_t *seq,
                               char *why, size_t n_why);
    /* Removes the message of a subject from the queue. */
    enum ledger_result (*remove)(struct ledger_link *l, const char *subject, char *why, size_t n);
    /* Subjects of a stream that match the pattern. */
    enum ledger_result (*list)(struct ledger_link *l, enum ledger_stream st, const char *pattern,
                               void (*each)(void *arg, const char *subject), void *arg, char *why,
                               size_t n_why);
    /* Jobs in the queue, and those of them that JetStream neither will deliver nor waits for: a server that
     * was killed may have kept an acknowledgement and not the removal. */
    enum ledger_result (*count)(struct ledger_link *l, uint64_t *n_jobs, uint64_t *n_stuck);
    enum ledger_result (*restart)(struct ledger_link *l); /* every job is delivered again */
    /* Takes one job, waiting up to wait_ms. LEDGER_MISSING: there was none. */
    enum ledger_result (*take)(struct ledger_link *l, int wait_ms,
                               void (*each)(void *arg, const struct ledger_msg *m), void *arg,
                               char *why, size_t n_why);
    enum ledger_result (*ack)(struct ledger_link *l, const char *reply);    /* removes the job */
    enum ledger_result (*extend)(struct ledger_link *l, const char *reply); /* ack_ms from now on */
    /* Another delivery after delay_ms. */
    enum ledger_result (*release)(struct ledger_link *l, const char *reply, int delay_ms);
};
#endif
