/* submit.c - makes the engine requests of a call, and hands them to its engine.
 *
 * A request thread checks everything and makes all requests, with copies of their prompts; the loop
 * submits them. A call with several choices is accepted or refused as a whole by the API. The
 * engine's admission may still refuse a later choice; the call then fails and the earlier ones are
 * cancelled.
 *
 * A call with a grammar that is not compiled yet keeps its requests: a compiler thread works, and
 * the loop submits them when the job is done. The job and the call know each other; whichever ends
 * first clears the link (call_release_requests). A job that finishes after its call is only
 * unreferenced. */
#include "api/call.h"

#include "api/choice.h"
#include "api/dialect.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/map.h"
#include "base/mem.h"
#include "engine/compile.h"
#include "engine/engine.h"
#include "engine/info.h"
#include "net/loop.h"
#include "pool/pool.h"

#include <stdio.h>
#include <sys/random.h>
#include <time.h>

enum { INPUTS_AT_ONCE = 64 }; /* of a call, in the engine */

/* ---- checks before anything is submitted ---- */

/* The name of the field for errors about the prompt. */
static const char *prompt_field(const struct call *c)
{
    return c->p.field ? c->p.field : c->p.n_msgs ? "messages" : "prompt";
}

/* Every id is in the vocabulary, and there is at least one. */
/* Names an id that is wrong as the client gave it: ids of a document come behind the query's. */
static void blame_id(struct call *c, int prompt, size_t i)
{
    bool ranks = c->p.kind == BODY_RERANK;
    size_t query = ranks ? c->p.query.n_ids : 0;

    if (i < query) call_blame(c, "query[%zu]", i);
    else if (c->n_prompts > 1 || ranks)
        call_blame(c, "%s[%d][%zu]", prompt_field(c), prompt, i - query);
    else call_blame(c, "%s[%zu]", prompt_field(c), i);
}

static int check_ids(struct call *c, const struct ids *v, int prompt, int n_vocab, struct err *e)
{
    for (size_t i = 0; i < v->n; i++) {
        if (v->p[i] >= 0 && v->p[i] < n_vocab) continue;
        blame_id(c, prompt, i);
        return err_set(e, E_INVALID, "%s is %d, but the vocabulary has %d tokens", c->p.param,
                       v->p[i], n_vocab);
    }
    if (v->n > 0) return OK;
    call_blame(c, "%s", prompt_field(c));
    return err_set(e, E_INVALID, "%s has no tokens: the model needs at least one", c->p.param);
}

static int check_bias(struct call *c, int n_vocab, struct err *e)
{
    for (int i = 0; i < c->p.sample.n_bias; i++) {
        if (c->p.sample.bias[i].id < n_vocab) continue;
        call_blame(c, "logit_bias.%d", c->p.sample.bias[i].id);
        return err_set(e, E_INVALID, "%s: the vocabulary has only %d tokens", c->p.param, n_vocab);
    }
    return OK;
}

/* The channel of events has room for opt.max_calls choices. */
static int check_room(struct call *c, int more, struct err *e)
{
    int rc;

    if (more <= c->api->opt.max_calls - c->api->n_running) return OK;
    rc = err_set(e, E_QUEUE_FULL, "%d choices are running; %d more would exceed the limit of %d",
                 c->api->n_running, more, c->api->opt.max_calls);
    e->retry_ms = 1000;
    return rc;
}

/* ---- the reply's head ---- */

/* Changes when the answer to the same request may: another model, or another file of it. FNV-1a. */
static void make_fingerprint(struct call *c, const struct engine_info *info)
{
    uint64_t h = 0xcbf29ce484222325u;

    for (const char *s = c->model->id; *s; s++) h = (h ^ (unsigned char)*s) * 0x100000001b3u;
    h = (h ^ info->weight_bytes ^ (uint64_t)c->model->model->created) * 0x100000001b3u;
    snprintf(c->fingerprint, sizeof c->fingerprint, "fp_%010llx", (unsigned long long)(h >> 24));
}

/* piece_fn of the reply. */
static struct str get_piece(void *arg, int32_t id) { return pieces_of(arg, id); }

