/* compile.c - the queues and the threads that compile grammars.
 *
 * The first turn of a job that needs a second one is lost: its work begins again. That costs a
 * large grammar some hundredths of a second and needs no compiler that can be interrupted.
 *
 * All state is the lock's; a thread holds it to take a job and to hand it on, never while it
 * compiles. running[] is there for compiler_close, which stops what is being compiled. */
#include "engine/compile.h"

#include "base/budget.h"
#include "base/mem.h"
#include "base/thread.h"
#include "engine/guided.h"
#include "engine/stats.h"

#include <string.h>

static void append_job(struct compile_queue *q, struct compile_job *j)
{
    j->next = NULL;
    *(q->first ? q->last : &q->first) = j;
    q->last = &j->next;
}

static struct compile_job *pop_job(struct compile_queue *q)
{
    struct compile_job *j = q->first;

    if (j) q->first = j->next;
    return j;
}

int compiler_init(struct compiler *c, struct guided *d, struct engine_stats *stats, struct err *e)
{
    int rc;

    *c = (struct compiler){ .stats = stats };
    if ((rc = lock_init(&c->lock, &c->news, "the grammar compiler", e)) == OK) c->guided = d;
    return rc;
}

void job_unref(struct compile_job *j)
{
    if (!j || atomic_fetch_sub_explicit(&j->refs, 1, memory_order_acq_rel) != 1) return;
    grammar_unref(j->g);
    mem_free((void *)j->spec.text.p);
    mem_free(j);
}

/* ---- the compiler's threads ---- */

static int refuse_job(const struct compiler *c, struct err *e)
{
    int rc = err_set(e, E_QUEUE_FULL,
                     "%d grammars of %zu bytes wait to be compiled, %d of them large; the limits "
                     "are %d, %u and %d",
                     c->n + c->n_long, c->bytes, c->n_long, COMPILE_JOBS, COMPILE_BYTES,
                     COMPILE_LONG_JOBS);

    if (e) e->retry_ms = 1000;
    return rc;
}

/* i: the thread that has the job, or -1. Counters go first: when done() runs, the requester may
 * submit the next job. */
static void finish_job(struct compiler *c, int i, struct compile_job *j)
{
    pthread_mutex_lock(&c->lock);
    if (i >= 0) c->running[i] = NULL;
    *(j->is_long ? &c->n_long : &c->n) -= 1;
    c->bytes -= j->spec.text.n;
    if (c->quit && j->rc == E_CANCELLED)
        j->rc = err_set(&j->err, E_SHUTDOWN, "the server is shutting down");
    gauge_set(&c->stats->grammar_jobs, c->n + c->n_long);
    pthread_mutex_unlock(&c->lock);
    counter_add(j->rc == OK            ? &c->stats->grammars_compiled
                : j->rc == E_CANCELLED ? &c->stats->grammars_cancelled
                                       : &c->stats->grammars_refused,
                1);
    j->done(j); /* passes the compiler's reference */
}

/* true: the job is over. false: it needs more than one turn. */
static bool run_turn(struct compiler *c, struct compile_job *j)
{
    struct budget b = { .max_steps = j->is_long ? GRAMMAR_STEPS : COMPILE_TURN,
                        .max_bytes = GRAMMAR_BYTES,
                        .max_cpu_ns = COMPILE_SECONDS * UINT64_C(1000000000),
                        .cancelled = &j->dropped };

    j->rc = guided_compile(c->guided, &j->spec, &b, &j->g, &j->err);
    return j->is_long || b.end != BUDGET_STEPS;
}

/* Queues the job for its second turn. false: there are too many, and its rc says so. */
static bool queue_long(struct compiler *c, int i, struct compile_job *j)
{
    bool room;

    pthread_mutex_lock(&c->lock);
    if ((room = c->n_long < COMPILE_LONG_JOBS && !c->quit)) {
        c->running[i] = NULL; /* another thread will have it */
        j->is_long = true;
        c->n--;
        c->n_long++;
        append_job(&c->longs, j);
        pthread_cond_broadcast(&c->news);
    } else {
        j->rc = c->quit ? err_set(&j->err, E_CANCELLED, "the server is shutting down")
                        : refuse_job(c, &j->err);
    }
    pthread_mutex_unlock(&c->lock);
    return room;
}

/* The next job of thread i, or NULL: the compiler closes. The first thread gives first turns only,
 * unless it is the only one. */
