/* call.c - a call's beginning and end: headers and body, the model, replies and errors.
 *
 *     call_open ─► request thread: call_read_body, prompt ─► call_submit ─► events ─► call_end_if_done
 *
 * A call is owned by the list of its api. It is freed in call_end_if_done and nowhere else, when
 * its HTTP request has ended, the last event of every choice was read, and no request thread has
 * it. `holds` keeps it alive inside functions that go on using it. The section on headers and body
 * runs on request threads; everything else belongs to the loop.
 *
 * Whoever answers clears c->q: it is invalid from then on, and NULL means answered. */
#include "api/call.h"

#include "api/choice.h"
#include "api/deadline.h"
#include "api/dialect.h"
#include "api/fail.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "engine/engine.h"
#include "engine/info.h"
#include "net/http.h"
#include "net/query.h"
#include "pool/chatform.h"
#include "pool/pool.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/random.h>

enum { PROMPT_LOG_BYTES = 500 };

/* ---- opening ---- */

/* 24 random characters of 6 bits each: the id allows to cancel the request, so it must not be
 * guessable. */
void call_make_id(struct call *c, const char *prefix)
{
    static const char letters[] =
        "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ01";
    unsigned char raw[24];
    size_t at;

    if (c->who.hop.call[0]) { /* a gateway has chosen it */
        snprintf(c->id, sizeof c->id, "%s%s", prefix, c->who.hop.call);
        return;
    }
    if (getrandom(raw, sizeof raw, 0) != (ssize_t)sizeof raw) {
        uint64_t now = clock_ns();
        memset(raw, 0, sizeof raw);
        memcpy(raw, &now, sizeof now);
    }
    at = (size_t)snprintf(c->id, sizeof c->id, "%s", prefix);
    for (size_t i = 0; i < sizeof raw; i++) c->id[at++] = letters[raw[i] & 63];
    c->id[at] = 0;
}

/* http_on_gone: the connection closed before the answer was complete. */
static void on_gone(void *arg)
{
    struct call *c = arg;

    call_note_gone(c);
    call_end_if_done(c);
}

/* There is no memory even for the call. opt.ended still hears of it: limits are given back there. */
static void refuse_call(struct api *a, struct http_req *q, const struct api_who *who,
                        const char *route)
{
    struct fail f = fail_lookup(E_NOMEM);
    struct api_end end = { .who = who,
                           .route = route,
                           .model = "",
                           .code = f.code,
                           .finish = "",
                           .gone = "",
                           .peer = "",
                           .status = f.status };

    end.total_ms = clock_ms_since(http_start_ns(q));
    http_reply_nomem(q);
    if (a->opt.failed) a->opt.failed(a->opt.arg, f.status, f.code, false);
    if (a->opt.ended) a->opt.ended(a->opt.arg, &end);
}

static void link_call(struct api *a, struct call *c)
{
    c->next = a->calls;
    if (a->calls) a->calls->prev = c;
    a->calls = c;
    a->n_calls++;
}

static void make_id_for(struct call *c, const char *route)
{
    call_make_id(c, strstr(route, "chat")       ? "chatcmpl-"
                    : strstr(route, "embed")    ? "embd-"
                    : strstr(route, "classify") ? "classify-"
                    : strstr(route, "rerank")   ? "rerank-"
                                                : "cmpl-");
}

struct call *call_open(struct api *a, struct http_req *q, const struct api_who *who,
                       const char *route)
{
    struct call *c = mem_new(struct call);

    if (c) {
        c->who = *who;
        c->who.id = NULL; /* borrowed, and copied below */
        c->who.name = arena_cstr(&c->arena, str_c(who->name ? who->name : "default"));
        c->peer = arena_cstr(&c->arena, str_c(http_peer(q)));
    }
    if (!c || c->arena.failed) {
        if (c) arena_release(&c->arena);
        mem_free(c);
        refuse_call(a, q, who, route);
        return NULL;
    }
    c->api = a;
    c->q = q;
    c->route = route;
    c->model_id = "";
    c->dialect = &dialect_openai;
    c->cold = -1;
    c->start_ns = http_start_ns(q);
    c->open_ns = clock_ns();
    link_call(a, c);
    c->holds++; /* until call_end_handler */
    if (who->id && strlen(who->id) < sizeof c->id) snprintf(c->id, sizeof c->id, "%s", who->id);
    else make_id_for(c, route);
    http_on_gone(q, on_gone, c);
    return c;
}

