/* respond.c - from the events of an engine request to the answer: a stream of chunks, or one body.
 *
 *     engine events ─► emit_token ─┬─► toolparse ─► emit_text, emit_reasoning, emit_call, emit_args
 *                                  └─► emit_part ─► parts of the answer ─► the dialect's events
 *     last event    ─► end_choice ─► collect_results, then the end of the stream or the body
 *
 * The loop reads all events of a choice that are there, collects their chunks in call.out and sends
 * them in one write, so that a fast model costs one system call per round and not per token.
 *
 * A buffer remembers a failed allocation (base/buf.h). It is looked for once per round, in
 * choice_read_events; the call then ends with an error. Code in between need not check. */
#include "api/call.h"

#include "api/choice.h"
#include "api/dialect.h"
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

/* The event before is ended here and not where it is written: the last one is ended by the flush. */
static void end_event(struct call *c)
{
    if (c->out.n) buf_puts(&c->out, c->dialect->ndjson ? "\n" : "\n\n");
}

void respond_begin_chunk(struct call *c)
{
    end_event(c);
    if (!c->dialect->ndjson) sse_open_data(&c->out);
}

void respond_begin_event(struct call *c, const char *name)
{
    end_event(c);
    buf_puts(&c->out, "event: ");
    buf_puts(&c->out, name);
    buf_putc(&c->out, '\n');
    sse_open_data(&c->out);
}

static bool send_lines(struct call *c)
{
    bool open;

    buf_putc(&c->out, '\n');
    if (c->out.failed) http_drop_nomem(c->q);
    open = http_write(c->q, c->out.p, c->out.n);
    buf_clear(&c->out);
    return open;
}

/* A gateway gets the ids of the tokens: those of one choice. */
static bool sends_ids(const struct call *c) { return c->who.hop.ids && c->p.stream && c->p.n <= 1; }

/* ": ids 12 34 @5" ends a flush: the tokens behind the chunks before it, and the number of the next
 * event, if events are numbered. ": ids -": the answer has not begun, and the chunks are pings. The
 * blank line behind it is sent in a stream of lines, too. */
static void add_ids(struct call *c)
{
    bool begun = c->n_choices > 0 && c->choices[0]->begun;

    buf_puts(&c->out, c->dialect->ndjson ? "\n: ids" : "\n\n: ids");
    if (!begun) buf_puts(&c->out, " -");
    for (size_t i = 0; i < c->new_ids.n; i++) buf_printf(&c->out, " %d", c->new_ids.p[i]);
    if (c->n_events) buf_printf(&c->out, " @%d", c->n_events);
    if (c->dialect->ndjson) buf_putc(&c->out, '\n');
    if (c->new_ids.failed) c->out.failed = true;
    c->new_ids.n = 0;
}

/* Chunks for a client that is gone are dropped. */
void respond_flush(struct call *c)
{
    if (c->gone || !c->q) {
        buf_clear(&c->out);
        return;
    }
    if (!c->out.n) return;
    if (sends_ids(c)) add_ids(c);
    c->last_ns = clock_ns();
    if (!c->first_ns) c->first_ns = c->last_ns;
    if (!(c->dialect->ndjson ? send_lines(c) : sse_send(c->q, &c->out))) call_note_gone(c);
}

/* Sends the head of the stream once. false: no memory, and nothing was sent. */
bool respond_send_head(struct call *c)
{
    if (c->head_sent) return true;
    if (sends_ids(c)) http_set_header(c->q, "X-Tern-Ids", "1");
    if (!(c->dialect->ndjson ? http_begin(c->q, 200, "application/x-ndjson") : sse_begin(c->q)))
        return false;
    c->head_sent = true;
    c->status = 200;
    return true;
}

static void send_ping(struct call *c)
{
    if (c->dialect->ping) {
        c->dialect->ping(c);
        respond_flush(c);
    } else if (!c->dialect->ndjson && !sse_ping(c->q)) {
        call_note_gone(c);
    }
}

/* Keeps proxies and clients from timing out a stream that waits or computes without output. Lines of
 * JSON have no comment: such a stream only gets its head. */
void call_send_ping(struct call *c, uint64_t now_ns)
{
    uint64_t last = c->last_ns ? c->last_ns : c->start_ns;

    if (c->away || !c->q || c->gone || now_ns < last) return;
    if (!c->watches && (!c->p.stream || c->n_running == 0)) return;
    if (now_ns - last < (uint64_t)c->api->opt.ping_ms * 1000000) return;
    c->holds++;
    c->last_ns = now_ns;
    if (c->watches || respond_send_head(c)) send_ping(c); /* no memory: later */
    c->holds--;
    call_end_if_done(c);
}

