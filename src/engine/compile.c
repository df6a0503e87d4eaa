/* compile.c - the queues and the threads that compile grammars.
 *
 * The first turn of a job that needs a second one is lost: its work begins again. That costs a
 * large grammar some hundredths of a second and needs no compiler that can be interrupted.
 *
 * All state is the lock's; a thread holds it to take a job and to hand it on, never while it
 * compiles. running[] is there for compiler_close, which stops what is being compiled. */
#include "engine/compile.h"

#include "base/budget.h"
#include "base/clock.h"
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

/* Which tenants a thread compiles for. */
enum whom { ANYBODY, WITH_CREDIT, WITHOUT_CREDIT };

/* The oldest job of the tenant that has waited longest for its turn; NULL: none waits. With the lock
 * held. */
static struct compile_job *pop_job(struct compiler *c, bool is_long, enum whom whom)
{
    struct compile_queue *q = &c->queues[is_long];
    struct compile_job **best = NULL, *j;
    uint64_t now_ns = clock_ns();

    for (struct compile_job **p = &q->first; *p; p = &(*p)->next) {
        const struct compile_group *g = (*p)->group;
        if (whom != ANYBODY && credit_is_spent(&g->credit, now_ns) != (whom == WITHOUT_CREDIT))
            continue;
        if (!best || g->turn[is_long] < (*best)->group->turn[is_long]) best = p;
    }
    if (!best) return NULL;
    j = *best;
    *best = j->next;
    if (q->last == &j->next) q->last = best;
    j->group->turn[is_long] = ++c->turn;
    return j;
}

/* ---- tenants ---- */

static struct compile_group *find_group(struct compiler *c, uint32_t tenant)
{
    struct compile_group *g = c->groups;

    while (g && g->tenant != tenant) g = g->next;
    return g;
}

/* Frees tenants that have no jobs and whose credit is whole again. */
static void drop_idle_groups(struct compiler *c, uint64_t now_ns)
{
    for (struct compile_group **p = &c->groups, *g; (g = *p);) {
        if (g->n[0] || g->n[1] || credit_used(&g->credit, now_ns)) {
            p = &g->next;
        } else {
            *p = g->next;
            mem_free(g);
        }
    }
}

/* NULL: no memory. A new one has its turn behind those that are there. */
static struct compile_group *find_or_add_group(struct compiler *c, uint32_t tenant)
{
    struct compile_group *g = find_group(c, tenant);

    if (g) return g;
    drop_idle_groups(c, clock_ns());
    if (!(g = mem_new(struct compile_group))) return NULL;
    g->tenant = tenant;
    g->turn[0] = g->turn[1] = ++c->turn;
    g->next = c->groups;
    c->groups = g;
    return g;
}