/* ---- headers and body ---- */

/* An empty text removes the field. */
void call_blame(struct call *c, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(c->p.param, sizeof c->p.param, fmt, ap);
    va_end(ap);
}

void call_note_skipped(struct call *c, struct str type)
{
    enum { MOST = 400 };

    if (c->skipped.n > MOST) return;
    if (c->skipped.n) buf_puts(&c->skipped, ", ");
    buf_put_str(&c->skipped, str_take(type, 40));
}

static int refuse_header(struct call *c, const char *name, struct str got, const char *want,
                         struct err *e)
{
    call_blame(c, "%s", name);
    return err_set(e, E_INVALID, "the header %s is \"%.*s\", but it must be %s", name,
                   STR_ARG(str_take(got, 60)), want);
}

static int64_t now_epoch_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Lowers *ns, a time of clock_ns, to `ms` after the time `from`. */
static void lower_deadline(uint64_t *ns, uint64_t from, double ms)
{
    double at = (double)from + ms * 1e6;

    if (at < (double)*ns) *ns = at > 1 ? (uint64_t)at : 1;
}

/* The earliest of the deadlines in the headers; UINT64_MAX: none. */
static int read_head_deadlines(struct call *c, uint64_t *ns, struct err *e)
{
    struct str at = c->head.deadline, seconds = c->head.timeout;
    int64_t v;
    double s;

    *ns = UINT64_MAX;
    if (at.p) {
        if (!deadline_parse(at, &v))
            return refuse_header(c, "X-Deadline", at, "RFC 3339 or milliseconds since 1970", e);
        lower_deadline(ns, clock_ns(), (double)(v < 0 ? 0 : v) - (double)now_epoch_ms());
    }
    if (seconds.p) {
        if (!str_to_f64(seconds, &s) || !(s >= 0 && s < 1e9))
            return refuse_header(c, "x-stainless-timeout", seconds, "a number of seconds", e);
        lower_deadline(ns, c->start_ns, s < 1 ? 1000 : s * 1000); /* OpenAI's clients truncate */
    }
    return OK;
}

/* Times count from the arrival of the request. A deadline in the past is refused at once. Deadlines
 * of a year or more are none. */
static int set_deadline(struct call *c, struct err *e)
{
    const double never_ms = 1000.0 * 86400 * 365;
    uint64_t ns, now = clock_ns();
    int rc = read_head_deadlines(c, &ns, e);

    if (rc != OK) return rc;
    if (c->p.timeout_s > 0) lower_deadline(&ns, c->start_ns, c->p.timeout_s * 1000);
    if (c->p.has_deadline) lower_deadline(&ns, c->start_ns, (double)c->p.deadline_ms);
    if (ns == UINT64_MAX && c->api->opt.deadline_ms > 0)
        lower_deadline(&ns, c->start_ns, c->api->opt.deadline_ms);
    if (ns <= now)
        return err_set(e, E_DEADLINE, "the deadline passed %lld ms ago",
                       (long long)((now - ns) / 1000000));
    c->deadline_ns = (double)(ns - now) < never_ms * 1e6 ? ns : 0;
    return OK;
}

void call_borrow_request(struct call *c)
{
    struct str autoload;
    uint64_t ns;

    c->body = http_body(c->q);
    c->body_bytes = c->body.n;
    c->head.deadline = http_header(c->q, "X-Deadline");
    c->head.timeout = http_header(c->q, "x-stainless-timeout");
    c->head.priority = http_header(c->q, "X-Priority");
    if (query_find(http_query(c->q), "autoload", &autoload))
        c->head.no_load = !query_is(autoload, "true") && !query_is(autoload, "1");
    if (read_head_deadlines(c, &ns, NULL) == OK && ns != UINT64_MAX)
        c->head_deadline_ns = c->deadline_ns = ns;
    call_blame(c, "%s", "");
}