/* ---- parts of the answer ---- */

/* The part that is open ends: the next one follows, or the answer is over. */
static void close_part(struct choice *ch)
{
    const struct dialect *d = ch->call->dialect;

    if (ch->part_open && ch->call->p.stream && d->close_part)
        d->close_part(ch, answer_last(&ch->answer));
    ch->part_open = false;
}

/* NULL: no memory. A stream whose parts are not kept has one place for all of them. */
static struct part *open_part(struct choice *ch, enum part_kind kind, struct str id,
                              struct str name)
{
    const struct dialect *d = ch->call->dialect;
    struct part *p;

    close_part(ch);
    if (ch->call->p.stream && !d->keeps) ch->answer.n = 0;
    if (!(p = answer_open_part(&ch->answer, kind, id, name))) return NULL;
    ch->part_open = true;
    if (ch->call->p.stream) d->open_part(ch, p);
    return p;
}

/* More bytes of the part that is open. */
static void add_to_part(struct choice *ch, struct part *p, struct str piece)
{
    const struct call *c = ch->call;

    if (!c->p.stream || c->dialect->keeps) buf_put_str(&p->text, piece);
    if (c->p.stream) c->dialect->add_part(ch, p, piece);
}

/* Text or reasoning: continues the last part, if that is of this kind, or begins one. */
static void emit_part(struct choice *ch, enum part_kind kind, struct str text)
{
    struct part *p = ch->part_open ? answer_last(&ch->answer) : NULL;

    if (!p || p->kind != kind) p = open_part(ch, kind, STR(""), STR(""));
    if (p) add_to_part(ch, p, text);
}

/* ---- the beginning of a choice ---- */

/* The prompt as given, or the text of its token ids. */
static void emit_echo(struct choice *ch)
{
    struct call *c = ch->call;
    const struct prompt *p = &c->p.prompts[ch->prompt];
    const struct tokenizer *t = engine_tokenizer(c->model->engine);
    struct buf text = { 0 };

    if (p->text.p) buf_put_str(&text, p->text);
    else if (t) tokenizer_decode(t, p->ids, p->n_ids, false, &text);
    if (text.failed) ch->answer.failed = true;
    else if (text.n) emit_part(ch, PART_TEXT, buf_str(&text));
    buf_release(&text);
}

/* The first event: the head of the stream, the role of a chat, the echoed prompt. */
static int begin_choice(struct choice *ch, struct err *e)
{
    struct call *c = ch->call;

    ch->begun = true;
    ch->n_cached = ch->r->n_cached;
    if (c->p.stream) {
        if (!respond_send_head(c)) return err_nomem(e, "the head of the stream");
        c->dialect->begin(ch);
    }
    if (c->p.echo) emit_echo(ch);
    return OK;
}

/* ---- an answer that is split into text, reasoning and tool calls: the parser's callbacks ---- */

/* Also for the text the parser releases at the end. */
static void emit_text(void *arg, struct str text) { emit_part(arg, PART_TEXT, text); }
static void emit_reasoning(void *arg, struct str text) { emit_part(arg, PART_REASONING, text); }

/* Random; in an answer that another worker may have to continue, by its id and the number of the call. */
static void choose_letters(const struct call *c, int k, unsigned char *raw, size_t n)
{
    uint64_t h = 0xcbf29ce484222325u ^ (uint64_t)(unsigned)k;

    if (!c->who.hop.ids) {
        if (getrandom(raw, n, 0) != (ssize_t)n) memset(raw, (int)clock_ns(), n);
        return;
    }
    for (const char *s = c->id; *s; s++) h = (h ^ (unsigned char)*s) * 0x100000001b3u;
    for (size_t i = 0; i < n; i++) {
        h = (h ^ (h >> 29)) * 0xbf58476d1ce4e5b9u + i;
        raw[i] = (unsigned char)(h >> 56);
    }
}

