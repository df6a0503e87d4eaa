#include "api/call.h"

#include "api/fail.h"
#include "base/clock.h"
#include "base/utf8.h"
#include "net/sse.h"

#include <stdio.h>
#include <sys/random.h>

/* ---- the stream ---- */

void answer_open_chunk(struct call *c)
{
    if (c->out.n) buf_puts(&c->out, "\n\n"); /* ends the one before */
    sse_open_data(&c->out);
}

void answer_flush(struct call *c)
{
    if (!c->out.n) return;
    if (c->gone || !c->q) {
        buf_clear(&c->out);
        return;
    }
    c->last_ns = clock_ns();
    if (!c->first_ns) c->first_ns = c->last_ns;
    if (!sse_send(c->q, &c->out)) call_gone(c);
}

static void send_head(struct call *c)
{
    if (c->head_sent) return;
    c->head_sent = true;
    c->status = 200;
    fail_set_ids(c->q, c->who.correlation);
    sse_begin(c->q);
}

/* Nothing came for a while: proxies and clients on the way should not think it dead. */
void call_ping(struct call *c, uint64_t now_ns)
{
    uint64_t last = c->last_ns ? c->last_ns : c->start_ns;

    if (!c->p.stream || !c->q || c->gone || c->n_live == 0 || now_ns < last) return;
    if (now_ns - last < (uint64_t)c->api->opt.ping_ms * 1000000) return;
    c->busy++;
    send_head(c);
    c->last_ns = now_ns;
    if (!sse_ping(c->q)) call_gone(c);
    c->busy--;
    call_settle(c);
}

/* ---- the text before the answer ---- */

static void put_echo(struct choice *ch)
{
    struct call *c = ch->call;
    const struct prompt *p = &c->p.prompts[ch->prompt];
    const struct tokenizer *t = engine_tokenizer(c->model->engine);

    if (p->text.p) buf_put_str(&ch->text, p->text);
    else if (t) tokenizer_decode(t, p->ids, p->n_ids, false, &ch->text);
}

static void begin(struct choice *ch)
{
    struct call *c = ch->call;

    ch->begun = true;
    if (c->p.echo) put_echo(ch);
    if (!c->p.stream) return;
    send_head(c);
    if (c->reply.chat) {
        answer_open_chunk(c);
        reply_role(&c->reply, &c->out, ch->index);
    }
    if (ch->text.n) {
        answer_open_chunk(c);
        reply_delta(&c->reply, &c->out, ch->index, buf_str(&ch->text), NULL);
        buf_clear(&ch->text);
    }
}

/* ---- usage ---- */

static struct usage usage_of(const struct call *c)
{
    struct usage u = { .queue_ms = c->choices[0]->queue_ms,
                       .prefill_ms = c->choices[0]->prefill_ms,
                       .decode_ms = c->choices[0]->decode_ms };

    for (int i = 0; i < c->n_prompts; i++) u.prompt += c->prompt_tokens[i];
    for (int i = 0; i < c->n_choices; i++) {
        u.completion += c->choices[i]->n_out;
        if (i % c->p.n == 0) u.cached += c->choices[i]->n_cached;
    }
    return u;
}

/* ---- events ---- */

static size_t n_chars(struct str s)
{
    size_t n = 0;

    for (size_t i = 0; i < s.n; i++) n += ((unsigned char)s.p[i] & 0xc0) != 0x80;
    return n;
}

/* ---- an answer taken apart ---- */

static void put_text(void *arg, struct str text)
{
    struct choice *ch = arg;
    struct call *c = ch->call;

    if (!c->p.stream) {
        buf_put_str(&ch->text, text);
        return;
    }
    answer_open_chunk(c);
    reply_delta(&c->reply, &c->out, ch->index, text, c->p.n_top >= 0 ? &ch->lp : NULL);
    logprobs_clear(&ch->lp);
}

static void put_think(void *arg, struct str text)
{
    struct choice *ch = arg;
    struct call *c = ch->call;

    if (!c->p.stream) {
        buf_put_str(&ch->think, text);
        return;
    }
    answer_open_chunk(c);
    reply_think(&c->reply, &c->out, ch->index, text);
}

