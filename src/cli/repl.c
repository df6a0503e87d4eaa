/* repl.c - one question and its answer: submit, stream, remember. */
#include "cli/repl.h"

#include "cli/cliio.h"
#include "cli/cmd.h"

void repl_note(const char *text) { fprintf(stderr, "(%s)\n", text); }

/* Appends r->text to the conversation. */
static void add_message(struct repl *r, const char *role)
{
    if (!conversation_add(&r->conversation, role, cli_text(&r->text))) cli_nomem();
}

/* Submits the conversation, dropping its oldest messages until a quarter of the context (at most
 * 256 tokens) is left for the answer. */
static int submit_conversation(struct repl *r, tern_request **out)
{
    int ctx = r->g->info.context, room = ctx / 4 < 256 ? ctx / 4 : 256, rc;
    size_t dropped = 0, n;
    tern_stats s;

    for (;;) {
        rc = tern_submit_chat(out, r->g->m, r->conversation.msgs, r->conversation.n, &r->g->params);
        if (rc == TERN_OK) {
            tern_request_stats(*out, &s);
            if (s.prompt_tokens + room <= ctx) break;
        } else if (rc != TERN_E_CONTEXT) {
            break;
        }
        if ((n = conversation_drop_oldest(&r->conversation)) == 0) break;
        dropped += n;
        tern_request_close(*out);
        *out = NULL;
    }
    if (dropped)
        fprintf(stderr,
                "(the context of %d tokens is full: the oldest %zu messages were dropped)\n", ctx,
                dropped);
    return rc;
}

/* Streams the answer to stdout and into r->text, without leading white space. */
static int stream_answer(struct repl *r, tern_request *req, tern_event *ev)
{
    bool at_start = true;
    int rc;

    while ((rc = tern_next(req, ev)) == TERN_OK) {
        const char *p = ev->text;
        size_t n = ev->n;
        for (; at_start && n > 0 && (*p == ' ' || *p == '\n'); n--) p++;
        at_start = at_start && n == 0;
        buf_add(&r->text, p, n);
        if (n > 0 && !gen_write(p, n)) {
            r->leaving = true;
            r->code = gen_write_failed() ? EXIT_FAILED : EXIT_OK;
            break;
        }
        if (ev->finish != TERN_FINISH_NONE) break;
    }
    return rc;
}

/* On failure the question is removed again, so that the next one does not repeat it. */
void repl_answer(struct repl *r)
{
    tern_request *req = NULL;
    tern_event ev = { 0 };
    int rc;

    add_message(r, "user");
    if ((rc = submit_conversation(r, &req)) != TERN_OK) {
        conversation_pop(&r->conversation);
        gen_fail("chat", rc);
        return;
    }
    buf_clear(&r->text);
    gen_watch(req);
    rc = stream_answer(r, req, &ev);
    gen_watch(NULL);
    tern_request_stats(req, &r->stats);
    if (!r->leaving && (r->text.n == 0 || r->text.p[r->text.n - 1] != '\n')) gen_write("\n", 1);
    if (rc != TERN_OK) {
        conversation_pop(&r->conversation);
        gen_fail("chat", rc);
    } else {
        add_message(r, "assistant");
        if (ev.finish == TERN_FINISH_CANCELLED) repl_note("stopped");
        if (ev.finish == TERN_FINISH_LENGTH && r->g->params.max_tokens == 0)
            repl_note("the context is full");
        if (r->g->verbose) gen_print_stats(stderr, r->g, &r->stats);
    }
    tern_request_close(req);
    r->g->params.seed++; /* the same question again gets another answer */
}