/* Everything that the chunks of the answer share. */
static int prepare_reply(struct call *c, const struct engine_info *info, struct err *e)
{
    const struct tokenizer *t = engine_tokenizer(c->model->engine);

    make_fingerprint(c, info);
    c->reply = (struct reply){ .chat = c->p.n_msgs > 0,
                               .ids = c->dialect->token_ids,
                               .usage = c->p.include_usage,
                               .id = c->id,
                               .model = c->model_id,
                               .fingerprint = c->fingerprint,
                               .created = c->who.hop.has_created ? c->who.hop.created
                                                                 : (int64_t)time(NULL),
                               .piece = get_piece,
                               .piece_arg = &c->pieces };
    if (!t) c->p.n_top = -1; /* logprobs show the text of tokens, which this model has none of */
    if (c->p.n_top >= 0) pieces_init(&c->pieces, t);
    if (c->pieces.failed) return err_nomem(e, "the texts of tokens");
    reply_render_head(&c->reply);
    return buf_check(&c->reply.head, e);
}

/* ---- one engine request ---- */

/* Stop strings of the request, and one more of the chat form. */
static int copy_stops(struct call *c, struct request *r, struct str more, struct err *e)
{
    struct str stops[STOPS_MAX + 1];
    int n = 0;

    for (; n < c->p.n_stops; n++) stops[n] = c->p.stops[n];
    if (more.n) stops[n++] = more;
    if (n == 0 || request_set_stops(r, stops, n)) return OK;
    return err_nomem(e, "the stop strings");
}

static int copy_ids(struct ids *out, const struct ids *in, struct err *e)
{
    ids_add(out, in->p, in->n);
    return ids_check(out, e);
}

/* params_sample leaves a pointer to the body's arena; the request frees its own copy. */
static int copy_bias(struct request *r, struct err *e)
{
    const struct logit_bias *given = r->sample.bias;

    r->sample.bias = NULL;
    if (r->sample.n_bias == 0) return OK;
    r->sample.bias = mem_dup(given, (size_t)r->sample.n_bias * sizeof *given);
    return r->sample.bias ? OK : err_nomem(e, "logit_bias");
}

/* Special tokens whose text the parser of the answer must see. */
static int copy_shown(const struct parsing *g, struct request *r, struct err *e)
{
    if (g->n_shown == 0) return OK;
    if (!(r->shown = mem_dup(g->shown, (size_t)g->n_shown * sizeof *g->shown)))
        return err_nomem(e, "the special tokens of the request");
    r->n_shown = g->n_shown;
    return OK;
}

/* min_tokens above max_tokens is lowered: the body was checked, but max_tokens may be the server's. */
static void set_limits(struct call *c, struct request *r)
{
    r->max_tokens = c->p.max_tokens ? c->p.max_tokens : c->api->opt.max_tokens_default;
    r->min_tokens = c->p.min_tokens;
    if (r->max_tokens && r->min_tokens > r->max_tokens) r->min_tokens = r->max_tokens;
    r->ignore_eos = c->p.ignore_eos;
    r->deadline_ns = c->deadline_ns;
    r->predict_ns = (uint64_t)c->p.predict_ms * 1000000;
    r->priority = c->priority;
}

/* The logits of a generative reranker. */
static void pick_answer(const struct call *c, struct request *r)
{
    for (int i = 0; i < c->yesno.n; i++) r->pick[i] = c->yesno.ids[i];
    r->n_pick = c->yesno.n;
}

/* Copies what the engine needs: the request may outlive the call if the client leaves. The sampling
 * seed of the k-th choice of a prompt is seed + k, so that choices differ. On a request thread, or on
 * the loop. */
static int fill_request(struct call *c, struct request *r, int index, const struct ids *prompt,
                        uint64_t seed, struct str stop, struct err *e)
{
    int rc;

    r->sample = c->model->sample;
    params_sample(&c->p, &r->sample);
    r->sample.seed = seed + (uint64_t)(index % c->p.n);
    if ((rc = copy_bias(r, e)) != OK) return rc;
    if ((rc = copy_ids(&r->prompt, prompt, e)) != OK) return rc;
    if ((rc = copy_ids(&r->resume, &c->resume, e)) != OK) return rc;
    if ((rc = copy_shown(&c->parsing, r, e)) != OK) return rc;
    if ((rc = copy_stops(c, r, stop, e)) != OK) return rc;
    set_limits(c, r);
    request_set_borders(r, c->borders, c->n_borders);
    r->n_top = c->p.n_top;
    r->tenant = c->who.tenant;
    r->salt = c->api->opt.salt_by_tenant ? map_hash(str_c(c->who.name)) : 0;
    if (c->yesno.n && !c->yesno.by_head) pick_answer(c, r);
    r->embed = c->wants_vector && !r->n_pick;
    if (c->wants_vector) {
        r->max_tokens = 1;
        r->ticket = &c->ticket;
        r->is_further = c->n_running > 0;
    }
    if (c->second_at && r->embed) {
        r->classify = true;
        r->raw = c->p.kind == BODY_RERANK;
        r->second = c->second_at[index / c->p.n];
    }
    r->continues = c->p.n_msgs == 0;
    snprintf(r->label, sizeof r->label, "%s", c->who.correlation);
    r->notify = api_notify;
    return OK;
}

