/* warm.c - the warm-up: one short request through the queue, by the thread that opened the engine. */
#include "engine/engine_impl.h"

/* Wakes the warming thread: the request has events. */
static void wake_warmer(struct request *r)
{
    struct engine *g = r->owner;

    pthread_mutex_lock(&g->warm.lock);
    g->warm.n++;
    pthread_cond_signal(&g->warm.news);
    pthread_mutex_unlock(&g->warm.lock);
    request_unref(r);
}

/* Without a thread (manual) the caller drives the engine itself. The count of notifications is read
 * before the events, so none can be missed in between. */
static void wait_for_end(struct engine *g, struct request *r)
{
    struct event ev = { 0 };

    for (int seen; ev.finish == FINISH_NONE;) {
        pthread_mutex_lock(&g->warm.lock);
        seen = g->warm.n;
        pthread_mutex_unlock(&g->warm.lock);
        if (request_next(r, &ev)) continue;
        if (g->opt.manual) {
            engine_step(g);
            continue;
        }
        pthread_mutex_lock(&g->warm.lock);
        while (g->warm.n == seen) pthread_cond_wait(&g->warm.news, &g->warm.lock);
        pthread_mutex_unlock(&g->warm.lock);
    }
}

/* The request that touches what a real one does: a prompt, a step, a sampled token or a vector. */
static int fill_request(const struct engine *g, struct request *r, struct err *e)
{
    int n = g->runner->lim.warm_tokens;

    if (n > g->opt.n_ctx / 2) n = g->opt.n_ctx / 2;
    for (int i = 0; i < n; i++) ids_push(&r->prompt, i % g->lim.n_vocab);
    r->max_tokens = g->runner->lim.warm_output > 1 ? g->runner->lim.warm_output : 1;
    r->sample.temp = 0;
    r->ignore_eos = r->quiet = true;
    r->embed = g->lim.no_text;
    r->classify = g->lim.classifies;
    r->salt = UINT64_MAX; /* no other request shares its prefix */
    return ids_check(&r->prompt, e);
}

int engine_warm(struct engine *g, struct err *e)
{
    struct request *r = request_open();
    int rc;

    if (!r) return err_nomem(e, "the warm-up request");
    if ((rc = guided_warm(&g->guided, e)) != OK) goto out;
    if ((rc = fill_request(g, r, e)) != OK) goto out;
    r->owner = g;
    r->notify = wake_warmer;
    if ((rc = engine_submit(g, r, e)) == OK) {
        wait_for_end(g, r);
        if (r->finish == FINISH_ERROR) rc = err_set(e, r->err.code, "%s", r->err.msg);
    }
out:
    request_unref(r);
    return rc;
}