/* For another job of the tenant. g NULL: it has none. */
static bool has_room(const struct compiler *c, const struct compile_group *g, bool is_long,
                     size_t bytes)
{
    int most = is_long ? COMPILE_LONG_JOBS : COMPILE_JOBS;

    if (!g) return bytes <= COMPILE_BYTES;
    if (g->n[is_long] >= most || g->bytes + bytes > COMPILE_BYTES) return false;
    if (g->n[is_long] == 0) return true;
    return c->n[is_long] < COMPILE_ALL * most &&
           c->bytes + bytes <= (size_t)COMPILE_ALL * COMPILE_BYTES;
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

/* g NULL: a tenant without jobs. */
static int refuse_job(const struct compile_group *g, struct err *e)
{
    const struct compile_group none = { 0 };
    int rc;

    if (!g) g = &none;
    rc = err_set(e, E_QUEUE_FULL,
                 "%d grammars of %zu bytes of this key wait to be compiled, %d of them large; the "
                 "limits are %d, %u and %d, and %d times as many of all keys",
                 g->n[0] + g->n[1], g->bytes, g->n[1], COMPILE_JOBS, COMPILE_BYTES,
                 COMPILE_LONG_JOBS, COMPILE_ALL);

    if (e) e->retry_ms = 1000;
    return rc;
}

/* n: 1 or -1. With the lock held. */
static void count_job(struct compiler *c, struct compile_job *j, int n)
{
    size_t bytes = j->spec.text.n;

    c->n[j->is_long] += n;
    j->group->n[j->is_long] += n;
    c->bytes = n > 0 ? c->bytes + bytes : c->bytes - bytes;
    j->group->bytes = n > 0 ? j->group->bytes + bytes : j->group->bytes - bytes;
    gauge_set(&c->stats->grammar_jobs, c->n[0] + c->n[1]);
}

/* i: the thread that has the job, or -1. Counters go first: when done() runs, the requester may
 * submit the next job. */
static void finish_job(struct compiler *c, int i, struct compile_job *j)
{
    pthread_mutex_lock(&c->lock);
    if (i >= 0) c->running[i] = NULL;
    count_job(c, j, -1);
    j->group = NULL;
    if (c->quit && j->rc == E_CANCELLED)
        j->rc = err_set(&j->err, E_SHUTDOWN, "the server is shutting down");
    pthread_mutex_unlock(&c->lock);
    counter_add(j->rc == OK            ? &c->stats->grammars_compiled
                : j->rc == E_CANCELLED ? &c->stats->grammars_cancelled
                                       : &c->stats->grammars_refused,
                1);
    j->done(j); /* passes the compiler's reference */
}

/* true: the job is over. false: it needs more than one turn. The tenant pays for either. */
static bool run_turn(struct compiler *c, struct compile_job *j)
{
    struct budget b = { .max_steps = j->is_long ? GRAMMAR_STEPS : COMPILE_TURN,
                        .max_bytes = GRAMMAR_BYTES,
                        .max_cpu_ns = COMPILE_SECONDS * UINT64_C(1000000000),
                        .cancelled = &j->dropped };

    uint64_t start_ns = clock_thread_ns();

    j->rc = guided_compile(c->guided, &j->spec, &b, &j->g, &j->err);
    pthread_mutex_lock(&c->lock);
    credit_charge(&j->group->credit, clock_thread_ns() - start_ns, clock_ns());
    pthread_mutex_unlock(&c->lock);
    return j->is_long || b.end != BUDGET_STEPS;
}

/* Queues the job for its second turn. false: there are too many, and its rc says so. */
static bool queue_long(struct compiler *c, int i, struct compile_job *j)
{
    bool room;

    pthread_mutex_lock(&c->lock);
    if ((room = has_room(c, j->group, true, 0) && !c->quit)) {
        c->running[i] = NULL; /* another thread will have it */
        count_job(c, j, -1);
        j->is_long = true;
        count_job(c, j, 1);
        append_job(&c->queues[1], j);
        pthread_cond_broadcast(&c->news);
    } else {
        j->rc = c->quit ? err_set(&j->err, E_CANCELLED, "the server is shutting down")
                        : refuse_job(j->group, &j->err);
    }
    pthread_mutex_unlock(&c->lock);
    return room;
}

/* While one of the threads could not be started, the others compile for everybody. */
static enum whom find_whom(const struct compiler *c, int i)
{
    if (c->n_threads <= COMPILE_THREADS) return ANYBODY;
    return i == COMPILE_THREADS ? WITHOUT_CREDIT : WITH_CREDIT;
}

/* The next job of thread i, or NULL: the compiler closes. The first thread gives first turns only,
 * unless it is the only one. That a tenant has credit again is not announced: threads look. */
static struct compile_job *wait_for_job(struct compiler *c, int i)
{
    struct compile_job *j = NULL;

    pthread_mutex_lock(&c->lock);
    while (!c->quit) {
        enum whom whom = find_whom(c, i);
        bool longs = i > 0 || c->n_threads == 1;
        if (longs && (j = pop_job(c, true, whom))) break;
        if ((j = pop_job(c, false, whom))) break;
        if (c->queues[0].first || (longs && c->queues[1].first))
            lock_wait_ms(&c->lock, &c->news, COMPILE_LOOK_MS);
        else pthread_cond_wait(&c->news, &c->lock);
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
    if (t.number == COMPILE_THREADS) thread_set_nice(CREDIT_NICE);
    else if (t.number > 0) thread_set_nice(COMPILE_NICE);
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
    while ((j = pop_job(c, true, ANYBODY)) || (j = pop_job(c, false, ANYBODY))) {
        j->rc = err_set(&j->err, E_SHUTDOWN, "the server is shutting down");
        finish_job(c, -1, j);
    }
    drop_idle_groups(c, UINT64_MAX);
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

    while (rc == OK && c->n_threads <= COMPILE_THREADS) rc = start_thread(c, e);
    return c->n_threads > 0 ? OK : rc;
}

/* With the lock held. */
static int accept_job(struct compiler *c, struct compile_job *j, uint32_t tenant, struct err *e)
{
    const struct compile_group *g = find_group(c, tenant);
    int rc;

    if (!has_room(c, g, false, j->spec.text.n)) return refuse_job(g, e);
    if ((rc = start_threads(c, e)) != OK) return rc;
    if (!(j->group = find_or_add_group(c, tenant))) return err_nomem(e, "the queue of a tenant");
    append_job(&c->queues[0], j);
    count_job(c, j, 1);
    pthread_cond_broadcast(&c->news);
    return OK;
}

/* Two references: the requester's and the compiler's. A job that is refused is freed here. */
int compiler_submit(struct compiler *c, const struct grammar_spec *spec, uint32_t tenant,
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
    rc = accept_job(c, j, tenant, e);
    pthread_mutex_unlock(&c->lock);
    if (rc == OK) {
        *out = j;
        return OK;
    }
    atomic_store(&j->refs, 1);
    job_unref(j);
    return rc;
}
