/* respond.c - from the events of an engine request to the answer: a stream of chunks, or one body.
 *
 *     engine events ─► emit_token ─┬─► toolparse ─► emit_text, emit_reasoning, emit_call, emit_args
 *                                  └─► text chunks, or choice.text
 *     last event    ─► end_choice ─► collect_results, then the end of the stream or the body
 *
 * The loop reads all events of a choice that are there, collects their chunks in call.out and sends
 * them in one write, so that a fast model costs one system call per round and not per token.
 *
 * A buffer remembers a failed allocation (base/buf.h). It is looked for once per round, in
 * choice_read_events; the call then ends with an error. Code in between need not check. */
#include "api/call.h"

#include "api/choice.h"
#include "api/fail.h"
#include "base/clock.h"
#include "base/utf8.h"
#include "engine/engine.h"
#include "net/http.h"
#include "net/sse.h"
#include "pool/pool.h"

#include <stdio.h>
#include <sys/random.h>

/* ---- the stream ---- */

/* The chunk before is ended here and not where it is written: the last one is ended by sse_send. */
void respond_begin_chunk(struct call *c)
{
    if (c->out.n) buf_puts(&c->out, "\n\n"); /* ends the chunk before */
    sse_open_data(&c->out);
}

/* Chunks for a client that is gone are dropped. */
void respond_flush(struct call *c)
{
    if (c->gone || !c->q) {
        buf_clear(&c->out);
        return;
    }
    if (!c->out.n) return;
    c->last_ns = clock_ns();
    if (!c->first_ns) c->first_ns = c->last_ns;
    if (!sse_send(c->q, &c->out)) call_note_gone(c);
}

/* Sends the head of the stream once. false: no memory, and nothing was sent. */
static bool send_head(struct call *c)
{
    if (c->head_sent) return true;
    if (!sse_begin(c->q)) return false;
    c->head_sent = true;
    c->status = 200;
    return true;
}

/* Keeps proxies and clients from timing out a stream that waits or computes without output. */
void call_send_ping(struct call *c, uint64_t now_ns)
{
    uint64_t last = c->last_ns ? c->last_ns : c->start_ns;

    if (c->away || !c->q || c->gone || now_ns < last) return;
    if (!c->watches && (!c->p.stream || c->n_running == 0)) return;
    if (now_ns - last < (uint64_t)c->api->opt.ping_ms * 1000000) return;
    c->holds++;
    c->last_ns = now_ns;
    if ((c->watches || send_head(c)) && !sse_ping(c->q)) call_note_gone(c); /* no memory: later */
    c->holds--;
    call_end_if_done(c);
}

/* ---- the beginning of a choice ---- */

/* The prompt as given, or the text of its token ids. */
static void add_echo(struct choice *ch)
{
    struct call *c = ch->call;
    const struct prompt *p = &c->p.prompts[ch->prompt];
    const struct tokenizer *t = engine_tokenizer(c->model->engine);

    if (p->text.p) buf_put_str(&ch->text, p->text);
    else if (t) tokenizer_decode(t, p->ids, p->n_ids, false, &ch->text);
}

/* The first event: the head of the stream, the role of a chat, the echoed prompt. */
static int begin_choice(struct choice *ch, struct err *e)
{
    struct call *c = ch->call;

    ch->begun = true;
    if (c->p.echo) add_echo(ch);
    if (!c->p.stream) return OK;
    if (!send_head(c)) return err_nomem(e, "the head of the stream");
    if (c->reply.chat) {
        respond_begin_chunk(c);
        reply_chunk_role(&c->reply, &c->out, ch->index);
    }
    if (ch->text.n) {
        respond_begin_chunk(c);
        reply_chunk_text(&c->reply, &c->out, ch->index, buf_str(&ch->text), NULL);
        ch->text.n = 0; /* keeps `failed` */
    }
    return OK;
}

/* ---- an answer that is split into text, reasoning and tool calls: the parser's callbacks ---- */

/* Logprobs were written into a chunk. A failure stays on record. */
static void drop_logprobs(struct choice *ch)
{
    if (!logprobs_failed(&ch->lp)) logprobs_clear(&ch->lp);
}

