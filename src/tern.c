/* tern.c - the ABI over the engine: checks, translates, forwards. */
#include "tern.h"

#include "base/clock.h"
#include "base/mem.h"
#include "engine/chatform.h"
#include "engine/engine.h"
#include "engine/recommend.h"
#include "pool/template.h"

#include <pthread.h>
#include <sys/random.h>

struct tern_model {
    struct engine *engine;
    struct engine_info info;
    enum chat_form form;
    struct chat_template *chat; /* NULL: the model has no template, its form is guessed */
    char *name, *device;
    const char *dtype;
    atomic_int n_refs;    /* the model's own and its requests' */
    pthread_mutex_t lock; /* of n_news */
    pthread_cond_t news;
    uint64_t n_news; /* events the engine told of, of any request */
};

struct tern_request {
    struct tern_model *m;
    struct request *r;
    struct buf text; /* of the last event */
    tern_finish finish;
    bool failed; /* r->err says how */
};

static _Thread_local struct err last;

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

/* The number format most of the weights' bytes are in. */
static const char *main_dtype(const struct source *src)
{
    uint64_t bytes[DT_COUNT] = { 0 };
    int best = DT_F32;

    for (size_t i = 0; i < source_n_tensors(src); i++) {
        const struct source_tensor *t = source_tensor(src, i);
        if (t->type >= 0 && t->type < DT_COUNT) bytes[t->type] += t->bytes;
    }
    for (int i = 0; i < DT_COUNT; i++)
        if (bytes[i] > bytes[best]) best = i;
    return dtype_name(best);
}

/* What the file calls itself, else the last part of its path. From mem_alloc. */
static char *model_name(const struct source *src, const char *path)
{
    struct str name = { 0 };
    char *s;

    if (!source_str(src, "general.name", &name) || name.n == 0) {
        name = str_c(path);
        while (name.n > 1 && name.p[name.n - 1] == '/') name.n--;
        for (size_t i = name.n - 1; i-- > 0;)
            if (name.p[i] == '/') {
                name = str_skip(name, i + 1);
                break;
            }
    }
    s = mem_alloc(name.n + 1);
    memcpy(s, name.p, name.n);
    return s;
}

static void model_unref(struct tern_model *m)
{
    if (!m || atomic_fetch_sub_explicit(&m->n_refs, 1, memory_order_acq_rel) != 1) return;
    chat_template_close(m->chat);
    engine_close(m->engine);
    pthread_cond_destroy(&m->news);
    pthread_mutex_destroy(&m->lock);
    mem_free(m->name);
    mem_free(m->device);
    mem_free(m);
}

int tern_open(tern_model **out, const char *path, const tern_options *o)
{
    tern_options opt;
    struct engine_opt eo = { .kv_type = DT_NONE };
    struct tern_model *m;
    struct err e = { 0 };
    struct buf device = { 0 };
    int rc;

    if (!out || !path) return invalid("tern_open", "out and path are needed");
    *out = NULL;
    tern_options_init(&opt);
    if (o && (rc = read_sized("tern_open", &opt, sizeof opt, o, o->size)) != OK) return rc;
    if (opt.threads < 0) return invalid("tern_open", "threads must be 0 or more");
    if (opt.gpu_layers < 0)
        return invalid("tern_open", "gpu_layers must be 0 (as many as fit) or more");
    eo.backend = (struct backend_opt){ .device = opt.device,
                                       .n_threads = opt.threads,
                                       .reference = opt.reference != 0,
                                       .gpu_layers = opt.gpu_layers,
                                       .vram_only = opt.vram_only != 0 };
    eo.n_ctx = opt.context;
    eo.max_batch = opt.batch;
    eo.max_seqs = opt.sequences;
    if (opt.sequences == 1) eo.kv_tokens = 1; /* raised to one context */
    m = mem_new(struct tern_model);
    atomic_init(&m->n_refs, 1);
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->news, NULL);
    if ((rc = engine_open(&m->engine, path, &eo, &e)) != OK) {
        model_unref(m);
        return fail(&e);
    }
    engine_info(m->engine, &m->info);
    if (engine_tokenizer(m->engine)) {
        m->form = chatform_of(engine_tokenizer(m->engine));
        rc = template_open(&m->chat, engine_tokenizer(m->engine), opt.chat_template, &e);
    }
    if (rc != OK) {
        model_unref(m);
        return fail(&e);
    }
    m->name = model_name(m->info.source, path);
    place_describe(m->info.place, &device);
    m->device = mem_strdup(buf_cstr(&device));
    buf_release(&device);
    m->dtype = main_dtype(m->info.source);
    *out = m;
    return TERN_OK;
}

