#include "cli/feed.h"

#include "base/mem.h"
#include "cli/cliio.h"

#include <string.h>

enum { AT_ONCE = 32, MAX_INPUT = 1 << 28, MAX_TEXTS = 1 << 20 };

void feed_add(struct feed *f, struct str text)
{
    if (!mem_ensure(f->texts, f->cap, f->n + 1)) cli_nomem();
    f->texts[f->n++] = text;
}

int feed_read(struct feed *f, const char *file, struct err *e)
{
    struct str rest, line;
    int rc = cli_read(&f->input, file, MAX_INPUT, e);

    if (rc != OK) return rc;
    for (rest = buf_str(&f->input); rest.n && f->n < MAX_TEXTS;) {
        const char *end = memchr(rest.p, '\n', rest.n);
        line = str_take(rest, end ? (size_t)(end - rest.p) : rest.n);
        rest = str_skip(rest, end ? line.n + 1 : line.n);
        if (line.n) feed_add(f, line);
    }
    if (rest.n) return err_set(e, E_INVALID, "the input has more than %d texts", MAX_TEXTS);
    return f->n
               ? OK
               : err_set(e, E_INVALID, "no text: give some as arguments, with --file or by a pipe");
}

/* Called on the engine's thread when a request has an event. */
static void on_notify(struct request *r)
{
    struct feed *f = r->owner;

    pthread_mutex_lock(&f->lock);
    f->n_news++;
    pthread_cond_signal(&f->news);
    pthread_mutex_unlock(&f->lock);
    request_unref(r);
}

/* *out is set even if the submission fails; feed_run releases it. */
static int submit_text(struct feed *f, struct str text, struct request **out, struct err *e)
{
    const struct tokenizer *t = engine_tokenizer(f->engine);
    struct request *r;
    int rc;

    if (!t) return err_set(e, E_INVALID, "the model has no tokenizer");
    if (!(r = *out = request_open())) return err_nomem(e, "a request");
    if ((rc = f->encode(f, t, text, r, e)) != OK) return rc;
    r->embed = r->n_pick == 0;
    r->owner = f;
    r->notify = on_notify;
    return engine_submit(f->engine, r, e);
}

/* Waits for the end of the request. The count of notifications is read before the events, so none
 * can be missed in between. */
static int wait_for_end(struct feed *f, struct request *r, struct err *e)
{
    struct event ev = { 0 };

    for (;;) {
        pthread_mutex_lock(&f->lock);
        int seen = f->n_news;
        pthread_mutex_unlock(&f->lock);
        if (request_next(r, &ev) && ev.finish != FINISH_NONE) break;
        pthread_mutex_lock(&f->lock);
        while (f->n_news == seen) pthread_cond_wait(&f->news, &f->lock);
        pthread_mutex_unlock(&f->lock);
    }
    return ev.finish == FINISH_STOP ? OK : err_set(e, r->err.code, "%s", r->err.msg);
}

/* Keeps AT_ONCE texts in the engine. The oldest is awaited and printed before the next one is sent,
 * which keeps the output in order. */
int feed_run(struct feed *f, struct err *e)
{
    struct request *ring[AT_ONCE] = { 0 }; /* text i is in ring[i % AT_ONCE] */
    int sent = 0, rc = OK;

    for (int i = 0; i < f->n && rc == OK; i++) {
        for (; sent < f->n && sent < i + AT_ONCE && rc == OK; sent++)
            rc = submit_text(f, f->texts[sent], &ring[sent % AT_ONCE], e);
        if (rc == OK) rc = wait_for_end(f, ring[i % AT_ONCE], e);
        if (rc == OK) rc = f->show(f, ring[i % AT_ONCE], i, e);
        if (rc != OK) break;
        request_unref(ring[i % AT_ONCE]);
        ring[i % AT_ONCE] = NULL;
    }
    engine_close(f->engine); /* ends the requests that still run, before they are released */
    f->engine = NULL;
    for (int i = 0; i < AT_ONCE; i++) request_unref(ring[i]);
    return rc;
}

void feed_release(struct feed *f)
{
    engine_close(f->engine);
    buf_release(&f->input);
    mem_free(f->texts);
}
