/* ledger.c - the two threads of a ledger, and how they meet the loop. What an operation does is in
 * ledger_ops.c. */
#include "ledger/ledger.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/thread.h"
#include "ledger/ledger_impl.h"
#include "member/natsapi.h"
#include "member/plugin.h"

#include <stdio.h>

enum {
    TAKE_MS = 500,
    RETRY_MS = 300,
    COUNT_MS = 2000,
    STUCK_COUNTS = 5,
    CLOSE_MS = 3000, /* operations that are left when the gateway ends */
    MAX_PENDING = 8192
};

#define MS UINT64_C(1000000)

static const struct ledger_limits limits = { .max_jobs = LEDGER_MAX_JOBS,
                                             .max_job_bytes = INT64_C(8) << 30,
                                             .max_answers = LEDGER_MAX_ANSWERS,
                                             .answer_s = LEDGER_ANSWER_S,
                                             .line_s = INT64_C(60) * 86400,
                                             .ack_ms = LEDGER_ACK_MS,
                                             .max_pending = MAX_PENDING };

/* ---- both threads ---- */

/* Called and left with the lock. */
static void wait_ms(struct ledger *l, pthread_cond_t *c, int ms)
{
    uint64_t at = clock_ns() + (uint64_t)ms * MS;
    struct timespec t = { (time_t)(at / 1000000000u), (long)(at % 1000000000u) };

    pthread_cond_timedwait(c, &l->lock, &t);
}

/* The writer says it for both. */
static void note_connected(struct ledger *l, bool on, const char *why)
{
    bool before;

    pthread_mutex_lock(&l->lock);
    before = l->connected;
    l->connected = on;
    if (on) l->max_bytes = l->api->max_bytes(l->link);
    pthread_mutex_unlock(&l->lock);
    if (on && l->said) log_info("%s: JetStream of NATS %s answers", l->what, l->url);
    if (!on && (before || !l->said))
        log_warn("%s are refused: NATS %s: %s; trying again", l->what, l->url, why);
    l->said = !on;
    if (on != before) l->wake(l->arg);
}

/* A server that refused the credentials has closed the connection for good. */
static void drop_closed(struct ledger *l, struct ledger_link **link)
{
    if (!*link || l->api->is_connected(*link) >= 0) return;
    l->api->close(*link);
    *link = NULL;
}

void ledger_free_job(struct ledger_job *j)
{
    if (!j) return;
    mem_free(j->message);
    mem_free(j);
}

/* ---- the writer ---- */

static bool connect_writer(struct ledger *l)
{
    char why[256] = "";

    drop_closed(l, &l->link);
    if (l->link && l->api->is_connected(l->link)) {
        note_connected(l, true, "");
        return true;
    }
    if (!l->link) {
        if (clock_ns() < l->retry_ns) return false;
        l->link = l->api->open(l->url, &limits, why, sizeof why);
        l->retry_ns = clock_ns() + RETRY_MS * MS;
    } else {
        snprintf(why, sizeof why, "not connected");
    }
    note_connected(l, l->link && l->api->is_connected(l->link), why);
    return l->link && l->api->is_connected(l->link);
}

static void run_op(struct ledger *l, struct ledger_op *op)
{
    bool waited = (op->kind <= LEDGER_OP_LIST || op->is_waited) && !op->begun; /* by a client */
    bool more;

    op->err = (struct err){ 0 };
    op->more = false;
    if (!connect_writer(l)) op->rc = ledger_away(&op->err, l->what, "NATS is not connected");
    else if ((waited && clock_ns() - op->added_ns > LEDGER_OP_MS * MS) ||
             (l->close_ns && clock_ns() > l->close_ns))
        op->rc = ledger_away(&op->err, l->what, "NATS answers too slowly");
    else op->rc = ledger_run(l->api, l->link, op);
    op->begun = true;
    more = op->rc == OK && op->more;
    if (more && l->close_ns) {
        op->rc = ledger_away(&op->err, l->what, "the gateway ends");
        more = false;
    }
    pthread_mutex_lock(&l->lock);
    op->next = NULL;
    if (more) {
        *l->ops_end = op;
        l->ops_end = &op->next;
        pthread_mutex_unlock(&l->lock);
        return;
    }
    *l->done_end = op;
    l->done_end = &op->next;
    pthread_mutex_unlock(&l->lock);
    l->wake(l->arg);
}

/* Jobs that are stuck for several counts in a row are delivered again, with all others. */
static void count_jobs(struct ledger *l)
{
    uint64_t n = 0, n_stuck = 0;

    if (!l->takes_jobs || clock_ns() - l->counted_ns < COUNT_MS * MS || !connect_writer(l)) return;
    l->counted_ns = clock_ns();
    if (l->api->count(l->link, &n, &n_stuck) != LEDGER_DONE) return;
    pthread_mutex_lock(&l->lock);
    l->n_queued = (int64_t)n;
    pthread_mutex_unlock(&l->lock);
    l->n_stuck_counts = n_stuck ? l->n_stuck_counts + 1 : 0;
    if (l->n_stuck_counts < STUCK_COUNTS) return;
    l->n_stuck_counts = 0;
    log_warn(
        "durable requests: JetStream delivers %llu of %llu jobs to nobody; it begins again with "
        "the first one",
        (unsigned long long)n_stuck, (unsigned long long)n);
    l->api->restart(l->link);
}