/* The field overrides the header. Tenants have an upper limit. */
static int set_priority(struct call *c, struct err *e)
{
    struct str header = c->head.priority;

    c->priority = c->p.has_priority ? c->p.priority : PRIORITY_INTERACTIVE;
    if (header.p && !c->p.has_priority && !params_parse_priority(header, &c->priority))
        return refuse_header(c, "X-Priority", header, "a number, \"interactive\" or \"batch\"", e);
    if (c->priority > c->who.priority_max) c->priority = c->who.priority_max;
    return OK;
}

/* A model whose load failed with E_NOTFOUND (a file is missing) is not an unknown model; one that
 * failed later has the code of its failure. */
static bool is_failed_model(struct pool *pool, struct str name)
{
    int i = pool_index(pool, name);
    return i >= 0 && pool_state(pool, i, NULL) == POOL_FAILED;
}

/* How long the model stays after this use. */
static int64_t keep_of(const struct call *c)
{
    return c->p.has_keep ? c->p.keep_ms : POOL_KEEP_DEFAULT;
}

/* The call holds its model until it ends, also if the model fails, is unloaded or replaced meanwhile.
 * One that waited for its model has it already. */
static int find_model(struct call *c, struct err *e)
{
    struct pool *pool = c->api->opt.pool;
    struct str name = c->api->opt.one_model ? STR("") : c->p.model;
    int rc = OK;

    if (!c->model) rc = pool_find_cold(pool, name, c->deadline_ns, &c->model, &c->cold, e);
    if (rc == OK) {
        c->model_id = c->model->id;
        pool_touch(c->model, keep_of(c));
        if (c->model->engine) return OK;
        c->fw.on = true; /* it was loaded after forward_claims had looked */
        return err_set(e, E_WORKER, "the model runs in another process");
    }
    c->model = NULL;
    if (c->cold >= 0 && c->head.no_load) {
        call_blame(c, "model");
        err_set(e, E_INVALID, "model '%s' is not loaded, and the request says autoload=false",
                pool_at(pool, c->cold)->id);
        c->cold = -1;
        return E_INVALID;
    }
    if (c->cold >= 0) return E_LOADING;
    if (rc == E_WORKER && forward_can_wait(c, e)) return rc;
    if (rc != E_DEVICE && rc != E_DAMAGED && rc != E_WORKER && is_failed_model(pool, c->p.model))
        return e->code = E_FORMAT;
    if (rc == E_NOTFOUND) call_blame(c, "model");
    return rc;
}

/* The beginning of the prompt, for the access log. */
static void note_prompt(struct call *c)
{
    const struct params *p = &c->p;

    if (!c->api->opt.log_prompts) return;
    if (p->n_msgs) c->prompt_log = p->msgs[p->n_msgs - 1].content;
    else if (p->n_prompts) c->prompt_log = p->prompts[0].text;
    /* A copy: the body is freed before the call ends. */
    c->prompt_log = arena_str(&c->arena, str_take(c->prompt_log, PROMPT_LOG_BYTES));
}

/* The ids behind which a gateway wants the answer to continue; only one choice can. */
static int read_resume(struct call *c, enum body_kind kind, const json_t *root, struct err *e)
{
    const json_t *list = json_object_get(root, "tern_resume"), *v;
    size_t i;

    if (!c->who.hop.resumes || !(kind & (BODY_CHAT | BODY_TEXT))) return OK;
    call_blame(c, "tern_resume");
    if (c->p.n > 1 || c->p.n_prompts > 1)
        return err_set(e, E_INVALID, "an answer of several choices cannot be continued");
    if (!json_is_array(list) || json_array_size(list) != (size_t)c->who.hop.n_resume)
        return err_set(e, E_INVALID, "tern_resume must be a list of %d ids, as X-Tern-Resume says",
                       c->who.hop.n_resume);
    json_array_foreach (list, i, v) {
        json_int_t id = json_integer_value(v);
        if (!json_is_integer(v) || id < 0 || id > INT32_MAX)
            return err_set(e, E_INVALID, "tern_resume[%zu] is not the id of a token", i);
        ids_push(&c->resume, (int32_t)id);
    }
    call_blame(c, "%s", "");
    return ids_check(&c->resume, e);
}