/* "call_" and 24 letters, as OpenAI's; Mistral's templates accept nine letters and nothing else. */
static struct str make_call_id(const struct call *c, int k, char out[40])
{
    static const char letters[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    bool nine = c->parsing.calls->payload == PAYLOAD_MISTRAL;
    unsigned char raw[24];
    size_t n = 0;

    choose_letters(c, k, raw, sizeof raw);
    if (!nine) n = (size_t)snprintf(out, 40, "call_");
    for (size_t i = 0; i < (nine ? 9 : sizeof raw); i++)
        out[n++] = letters[raw[i] % (sizeof letters - 1)];
    return str_of(out, n);
}

/* A tool call begins. With parallel_tool_calls false, calls after the first are parsed but not
 * emitted. */
static void emit_call(void *arg, struct str name, struct str id)
{
    struct choice *ch = arg;
    struct call *c = ch->call;
    char made[40];

    if ((ch->skip_call = c->p.one_call && ch->n_calls)) return;
    if (!id.n) id = make_call_id(c, ch->n_calls, made);
    ch->n_calls++;
    open_part(ch, PART_CALL, id, name);
}

/* A part of the arguments of the call that emit_call began. */
static void emit_args(void *arg, struct str piece)
{
    struct choice *ch = arg;
    struct part *p = ch->part_open ? answer_last(&ch->answer) : NULL;

    if (ch->skip_call || !piece.n || !p || p->kind != PART_CALL) return;
    add_to_part(ch, p, piece);
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
    if (ch->call->p.stream && ch->lp.n) emit_text(ch, STR(""));
}

/* The buffers of a choice, and those of its parser. */
int choice_check(const struct choice *ch, struct err *e)
{
    bool failed = answer_failed(&ch->answer) || logprobs_failed(&ch->lp) ||
                  ch->call->pieces.failed || toolparse_check(&ch->parse, NULL) != OK;

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
    if (token && sends_ids(c)) ids_push(&c->new_ids, ev->id);
    if (token && c->dialect->token_ids) ids_push(&c->token_ids, ev->id);
    /* The token that ends an answer is not part of it. */
    if (token && !c->p.ignore_eos && engine_is_end(c->model->engine, ev->id)) token = false;
    if (wanted && token) logprobs_add(&ch->lp, &c->reply, ev, ch->n_chars);
    ch->n_chars += count_chars(ev->text);
    if (c->parsing.on) {
        toolparse_push(&ch->parse, ev->text);
        ch->n_reasoning += token && toolparse_is_reasoning(&ch->parse);
    } else if (ev->text.n || (c->p.stream && ch->lp.n)) {
        emit_part(ch, PART_TEXT, ev->text);
    }
}

/* The text that the client has already: the parser and the offsets of log probabilities see it, and
 * what it leads to is not sent again. */
static void push_resumed(struct choice *ch)
{
    struct call *c = ch->call;
    struct str text = buf_str(&ch->r->resumed);

    if (!c->who.hop.resumes) return;
    ch->n_read += (int)ch->r->resume.n;
    ch->n_chars += count_chars(text);
    if (c->parsing.on) toolparse_push(&ch->parse, text);
    else if (text.n) emit_part(ch, PART_TEXT, text);
    if (c->p.stream && !c->out.failed) buf_clear(&c->out);
    c->n_events = c->who.hop.n_events;
}

/* ---- the end ---- */

/* "tool_calls" where the answer has some and was not cut off. A forced call that was complete
 * before max_tokens was reached counts as not cut off. */
const char *choice_finish_reason(const struct choice *ch)
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
        u.reasoning += c->choices[i]->n_reasoning;
        if (i % c->p.n == 0) u.cached += c->choices[i]->n_cached;
    }
    return u;
}

/* All choices have ended. */
static void send_body(struct call *c)
{
    struct usage u = sum_usage(c);

    buf_clear(&c->out);
    c->dialect->write_body(c, &u);
    call_send_body(c, 200);
}

/* The last events, and the end of the reply. */
static int end_stream(struct call *c, struct err *e)
{
    struct usage u = sum_usage(c);
    int rc;

    c->dialect->end(c, &u);
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

/* The phases up to the first token; a request that got none has the first one only. */
static void collect_phases(struct choice *ch, const struct request *r)
{
    ch->admission_ms = ms_between(ch->call->open_ns, r->submit_ns);
    ch->has_phases = r->first_ns && r->dispatch_ns;
    if (!ch->has_phases) return;
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
    ch->stop_hit = r->stop_hit;
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
    close_part(ch);
    if ((rc = choice_check(ch, e)) != OK) return rc;
    if (c->p.stream && c->dialect->finish) c->dialect->finish(ch, choice_finish_reason(ch));
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
        bool first = !ch->begun;
        if (first && !only_fails && begin_choice(ch, &e) != OK) call_fail(c, &e, NULL);
        else if (ch->begun) {
            if (first) push_resumed(ch);
            emit_token(ch, ev);
        }
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
