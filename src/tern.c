/* tern.c - the C ABI over engine and prompter: checks arguments, translates, forwards.
 *
 * A model is counted: its own handle and every open request hold a reference, so tern_close may
 * come before tern_request_close. All requests of a model share one condition variable: a waiting
 * tern_next wakes for any of them and looks at its own outbox. */
#include "tern.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/thread.h"
#include "engine/engine.h"
#include "engine/info.h"
#include "engine/request.h"
#include "grammar/grammar.h"
#include "pool/memavail.h"
#include "pool/membudget.h"
#include "pool/prompter.h"
#include "sample/sampler.h"

#include <pthread.h>
#include <string.h>
#include <sys/random.h>

struct tern_model {
    struct engine *engine;
    struct engine_info info;
    struct prompter *prompter; /* NULL: the model has no tokenizer */
    atomic_int n_refs;         /* the handle's and the requests' */
    pthread_mutex_t lock;      /* protects n_events */
    pthread_cond_t news;
    uint64_t n_events; /* notifications of the engine, for any request */
    bool has_lock;
};

struct tern_request {
    struct tern_model *m;
    struct request *r;
    struct buf text; /* of the last event */
    tern_finish finish;
    bool failed; /* r->err says how */
};

static _Thread_local struct err last;

/* Remembers the error for tern_error on this thread; returns its code. */
static int fail(const struct err *e)
{
    last = *e;
    return last.code;
}

static int invalid(const char *call, const char *what)
{
    return err_set(&last, E_INVALID, "%s: %s", call, what);
}

const char *tern_version(void) { return TERN_VERSION; }
const char *tern_error(void) { return last.msg; }
const char *tern_code_name(int code) { return err_name(code); }
void tern_free(void *p) { mem_free(p); }

/* ---- structs that callers of another version have in another size ---- */

enum { SIZE_LEAST = sizeof(size_t) };

/* Fills as much of the caller's struct as it has. */
static void write_sized(void *to, size_t size, const void *from, size_t ours)
{
    memcpy(to, from, size < ours ? size : ours);
}

/* Copies the caller's struct, whose first field is its size, over the defaults in `to`. A caller of
 * a later version may have fields that this one does not know, as long as they are zero. */
static int read_sized(const char *call, void *to, size_t ours, const void *from, size_t size)
{
    const unsigned char *p = from;

    if (size < SIZE_LEAST)
        return err_set(&last, E_INVALID,
                       "%s: size is %zu: set it with tern_options_init or tern_params_init", call,
                       size);
    for (size_t i = ours; i < size; i++)
        if (p[i])
            return err_set(&last, E_UNSUPPORTED,
                           "%s: byte %zu of a struct of %zu bytes is set, but this version of the "
                           "library knows %zu bytes",
                           call, i, size, ours);
    memcpy(to, from, size < ours ? size : ours);
    return OK;
}

void tern_options_init_sized(tern_options *o, size_t size)
{
    tern_options full = { .size = size };

    if (o && size >= SIZE_LEAST) write_sized(o, size, &full, sizeof full);
}

/* The last reference closes the engine, which cancels and joins its thread. */
static void model_unref(struct tern_model *m)
{
    if (!m || atomic_fetch_sub_explicit(&m->n_refs, 1, memory_order_acq_rel) != 1) return;
    prompter_close(m->prompter);
    engine_close(m->engine);
    if (m->has_lock) lock_destroy(&m->lock, &m->news);
    mem_free(m);
}

static int init_lock(struct tern_model *m, struct err *e)
{
    int rc = lock_init(&m->lock, &m->news, "the model", e);

    m->has_lock = rc == OK;
    return rc;
}

/* Options → engine → prompter. The caller unrefs the model after a failure. */
static int open_model(struct tern_model *m, const char *path, const tern_options *o, struct err *e)
{
    struct engine_opt eo = { .device = o->device,
                             .n_threads = o->threads,
                             .reference = o->reference != 0,
                             .isa = o->isa,
                             .numa = o->numa,
                             .gpu_layers = o->gpu_layers,
                             .vram_only = o->vram_only != 0,
                             .allow_nan = o->allow_nan != 0,
                             .n_ctx = o->context,
                             .max_batch = o->batch,
                             .max_seqs = o->sequences,
                             .kv_type = DT_NONE };
    const struct tokenizer *t;
    struct memavail free;
    int rc;

    memavail_read(&free, "");
    eo.room = membudget_room(&free, &(struct membudget){ 0 }, 0);
    eo.room.share = 0.5; /* a program may open several models, and has its own needs */
    if ((rc = init_lock(m, e)) != OK) return rc;
    if ((rc = engine_open(&m->engine, path, &eo, e)) != OK) return rc;
    engine_info(m->engine, &m->info);
    t = engine_tokenizer(m->engine);
    return t ? prompter_open(&m->prompter, t, o->chat_template, e) : OK;
}

