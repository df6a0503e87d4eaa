/* submit.c - a call's choices on their way into an engine. */
#include "api/call.h"
#include "base/clock.h"
#include "base/map.h"
#include "base/mem.h"
#include "engine/compile.h"
#include "net/loop.h"

#include <stdio.h>
#include <sys/random.h>
#include <time.h>

static const char *field_of(const struct call *c)
{
    return c->p.field ? c->p.field : c->p.n_msgs ? "messages" : "prompt";
}

static int check_ids(struct call *c, const struct ids *v, int prompt, int n_vocab, struct err *e)
{
    for (size_t i = 0; i < v->n; i++) {
        if (v->p[i] >= 0 && v->p[i] < n_vocab) continue;
        if (c->n_prompts > 1)
            snprintf(c->p.param, sizeof c->p.param, "%s[%d][%zu]", field_of(c), prompt, i);
        else snprintf(c->p.param, sizeof c->p.param, "%s[%zu]", field_of(c), i);
        return err_set(e, E_INVALID, "%s is %d, but the vocabulary has %d tokens", c->p.param,
                       v->p[i], n_vocab);
    }
    if (v->n > 0) return OK;
    snprintf(c->p.param, sizeof c->p.param, "%s", field_of(c));
    return err_set(e, E_INVALID, "%s is empty: there is no token to go on from", c->p.param);
}

static int check_bias(struct call *c, int n_vocab, struct err *e)
{
    for (int i = 0; i < c->p.sample.n_bias; i++) {
        if (c->p.sample.bias[i].id < n_vocab) continue;
        snprintf(c->p.param, sizeof c->p.param, "logit_bias.%d", c->p.sample.bias[i].id);
        return err_set(e, E_INVALID, "%s: the vocabulary has %d tokens", c->p.param, n_vocab);
    }
    return OK;
}

static void make_fingerprint(struct call *c, const struct engine_info *info)
{
    uint64_t h = 0xcbf29ce484222325u;

    for (const char *s = c->model->id; *s; s++) h = (h ^ (unsigned char)*s) * 0x100000001b3u;
    h = (h ^ info->weight_bytes ^ (uint64_t)c->model->created) * 0x100000001b3u;
    snprintf(c->fingerprint, sizeof c->fingerprint, "fp_%010llx", (unsigned long long)(h >> 24));
}

static struct str piece(void *arg, int32_t id) { return pieces_of(arg, id); }

static void begin_reply(struct call *c, const struct engine_info *info)
{
    const struct tokenizer *t = engine_tokenizer(c->model->engine);

    make_fingerprint(c, info);
    c->reply = (struct reply){ .chat = c->p.n_msgs > 0,
                               .usage = c->p.include_usage,
                               .id = c->id,
                               .model = c->model_id,
                               .fingerprint = c->fingerprint,
                               .created = (int64_t)time(NULL),
                               .piece = piece,
                               .arg = &c->pieces };
    if (!t) c->p.n_top = -1; /* log probabilities are told by text */
    if (c->p.n_top >= 0) pieces_init(&c->pieces, t);
    reply_begin(&c->reply);
}

static struct request *make_request(struct call *c, const struct ids *prompt, int choice,
                                    uint64_t seed, struct str stop)
{
    const struct api_opt *o = &c->api->opt;
    struct request *r = request_open();
    struct str stops[STOPS_MAX + 1];
    int n = 0;

    for (; n < c->p.n_stops; n++) stops[n] = c->p.stops[n];
    if (stop.n) stops[n++] = stop;
    if (n) request_set_stops(r, stops, n);
    r->prompt.p = mem_dup(prompt->p, prompt->n * sizeof *prompt->p);
    r->prompt.n = r->prompt.cap = prompt->n;
    r->max_tokens = c->p.max_tokens ? c->p.max_tokens : o->max_tokens_default;
    r->min_tokens = c->p.min_tokens;
    if (r->max_tokens && r->min_tokens > r->max_tokens) r->min_tokens = r->max_tokens;
    r->sample = c->model->sample;
    params_sample(&c->p, &r->sample);
    if (r->sample.n_bias)
        r->sample.bias = mem_dup(r->sample.bias, (size_t)r->sample.n_bias * sizeof *r->sample.bias);
    r->sample.seed = seed + (uint64_t)choice;
    r->ignore_eos = c->p.ignore_eos;
    r->grammar = grammar_ref(c->grammar);
    r->n_top = c->p.n_top;
    if (c->parsing.n_shown) {
        r->shown = mem_dup(c->parsing.shown, (size_t)c->parsing.n_shown * sizeof *r->shown);
        r->n_shown = c->parsing.n_shown;
    }
    r->priority = c->priority;
    r->tenant = c->who.tenant;
    r->salt = o->salt_by_tenant ? map_hash(str_c(c->who.name)) : 0;
    r->deadline_ns = c->deadline_ns;
    r->embed = c->embed;
    if (r->embed) r->max_tokens = 1;
    if (c->seconds) {
        r->classify = true;
        r->second = c->seconds[prompt - c->inputs];
    }
    r->continues = c->p.n_msgs == 0;
    snprintf(r->label, sizeof r->label, "%s", c->who.correlation);
    r->notify = api_news;
    return r;
}

static uint64_t random_seed(void)
{
    uint64_t seed;
    if (getrandom(&seed, sizeof seed, 0) != (ssize_t)sizeof seed) seed = clock_ns();
    return seed;
}

static int submit_one(struct call *c, const struct ids *prompt, int index, uint64_t seed,
                      struct str stop, struct err *e)
{
    struct choice *ch = choice_get(c->api);
    struct request *r = make_request(c, prompt, index % c->p.n, seed, stop);
    int rc;

