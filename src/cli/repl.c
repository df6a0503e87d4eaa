/* repl.c - one turn of a talk: submit, stream, keep. */
#include "cli/repl.h"

#include "cli/cmd.h"

#include <stdlib.h>
#include <string.h>

void chat_text_add(struct chat *c, const char *s, size_t n)
{
    if (c->n + n + 1 > c->cap) {
        char *p = realloc(c->text, c->cap = 2 * (c->n + n + 1));
        if (!p) {
            fprintf(stderr, "tern: out of memory\n");
            exit(EXIT_FAILED);
        }
        c->text = p;
    }
    memcpy(c->text + c->n, s, n);
    c->n += n;
    c->text[c->n] = 0;
}

void chat_text_clear(struct chat *c)
{
    c->n = 0;
    chat_text_add(c, "", 0);
}

static void note(const char *what) { fprintf(stderr, "(%s)\n", what); }

/* Submits the talk with room for an answer; the oldest turns go where there is none. */
static int submit(struct chat *c, tern_request **out)
{
    int ctx = c->g->info.context, room = ctx / 4 < 256 ? ctx / 4 : 256, rc;
    size_t dropped = 0, now = 1;
    tern_stats s;

    for (;;) {
        rc = tern_submit_chat(out, c->g->m, c->talk.msgs, c->talk.n, &c->g->params);
        if (rc == TERN_OK) {
            tern_request_stats(*out, &s);
            if (s.prompt_tokens + room <= ctx) break;
        } else if (rc != TERN_E_CONTEXT) {
            break;
        }
        if ((now = talk_drop_oldest(&c->talk)) == 0) break;
        dropped += now;
        tern_request_close(*out);
        *out = NULL;
    }
    if (dropped)
        fprintf(stderr,
                "(the context of %d tokens is full: the oldest %zu messages were dropped)\n", ctx,
                dropped);
    return rc;
}

/* Streams the answer to c->text and to the reader. */
static int stream(struct chat *c, tern_request *req, tern_event *ev)
{
    bool start = true;
    int rc;

    while ((rc = tern_next(req, ev)) == TERN_OK) {
        const char *p = ev->text;
        size_t n = ev->n;
        for (; start && n > 0 && (*p == ' ' || *p == '\n'); n--) p++;
        start = start && n == 0;
        chat_text_add(c, p, n);
        if (n > 0 && !gen_write(p, n)) {
            c->leaving = true;
            c->code = gen_write_failed() ? EXIT_FAILED : EXIT_OK;
            break;
        }
        if (ev->finish != TERN_FINISH_NONE) break;
    }
    return rc;
}

void chat_answer(struct chat *c)
{
    tern_request *req = NULL;
    tern_event ev = { 0 };
    int rc;

    talk_add(&c->talk, "user", c->text);
    if ((rc = submit(c, &req)) != TERN_OK) {
        talk_pop(&c->talk);
        gen_fail("chat", rc);
        return;
    }
    chat_text_clear(c);
    gen_watch(req);
    rc = stream(c, req, &ev);
    gen_watch(NULL);
    tern_request_stats(req, &c->stats);
    if (!c->leaving && (c->n == 0 || c->text[c->n - 1] != '\n')) gen_write("\n", 1);
    if (rc != TERN_OK) {
        talk_pop(&c->talk);
        gen_fail("chat", rc);
    } else {
        talk_add(&c->talk, "assistant", c->text);
        if (ev.finish == TERN_FINISH_CANCELLED) note("stopped");
        if (ev.finish == TERN_FINISH_LENGTH && c->g->params.max_tokens == 0)
            note("the context is full");
        if (c->g->verbose) gen_print_stats(stderr, c->g, &c->stats);
    }
    tern_request_close(req);
    c->g->params.seed++; /* the same question may be answered anew */
}