int tern_open(tern_model **out, const char *path, const tern_options *o)
{
    tern_options opt;
    struct tern_model *m;
    struct err e = { 0 };
    int rc;

    if (!out || !path) return invalid("tern_open", "out and path must not be NULL");
    *out = NULL;
    tern_options_init(&opt);
    if (o && (rc = read_sized("tern_open", &opt, sizeof opt, o, o->size)) != OK) return rc;
    if (opt.threads < 0) return invalid("tern_open", "threads must be 0 or more");
    if (opt.gpu_layers < 0)
        return invalid("tern_open", "gpu_layers must be 0 (as many as fit) or more");
    if (!(m = mem_new(struct tern_model))) return err_nomem(&last, "the model");
    atomic_init(&m->n_refs, 1);
    if (open_model(m, path, &opt, &e) != OK) {
        model_unref(m);
        return fail(&e);
    }
    *out = m;
    return TERN_OK;
}

void tern_close(tern_model *m) { model_unref(m); }

/* Without a template or form tern_submit takes prompts as they are. */
static bool has_chat(const struct tern_model *m)
{
    return m->prompter && prompter_knows_chat(m->prompter);
}

int tern_info_sized(const tern_model *m, tern_model_info *out, size_t size)
{
    const struct engine_info *i;
    tern_model_info full;

    if (!m || !out) return invalid("tern_info", "the model and out must not be NULL");
    i = &m->info;
    full = (tern_model_info){
        .name = i->name,
        .arch = i->arch,
        .device = i->devices,
        .dtype = i->dtype,
        .n_params = i->n_params,
        .weight_bytes = i->weight_bytes,
        .kv_bytes = i->kv_bytes,
        .scratch_bytes = i->scratch_bytes,
        .context = i->opt.n_ctx,
        .vocab = i->n_vocab,
        .has_chat = has_chat(m),
        .load_ms = i->open_ms,
        .pack_ms = i->pack_ms,
    };
    write_sized(out, size, &full, sizeof full);
    return TERN_OK;
}

void tern_params_init_sized(tern_params *p, size_t size, const tern_model *m)
{
    struct sample_opt d = sample_defaults();
    tern_params full;

    if (!p || size < SIZE_LEAST) return;
    if (m) engine_sample_defaults(m->engine, &d);
    full = (tern_params){ .size = size,
                          .temp = d.temp,
                          .top_p = d.top_p,
                          .min_p = d.min_p,
                          .typical = d.typical,
                          .repeat_penalty = d.repeat_penalty,
                          .top_k = d.top_k,
                          .repeat_last = d.repeat_last };
    if (getrandom(&full.seed, sizeof full.seed, 0) != (ssize_t)sizeof full.seed)
        full.seed = clock_ns();
    full.seed >>= 32; /* short enough for a person to type again */
    write_sized(p, size, &full, sizeof full);
}

static const struct tokenizer *need_tokenizer(const tern_model *m)
{
    const struct tokenizer *t = engine_tokenizer(m->engine);
    if (!t)
        err_set(&last, E_UNSUPPORTED, "%s has no tokenizer: only token ids can be submitted",
                m->info.name);
    return t;
}

/* Ids belong to the caller, also an empty list. */
int tern_tokenize(tern_model *m, const char *text, size_t n, int special, int32_t **out,
                  size_t *n_out)
{
    const struct tokenizer *t;
    struct ids ids = { 0 };
    struct err e = { 0 };

    if (!m || (!text && n) || !out || !n_out)
        return invalid("tern_tokenize", "model, text, out and n_out must not be NULL");
    *out = NULL;
    *n_out = 0;
    if (!(t = need_tokenizer(m))) return last.code;
    ids_reserve(&ids, 1); /* not NULL, also without a token */
    if (tokenizer_encode(t, str_of(text, n), special ? ENCODE_SPECIAL : ENCODE_PLAIN, &ids, &e) !=
            OK ||
        ids_check(&ids, &e) != OK) {
        ids_release(&ids);
        return fail(&e);
    }
    *out = ids.p;
    *n_out = ids.n;
    return TERN_OK;
}