void tern_close(tern_model *m) { model_unref(m); }

static bool has_chat(const struct tern_model *m) { return m->chat || m->form != CHAT_NONE; }

int tern_info_sized(const tern_model *m, tern_model_info *out, size_t size)
{
    const struct tokenizer *tok;
    tern_model_info full;

    if (!m || !out) return invalid("tern_info", "the model and out are needed");
    tok = engine_tokenizer(m->engine);
    full = (tern_model_info){
        .name = m->name,
        .arch = m->info.model->hp.arch,
        .device = m->device,
        .dtype = m->dtype,
        .n_params = m->info.model->n_params,
        .weight_bytes = m->info.model->weight_bytes,
        .kv_bytes = m->info.kv_bytes,
        .scratch_bytes = m->info.scratch_bytes,
        .context = m->info.opt.n_ctx,
        .vocab = m->info.model->hp.n_vocab,
        .has_chat = tok && has_chat(m),
        .load_ms = m->info.open_ms,
        .pack_ms = m->info.model->put_ms,
    };
    write_sized(out, size, &full, sizeof full);
    return TERN_OK;
}

void tern_params_init_sized(tern_params *p, size_t size, const tern_model *m)
{
    struct sample_opt d = sample_defaults();
    tern_params full;

    if (!p || size < SIZE_LEAST) return;
    if (m) sample_recommended(&d, m->info.source);
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
        err_set(&last, E_UNSUPPORTED, "%s carries no tokenizer: only token ids can be submitted",
                m->name);
    return t;
}

int tern_tokenize(tern_model *m, const char *text, size_t n, int special, int32_t **out,
                  size_t *n_out)
{
    const struct tokenizer *t;
    struct ids ids = { 0 };
    struct err e = { 0 };

    if (!m || (!text && n) || !out || !n_out)
        return invalid("tern_tokenize", "model, text, out and n_out are needed");
    *out = NULL;
    *n_out = 0;
    if (!(t = need_tokenizer(m))) return last.code;
    if (tokenizer_encode(t, str_of(text, n), special ? ENCODE_SPECIAL : ENCODE_PLAIN, &ids, &e) !=
        OK) {
        ids_release(&ids);
        return fail(&e);
    }
    if (!ids.p) ids.p = mem_alloc(sizeof *ids.p);
    *out = ids.p;
    *n_out = ids.n;
    return TERN_OK;
}

int tern_detokenize(tern_model *m, const int32_t *ids, size_t n, char **out, size_t *n_out)
{
    const struct tokenizer *t;
    struct buf b = { 0 };

    if (!m || (!ids && n) || !out || !n_out)
        return invalid("tern_detokenize", "model, ids, out and n_out are needed");
    *out = NULL;
    *n_out = 0;
    if (!(t = need_tokenizer(m))) return last.code;
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= m->info.model->hp.n_vocab)
            return err_set(&last, E_INVALID, "tern_detokenize: id %d, but the vocabulary has %d",
                           ids[i], m->info.model->hp.n_vocab);
    tokenizer_decode(t, ids, n, false, &b);
    buf_cstr(&b);
    *out = b.p;
    *n_out = b.n;
    return TERN_OK;
}