/* Jobs that came when nobody took them any more: another gateway may begin at once. */
static void hand_back(struct ledger *l)
{
    for (struct ledger_job *j = l->jobs, *next; j; j = next) {
        next = j->next;
        if (l->link) l->api->release(l->link, j->reply, 0);
        ledger_free_job(j);
    }
    l->jobs = NULL;
}

static void *run_writer(void *arg)
{
    struct ledger *l = arg;
    struct ledger_op *op, *next;
    bool stop;

    do {
        pthread_mutex_lock(&l->lock);
        if (!l->ops && !l->stop) wait_ms(l, &l->news, RETRY_MS);
        stop = l->stop;
        op = l->ops;
        l->ops = NULL;
        l->ops_end = &l->ops;
        if (stop && !l->close_ns) l->close_ns = clock_ns() + CLOSE_MS * MS;
        pthread_mutex_unlock(&l->lock);
        for (; op; op = next) {
            next = op->next;
            run_op(l, op);
        }
        if (!stop) connect_writer(l);
        if (!stop) count_jobs(l);
    } while (!stop);
    hand_back(l);
    if (l->link) l->api->close(l->link);
    return NULL;
}

/* ---- the puller ---- */

static void copy_text(char *out, size_t cap, const char *s) { snprintf(out, cap, "%s", s); }

/* The record must stand under its own subject. */
static int check_subject(const struct ledger_job *j, const char *subject, struct err *e)
{
    char own[LEDGER_SUBJECT];

    jobrecord_subject(own, LEDGER_JOBS, j->rec.tenant, j->rec.id);
    if (j->rec.is_answer) return err_set(e, E_FORMAT, "an answer is in the queue of jobs");
    if (strcmp(own, subject) != 0)
        return err_set(e, E_FORMAT, "the job '%s' is in the queue under another name", j->rec.id);
    return OK;
}

/* each of take. */
static void on_msg(void *arg, const struct ledger_msg *m)
{
    struct ledger *l = arg;
    struct ledger_job *j = mem_new(struct ledger_job);

    if (!j || !(j->message = mem_alloc(m->n + 1)) || strlen(m->reply) >= sizeof j->reply) {
        ledger_free_job(j); /* it is delivered again */
        return;
    }
    if (m->n) memcpy(j->message, m->p, m->n);
    copy_text(j->reply, sizeof j->reply, m->reply);
    j->n_delivered = m->n_delivered;
    if (!jobrecord_id_of(m->subject, j->id) ||
        !jobrecord_answer_of(m->subject, j->answer)) { /* nobody can ask for its answer */
        log_warn("a message with the subject '%.100s' in the queue of durable requests is none of "
                 "tern's: removed",
                 m->subject);
        l->api->ack(l->pull, j->reply);
        ledger_free_job(j);
        return;
    }
    j->rc = jobrecord_read(&j->rec, str_of(j->message, m->n), &j->err);
    if (j->rc == OK) j->rc = check_subject(j, m->subject, &j->err);
    l->taken = j;
}

static void ignore_msg(void *arg, const struct ledger_msg *m) { (void)arg, (void)m; }

/* A job may have its answer: its gateway died before it removed the job, or a NATS server that was killed
 * has forgotten the removal. */
static bool is_answered(struct ledger *l, const struct ledger_job *j)
{
    char why[256];

    return l->api->get(l->pull, LEDGER_ANSWERS, j->answer, ignore_msg, NULL, why, sizeof why) ==
           LEDGER_DONE;
}

static void take_job(struct ledger *l)
{
    struct ledger_job *j, **end;

    j = l->taken;
    l->taken = NULL;
    if (!j) return;
    if (is_answered(l, j)) {
        l->api->ack(l->pull, j->reply);
        ledger_free_job(j);
        return;
    }
    pthread_mutex_lock(&l->lock);
    for (end = &l->jobs; *end;) end = &(*end)->next;
    *end = j;
    l->want--;
    pthread_mutex_unlock(&l->lock);
    l->wake(l->arg);
}