/* The body of another protocol, by way of the conversation that it means. */
static int read_translated(struct call *c, enum body_kind kind, struct err *e)
{
    json_t *convo = NULL;
    int rc = body_parse(&c->source, c->body, &c->work.stop, e);

    if (rc == OK) rc = c->dialect->translate(c, &convo, e);
    if (rc == OK) rc = params_read_tree(&c->p, kind, convo, e);
    if (rc == OK) rc = read_resume(c, kind, c->source, e);
    json_decref(c->source);
    c->source = NULL;
    return rc;
}

static int read_plain(struct call *c, enum body_kind kind, struct err *e)
{
    int rc = params_read(&c->p, kind, c->body, e);

    return rc == OK ? read_resume(c, kind, c->p.root, e) : rc;
}

/* The order matters for the error that is reported: first the body, then headers, then the model. */
static int read_params(struct call *c, enum body_kind kind, struct err *e)
{
    int rc;

    rc = c->dialect->translate ? read_translated(c, kind, e) : read_plain(c, kind, e);
    if (rc != OK) return rc;
    note_prompt(c);
    if (!(kind & (BODY_CHAT | BODY_TEXT | BODY_EMBED | BODY_CLASSIFY | BODY_RERANK))) return OK;
    if ((rc = set_priority(c, e)) != OK) return rc;
    if ((rc = set_deadline(c, e)) != OK) return rc;
    if (c->p.n <= c->api->opt.max_choices) return OK;
    call_blame(c, "n");
    return err_set(e, E_INVALID, "n is %d, but this server allows at most %d choices", c->p.n,
                   c->api->opt.max_choices);
}

int call_read_body(struct call *c, enum body_kind kind, struct err *e)
{
    int rc = c->body_read ? OK : read_params(c, kind, e);

    if (rc != OK) return rc;
    c->body_read = true;
    if ((rc = find_model(c, e)) != OK) return rc;
    return call_check_stop(c, e);
}

/* The number of tokens in the first `limit` bytes of the texts. */
static int count_tokens(const struct tokenizer *t, const struct str *texts, int n, size_t limit,
                        size_t *out, struct err *e)
{
    struct ids ids = { 0 };
    int rc = OK;

    for (int i = 0; i < n && limit > 0 && rc == OK; i++) {
        struct str part = str_take(texts[i], limit);
        limit -= part.n;
        part.n -= (size_t)utf8_partial(part);
        rc = tokenizer_encode(t, part, ENCODE_PLAIN, &ids, e);
    }
    if (rc == OK) rc = ids_check(&ids, e);
    *out = ids.n;
    ids_release(&ids);
    return rc;
}

/* The texts are tokenized up to a limit that grows by GROW until the tokens exceed the context or
 * the texts end. A prompt of 16 MiB for a context of 4096 is thus refused after 64 KiB. */
int call_check_length(struct call *c, const struct str *texts, int n, const char *param,
                      struct err *e)
{
    enum {
        BYTES = 16, /* per token of the context: the beginning that is looked at first */
        GROW = 4,   /* factor between two looks */
        CUT = 64    /* tokens that cutting a text in the middle may add */
    };
    size_t all = 0, count;
    struct engine_info info;
    int rc;

    engine_info(c->model->engine, &info);
    for (int i = 0; i < n; i++) all += texts[i].n;
    for (size_t limit = (size_t)info.opt.n_ctx * BYTES; limit < all; limit *= GROW) {
        rc = count_tokens(engine_tokenizer(c->model->engine), texts, n, limit, &count, e);
        if (rc != OK || (rc = call_check_stop(c, e)) != OK) return rc;
        if (count < (size_t)info.opt.n_ctx + CUT) continue;
        call_blame(c, "%s", param);
        return err_set(
            e, E_CONTEXT,
            "the first %zu of the prompt's %zu bytes are %zu tokens, but the context has "
            "%d",
            limit, all, count, info.opt.n_ctx);
    }
    return OK;
}