static void set_stops(struct tern_request *r, const tern_params *p, bool chat)
{
    enum { MAX_STOPS = 64 };
    struct str stops[MAX_STOPS + 1];
    int n = 0;

    for (int i = 0; p->stop && p->stop[i] && n < MAX_STOPS; i++) stops[n++] = str_c(p->stop[i]);
    if (chat && !r->m->chat) stops[n++] = chatform_stop(r->m->form);
    request_set_stops(r->r, stops, n);
}

/* On the engine's thread. */
static void tell(struct request *r)
{
    struct tern_model *m = r->owner;

    pthread_mutex_lock(&m->lock);
    m->n_news++;
    pthread_cond_broadcast(&m->news);
    pthread_mutex_unlock(&m->lock);
    request_unref(r);
}

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

/* A request with everything but its prompt. NULL: the failure is in `last`. */
static struct tern_request *request_new(tern_model *m, const tern_params *p, bool chat)
{
    tern_params params;
    struct tern_request *r;

    tern_params_init(&params, m);
    if (p && read_sized("tern_submit", &params, sizeof params, p, p->size) != OK) return NULL;
    r = mem_new(struct tern_request);
    r->m = m;
    r->r = request_open();
    r->r->owner = m;
    r->r->notify = tell;
    r->r->max_tokens = params.max_tokens;
    r->r->ignore_eos = params.ignore_eos != 0;
    r->r->continues = !chat;
    r->r->sample = (struct sample_opt){
        .temp = params.temp,
        .top_k = params.top_k,
        .top_p = params.top_p,
        .min_p = params.min_p,
        .typical = params.typical,
        .repeat_penalty = params.repeat_penalty,
        .repeat_last = params.repeat_last,
        .freq_penalty = params.freq_penalty,
        .presence_penalty = params.presence_penalty,
        .seed = params.seed,
    };
    set_stops(r, &params, chat);
    atomic_fetch_add_explicit(&m->n_refs, 1, memory_order_relaxed);
    if (set_grammar(r, &params)) return r;
    tern_request_close(r);
    return NULL;
}

/* Hands the request to the engine, or ends it: its prompt is there if rc is OK. */
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

static bool is_role(struct str role)
{
    return str_is(role, "system") || str_is(role, "user") || str_is(role, "assistant") ||
           str_is(role, "tool");
}

static int encode_chat(const struct tern_model *m, const struct tokenizer *t,
                       const struct chat_msg *msgs, size_t n, struct ids *out, struct err *e)
{
    struct chat_template_input ask = { 0 };
    json_t *list;
    int rc;

    if (!m->chat) return chatform_encode(m->form, t, msgs, n, out, e);
    for (size_t i = 0; i < n; i++)
        if (!is_role(msgs[i].role))
            return err_set(
                e, E_INVALID,
                "message %zu has the role '%.*s', but must be system, user, assistant or tool", i,
                STR_ARG(str_take(msgs[i].role, 40)));
    list = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(
            list, json_pack("{s:s%, s:s%}", "role", msgs[i].role.p, msgs[i].role.n, "content",
                            msgs[i].content.p ? msgs[i].content.p : "", msgs[i].content.n));
    ask.messages = list;
    rc = json_array_size(list) == n ? template_encode(m->chat, t, &ask, out, e)
                                    : err_set(e, E_INVALID, "a message is not UTF-8");
    json_decref(list);
    return rc;
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
        return invalid("tern_submit", "out, the model and the prompt are needed");
    *out = NULL;
    if (!(t = need_tokenizer(m))) return last.code;
    chat = has_chat(m) && !(p && p->size > offsetof(tern_params, raw) && p->raw);
    if (!(r = request_new(m, p, chat))) return last.code;
    if (chat) {
        rc = encode_chat(m, t, &msg, 1, &r->r->prompt, &e);
    } else {
        rc = tokenizer_encode(t, str_of(prompt, n), ENCODE_SPECIAL, &r->r->prompt, &e);
        if (rc == OK && r->r->prompt.n == 0) { /* from nothing: as a text begins */
            int32_t first = tokenizer_bos(t) >= 0 ? tokenizer_bos(t) : tokenizer_eos(t);
            if (first >= 0) ids_push(&r->r->prompt, first);
        }
    }
    return submit(out, r, rc, &e);
}