/* As OpenAI's; Mistral's templates take nine letters and no others. */
static struct str new_call_id(const struct call *c, char out[40])
{
    static const char letters[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    bool nine = c->parsing.calls->payload == PAYLOAD_MISTRAL;
    unsigned char dice[24];
    size_t n = 0;

    if (getrandom(dice, sizeof dice, 0) != (ssize_t)sizeof dice)
        memset(dice, (int)clock_ns(), sizeof dice);
    if (!nine) n = (size_t)snprintf(out, 40, "call_");
    for (size_t i = 0; i < (nine ? 9 : sizeof dice); i++)
        out[n++] = letters[dice[i] % (sizeof letters - 1)];
    return str_of(out, n);
}

/* Whole replies: the last call is over. */
static void close_call(struct choice *ch)
{
    if (ch->n_calls && !ch->call->p.stream) reply_close_call(&ch->calls, buf_str(&ch->args));
    buf_clear(&ch->args);
}

static void put_call(void *arg, struct str name, struct str id)
{
    struct choice *ch = arg;
    struct call *c = ch->call;
    char own[40];

    if ((ch->skips = c->p.one_call && ch->n_calls)) return;
    if (!id.n) id = new_call_id(c, own);
    if (c->p.stream) {
        answer_open_chunk(c);
        reply_call(&c->reply, &c->out, ch->index, ch->n_calls, id, name);
    } else {
        close_call(ch);
        if (ch->n_calls) buf_putc(&ch->calls, ',');
        reply_open_call(&ch->calls, -1, id, name);
    }
    ch->n_calls++;
}

static void put_args(void *arg, struct str piece)
{
    struct choice *ch = arg;
    struct call *c = ch->call;

    if (ch->skips || !piece.n) return;
    if (c->p.stream) {
        answer_open_chunk(c);
        reply_args(&c->reply, &c->out, ch->index, ch->n_calls - 1, piece);
    } else {
        buf_put_str(&ch->args, piece);
    }
}

void choice_parse(struct choice *ch)
{
    const struct parsing *g = &ch->call->parsing;
    const struct toolparse_out out = { put_text, put_think, put_call, put_args, ch };

    toolparse_init(&ch->parse, g->calls, g->think, ch->call->p.tools, g->prompt_end, &out);
}

/* Nothing more comes: what was held back, and log probabilities of what was no text. */
static void end_parse(struct choice *ch)
{
    toolparse_end(&ch->parse);
    close_call(ch);
    if (ch->call->p.stream && ch->lp.n) put_text(ch, STR(""));
}

static const char *finish_of(const struct choice *ch)
{
    const struct call *c = ch->call;
    /* A forced call that was closed before the limit of tokens is whole. */
    bool whole = ch->finish == FINISH_STOP ||
                 (ch->finish == FINISH_LENGTH && c->parsing.forced && !ch->parse.cut);

    return ch->n_calls && whole ? "tool_calls" : finish_name(ch->finish);
}

/* A token and the text that came with it. */
static void put_token(struct choice *ch, const struct event *ev)
{
    struct call *c = ch->call;
    bool wanted = c->p.n_top >= 0, token = ev->id >= 0;

    if (token) ch->n_seen++;
    /* The token that ends an answer is no part of it. */
    if (token && !c->p.ignore_eos && engine_is_end(c->model->engine, ev->id)) token = false;
    if (wanted && token) logprobs_add(&ch->lp, &c->reply, ev, ch->n_chars);
    ch->n_chars += n_chars(ev->text);
    if (c->parsing.on) {
        toolparse_push(&ch->parse, ev->text);
        return;
    }
    if (!c->p.stream) {
        buf_put_str(&ch->text, ev->text);
        return;
    }
    if (ev->text.n == 0 && ch->lp.n == 0) return;
    answer_open_chunk(c);
    reply_delta(&c->reply, &c->out, ch->index, ev->text, wanted ? &ch->lp : NULL);
    logprobs_clear(&ch->lp);
}

static void put_whole(struct call *c)
{
    struct usage u = usage_of(c);

    buf_clear(&c->out);
    reply_open(&c->reply, &c->out);
    for (int i = 0; i < c->n_choices; i++) {
        const struct choice *ch = c->choices[i];
        const struct reply_parts parts = { buf_str(&ch->text), buf_str(&ch->think),
                                           buf_str(&ch->calls) };
        reply_message(&c->reply, &c->out, ch->index, &parts, c->p.n_top >= 0 ? &ch->lp : NULL,
                      finish_of(ch));
    }
    reply_close(&c->reply, &c->out, &u);
    call_reply(c, 200, buf_str(&c->out));
}

static void put_stream_end(struct call *c)
{
    struct usage u = usage_of(c);

    if (c->p.include_usage) {
        answer_open_chunk(c);
        reply_usage(&c->reply, &c->out, &u);
    }
    answer_open_chunk(c);
    buf_puts(&c->out, "[DONE]");
    answer_flush(c);
    if (c->gone) return;
    http_end(c->q);
    c->q = NULL;
}

/* Takes what the engine wrote into the request; it is nobody's afterwards. */
static void take_end(struct choice *ch, enum finish finish, struct err *e)
{
    struct request *r = ch->r;
    uint64_t began = r->start_ns ? r->start_ns : r->end_ns,
             first = r->first_ns ? r->first_ns : r->end_ns;

    ch->finish = finish;
    ch->n_out = r->n_out;
    ch->n_cached = r->n_cached;
    if (began > r->submit_ns) ch->queue_ms = (double)(began - r->submit_ns) / 1e6;
    if (first > began) ch->prefill_ms = (double)(first - began) / 1e6;
    if (r->end_ns > first) ch->decode_ms = (double)(r->end_ns - first) / 1e6;
    if (finish == FINISH_ERROR || finish == FINISH_DEADLINE) *e = r->err;
    if (finish == FINISH_DEADLINE && e->code != E_DEADLINE)
        err_set(e, E_DEADLINE, "the deadline passed");
    if (finish == FINISH_ERROR && e->code == OK)
        err_set(e, E_INTERNAL, "the engine gave up without a reason");
    if (finish == FINISH_CANCELLED) {
        if (atomic_load(&r->cancel) == CANCEL_SHUTDOWN)
            err_set(e, E_SHUTDOWN, "the server is going down");
        else err_set(e, E_CANCELLED, "the request was cancelled");
    }
    ch->vec = r->vec;
    r->vec = NULL;
    ch->r = NULL;
    request_unref(r);
    ch->call->n_live--;
    ch->api->n_live--;
}

/* One text is through: the next one goes, or that was the last. */
static void end_embedding(struct call *c)
{
    struct err e = { 0 };

    if (call_submit_next(c, &e) != OK) call_fail(c, &e, c->p.field);
    else if (c->n_live == 0 && c->seconds) classify_reply(c);
    else if (c->n_live == 0) embeddings_reply(c);
}

static void end_choice(struct choice *ch, enum finish finish)
{
    struct call *c = ch->call;
    bool whole = finish == FINISH_STOP || finish == FINISH_LENGTH;
    struct err e = { 0 };

    take_end(ch, finish, &e);
    if (!c->q || c->gone) return;
    if (!whole) {
        call_fail(c, &e, NULL);
        return;
    }
    if (c->embed) {
        end_embedding(c);
        return;
    }
    if (c->parsing.on) end_parse(ch);
    if (c->p.stream) {
        answer_open_chunk(c);
        reply_finish(&c->reply, &c->out, ch->index, finish_of(ch));
    }
    if (c->n_live > 0) return;
    if (c->p.stream) put_stream_end(c);
    else put_whole(c);
}

static void take(struct choice *ch, const struct event *ev)
{
    struct call *c = ch->call;
    bool bad =
        ev->finish != FINISH_NONE && ev->finish != FINISH_STOP && ev->finish != FINISH_LENGTH;

    if (c->q && !c->gone) {
        /* An end without anything before it: the status is still ours to say. */
        if (!ch->begun && !(bad && ev->text.n == 0)) begin(ch);
        if (ch->begun) put_token(ch, ev);
    }
    if (ev->finish != FINISH_NONE) end_choice(ch, (enum finish)ev->finish);
}

void choice_drain(struct choice *ch)
{
    struct call *c = ch->call;
    struct event ev;

    c->busy++;
    while (ch->r && request_next(ch->r, &ev)) take(ch, &ev);
    answer_flush(c);
    c->busy--;
    call_settle(c);
}