/* NULL: the error is in e. */
static struct request *make_request(struct call *c, const struct ids *prompt, int index,
                                    uint64_t seed, struct str stop, struct err *e)
{
    struct request *r = request_open();

    if (!r) err_nomem(e, "a choice of the answer");
    else if (fill_request(c, r, index, prompt, seed, stop, e) == OK) return r;
    request_unref(r);
    return NULL;
}

/* Takes over r. On failure nothing is left of the choice. On success the engine holds a reference to
 * the request, and the choice another one. */
static int submit_choice(struct call *c, struct request *r, int index, struct err *e)
{
    struct choice *ch = r ? choice_acquire(c->api) : NULL;
    int rc;

    if (!r) return e->code;
    if (!ch) {
        request_unref(r);
        return err_nomem(e, "a choice of the answer");
    }
    ch->call = c;
    ch->index = index;
    ch->prompt = index / c->p.n;
    r->owner = ch;
    r->grammar = grammar_ref(c->grammar);
    if (c->parsing.on) choice_start_parser(ch);
    ch->r = r; /* before it is submitted: the engine may notify at once */
    if ((rc = engine_submit(c->model->engine, r, e)) == OK) {
        c->choices[c->n_choices++] = ch;
        c->n_running++;
        c->api->n_running++;
        return OK;
    }
    ch->r = NULL;
    request_unref(r);
    choice_recycle(ch);
    return rc;
}

/* ---- all requests of a call ---- */

/* On a request thread: checks the prompts and makes room for `total` choices. */
static int check_prompts(struct call *c, const struct ids *prompts, int n, int total, struct err *e)
{
    struct engine_info info;
    int rc;

    engine_info(c->model->engine, &info);
    c->prompt_tokens = arena_array(&c->arena, (size_t)n, sizeof *c->prompt_tokens);
    c->choices = arena_array(&c->arena, (size_t)total, sizeof *c->choices);
    if ((rc = arena_check(&c->arena, e)) != OK) return rc;
    c->n_prompts = n;
    for (int i = 0; i < n; i++) {
        c->prompt_tokens[i] = (int)prompts[i].n;
        if ((rc = check_ids(c, &prompts[i], i, info.n_vocab, e)) != OK) return rc;
    }
    return check_bias(c, info.n_vocab, e);
}

/* Room for `now` more choices, and the head of the answer. */
static int begin_submit(struct call *c, int now, struct err *e)
{
    struct engine_info info;
    int rc = check_room(c, now, e);

    if (rc != OK) return rc;
    engine_info(c->model->engine, &info);
    if (c->p.kind == BODY_CHAT && str_starts(str_c(c->id), STR("cmpl-")))
        call_make_id(c, "chatcmpl-"); /* /v2/execute with messages */
    return prepare_reply(c, &info, e);
}

/* As many as may be in the engine at once. The call was admitted: a full queue is no error while
 * others of its inputs run, and the next one that ends tries again. */
int call_submit_next_inputs(struct call *c, struct err *e)
{
    int rc = OK;

    while (rc == OK && c->n_choices < c->n_prompts && c->n_running < INPUTS_AT_ONCE) {
        int i = c->n_choices;
        rc = submit_choice(c, make_request(c, &c->inputs[i], i, 0, STR(""), e), i, e);
    }
    return rc == E_QUEUE_FULL && c->n_running > 0 ? OK : rc;
}

int call_check_inputs(struct call *c, int n, struct err *e)
{
    return check_prompts(c, c->inputs, n, n, e);
}

int call_submit_inputs(struct call *c, struct err *e)
{
    int n = c->n_prompts, rc = begin_submit(c, 1, e);

    if (rc == OK) rc = engine_admit(c->model->engine, &c->ticket, c->inputs, n, c->deadline_ns, e);
    if (rc == OK) rc = call_submit_next_inputs(c, e);
    if (rc == E_CONTEXT) call_blame(c, "%s", prompt_field(c));
    return rc;
}

