/* compile.c - the queue and the thread that compile grammars.
 *
 * Compiling a schema can take a second, and the thread that serves HTTP must not wait for it. One
 * thread is enough: compiled grammars are cached (guided.c), and the smallest job goes first, so a
 * large schema delays no small one for long. */
#include "engine/compile.h"

#include "base/mem.h"
#include "engine/guided.h"

#include <string.h>

int compiler_init(struct compiler *c, struct guided *d, struct err *e)
{
    *c = (struct compiler){ 0 };
    if (pthread_mutex_init(&c->lock, NULL) != 0) return err_nomem(e, "the compiler's lock");
    if (pthread_cond_init(&c->news, NULL) != 0) {
        pthread_mutex_destroy(&c->lock);
        return err_nomem(e, "the compiler's condition");
    }
    c->guided = d;
    return OK;
}

void job_unref(struct compile_job *j)
{
    if (!j || atomic_fetch_sub_explicit(&j->refs, 1, memory_order_acq_rel) != 1) return;
    grammar_unref(j->g);
    mem_free((void *)j->spec.text.p);
    mem_free(j);
}

/* ---- the compiler's thread ---- */

/* The smallest waiting job, of several the oldest. With the lock held. */
static struct compile_job *pop_job(struct compiler *c)
{
    struct compile_job **best = &c->waiting, *j;

    for (struct compile_job **at = &c->waiting; *at; at = &(*at)->next)
        if ((*at)->spec.text.n < (*best)->spec.text.n) best = at;
    if ((j = *best)) *best = j->next;
    return j;
}

/* Counters go first: when done() runs, the requester may submit the next job. */
static void finish_job(struct compiler *c, struct compile_job *j)
{
    pthread_mutex_lock(&c->lock);
    c->n--;
    c->bytes -= j->spec.text.n;
    pthread_mutex_unlock(&c->lock);
    j->done(j); /* passes the compiler's reference */
}

/* The thread's loop: the smallest job, until compiler_close. */
static void *compile_main(void *arg)
{
    struct compiler *c = arg;
    struct compile_job *j;

    for (;;) {
        pthread_mutex_lock(&c->lock);
        while (!c->waiting && !c->quit) pthread_cond_wait(&c->news, &c->lock);
        j = c->quit ? NULL : pop_job(c);
        pthread_mutex_unlock(&c->lock);
        if (!j) return NULL;
        if (atomic_load_explicit(&j->dropped, memory_order_relaxed))
            j->rc =
                err_set(&j->err, E_CANCELLED, "the request that needed the grammar was dropped");
        else j->rc = guided_compile(c->guided, &j->spec, &j->g, &j->err);
        finish_job(c, j);
    }
}

void compiler_close(struct compiler *c)
{
    struct compile_job *j;

    if (!c->guided) return;
    pthread_mutex_lock(&c->lock);
    c->quit = true;
    pthread_cond_signal(&c->news);
    pthread_mutex_unlock(&c->lock);
    if (c->has_thread) pthread_join(c->thread, NULL);
    while ((j = pop_job(c))) {
        j->rc = err_set(&j->err, E_SHUTDOWN, "the server is shutting down");
        finish_job(c, j);
    }
    pthread_cond_destroy(&c->news);
    pthread_mutex_destroy(&c->lock);
    *c = (struct compiler){ 0 };
}

/* ---- submitting ---- */

/* The thread starts with the first job: most engines never see a grammar. With the lock held. */
static int start_thread(struct compiler *c, struct err *e)
{
    int rc;

    if (c->has_thread) return OK;
    if ((rc = pthread_create(&c->thread, NULL, compile_main, c)) != 0)
        return err_set(e, E_NOMEM, "cannot start a thread to compile grammars: %s", strerror(rc));
    pthread_setname_np(c->thread, "tern-grammar");
    c->has_thread = true;
    return OK;
}

/* Appends the job to the queue. With the lock held. */
static int append_job(struct compiler *c, struct compile_job *j, struct err *e)
{
    struct compile_job **at = &c->waiting;
    int rc;

    if (c->n >= COMPILE_JOBS || c->bytes + j->spec.text.n > COMPILE_BYTES) {
        rc = err_set(e, E_QUEUE_FULL,
                     "%d grammars of %zu bytes wait to be compiled; the limits are %d and %u", c->n,
                     c->bytes, COMPILE_JOBS, COMPILE_BYTES);
        if (e) e->retry_ms = 1000;
        return rc;
    }
    if ((rc = start_thread(c, e)) != OK) return rc;
    while (*at) at = &(*at)->next;
    *at = j;
    c->n++;
    c->bytes += j->spec.text.n;
    pthread_cond_signal(&c->news);
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
    rc = append_job(c, j, e);
    pthread_mutex_unlock(&c->lock);
    if (rc == OK) {
        *out = j;
        return OK;
    }
    atomic_store(&j->refs, 1);
    job_unref(j);
    return rc;
}