int tern_submit_chat(tern_request **out, tern_model *m, const tern_message *msgs, size_t n,
                     const tern_params *p)
{
    const struct tokenizer *t;
    struct tern_request *r;
    struct chat_msg *copy;
    struct err e = { 0 };
    int rc;

    if (!out || !m || !msgs || n == 0)
        return invalid("tern_submit_chat", "out, the model and messages are needed");
    *out = NULL;
    for (size_t i = 0; i < n; i++)
        if (!msgs[i].role || !msgs[i].content)
            return invalid("tern_submit_chat", "a message needs role and content");
    if (!(t = need_tokenizer(m))) return last.code;
    if (!(copy = mem_array(n, sizeof *copy)))
        return err_set(&last, E_NOMEM, "no memory for %zu messages", n);
    for (size_t i = 0; i < n; i++)
        copy[i] = (struct chat_msg){ str_c(msgs[i].role), str_c(msgs[i].content) };
    if (!(r = request_new(m, p, true))) {
        mem_free(copy);
        return last.code;
    }
    rc = encode_chat(m, t, copy, n, &r->r->prompt, &e);
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
        return invalid("tern_submit_ids", "out, the model and ids are needed");
    *out = NULL;
    if (!(r = request_new(m, p, false))) return last.code;
    if (n >= (size_t)m->info.opt.n_ctx) { /* before anything of that size is copied */
        rc = err_set(&e, E_CONTEXT,
                     "the prompt has %zu tokens and leaves no room in a context of %d", n,
                     m->info.opt.n_ctx);
    } else if (n > 0) {
        r->r->prompt.p = mem_dup(ids, n * sizeof *ids);
        r->r->prompt.n = r->r->prompt.cap = n;
    }
    for (size_t i = 0; rc == OK && i < n; i++)
        if (ids[i] < 0 || ids[i] >= m->info.model->hp.n_vocab)
            rc = err_set(&e, E_INVALID, "token %zu of the prompt is %d, but the vocabulary has %d",
                         i, ids[i], m->info.model->hp.n_vocab);
    return submit(out, r, rc, &e);
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

/* The next event of r, whatever other requests' news come meanwhile. */
static void wait_event(struct tern_request *r, struct event *ev)
{
    struct tern_model *m = r->m;
    uint64_t seen;

    for (;;) {
        pthread_mutex_lock(&m->lock);
        seen = m->n_news;
        pthread_mutex_unlock(&m->lock);
        if (request_next(r->r, ev)) return;
        pthread_mutex_lock(&m->lock);
        while (m->n_news == seen) pthread_cond_wait(&m->news, &m->lock);
        pthread_mutex_unlock(&m->lock);
    }
}

int tern_next_sized(tern_request *r, tern_event *ev, size_t size)
{
    const tern_event none = { .text = "", .id = -1 };
    struct event got;

    if (!r || !ev) return invalid("tern_next", "the request and the event are needed");
    write_sized(ev, size, &none, sizeof none);
    buf_clear(&r->text);
    if (r->failed) return fail(&r->r->err);
    if (r->finish != TERN_FINISH_NONE) return write_event(r, ev, size, -1);
    do { /* a cancelled request says nothing more */
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

    if (!r || !out) return invalid("tern_request_stats", "the request and out are needed");
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

void tern_request_close(tern_request *r)
{
    if (!r) return;
    request_cancel(r->r, CANCEL_GONE);
    request_unref(r->r);
    buf_release(&r->text);
    model_unref(r->m);
    mem_free(r);
}