/* Requests without a seed get different answers. */
static uint64_t random_seed(void)
{
    uint64_t seed;
    if (getrandom(&seed, sizeof seed, 0) != (ssize_t)sizeof seed) seed = clock_ns();
    return seed;
}

int call_make_requests(struct call *c, const struct ids *prompts, int n, struct str stop,
                       struct err *e)
{
    uint64_t seed = c->p.has_seed         ? c->p.seed
                    : c->who.hop.has_seed ? c->who.hop.seed
                                          : random_seed();
    int total = n * c->p.n, rc;

    if ((rc = check_prompts(c, prompts, n, total, e)) != OK) return rc;
    if (!(c->requests = arena_array(&c->arena, (size_t)total, sizeof *c->requests)))
        return err_nomem(e, "the choices of the answer");
    c->n_requests = total;
    for (int i = 0; i < total; i++) {
        if ((rc = call_check_stop(c, e)) != OK) return rc;
        if (!(c->requests[i] = make_request(c, &prompts[i / c->p.n], i, seed, stop, e)))
            return e->code;
    }
    return OK;
}

static int submit_all(struct call *c, struct err *e)
{
    int rc = OK;

    for (int i = 0; i < c->n_requests && rc == OK; i++) {
        struct request *r = c->requests[i];
        c->requests[i] = NULL;
        rc = submit_choice(c, r, i, e);
    }
    if (rc == E_CONTEXT) call_blame(c, "%s", prompt_field(c));
    return rc;
}

/* ---- calls that wait for their grammar ---- */

/* The error is about the field that gave the grammar. */
static void blame_grammar(struct call *c, struct err *e)
{
    call_blame(c, "%s", c->p.grammar_field);
    err_wrap(e, "%s", c->p.grammar_field);
}

/* On the compiler's thread. */
static void on_compiled(struct compile_job *j)
{
    struct api *a = j->arg;

    pthread_mutex_lock(&a->compiled_lock);
    j->next = a->compiled;
    a->compiled = j;
    pthread_mutex_unlock(&a->compiled_lock);
    loop_wake(a->opt.loop);
}

void call_release_requests(struct call *c)
{
    for (int i = 0; i < c->n_requests; i++) request_unref(c->requests[i]);
    c->n_requests = 0;
    if (!c->compiling) return;
    atomic_store_explicit(&c->compiling->dropped, true, memory_order_relaxed);
    c->compiling->owner = NULL;
    job_unref(c->compiling);
    c->compiling = NULL;
}

/* The grammar is compiled, or refused. */
static void resume_call(struct call *c, struct compile_job *j)
{
    int rc = j->rc;
    struct err e = j->err;

    c->holds++;
    if (rc == OK) {
        c->grammar = grammar_ref(j->g);
        if ((rc = check_room(c, c->n_requests, &e)) == OK) rc = submit_all(c, &e);
    } else if (rc == E_INVALID) {
        blame_grammar(c, &e);
    }
    call_release_requests(c);
    if (rc != OK) call_fail(c, &e, c->p.param);
    c->holds--;
    call_end_if_done(c);
}

/* The list is taken under the lock and worked on without it. */
void api_resume_compiled(struct api *a)
{
    struct compile_job *list, *next;

    pthread_mutex_lock(&a->compiled_lock);
    list = a->compiled;
    a->compiled = NULL;
    pthread_mutex_unlock(&a->compiled_lock);
    for (; list; list = next) {
        next = list->next;
        if (list->owner) resume_call(list->owner, list);
        job_unref(list);
    }
}

/* By tenant and model. */
static void note_prompt(struct call *c)
{
    uint64_t key = (map_hash(str_c(c->model_id)) ^ (c->who.tenant * 0x9e3779b97f4a7c15u)) | 1;

    if (c->n_requests && log_is_on(LOG_DEBUG))
        promptdiff_note(&c->api->prompts, key, &c->requests[0]->prompt,
                        engine_tokenizer(c->model->engine), c->who.correlation);
}

int call_submit(struct call *c, struct err *e)
{
    int rc = begin_submit(c, c->n_requests, e);

    if (rc != OK) return rc;
    note_prompt(c);
    if (c->p.grammar_field) {
        rc = engine_grammar_async(c->model->engine, &c->p.grammar, c->who.tenant, on_compiled,
                                  c->api, c, &c->grammar, &c->compiling, e);
        if (rc != OK || c->compiling) return rc;
    }
    return submit_all(c, e);
}