/* ---- answers and errors ---- */

/* An error with c->status and c->code was the answer. */
static void report_failure(const struct call *c)
{
    if (c->api->opt.failed)
        c->api->opt.failed(c->api->opt.arg, c->status, c->code, c->n_choices > 0);
}

/* wanted: the status of the error; without memory for it another one was sent. */
static void end_failed(struct call *c, int wanted, int sent)
{
    c->status = sent;
    c->q = NULL;
    if (sent != wanted) snprintf(c->code, sizeof c->code, "%s", fail_lookup(E_NOMEM).code);
    report_failure(c);
}

/* c->out has failed if any part of the body found no memory. */
void call_send_body(struct call *c, int status)
{
    struct err e = { 0 };

    if (!c->q) return;
    if (buf_check(&c->out, &e) != OK) {
        call_fail(c, &e, NULL);
        return;
    }
    c->first_ns = c->first_ns ? c->first_ns : clock_ns();
    c->status = http_reply(c->q, status, "application/json", c->out.p, c->out.n);
    c->q = NULL;
    if (c->status == status) return;
    snprintf(c->code, sizeof c->code, "%s", fail_lookup(E_NOMEM).code);
    report_failure(c);
}

/* The status 200 was sent already. Chunks that were lost for want of memory are dropped, and the error
 * then needs no memory either. */
static void send_error_event(struct call *c, const struct err *e, const char *param)
{
    static const char nomem[] = "data: " FAIL_NOMEM_BODY "\n\n";
    struct fail f = fail_lookup(e->code);

    if (c->out.failed) buf_clear(&c->out);
    c->dialect->fail(c, &f, e->msg, param);
    if (c->out.failed) {
        buf_clear(&c->out);
        http_write(c->q, nomem, sizeof nomem - 1);
    }
    respond_flush(c);
    if (!c->gone) http_end(c->q), c->q = NULL;
}

/* Before the head of a stream was sent, the error has its own status. */
/* A gateway continues the stream elsewhere: for it, this worker is lost. */
static void cut_stream(struct call *c)
{
    http_drop(c->q, "worker lost");
    call_note_gone(c);
    http_end(c->q);
    c->q = NULL;
}

void call_fail(struct call *c, const struct err *e, const char *param)
{
    assert(!c->away);
    c->holds++;
    if (c->q && !c->gone) {
        snprintf(c->code, sizeof c->code, "%s", fail_lookup(e->code).code);
        if (c->head_sent && e->code == E_WORKER && c->who.hop.ids) {
            cut_stream(c);
        } else if (c->head_sent) {
            send_error_event(c, e, param);
        } else {
            end_failed(c, fail_lookup(e->code).status,
                       fail_send(c->q, e, param, c->who.correlation));
        }
    }
    call_cancel_choices(c, CANCEL_ASKED);
    c->holds--;
}

void call_fail_status(struct call *c, int status, const char *code, const char *msg)
{
    if (!c->q) return;
    snprintf(c->code, sizeof c->code, "%s", code);
    end_failed(c, status, fail_send_status(c->q, status, code, msg, c->who.correlation));
}

bool call_cancel_choices(struct call *c, int why)
{
    for (int i = 0; i < c->n_choices; i++)
        if (c->choices[i]->r) request_cancel(c->choices[i]->r, (enum cancel)why);
    return c->n_running > 0;
}

/* A client that read too slowly is counted separately in the statistics. */
void call_note_gone(struct call *c)
{
    const char *why = c->q ? http_gone_reason(c->q) : "";

    if (c->gone || !c->q) return;
    c->gone = true;
    snprintf(c->gone_reason, sizeof c->gone_reason, "%s", why[0] ? why : "closed");
    call_note_gone_away(c);
    forward_cancel(c, FORWARD_GONE);
    call_cancel_choices(c, !strcmp(why, "slow reader") ? CANCEL_SLOW : CANCEL_GONE);
}

