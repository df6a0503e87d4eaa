/* workers.c - one queue per group, a ring of the groups that have jobs, and the threads.
 *
 *     ring: tenant 3 → tenant 1 → tenant 7      a thread takes the first job of the first group,
 *              │          │          │          which then goes to the end of the ring
 *            job        job        job
 *            job                   job
 *
 * With slow threads the ring has groups for two kinds of threads: each takes the first group of its
 * own. A group passes from one kind to the other when a job has been charged and as time passes, which
 * nobody announces: a thread that finds only groups of the other kind looks again after LOOK_MS.
 *
 * One lock protects everything; jobs run without it. */
#include "base/workers.h"

#include "base/clock.h"
#include "base/credit.h"
#include "base/mem.h"
#include "base/thread.h"

#include <pthread.h>
#include <string.h>

enum { LOOK_MS = 10 };

struct group {
    struct work *first, *last; /* waiting jobs */
    struct credit credit;
    int n;
    size_t bytes;
    uint32_t next; /* group after it in the ring */
};

struct workers {
    struct workers_opt opt;
    pthread_mutex_t lock; /* protects everything below */
    pthread_cond_t news;
    struct group *groups; /* [cap] by number */
    size_t cap;
    uint32_t head, tail; /* the ring, while n > 0 */
    int n;               /* jobs that wait */
    size_t bytes;
    bool quit;
    pthread_t *threads; /* [n_threads] those that were started, the slow ones last */
    int n_threads;
};

/* The argument of workers_main. */
struct workers_thread {
    struct workers *w;
    bool is_slow;
};

/* ---- the ring ---- */

static void append_group(struct workers *w, uint32_t g, bool empty)
{
    if (empty) w->head = g;
    else w->groups[w->tail].next = g;
    w->tail = g;
}

/* A job left its group: the numbers. */
static void count_out(struct workers *w, struct work *job)
{
    struct group *g = &w->groups[job->group];

    job->waits = false;
    g->n--;
    g->bytes -= job->bytes;
    w->n--;
    w->bytes -= job->bytes;
}

/* Takes group g out of the ring; before: the one before it, or g itself at the head. */
static void unlink_group(struct workers *w, uint32_t g, uint32_t before)
{
    if (g == w->head) w->head = w->groups[g].next;
    else w->groups[before].next = w->groups[g].next;
    if (w->tail == g) w->tail = before;
}

/* May a thread of this kind run jobs of the group? When the workers close, every thread may. */
static bool is_for(const struct workers *w, const struct group *g, bool slow, uint64_t now_ns)
{
    return w->opt.n_slow == 0 || w->quit || credit_is_spent(&g->credit, now_ns) == slow;
}

/* The next job in turn for a thread of this kind; NULL: none waits. With the lock held. */
static struct work *pop_job(struct workers *w, bool slow)
{
    uint64_t now_ns = w->opt.n_slow ? clock_ns() : 0;
    uint32_t at = w->head, before = at;
    bool only_group;
    struct work *job;

    if (w->n == 0) return NULL;
    while (!is_for(w, &w->groups[at], slow, now_ns)) {
        if (at == w->tail) return NULL;
        before = at;
        at = w->groups[at].next;
    }
    only_group = w->head == w->tail;
    unlink_group(w, at, before);
    job = w->groups[at].first;
    w->groups[at].first = job->next;
    count_out(w, job);
    if (w->groups[at].n > 0) append_group(w, at, only_group);
    return job;
}

/* Takes a group without jobs out of the ring. */
static void remove_group(struct workers *w, uint32_t g)
{
    uint32_t before = w->head;

    while (before != g && w->groups[before].next != g) before = w->groups[before].next;
    unlink_group(w, g, before);
}

bool workers_take(struct workers *w, struct work *job)
{
    struct group *g;
    struct work *before = NULL;
    bool found;

    pthread_mutex_lock(&w->lock);
    if ((found = job->waits)) {
        g = &w->groups[job->group];
        for (struct work *at = g->first; at != job; at = at->next) before = at;
        if (before) before->next = job->next;
        else g->first = job->next;
        if (g->last == job) g->last = before;
        count_out(w, job);
        if (g->n == 0) remove_group(w, job->group);
    }
    pthread_mutex_unlock(&w->lock);
    return found;
}

/* ---- threads ---- */

/* Waits for a job that this kind of thread runs; NULL: the workers close, and none is left. */
static struct work *wait_for_job(struct workers *w, bool slow)
{
    struct work *job;

    pthread_mutex_lock(&w->lock);
    while (!(job = pop_job(w, slow)) && !w->quit) {
        if (w->n == 0) pthread_cond_wait(&w->news, &w->lock);
        else lock_wait_ms(&w->lock, &w->news, LOOK_MS);
    }
    pthread_mutex_unlock(&w->lock);
    return job;
}

static void charge_group(struct workers *w, uint32_t group, uint64_t ns)
{
    pthread_mutex_lock(&w->lock);
    credit_charge(&w->groups[group].credit, ns, clock_ns());
    pthread_mutex_unlock(&w->lock);
}