int tern_detokenize(tern_model *m, const int32_t *ids, size_t n, char **out, size_t *n_out)
{
    const struct tokenizer *t;
    struct buf b = { 0 };

    if (!m || (!ids && n) || !out || !n_out)
        return invalid("tern_detokenize", "model, ids, out and n_out must not be NULL");
    *out = NULL;
    *n_out = 0;
    if (!(t = need_tokenizer(m))) return last.code;
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= m->info.n_vocab)
            return err_set(&last, E_INVALID,
                           "tern_detokenize: id %d, but ids are from 0 to %d for this model",
                           ids[i], m->info.n_vocab - 1);
    tokenizer_decode(t, ids, n, false, &b);
    buf_cstr(&b);
    if (buf_check(&b, &last) != OK) {
        buf_release(&b);
        return last.code;
    }
    *out = b.p;
    *n_out = b.n;
    return TERN_OK;
}

/* The caller's stop strings, and the one of the chat form. */
static bool set_stops(struct tern_request *r, const tern_params *p, bool chat)
{
    enum { MAX_STOPS = 64 };
    struct str stops[MAX_STOPS + 1];
    int n = 0;

    for (int i = 0; p->stop && p->stop[i] && n < MAX_STOPS; i++) stops[n++] = str_c(p->stop[i]);
    if (chat && r->m->prompter) stops[n++] = prompter_stop(r->m->prompter);
    if (request_set_stops(r->r, stops, n)) return true;
    err_nomem(&last, "the stop strings");
    return false;
}

/* On the engine thread: wakes all tern_next of the model. */
static void wake_readers(struct request *r)
{
    struct tern_model *m = r->owner;

    pthread_mutex_lock(&m->lock);
    m->n_events++;
    pthread_cond_broadcast(&m->news);
    pthread_mutex_unlock(&m->lock);
    request_unref(r);
}

/* Compiled on the calling thread; cached by the engine. */
static bool set_grammar(struct tern_request *r, const tern_params *p)
{
    struct grammar_spec spec = { .kind = p->grammar ? GRAMMAR_GBNF : GRAMMAR_SCHEMA,
                                 .text = str_c(p->grammar ? p->grammar : p->json_schema) };
    struct err e = { 0 };

    if (!p->grammar && !p->json_schema) return true;
    if (p->grammar && p->json_schema) {
        invalid("tern_submit", "grammar and json_schema are both given");
        return false;
    }
    if (engine_grammar(r->m->engine, &spec, &r->r->grammar, &e) == OK) return true;
    err_wrap(&e, p->grammar ? "grammar" : "json_schema");
    fail(&e);
    return false;
}

/* What does not need memory. */
static void fill_request(struct tern_request *r, const tern_params *p, bool chat)
{
    r->r->owner = r->m;
    r->r->notify = wake_readers;
    r->r->max_tokens = p->max_tokens;
    r->r->ignore_eos = p->ignore_eos != 0;
    r->r->continues = !chat;
    r->r->sample = (struct sample_opt){
        .temp = p->temp,
        .top_k = p->top_k,
        .top_p = p->top_p,
        .min_p = p->min_p,
        .typical = p->typical,
        .repeat_penalty = p->repeat_penalty,
        .repeat_last = p->repeat_last,
        .freq_penalty = p->freq_penalty,
        .presence_penalty = p->presence_penalty,
        .seed = p->seed,
    };
}

/* A request with everything but its prompt. NULL: the failure is in `last`. */
static struct tern_request *open_request(tern_model *m, const tern_params *p, bool chat)
{
    tern_params params;
    struct tern_request *r;