/* ---- the end ---- */

/* Builds struct api_end for limits, metrics and the access log. */
static void report_end(struct call *c)
{
    struct api_end end = { .who = &c->who,
                           .route = c->route,
                           .model = c->model_id,
                           .status = c->status,
                           .code = c->code,
                           .finish = "",
                           .gone = c->gone_reason,
                           .stream = c->p.stream,
                           .n_choices = c->n_choices,
                           .peer = c->peer,
                           .prompt = c->prompt_log,
                           .total_ms = clock_ms_since(c->start_ns) };

    for (int i = 0; i < c->n_prompts; i++) end.prompt_tokens += c->prompt_tokens[i];
    for (int i = 0; i < c->n_choices; i++) {
        end.output_tokens += c->choices[i]->n_out;
        if (i % c->p.n == 0) end.cached_tokens += c->choices[i]->n_cached;
    }
    if (c->n_choices) {
        const struct choice *ch = c->choices[0];
        end.finish = finish_name(ch->finish);
        end.queue_ms = ch->queue_ms;
        end.prefill_ms = ch->prefill_ms;
        end.decode_ms = ch->decode_ms;
        end.has_phases = ch->has_phases;
        end.admission_ms = ch->admission_ms;
        end.scheduling_ms = ch->scheduling_ms;
        end.dispatch_ms = ch->dispatch_ms;
        end.compute_ms = ch->compute_ms;
    }
    if (c->first_ns) end.first_ms = (double)(c->first_ns - c->start_ns) / 1e6;
    forward_fill_end(c, &end);
    if (c->api->opt.ended) c->api->opt.ended(c->api->opt.arg, &end);
}

/* Takes c out of the list and frees it with everything it owns. */
static void call_free(struct call *c)
{
    struct api *a = c->api;

    if (c->prev) c->prev->next = c->next;
    else a->calls = c->next;
    if (c->next) c->next->prev = c->prev;
    a->n_calls--;
    a->n_watchers -= c->watches;
    for (int i = 0; i < c->n_choices; i++) choice_recycle(c->choices[i]);
    for (int i = 0; c->inputs && i < c->p.n_prompts; i++) ids_release(&c->inputs[i]);
    call_release_requests(c);
    if (c->p.root) prepare_free_json(a, c->who.tenant, c->body_bytes, c->p.root);
    c->p.root = NULL;
    grammar_unref(c->grammar);
    if (c->model) {
        if (c->model->engine) engine_give_back(c->model->engine, &c->ticket);
        pool_touch(c->model, POOL_KEEP_SAME);
    }
    pool_release(c->model);
    json_decref(c->source);
    mem_free(c->kept);
    reply_release(&c->reply);
    pieces_release(&c->pieces);
    params_release(&c->p);
    buf_release(&c->out);
    buf_release(&c->skipped);
    ids_release(&c->resume);
    ids_release(&c->new_ids);
    ids_release(&c->token_ids);
    arena_release(&c->arena);
    mem_free(c);
}

void call_end_handler(struct call *c)
{
    c->holds--;
    if (c->q && http_is_gone(c->q)) call_note_gone(c); /* while the handler ran */
    call_end_if_done(c);
}

void call_end_if_done(struct call *c)
{
    bool goes_on = (c->compiling || c->watches) && c->q && !c->gone;

    if (c->holds || c->away || c->n_running > 0 || goes_on || forward_is_under_way(c)) return;
    if (c->q) { /* the client is gone, but the HTTP request must be ended all the same */
        assert(c->gone);
        if (c->head_sent) http_end(c->q);
        else http_reply(c->q, c->status = 499, "application/json", "", 0);
        c->q = NULL;
    }
    if (c->n_choices || c->fw.on) api_remember_call(c->api, c);
    if (!c->is_job) report_end(c);
    call_free(c);
}