static struct compile_job *wait_for_job(struct compiler *c, int i)
{
    struct compile_job *j = NULL;

    pthread_mutex_lock(&c->lock);
    for (;;) {
        bool longs = i > 0 || c->n_threads == 1;
        if (c->quit) break;
        if (longs && (j = pop_job(&c->longs))) break;
        if ((j = pop_job(&c->waiting))) break;
        pthread_cond_wait(&c->news, &c->lock);
    }
    c->running[i] = j;
    pthread_mutex_unlock(&c->lock);
    return j;
}

/* The argument of compile_main. */
struct compile_thread {
    struct compiler *c;
    int number;
};

static void *compile_main(void *arg)
{
    struct compile_thread t = *(struct compile_thread *)arg;
    struct compile_job *j;

    mem_free(arg);
    if (t.number > 0) thread_set_nice(COMPILE_NICE);
    while ((j = wait_for_job(t.c, t.number)))
        if (run_turn(t.c, j) || !queue_long(t.c, t.number, j)) finish_job(t.c, t.number, j);
    return NULL;
}

/* With `quit` set no thread takes another job, so that what is left is this thread's. */
void compiler_close(struct compiler *c)
{
    struct compile_job *j;

    if (!c->guided) return;
    pthread_mutex_lock(&c->lock);
    c->quit = true;
    for (int i = 0; i < c->n_threads; i++)
        if (c->running[i])
            atomic_store_explicit(&c->running[i]->dropped, true, memory_order_relaxed);
    pthread_cond_broadcast(&c->news);
    pthread_mutex_unlock(&c->lock);
    for (int i = 0; i < c->n_threads; i++) pthread_join(c->threads[i], NULL);
    while ((j = pop_job(&c->longs)) || (j = pop_job(&c->waiting))) {
        j->rc = err_set(&j->err, E_SHUTDOWN, "the server is shutting down");
        finish_job(c, -1, j);
    }
    lock_destroy(&c->lock, &c->news);
    *c = (struct compiler){ 0 };
}

/* ---- submitting ---- */

static int start_thread(struct compiler *c, struct err *e)
{
    struct compile_thread *t = mem_new(struct compile_thread);
    int rc;

    if (!t) return err_nomem(e, "a thread to compile grammars");
    *t = (struct compile_thread){ c, c->n_threads };
    rc = thread_start(&c->threads[c->n_threads], "tern-grammar", compile_main, t, e);
    if (rc == OK) c->n_threads++;
    else mem_free(t);
    return rc;
}

/* The threads start with the first job: most engines never see a grammar. One is enough to go on;
 * the others are tried again with the next job. With the lock held. */
static int start_threads(struct compiler *c, struct err *e)
{
    int rc = OK;

    while (rc == OK && c->n_threads < COMPILE_THREADS) rc = start_thread(c, e);
    return c->n_threads > 0 ? OK : rc;
}

/* With the lock held. */
static int accept_job(struct compiler *c, struct compile_job *j, struct err *e)
{
    int rc;

    if (c->n >= COMPILE_JOBS || c->bytes + j->spec.text.n > COMPILE_BYTES) return refuse_job(c, e);
    if ((rc = start_threads(c, e)) != OK) return rc;
    append_job(&c->waiting, j);
    c->n++;
    c->bytes += j->spec.text.n;
    gauge_set(&c->stats->grammar_jobs, c->n + c->n_long);
    pthread_cond_broadcast(&c->news);
    return OK;
}

/* Two references: the requester's and the compiler's. A job that is refused is freed here. */
int compiler_submit(struct compiler *c, const struct grammar_spec *spec,
                    void (*done)(struct compile_job *j), void *arg, void *owner,
                    struct compile_job **out, struct err *e)
{
    struct compile_job *j = mem_new(struct compile_job);
    char *text = mem_dup(spec->text.p, spec->text.n);
    int rc;

    if (!j || !text) {
        mem_free(j);
        mem_free(text);
        return err_nomem(e, "the grammar to compile");
    }
    j->spec = *spec;
    j->spec.text = str_of(text, spec->text.n);
    j->done = done;
    j->arg = arg;
    j->owner = owner;
    atomic_init(&j->refs, 2);
    pthread_mutex_lock(&c->lock);
    rc = accept_job(c, j, e);
    pthread_mutex_unlock(&c->lock);
    if (rc == OK) {
        *out = j;
        return OK;
    }
    atomic_store(&j->refs, 1);
    job_unref(j);
    return rc;
}