    tern_params_init(&params, m);
    if (p && read_sized("tern_submit", &params, sizeof params, p, p->size) != OK) return NULL;
    r = mem_new(struct tern_request);
    if (!r || !(r->r = request_open())) {
        mem_free(r);
        err_nomem(&last, "the request");
        return NULL;
    }
    r->m = m;
    atomic_fetch_add_explicit(&m->n_refs, 1, memory_order_relaxed);
    fill_request(r, &params, chat);
    if (set_stops(r, &params, chat) && set_grammar(r, &params)) return r;
    tern_request_close(r);
    return NULL;
}

/* Submits the request if rc is OK, with its prompt in place; otherwise closes it. */
static int submit(tern_request **out, struct tern_request *r, int rc, struct err *e)
{
    if (rc == OK) rc = engine_submit(r->m->engine, r->r, e);
    if (rc != OK) {
        tern_request_close(r);
        return fail(e);
    }
    *out = r;
    return TERN_OK;
}

/* The prompt of a conversation, in the request. */
static int set_chat_prompt(struct tern_request *r, const struct chat_msg *msgs, size_t n,
                           struct err *e)
{
    struct prompt_input in = { .msgs = msgs, .n_msgs = n };
    struct prompt_output out = { 0 };
    int rc = prompter_make(r->m->prompter, &in, &out, e);

    if (rc == OK) {
        r->r->prompt = out.ids;
        out.ids = (struct ids){ 0 };
    }
    prompt_output_release(&out);
    return rc;
}

/* The prompt as it is. An empty one becomes the token that texts begin with. */
static int set_raw_prompt(struct tern_request *r, const struct tokenizer *t, struct str text,
                          struct err *e)
{
    struct ids *ids = &r->r->prompt;
    int rc = tokenizer_encode(t, text, ENCODE_SPECIAL, ids, e);

    if (rc == OK && ids->n == 0) {
        int32_t first = tokenizer_bos(t) >= 0 ? tokenizer_bos(t) : tokenizer_eos(t);
        if (first >= 0) ids_push(ids, first);
    }
    return rc == OK ? ids_check(ids, e) : rc;
}

int tern_submit(tern_request **out, tern_model *m, const char *prompt, size_t n,
                const tern_params *p)
{
    const struct tokenizer *t;
    struct tern_request *r;
    struct chat_msg msg = { STR("user"), str_of(prompt, n) };
    struct err e = { 0 };
    bool chat;
    int rc;

    if (!out || !m || (!prompt && n))
        return invalid("tern_submit", "out, the model and the prompt must not be NULL");
    *out = NULL;
    if (!(t = need_tokenizer(m))) return last.code;
    chat = has_chat(m) && !(p && p->size > offsetof(tern_params, raw) && p->raw);
    if (!(r = open_request(m, p, chat))) return last.code;
    rc = chat ? set_chat_prompt(r, &msg, 1, &e) : set_raw_prompt(r, t, str_of(prompt, n), &e);
    return submit(out, r, rc, &e);
}

/* The strings are borrowed for the call: the prompt is made before it returns. */
int tern_submit_chat(tern_request **out, tern_model *m, const tern_message *msgs, size_t n,
                     const tern_params *p)
{
    struct tern_request *r;
    struct chat_msg *copy;
    struct err e = { 0 };
    int rc;

    if (!out || !m || !msgs || n == 0)
        return invalid("tern_submit_chat", "out, the model and messages must not be NULL");
    *out = NULL;
    for (size_t i = 0; i < n; i++)
        if (!msgs[i].role || !msgs[i].content)
            return invalid("tern_submit_chat", "role and content of a message must not be NULL");
    if (!need_tokenizer(m)) return last.code;
    if (!(copy = mem_array(n, sizeof *copy))) return err_nomem(&last, "the messages");
    for (size_t i = 0; i < n; i++)
        copy[i] = (struct chat_msg){ str_c(msgs[i].role), str_c(msgs[i].content) };
    if (!(r = open_request(m, p, true))) {
        mem_free(copy);
        return last.code;
    }
    rc = set_chat_prompt(r, copy, n, &e);
    mem_free(copy);
    return submit(out, r, rc, &e);
}

