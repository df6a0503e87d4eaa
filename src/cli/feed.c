#include "cli/feed.h"

#include "base/mem.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { AT_ONCE = 32, MAX_INPUT = 1 << 28, MAX_TEXTS = 1 << 20 };

void feed_add(struct feed *j, struct str text)
{
    if (j->n == j->cap)
        j->texts =
            mem_grow(j->texts, (size_t)(j->cap = j->cap ? 2 * j->cap : 64) * sizeof *j->texts);
    j->texts[j->n++] = text;
}

/* A pipe as well as a file. */
static int read_input(struct feed *j, const char *file, struct err *e)
{
    bool named = file && strcmp(file, "-") != 0;
    FILE *f = named ? fopen(file, "rb") : stdin;
    size_t got = 1;
    int rc = OK;

    while (f && got > 0 && j->input.n < MAX_INPUT) {
        buf_reserve(&j->input, 65536);
        got = fread(j->input.p + j->input.n, 1, 65536, f);
        j->input.n += got;
    }
    if (!f || ferror(f)) rc = err_set(e, E_IO, "%s: %s", named ? file : "stdin", strerror(errno));
    if (f && named) fclose(f);
    return rc;
}

int feed_read(struct feed *j, const char *file, struct err *e)
{
    struct str rest, line;
    int rc = read_input(j, file, e);

    if (rc != OK) return rc;
    for (rest = buf_str(&j->input); rest.n && j->n < MAX_TEXTS;) {
        const char *end = memchr(rest.p, '\n', rest.n);
        line = str_take(rest, end ? (size_t)(end - rest.p) : rest.n);
        rest = str_skip(rest, end ? line.n + 1 : line.n);
        if (line.n) feed_add(j, line);
    }
    return j->n ? OK
                : err_set(e, E_INVALID,
                          "there is no text: give some as arguments, by --file or by a pipe");
}

/* On the engine's thread: something has news. */
static void wake(struct request *r)
{
    struct feed *j = r->owner;

    pthread_mutex_lock(&j->lock);
    j->n_news++;
    pthread_cond_signal(&j->news);
    pthread_mutex_unlock(&j->lock);
    request_unref(r);
}

static int submit(struct feed *j, struct str text, struct request **out, struct err *e)
{
    const struct tokenizer *t = engine_tokenizer(j->engine);
    struct request *r = *out = request_open();
    int rc;

    if (!t) return err_set(e, E_INVALID, "the model has no tokenizer");
    if ((rc = j->encode(j, t, text, r, e)) != OK) return rc;
    r->embed = true;
    r->owner = j;
    r->notify = wake;
    return engine_submit(j->engine, r, e);
}

static int wait_for(struct feed *j, struct request *r, struct err *e)
{
    struct event ev = { 0 };

    for (;;) {
        pthread_mutex_lock(&j->lock);
        int seen = j->n_news;
        pthread_mutex_unlock(&j->lock);
        if (request_next(r, &ev) && ev.finish != FINISH_NONE) break;
        pthread_mutex_lock(&j->lock);
        while (j->n_news == seen) pthread_cond_wait(&j->news, &j->lock);
        pthread_mutex_unlock(&j->lock);
    }
    return ev.finish == FINISH_STOP ? OK : err_set(e, r->err.code, "%s", r->err.msg);
}

/* So many texts are with the engine at once; they are shown in their order. */
int feed_run(struct feed *j, struct err *e)
{
    struct request *ring[AT_ONCE] = { 0 };
    int sent = 0, rc = OK;

    for (int i = 0; i < j->n && rc == OK; i++) {
        for (; sent < j->n && sent < i + AT_ONCE && rc == OK; sent++)
            rc = submit(j, j->texts[sent], &ring[sent % AT_ONCE], e);
        if (rc == OK) rc = wait_for(j, ring[i % AT_ONCE], e);
        if (rc == OK) rc = j->show(j, ring[i % AT_ONCE], i, e);
        if (rc != OK) break;
        request_unref(ring[i % AT_ONCE]);
        ring[i % AT_ONCE] = NULL;
    }
    engine_close(j->engine); /* before those that still run go */
    j->engine = NULL;
    for (int i = 0; i < AT_ONCE; i++) request_unref(ring[i]);
    return rc;
}

int feed_print(struct buf *out, struct err *e)
{
    if (fwrite(out->p, 1, out->n, stdout) != out->n || fflush(stdout) != 0)
        return err_set(e, E_IO, "cannot write to stdout");
    buf_clear(out);
    return OK;
}

void feed_release(struct feed *j)
{
    engine_close(j->engine);
    buf_release(&j->input);
    mem_free(j->texts);
}
