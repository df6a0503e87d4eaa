/* warm.c - the warm-up: one short request through the queue, by the thread that opened the engine. */
#include "engine/engine_impl.h"

/* Wakes the warming thread when the request has events. */
struct waiter {
    pthread_mutex_t lock;
    pthread_cond_t news;
    int n; /* notifications */
};

static void wake_waiter(struct request *r)
{
    struct waiter *w = r->owner;

    pthread_mutex_lock(&w->lock);
    w->n++;
    pthread_cond_signal(&w->news);
    pthread_mutex_unlock(&w->lock);
    request_unref(r);
}

/* Without a thread (manual) the caller drives the engine itself. */
static void wait_for_end(struct engine *g, struct request *r, struct waiter *w)
{
    struct event ev = { 0 };

    for (int seen = 0; ev.finish == FINISH_NONE;) {
        if (request_next(r, &ev)) continue;
        if (g->opt.manual) {
            engine_step(g);
            continue;
        }
        pthread_mutex_lock(&w->lock);
        while (w->n == seen) pthread_cond_wait(&w->news, &w->lock);
        seen = w->n;
        pthread_mutex_unlock(&w->lock);
    }
}

/* The request that touches what a real one does: a prompt, a step, a sampled token or a vector. */
static int fill_request(const struct engine *g, struct request *r, struct err *e)
{
    int n = g->runner->lim.warm_tokens;

    if (n > g->opt.n_ctx / 2) n = g->opt.n_ctx / 2;
    for (int i = 0; i < n; i++) ids_push(&r->prompt, i % g->lim.n_vocab);
    r->max_tokens = 1;
    r->sample.temp = 0;
    r->ignore_eos = r->quiet = true;
    r->embed = g->lim.no_text;
    r->classify = g->lim.classifies;
    r->salt = UINT64_MAX; /* no other request shares its prefix */
    return ids_check(&r->prompt, e);
}

int engine_warm(struct engine *g, struct err *e)
{
    struct waiter w = { .lock = PTHREAD_MUTEX_INITIALIZER, .news = PTHREAD_COND_INITIALIZER };
    struct request *r = request_open();
    int rc;

    if (!r) return err_nomem(e, "the warm-up request");
    if ((rc = guided_warm(&g->guided, e)) != OK) goto out;
    if ((rc = fill_request(g, r, e)) != OK) goto out;
    r->owner = &w;
    r->notify = wake_waiter;
    if ((rc = engine_submit(g, r, e)) == OK) {
        wait_for_end(g, r, &w);
        if (r->finish == FINISH_ERROR) rc = err_set(e, r->err.code, "%s", r->err.msg);
    }
out:
    request_unref(r);
    return rc;
}