    ch->call = c;
    ch->index = index;
    ch->prompt = index / c->p.n;
    ch->r = r;
    r->owner = ch;
    if (c->parsing.on) choice_parse(ch);
    if ((rc = engine_submit(c->model->engine, r, e)) != OK) {
        ch->r = NULL;
        request_unref(r);
        choice_put(ch);
        return rc;
    }
    c->choices[c->n_choices++] = ch;
    c->n_live++;
    c->api->n_live++;
    return OK;
}

static int check_room(struct call *c, int now, struct err *e)
{
    int rc;

    if (now <= c->api->opt.max_calls - c->api->n_live) return OK;
    rc = err_set(e, E_QUEUE_FULL, "%d choices are under way; with %d more they are over %d",
                 c->api->n_live, now, c->api->opt.max_calls);
    e->retry_ms = 1000;
    return rc;
}

/* Room for `total` choices, of which `now` are submitted now; all ids are checked. */
static int prepare(struct call *c, const struct ids *prompts, int n, int total, int now,
                   struct err *e)
{
    struct engine_info info;
    int rc;

    engine_info(c->model->engine, &info);
    c->n_prompts = n;
    c->prompt_tokens = arena_array(&c->arena, (size_t)n, sizeof *c->prompt_tokens);
    c->choices = arena_array(&c->arena, (size_t)total, sizeof *c->choices);
    for (int i = 0; i < n; i++) {
        c->prompt_tokens[i] = (int)prompts[i].n;
        if ((rc = check_ids(c, &prompts[i], i, info.model->hp.n_vocab, e)) != OK) return rc;
    }
    if ((rc = check_bias(c, info.model->hp.n_vocab, e)) != OK) return rc;
    if ((rc = check_room(c, now, e)) != OK) return rc;
    begin_reply(c, &info);
    return OK;
}

int call_submit_next(struct call *c, struct err *e)
{
    int rc;

    if (c->n_choices == c->n_prompts) return OK;
    rc = submit_one(c, &c->inputs[c->n_choices], c->n_choices, 0, STR(""), e);
    return rc == E_QUEUE_FULL && c->n_live > 0 ? OK : rc;
}

int call_submit_some(struct call *c, const struct ids *prompts, int n, int at_once, struct err *e)
{
    int rc = prepare(c, prompts, n, n, 1, e);

    for (int i = 0; i < at_once && rc == OK && c->n_choices == i; i++) rc = call_submit_next(c, e);
    if (rc == E_CONTEXT) snprintf(c->p.param, sizeof c->p.param, "%s", field_of(c));
    return rc;
}

static int submit_all(struct call *c, const struct ids *prompts, struct str stop, struct err *e)
{
    uint64_t seed = c->p.has_seed ? (uint64_t)c->p.seed : random_seed();
    int total = c->n_prompts * c->p.n, rc;

    for (int i = 0; i < total; i++) {
        if ((rc = submit_one(c, &prompts[i / c->p.n], i, seed, stop, e)) == OK) continue;
        if (rc == E_CONTEXT) snprintf(c->p.param, sizeof c->p.param, "%s", field_of(c));
        return rc;
    }
    return OK;
}

/* ---- grammars: compiled elsewhere, while the call is parked ---- */

static int bad_grammar(struct call *c, struct err *e)
{
    snprintf(c->p.param, sizeof c->p.param, "%s", c->p.grammar_field);
    return err_wrap(e, "%s", c->p.grammar_field);
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

static void park(struct call *c, const struct ids *prompts, struct str stop)
{
    c->parked = arena_array(&c->arena, (size_t)c->n_prompts, sizeof *c->parked);
    for (int i = 0; i < c->n_prompts; i++) {
        c->parked[i].p = mem_dup(prompts[i].p, prompts[i].n * sizeof *prompts[i].p);
        c->parked[i].n = c->parked[i].cap = prompts[i].n;
    }
    c->parked_stop = stop;
}

void call_unpark(struct call *c)
{
    for (int i = 0; c->parked && i < c->n_prompts; i++) ids_release(&c->parked[i]);
    c->parked = NULL;
    if (!c->job) return;
    atomic_store_explicit(&c->job->dropped, true, memory_order_relaxed);
    c->job->owner = NULL;
    job_unref(c->job);
    c->job = NULL;
}

static void go_on(struct call *c, struct compile_job *j)
{
    int total = c->n_prompts * c->p.n, rc = j->rc;
    struct err e = j->err;

    c->busy++;
    if (rc == OK) {
        c->grammar = grammar_ref(j->g);
        if ((rc = check_room(c, total, &e)) == OK)
            rc = submit_all(c, c->parked, c->parked_stop, &e);
    } else if (rc == E_INVALID) {
        bad_grammar(c, &e);
    }
    call_unpark(c);
    if (rc != OK) call_fail(c, &e, c->p.param);
    c->busy--;
    call_settle(c);
}

void api_compiled(struct api *a)
{
    struct compile_job *list, *next;

    pthread_mutex_lock(&a->compiled_lock);
    list = a->compiled;
    a->compiled = NULL;
    pthread_mutex_unlock(&a->compiled_lock);
    for (; list; list = next) {
        next = list->next;
        if (list->owner) go_on(list->owner, list);
        job_unref(list);
    }
}

int call_submit(struct call *c, const struct ids *prompts, int n, struct str stop, struct err *e)
{
    int total = n * c->p.n, rc;

    if ((rc = prepare(c, prompts, n, total, total, e)) != OK) return rc;
    if (c->p.grammar_field) {
        rc = engine_grammar_soon(c->model->engine, &c->p.grammar, on_compiled, c->api, c,
                                 &c->grammar, &c->job, e);
        if (rc != OK) return rc;
        if (c->job) return park(c, prompts, stop), OK;
    }
    return submit_all(c, prompts, stop, e);
}