/* Jobs that wait when the workers close are run, too: their owners wait for them. */
static void *workers_main(void *arg)
{
    struct workers_thread t = *(struct workers_thread *)arg;
    int nice = t.is_slow ? CREDIT_NICE : t.w->opt.nice;
    struct work *job;

    mem_free(arg);
    if (nice) thread_set_nice(nice);
    while ((job = wait_for_job(t.w, t.is_slow))) {
        uint32_t group = job->group;
        uint64_t start_ns = t.w->opt.n_slow ? clock_thread_ns() : 0;
        job->run(job); /* the job may be gone after this */
        if (t.w->opt.n_slow) charge_group(t.w, group, clock_thread_ns() - start_ns);
    }
    return NULL;
}

static int start_threads(struct workers *w, struct err *e)
{
    int n = w->opt.n_threads + w->opt.n_slow, rc = OK;

    if (!(w->threads = mem_array((size_t)n, sizeof *w->threads))) return err_nomem(e, "threads");
    while (rc == OK && w->n_threads < n) {
        struct workers_thread *t = mem_new(struct workers_thread);
        if (!t) return err_nomem(e, "threads");
        *t = (struct workers_thread){ w, w->n_threads >= w->opt.n_threads };
        rc = thread_start(&w->threads[w->n_threads], w->opt.name, workers_main, t, e);
        if (rc == OK) w->n_threads++;
        else mem_free(t);
    }
    return rc;
}

int workers_open(struct workers **out, const struct workers_opt *opt, struct err *e)
{
    struct workers *w = mem_new(struct workers);
    int rc;

    if (!w) return err_nomem(e, "threads");
    w->opt = *opt;
    if ((rc = lock_init(&w->lock, &w->news, "a queue of jobs", e)) != OK) {
        mem_free(w);
        return rc;
    }
    if ((rc = start_threads(w, e)) == OK) *out = w;
    else workers_close(w);
    return rc;
}

void workers_close(struct workers *w)
{
    if (!w) return;
    pthread_mutex_lock(&w->lock);
    w->quit = true;
    pthread_cond_broadcast(&w->news);
    pthread_mutex_unlock(&w->lock);
    for (int i = 0; i < w->n_threads; i++) pthread_join(w->threads[i], NULL);
    lock_destroy(&w->lock, &w->news);
    mem_free(w->threads);
    mem_free(w->groups);
    mem_free(w);
}

/* ---- adding ---- */

static int refuse_job(struct err *e, const char *whose, int n, size_t bytes, int max,
                      size_t max_bytes)
{
    int rc = err_set(e, E_QUEUE_FULL,
                     "%d requests%s with %zu bytes wait to be read; the limits are %d and %zu", n,
                     whose, bytes, max, max_bytes);

    if (e) e->retry_ms = 1000;
    return rc;
}

/* With the lock held. An empty queue takes a job of any size. */
static int check_room(const struct workers *w, const struct work *job, struct err *e)
{
    const struct workers_opt *o = &w->opt;
    const struct group *g = &w->groups[job->group];

    if (w->n >= o->max_jobs || (w->n > 0 && w->bytes + job->bytes > o->max_bytes))
        return refuse_job(e, "", w->n, w->bytes, o->max_jobs, o->max_bytes);
    if (g->n >= o->max_group_jobs || (g->n > 0 && g->bytes + job->bytes > o->max_group_bytes))
        return refuse_job(e, " of this key", g->n, g->bytes, o->max_group_jobs, o->max_group_bytes);
    return OK;
}

/* With the lock held. */
static bool has_group(struct workers *w, uint32_t group)
{
    size_t before = w->cap;

    if (!mem_ensure(w->groups, w->cap, (size_t)group + 1)) return false;
    for (size_t i = before; i < w->cap; i++) w->groups[i] = (struct group){ 0 };
    return true;
}

static void append_job(struct workers *w, struct work *job)
{
    struct group *g = &w->groups[job->group];

    if (g->n == 0) append_group(w, job->group, w->n == 0);
    job->next = NULL;
    job->waits = true;
    if (g->n == 0) g->first = job;
    else g->last->next = job;
    g->last = job;
    g->n++;
    g->bytes += job->bytes;
    w->n++;
    w->bytes += job->bytes;
    if (w->opt.n_slow) pthread_cond_broadcast(&w->news); /* the job is for one kind of threads */
    else pthread_cond_signal(&w->news);
}

static int add_job(struct workers *w, struct work *job, bool bounded, struct err *e)
{
    int rc;

    pthread_mutex_lock(&w->lock);
    if (!has_group(w, job->group)) rc = err_nomem(e, "the queue of a tenant");
    else rc = bounded ? check_room(w, job, e) : OK;
    if (rc == OK) append_job(w, job);
    pthread_mutex_unlock(&w->lock);
    return rc;
}

int workers_add(struct workers *w, struct work *job, struct err *e)
{
    return add_job(w, job, true, e);
}

int workers_add_always(struct workers *w, struct work *job, struct err *e)
{
    return add_job(w, job, false, e);
}

int workers_n_waiting(struct workers *w)
{
    int n;

    pthread_mutex_lock(&w->lock);
    n = w->n;
    pthread_mutex_unlock(&w->lock);
    return n;
}