static void *run_puller(void *arg)
{
    struct ledger *l = arg;
    char why[256];
    bool failed = false, stop;
    int want;

    for (;;) {
        pthread_mutex_lock(&l->lock);
        if (!l->stop_pull && (failed || l->want <= 0)) wait_ms(l, &l->wanted, RETRY_MS);
        stop = l->stop_pull;
        want = l->want;
        pthread_mutex_unlock(&l->lock);
        if (stop) break;
        failed = false;
        if (want <= 0) continue;
        drop_closed(l, &l->pull);
        if (!l->pull) l->pull = l->api->open(l->url, &limits, why, sizeof why);
        if (!l->pull || l->api->take(l->pull, TAKE_MS, on_msg, l, why, sizeof why) == LEDGER_AWAY)
            failed = true;
        take_job(l);
    }
    if (l->pull) l->api->close(l->pull);
    return NULL;
}

/* ---- the loop ---- */

int ledger_open(struct ledger **out, const struct ledger_opt *opt, struct err *e)
{
    struct ledger *l = mem_new(struct ledger);
    int rc;

    if (!l) return err_nomem(e, opt->what);
    *l = (struct ledger){ .wake = opt->wake,
                          .arg = opt->arg,
                          .what = opt->what,
                          .takes_jobs = opt->takes_jobs,
                          .n_queued = -1 };
    l->ops_end = &l->ops;
    l->done_end = &l->done;
    rc = plugin_open((void **)&l->api, NATS_LIB, NATS_ENV, LEDGER_SYMBOL, NATS_PACKAGE, e);
    if (rc == OK && strlen(opt->nats_url) >= sizeof l->url)
        rc = err_set(e, E_INVALID, "nats: the URL is too long");
    if (rc == OK && (rc = lock_init(&l->lock, &l->news, "durable requests", e)) == OK &&
        (rc = lock_init(&l->lock2, &l->wanted, "durable requests", e)) != OK)
        lock_destroy(&l->lock, &l->news);
    if (rc != OK) {
        mem_free(l);
        return rc;
    }
    copy_text(l->url, sizeof l->url, opt->nats_url);
    if ((rc = thread_start(&l->writer, "tern-ledger", run_writer, l, e)) == OK) {
        l->has_writer = true;
        if (l->takes_jobs) rc = thread_start(&l->puller, "tern-jobs", run_puller, l, e);
        l->has_puller = l->takes_jobs && rc == OK;
    }
    if (rc != OK) ledger_close(l);
    else *out = l;
    return rc;
}

void ledger_close(struct ledger *l)
{
    if (!l) return;
    pthread_mutex_lock(&l->lock);
    l->stop_pull = true;
    pthread_cond_signal(&l->wanted);
    pthread_mutex_unlock(&l->lock);
    if (l->has_puller) pthread_join(l->puller, NULL);
    pthread_mutex_lock(&l->lock);
    l->stop = true;
    pthread_cond_signal(&l->news);
    pthread_mutex_unlock(&l->lock);
    if (l->has_writer) pthread_join(l->writer, NULL);
    ledger_process(l);
    lock_destroy(&l->lock, &l->news);
    lock_destroy(&l->lock2, &l->wanted);
    mem_free(l);
}

void ledger_add_op(struct ledger *l, struct ledger_op *op)
{
    op->added_ns = clock_ns();
    op->begun = false;
    op->next = NULL;
    pthread_mutex_lock(&l->lock);
    *l->ops_end = op;
    l->ops_end = &op->next;
    pthread_cond_signal(&l->news);
    pthread_mutex_unlock(&l->lock);
}

void ledger_process(struct ledger *l)
{
    struct ledger_op *op, *next;

    pthread_mutex_lock(&l->lock);
    op = l->done;
    l->done = NULL;
    l->done_end = &l->done;
    pthread_mutex_unlock(&l->lock);
    for (; op; op = next) {
        next = op->next;
        op->done(op);
    }
}

/* Jobs that wait to be taken have their room already. */
void ledger_want(struct ledger *l, int n)
{
    pthread_mutex_lock(&l->lock);
    for (const struct ledger_job *j = l->jobs; j; j = j->next) n--;
    l->want = n > 0 ? n : 0;
    if (l->want > 0) pthread_cond_signal(&l->wanted);
    pthread_mutex_unlock(&l->lock);
}

struct ledger_job *ledger_take(struct ledger *l)
{
    struct ledger_job *j;

    pthread_mutex_lock(&l->lock);
    if ((j = l->jobs)) l->jobs = j->next;
    pthread_mutex_unlock(&l->lock);
    if (j) j->next = NULL;
    return j;
}

bool ledger_is_connected(struct ledger *l)
{
    bool on;

    pthread_mutex_lock(&l->lock);
    on = l->connected;
    pthread_mutex_unlock(&l->lock);
    return on;
}

size_t ledger_max_bytes(struct ledger *l)
{
    size_t n;

    pthread_mutex_lock(&l->lock);
    n = l->max_bytes;
    pthread_mutex_unlock(&l->lock);
    return n;
}

int64_t ledger_n_queued(struct ledger *l)
{
    int64_t n;

    pthread_mutex_lock(&l->lock);
    n = l->connected ? l->n_queued : -1;
    pthread_mutex_unlock(&l->lock);
    return n;
}