/* Also for the text the parser releases at the end. Logprobs go out with the next text. */
static void emit_text(void *arg, struct str text)
{
    struct choice *ch = arg;
    struct call *c = ch->call;

    if (!c->p.stream) {
        buf_put_str(&ch->text, text);
        return;
    }
    respond_begin_chunk(c);
    reply_chunk_text(&c->reply, &c->out, ch->index, text, c->p.n_top >= 0 ? &ch->lp : NULL);
    drop_logprobs(ch);
}

static void emit_reasoning(void *arg, struct str text)
{
    struct choice *ch = arg;
    struct call *c = ch->call;

    if (!c->p.stream) {
        buf_put_str(&ch->reasoning, text);
        return;
    }
    respond_begin_chunk(c);
    reply_chunk_reasoning(&c->reply, &c->out, ch->index, text);
}

/* "call_" and 24 letters, as OpenAI's; Mistral's templates accept nine letters and nothing else. */
static struct str make_call_id(const struct call *c, char out[40])
{
    static const char letters[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    bool nine = c->parsing.calls->payload == PAYLOAD_MISTRAL;
    unsigned char raw[24];
    size_t n = 0;

    if (getrandom(raw, sizeof raw, 0) != (ssize_t)sizeof raw)
        memset(raw, (int)clock_ns(), sizeof raw);
    if (!nine) n = (size_t)snprintf(out, 40, "call_");
    for (size_t i = 0; i < (nine ? 9 : sizeof raw); i++)
        out[n++] = letters[raw[i] % (sizeof letters - 1)];
    return str_of(out, n);
}

/* In a body that is not streamed: completes the last tool call. */
static void close_tool_call(struct choice *ch)
{
    if (ch->n_calls && !ch->call->p.stream) reply_close_tool_call(&ch->calls, buf_str(&ch->args));
    ch->args.n = 0; /* keeps `failed` */
}

/* A tool call begins. With parallel_tool_calls false, calls after the first are parsed but not
 * emitted. */
static void emit_call(void *arg, struct str name, struct str id)
{
    struct choice *ch = arg;
    struct call *c = ch->call;
    char made[40];

    if ((ch->skip_call = c->p.one_call && ch->n_calls)) return;
    if (!id.n) id = make_call_id(c, made);
    if (c->p.stream) {
        respond_begin_chunk(c);
        reply_chunk_tool_call(&c->reply, &c->out, ch->index, ch->n_calls, id, name);
    } else {
        close_tool_call(ch);
        if (ch->n_calls) buf_putc(&ch->calls, ',');
        reply_open_tool_call(&ch->calls, -1, id, name);
    }
    ch->n_calls++;
}

/* A part of the arguments of the call that emit_call began. */
static void emit_args(void *arg, struct str piece)
{
    struct choice *ch = arg;
    struct call *c = ch->call;

    if (ch->skip_call || !piece.n) return;
    if (c->p.stream) {
        respond_begin_chunk(c);
        reply_chunk_tool_args(&c->reply, &c->out, ch->index, ch->n_calls - 1, piece);
    } else {
        buf_put_str(&ch->args, piece);
    }
}

void choice_start_parser(struct choice *ch)
{
    const struct parsing *g = &ch->call->parsing;
    const struct toolparse_out out = { emit_text, emit_reasoning, emit_call, emit_args, ch };

    toolparse_init(&ch->parse, g->calls, g->think, ch->call->p.tools, g->prompt_end, &out);
}

/* Emits the text the parser held back, and logprobs of tokens that were not text. */
static void end_parser(struct choice *ch)
{
    toolparse_end(&ch->parse);
    close_tool_call(ch);
    if (ch->call->p.stream && ch->lp.n) emit_text(ch, STR(""));
}

/* The buffers of a choice, and those of its parser. */
int choice_check(const struct choice *ch, struct err *e)
{
    bool failed = ch->text.failed || ch->reasoning.failed || ch->calls.failed || ch->args.failed ||
                  logprobs_failed(&ch->lp) || ch->call->pieces.failed ||
                  toolparse_check(&ch->parse, NULL) != OK;

    return failed ? err_nomem(e, "the answer") : OK;
}

/* ---- events ---- */

/* UTF-8 characters: bytes that do not continue one. */
static size_t count_chars(struct str s)
{
    size_t n = 0;

    for (size_t i = 0; i < s.n; i++) n += ((unsigned char)s.p[i] & 0xc0) != 0x80;
    return n;
}

/* A token and the text that became complete with it, which may be empty or belong to tokens before. */
static void emit_token(struct choice *ch, const struct event *ev)
{
    struct call *c = ch->call;
    bool wanted = c->p.n_top >= 0, token = ev->id >= 0;

    if (token) ch->n_read++;
    /* The token that ends an answer is not part of it. */
    if (token && !c->p.ignore_eos && engine_is_end(c->model->engine, ev->id)) token = false;
    if (wanted && token) logprobs_add(&ch->lp, &c->reply, ev, ch->n_chars);
    ch->n_chars += count_chars(ev->text);
    if (c->parsing.on) {
        toolparse_push(&ch->parse, ev->text);
        return;
    }
    if (!c->p.stream) {
        buf_put_str(&ch->text, ev->text);
        return;
    }
    if (ev->text.n == 0 && ch->lp.n == 0) return;
    respond_begin_chunk(c);
    reply_chunk_text(&c->reply, &c->out, ch->index, ev->text, wanted ? &ch->lp : NULL);
    drop_logprobs(ch);
}

/* ---- the end ---- */

/* "tool_calls" where the answer has some and was not cut off. A forced call that was complete
 * before max_tokens was reached counts as not cut off. */
static const char *finish_reason(const struct choice *ch)
{
    const struct call *c = ch->call;
    bool complete = ch->finish == FINISH_STOP ||
                    (ch->finish == FINISH_LENGTH && c->parsing.forced && !ch->parse.cut);

    return ch->n_calls && complete ? "tool_calls" : finish_name(ch->finish);
}

/* Times are those of the first choice. Cached tokens count once per prompt. */
static struct usage sum_usage(const struct call *c)
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

/* All choices have ended. */
static void send_body(struct call *c)
{
    struct usage u = sum_usage(c);

    buf_clear(&c->out);
    reply_open(&c->reply, &c->out);
    for (int i = 0; i < c->n_choices; i++) {
        const struct choice *ch = c->choices[i];
        const struct reply_parts parts = { buf_str(&ch->text), buf_str(&ch->reasoning),
                                           buf_str(&ch->calls) };
        reply_add_choice(&c->reply, &c->out, ch->index, &parts, c->p.n_top >= 0 ? &ch->lp : NULL,
                         finish_reason(ch));
    }
    reply_close(&c->out, &u);
    call_send_body(c, 200);
}

/* The usage chunk, [DONE], and the end of the reply. */
static int end_stream(struct call *c, struct err *e)
{
    struct usage u = sum_usage(c);
    int rc;

    if (c->p.include_usage) {
        respond_begin_chunk(c);
        reply_chunk_usage(&c->reply, &c->out, &u);
    }
    respond_begin_chunk(c);
    buf_puts(&c->out, "[DONE]");
    if ((rc = buf_check(&c->out, e)) != OK) return rc;
    respond_flush(c);
    if (c->gone) return OK;
    http_end(c->q);
    c->q = NULL;
    return OK;
}

/* The error that an engine request ended with. */
static void get_error(const struct request *r, enum finish finish, struct err *e)
{
    if (finish == FINISH_ERROR || finish == FINISH_DEADLINE) *e = r->err;
    if (finish == FINISH_DEADLINE && e->code != E_DEADLINE)
        err_set(e, E_DEADLINE, "the deadline of the request has passed");
    if (finish == FINISH_ERROR && e->code == OK)
        err_set(e, E_INTERNAL, "the engine ended the request without a reason");
    if (finish != FINISH_CANCELLED) return;
    if (atomic_load(&r->cancel) == CANCEL_SHUTDOWN)
        err_set(e, E_SHUTDOWN, "the server is shutting down");
    else err_set(e, E_CANCELLED, "the request was cancelled");
}

static double ms_between(uint64_t from, uint64_t to)
{
    return to > from ? (double)(to - from) / 1e6 : 0;
}

/* The phases up to the first token; a request that got none has no phases. */
static void collect_phases(struct choice *ch, const struct request *r)
{
    ch->has_phases = r->first_ns && r->dispatch_ns;
    if (!ch->has_phases) return;
    ch->admission_ms = ms_between(ch->call->open_ns, r->submit_ns);
    ch->scheduling_ms = ms_between(r->submit_ns, r->start_ns);
    ch->dispatch_ms = ms_between(r->start_ns, r->dispatch_ns);
    ch->compute_ms = ms_between(r->dispatch_ns, r->first_ns);
}

/* Copies the results of the request and gives it back. */
static void collect_results(struct choice *ch, enum finish finish, struct err *e)
{
    struct request *r = ch->r;
    uint64_t began = r->start_ns ? r->start_ns : r->end_ns,
             first = r->first_ns ? r->first_ns : r->end_ns;

    ch->finish = finish;
    ch->n_out = r->n_out;
    ch->n_cached = r->n_cached;
    ch->queue_ms = ms_between(r->submit_ns, began);
    ch->prefill_ms = ms_between(began, first);
    ch->decode_ms = ms_between(first, r->end_ns);
    collect_phases(ch, r);
    get_error(r, finish, e);
    ch->vec = r->vec;
    r->vec = NULL;
    ch->r = NULL;
    request_unref(r);
    ch->call->n_running--;
    ch->api->n_running--;
}

/* One vector is there: submits the next input, or sends the answer after the last. */
static void end_vector(struct call *c)
{
    struct err e = { 0 };

    if (call_submit_next_inputs(c, &e) != OK) call_fail(c, &e, c->p.field);
    else if (c->n_running == 0) inputs_send(c);
}

/* The end of one choice, and of the answer if it was the last. */
static int end_text(struct choice *ch, struct err *e)
{
    struct call *c = ch->call;
    int rc;

    if (c->parsing.on) end_parser(ch);
    if ((rc = choice_check(ch, e)) != OK) return rc;
    if (c->p.stream) {
        respond_begin_chunk(c);
        reply_chunk_finish(&c->reply, &c->out, ch->index, finish_reason(ch));
    }
    if (c->n_running > 0) return OK;
    if (c->p.stream) return end_stream(c, e);
    send_body(c);
    return OK;
}

static bool is_complete(int finish) { return finish == FINISH_STOP || finish == FINISH_LENGTH; }

/* The last event of a request. An answer that failed or was cancelled ends the whole call: the
 * other choices are cancelled. */
static void end_choice(struct choice *ch, enum finish finish)
{
    struct call *c = ch->call;
    struct err e = { 0 };

    collect_results(ch, finish, &e);
    if (!c->q || c->gone) return;
    if (!is_complete(finish)) call_fail(c, &e, NULL);
    else if (c->wants_vector) end_vector(c);
    else if (end_text(ch, &e) != OK) call_fail(c, &e, NULL);
}

/* Events of a call that is answered already, or whose client is gone, are only counted. */
static void process_event(struct choice *ch, const struct event *ev)
{
    struct call *c = ch->call;
    bool ended = ev->finish != FINISH_NONE;
    struct err e = { 0 };

    if (c->q && !c->gone) {
        /* A request that fails before its first token leaves the choice of the status open. */
        bool only_fails = ended && !is_complete(ev->finish) && ev->text.n == 0;
        if (!ch->begun && !only_fails && begin_choice(ch, &e) != OK) call_fail(c, &e, NULL);
        else if (ch->begun) emit_token(ch, ev);
    }
    if (ended) end_choice(ch, (enum finish)ev->finish);
}

void choice_read_events(struct choice *ch)
{
    struct call *c = ch->call;
    struct event ev;
    struct err e = { 0 };

    c->holds++;
    while (ch->r && request_next(ch->r, &ev)) process_event(ch, &ev);
    if (c->away) { /* the answer is being written on a request thread */
        c->holds--;
        return;
    }
    if (c->q && !c->gone && (choice_check(ch, &e) != OK || buf_check(&c->out, &e) != OK))
        call_fail(c, &e, NULL);
    respond_flush(c);
    c->holds--;
    call_end_if_done(c);
}
