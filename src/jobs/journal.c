/* journal.c - the queue of operations, and the thread that commits them in groups. */
#include "jobs/journal.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/thread.h"

#include <string.h>

enum { GROUP_MAX = 512 /* operations of a transaction */ };

struct list {
    struct journal_op *first, *last;
};

struct journal {
    char *dir;
    struct jobstore_limits lim;
    void (*wake)(void *arg);
    void *arg;
    pthread_mutex_t lock;
    pthread_cond_t news;
    pthread_t thread;
    struct list todo, finished; /* under the lock, as is the next */
    bool ending;
    /* the loop's */
    bool started;
    int n_waiting;
    /* the thread's */
    struct jobstore *store;
    bool complained; /* a failure to open the store was logged */
    struct journal_stats stats;
};

static void push(struct list *l, struct journal_op *op)
{
    op->next = NULL;
    if (l->last) l->last->next = op;
    else l->first = op;
    l->last = op;
}

/* ---- on the journal's thread ---- */

/* Errors of the store that a client can do nothing about have one code. */
static void type_error(struct journal_op *op)
{
    switch (op->rc) {
    case OK:
    case E_INVALID:
    case E_NOTFOUND:
    case E_NOMEM:
    case E_QUEUE_FULL:
    case E_CONCURRENCY:
    case E_FULL:
    case E_READONLY:
    case E_STORE: return;
    default: op->rc = op->err.code = E_STORE;
    }
}

static void fail_all(struct journal_op *list, int rc, const struct err *e)
{
    for (struct journal_op *op = list; op; op = op->next)
        if (op->rc == OK) op->rc = rc, op->err = *e;
}

/* An operation that fails is rolled back to its beginning. */
static void run_op(struct journal *j, struct journal_op *op)
{
    if ((op->rc = jobstore_save(j->store, &op->err)) != OK) return;
    op->rc = op->run(j->store, op, &op->err);
    if (op->rc != OK) jobstore_release(j->store, false, NULL);
    else op->rc = jobstore_release(j->store, true, &op->err);
}

static int open_store(struct journal *j, struct err *e)
{
    int rc = j->store ? OK : jobstore_open(&j->store, j->dir, &j->lim, e);

    if (rc != OK && !j->complained) log_error("the store of jobs: %s", e->msg);
    j->complained = rc != OK;
    return rc;
}

static void run_group(struct journal *j, struct journal_op *list)
{
    uint64_t start = clock_ns();
    struct err e = { 0 };
    int rc = open_store(j, &e);

    if (rc == OK) rc = jobstore_begin(j->store, &e);
    if (rc == OK) {
        for (struct journal_op *op = list; op; op = op->next) run_op(j, op);
        if ((rc = jobstore_commit(j->store, &e)) != OK) log_error("the store of jobs: %s", e.msg);
    }
    if (rc != OK) fail_all(list, rc, &e);
    counter_add(&j->stats.commits, 1);
    hist_add(&j->stats.commit_ms, clock_ms_since(start));
    for (struct journal_op *op = list; op; op = op->next) {
        counter_add(&j->stats.ops, 1);
        if (op->rc != OK) counter_add(&j->stats.failed, 1);
        type_error(op);
    }
}

/* Takes what waits, up to a group; NULL: the journal is closed and nothing is left. */
static struct journal_op *take_group(struct journal *j)
{
    struct journal_op *first, *op;

    pthread_mutex_lock(&j->lock);
    while (!j->todo.first && !j->ending) pthread_cond_wait(&j->news, &j->lock);
    if ((first = op = j->todo.first)) {
        for (int n = 1; n < GROUP_MAX && op->next; n++) op = op->next;
        j->todo.first = op->next;
        if (!op->next) j->todo.last = NULL;
        op->next = NULL;
    }
    pthread_mutex_unlock(&j->lock);
    return first;
}

static void *run_thread(void *arg)
{
    struct journal *j = arg;
    struct journal_op *group, *next;

    while ((group = take_group(j))) {
        run_group(j, group);
        pthread_mutex_lock(&j->lock);
        for (; group; group = next) {
            next = group->next;
            push(&j->finished, group);
        }
        pthread_mutex_unlock(&j->lock);
        j->wake(j->arg);
    }
    jobstore_close(j->store);
    j->store = NULL;
    return NULL;
}

/* ---- on the loop ---- */

int journal_open(struct journal **out, const char *dir, const struct jobstore_limits *lim,
                 void (*wake)(void *arg), void *arg, struct err *e)
{
    struct journal *j = mem_new(struct journal);
    int rc;

    if (!j || !(j->dir = mem_strdup(dir))) {
        mem_free(j);
        return err_nomem(e, "the journal of jobs");
    }
    if ((rc = lock_init(&j->lock, &j->news, "the journal", e)) != OK) {
        mem_free(j->dir);
        mem_free(j);
        return rc;
    }
    j->lim = *lim;
    j->wake = wake;
    j->arg = arg;
    hist_init(&j->stats.commit_ms, hist_short, sizeof hist_short / sizeof *hist_short);
    *out = j;
    return OK;
}

/* Without a thread the operation fails, by way of the list of finished ones. */
void journal_add(struct journal *j, struct journal_op *op)
{
    int rc = OK;

    op->err = (struct err){ 0 };
    j->n_waiting++;
    if (!j->started) rc = thread_start(&j->thread, "tern-jobs", run_thread, j, &op->err);
    j->started |= rc == OK;
    op->rc = rc;
    pthread_mutex_lock(&j->lock);
    push(rc == OK ? &j->todo : &j->finished, op); /* it is the thread's from here on */
    pthread_cond_signal(&j->news);
    pthread_mutex_unlock(&j->lock);
    if (rc != OK) j->wake(j->arg);
}

void journal_process(struct journal *j)
{
    struct journal_op *list, *next;

    pthread_mutex_lock(&j->lock);
    list = j->finished.first;
    j->finished = (struct list){ 0 };
    pthread_mutex_unlock(&j->lock);
    for (; list; list = next) {
        next = list->next;
        j->n_waiting--;
        list->done(list);
    }
}

/* done may add operations, which are carried out as well: the owner adds no endless ones then. */
void journal_close(struct journal *j)
{
    if (!j) return;
    while (j->n_waiting > 0) {
        journal_process(j);
        if (j->n_waiting == 0) break;
        pthread_mutex_lock(&j->lock);
        if (!j->finished.first) {
            struct timespec until;
            clock_gettime(CLOCK_MONOTONIC, &until);
            until.tv_nsec += 5000000;
            if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
            pthread_cond_timedwait(&j->news, &j->lock, &until);
        }
        pthread_mutex_unlock(&j->lock);
    }
    pthread_mutex_lock(&j->lock);
    j->ending = true;
    pthread_cond_broadcast(&j->news);
    pthread_mutex_unlock(&j->lock);
    if (j->started) pthread_join(j->thread, NULL);
    lock_destroy(&j->lock, &j->news);
    mem_free(j->dir);
    mem_free(j);
}

int journal_n_waiting(const struct journal *j) { return j->n_waiting; }
const char *journal_dir(const struct journal *j) { return j->dir; }
const struct journal_stats *journal_stats(const struct journal *j) { return &j->stats; }