int tern_submit_ids(tern_request **out, tern_model *m, const int32_t *ids, size_t n,
                    const tern_params *p)
{
    struct tern_request *r;
    struct err e = { 0 };
    int rc = OK;

    if (!out || !m || (!ids && n))
        return invalid("tern_submit_ids", "out, the model and ids must not be NULL");
    *out = NULL;
    if (!(r = open_request(m, p, false))) return last.code;
    if (n >= (size_t)m->info.opt.n_ctx) { /* before anything of that size is copied */
        rc = err_set(&e, E_CONTEXT,
                     "the prompt has %zu tokens, which leaves no room in a context of %d", n,
                     m->info.opt.n_ctx);
    } else {
        ids_add(&r->r->prompt, ids, n);
        rc = ids_check(&r->r->prompt, &e);
    }
    return submit(out, r, rc, &e); /* the engine checks the ids */
}

static tern_finish finish_of(enum finish f)
{
    switch (f) {
    case FINISH_STOP: return TERN_FINISH_STOP;
    case FINISH_LENGTH: return TERN_FINISH_LENGTH;
    case FINISH_CANCELLED: return TERN_FINISH_CANCELLED;
    default: return TERN_FINISH_NONE;
    }
}

static int write_event(struct tern_request *r, tern_event *ev, size_t size, int32_t id)
{
    tern_event full = { .text = buf_cstr(&r->text), .n = r->text.n, .id = id, .finish = r->finish };

    write_sized(ev, size, &full, sizeof full);
    if (buf_check(&r->text, &last) != OK) return last.code;
    return TERN_OK;
}

/* Waits for the next event of r. Notifications for other requests wake it too. */
/* n_events is read before the outbox is looked at, so that an event in between is not missed. */
static void wait_event(struct tern_request *r, struct event *ev)
{
    struct tern_model *m = r->m;
    uint64_t seen;

    for (;;) {
        pthread_mutex_lock(&m->lock);
        seen = m->n_events;
        pthread_mutex_unlock(&m->lock);
        if (request_next(r->r, ev)) return;
        pthread_mutex_lock(&m->lock);
        while (m->n_events == seen) pthread_cond_wait(&m->news, &m->lock);
        pthread_mutex_unlock(&m->lock);
    }
}

int tern_next_sized(tern_request *r, tern_event *ev, size_t size)
{
    const tern_event none = { .text = "", .id = -1 };
    struct event got;

    if (!r || !ev) return invalid("tern_next", "the request and the event must not be NULL");
    write_sized(ev, size, &none, sizeof none);
    buf_clear(&r->text);
    if (r->failed) return fail(&r->r->err);
    if (r->finish != TERN_FINISH_NONE) return write_event(r, ev, size, -1);
    do { /* events of a cancelled request are dropped, but for the last */
        wait_event(r, &got);
    } while (got.finish == FINISH_NONE && atomic_load(&r->r->cancel) != CANCEL_NO);
    buf_put_str(&r->text, got.text);
    if (got.finish == FINISH_NONE) return write_event(r, ev, size, got.id);
    r->failed = got.finish == FINISH_ERROR || got.finish == FINISH_DEADLINE;
    if (r->failed) return fail(&r->r->err);
    r->finish = finish_of((enum finish)got.finish);
    return write_event(r, ev, size, -1);
}

void tern_cancel(tern_request *r)
{
    if (r) request_cancel(r->r, CANCEL_ASKED);
}

int tern_request_stats_sized(const tern_request *r, tern_stats *out, size_t size)
{
    const struct request *q;
    tern_stats full;

    if (!r || !out) return invalid("tern_request_stats", "the request and out must not be NULL");
    q = r->r;
    full = (tern_stats){ .prompt_tokens = (int)q->prompt.n };
    /* The other numbers belong to the engine's thread until the request has ended. */
    if (r->finish != TERN_FINISH_NONE || r->failed) {
        full.cached_tokens = q->n_cached;
        full.tokens = q->n_out;
    }
    if (full.tokens > 0) {
        full.prompt_ms = (double)(q->first_ns - q->start_ns) / 1e6;
        full.decode_ms = (double)(q->end_ns - q->first_ns) / 1e6;
        full.first_token_ms = (double)(q->first_ns - q->submit_ns) / 1e6;
    }
    write_sized(out, size, &full, sizeof full);
    return TERN_OK;
}

/* The engine may still hold a reference: it drops it when it sees the cancel. */
void tern_request_close(tern_request *r)
{
    if (!r) return;
    request_cancel(r->r, CANCEL_GONE);
    request_unref(r->r);
    buf_release(&r->text);
    model_unref(r->m);
    mem_free(r);
}
