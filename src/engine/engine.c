#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/engine_impl.h"
#include "onnx/card.h"

enum {
    CTX_DEFAULT = 4096,
    CTX_MAX = 1 << 24,
    BATCH_DEFAULT = 512,
    BATCH_DEFAULT_GPU = 2048,
    BATCH_MAX = 1 << 16,
    SEQS_DEFAULT = 16,
    SEQS_MAX = 4096,
    REQUESTS_MAX = 1 << 16,
    KV_CONTEXTS = 4,
    SPARE = 8, /* requests beside those admission counts: warm-up */
    BLOCKED_NS = 1000000,
    CHUNK_GPU = 256, /* fewer tokens of a prompt cost a GPU almost as much */
    WARM_TOKENS = 4
};

static int check_opt(const struct engine_opt *o, struct err *e)
{
    if (o->n_ctx < 0 || o->n_ctx == 1 || o->n_ctx > CTX_MAX)
        return err_set(e, E_INVALID, "a context of %d tokens: it must be from 2 to %d, or 0",
                       o->n_ctx, CTX_MAX);
    if (o->kv_tokens < 0 || o->kv_tokens > CTX_MAX * 8)
        return err_set(e, E_INVALID, "a KV cache of %d tokens: it must be from 1 to %d, or 0",
                       o->kv_tokens, CTX_MAX * 8);
    if (o->max_batch < 0 || o->max_batch > BATCH_MAX)
        return err_set(e, E_INVALID, "a batch of %d tokens: it must be from 1 to %d, or 0",
                       o->max_batch, BATCH_MAX);
    if (o->max_seqs < 0 || o->max_seqs > SEQS_MAX)
        return err_set(e, E_INVALID, "%d sequences at once: it must be from 1 to %d, or 0",
                       o->max_seqs, SEQS_MAX);
    if (o->max_requests < 0 || o->max_requests > REQUESTS_MAX)
        return err_set(e, E_INVALID, "%d requests: it must be from 1 to %d, or 0", o->max_requests,
                       REQUESTS_MAX);
    return OK;
}

static bool is_gpu(const struct backend_opt *b)
{
    return b->device && strncmp(b->device, "cuda", 4) == 0;
}

int engine_batch_default(const struct backend_opt *b)
{
    return is_gpu(b) ? BATCH_DEFAULT_GPU : BATCH_DEFAULT;
}

int engine_snaps(int max_seqs) { return max_seqs < 4 ? 2 : max_seqs > 16 ? 8 : max_seqs / 2; }

static int at_least(int v, int least) { return v < least ? least : v; }

/* Zeros become what they stand for, and what cannot be reached is lowered. */
static void set_opt(struct engine *g, const struct hparams *hp, const struct engine_opt *given)
{
    struct engine_opt *o = &g->opt;
    int trained = hp->n_ctx, most = hparams_max_ctx(hp);

    *o = *given;
    if (most && o->n_ctx > most) {
        log_warn("a context of %d tokens, but the model knows %d positions: that many it is",
                 o->n_ctx, most);
        o->n_ctx = most;
    }
    if (o->n_ctx == 0) o->n_ctx = trained > 1 && trained < CTX_DEFAULT ? trained : CTX_DEFAULT;
    else if (trained > 1 && o->n_ctx > trained)
        log_warn("a context of %d tokens, but the model was trained for %d", o->n_ctx, trained);
    if (o->kv_tokens == 0)
        o->kv_tokens = o->n_ctx < CTX_MAX / KV_CONTEXTS ? KV_CONTEXTS * o->n_ctx : o->n_ctx;
    o->kv_tokens = at_least(o->kv_tokens, o->n_ctx);
    if (o->max_batch == 0) o->max_batch = engine_batch_default(&o->backend);
    if (o->max_batch > o->kv_tokens) o->max_batch = o->kv_tokens;
    if (o->max_seqs == 0) o->max_seqs = SEQS_DEFAULT;
    if (o->max_seqs > o->max_batch) o->max_seqs = o->max_batch;
    if (o->max_requests == 0) o->max_requests = 16 * o->max_seqs;
    o->max_requests = at_least(o->max_requests, o->max_seqs);
    if (o->max_queue_tokens == 0)
        o->max_queue_tokens = o->n_ctx < CTX_MAX / 64 ? 64 * o->n_ctx : CTX_MAX;
    if (o->kv_type == DT_NONE) o->kv_type = o->backend.reference ? DT_F32 : DT_F16;
    if (o->kv_overcommit <= 0) o->kv_overcommit = 8;
    if (o->step_ms <= 0) o->step_ms = 100;
    if (o->stretch <= 0) o->stretch = 2.5;
    if (o->age_ms <= 0) o->age_ms = 1000;
    g->min_chunk = is_gpu(&o->backend) ? CHUNK_GPU : 2 * KV_BLOCK;

    g->lim = (struct seq_limits){ .n_ctx = o->n_ctx,
                                  .n_vocab = hp->n_vocab,
                                  .n_embd = hp->n_embd,
                                  .encoder = hp->encoder,
                                  .classifies = hp->card && hp->card->task == CARD_CLASSIFY };
    /* Rows that only pad the matrix have no text. */
    g->lim.n_pick = g->lim.n_vocab;
    if (g->tokenizer && tokenizer_n(g->tokenizer) < g->lim.n_pick)
        g->lim.n_pick = tokenizer_n(g->tokenizer);
}

static int open_tokenizer(struct engine *g, struct err *e)
{
    int rc = tokenizer_from_source(&g->tokenizer, g->source, e);
    if (rc == E_NOTFOUND) return OK;
    if (rc == E_UNSUPPORTED) log_warn("%s; running on token ids only", e->msg);
    return rc == E_UNSUPPORTED ? OK : rc;
}

static int blocks_for(int tokens) { return (tokens + KV_BLOCK - 1) / KV_BLOCK; }

/* Memory of all steps to come: KV blocks, scratch, arrays. */
static int open_memory(struct engine *g, struct err *e)
{
    const struct engine_opt *o = &g->opt;
    int table = blocks_for(o->n_ctx), rc;
    struct decoder_opt d = { .max_tokens = o->max_batch,
                             .max_seqs = o->max_seqs,
                             .max_table = table,
                             .max_out = o->max_seqs };
    size_t n = (size_t)(g->max_live = o->max_requests + SPARE);
    struct step_opt s;

    rc = block_pool_open_over(&g->pool, g->place.shares, g->place.n_shares, model_kvshape(g->model),
                              o->kv_type, blocks_for(o->kv_tokens) + 1, e);
    if (rc != OK) return rc;
    if (!o->no_prefix && model_can_share_prefix(g->model) &&
        (rc = prefix_open(&g->prefix, g->pool, e)) != OK)
        return rc;
    if (g->prefix && model_has_state(g->model)) {
        rc = snaps_open(&g->snaps, g->place.shares, g->place.n_shares, model_stateshape(g->model),
                        engine_snaps(o->max_seqs), o->n_ctx, e);
        if (rc != OK) return rc;
    }
    if ((rc = decoder_open(&g->decoder, g->model, g->pool, d, e)) != OK) return rc;
    g->states = decoder_states(g->decoder);
    s = (struct step_opt){ .max_tokens = o->max_batch,
                           .max_seqs = o->max_seqs,
                           .table_stride = table,
                           .max_adjust = decoder_max_adjust(g->decoder),
                           .n_pick_from = g->lim.n_pick,
                           .has_state = g->states != NULL,
                           .n_embd = g->lim.n_embd,
                           .pooling = g->model->hp.pooling };
    if ((rc = step_init(&g->step, s, e)) != OK) return rc;
    if ((rc = chan_open(&g->in, g->max_live, e)) != OK) return rc;
    g->live = mem_array(n, sizeof *g->live);
    g->untold = mem_array((size_t)o->max_seqs, sizeof *g->untold);
    g->view = mem_array(n, sizeof *g->view);
    g->order = mem_array(n, sizeof *g->order);
    g->plan.run = mem_array(n, sizeof *g->plan.run);
    g->plan.begin = mem_array(n, sizeof *g->plan.begin);
    g->plan.preempt = mem_array(n, sizeof *g->plan.preempt);
    if (!g->live || !g->untold || !g->view || !g->order || !g->plan.run || !g->plan.begin ||
        !g->plan.preempt)
        return err_set(e, E_NOMEM, "no memory for %zu requests", n);
    admit_init(&g->admit, (struct admit_limits){ .n_ctx = o->n_ctx,
                                                 .block = KV_BLOCK,
                                                 .n_blocks = block_n(g->pool),
                                                 .max_requests = o->max_requests,
                                                 .max_seqs = o->max_seqs,
                                                 .max_queue_tokens = o->max_queue_tokens,
                                                 .kv_overcommit = o->kv_overcommit });
    engine_stats_init(&g->stats);
    gauge_set(&g->stats.kv_total, block_n(g->pool));
    return OK;
}

/* The devices, and the weights on them. */
static int open_model(struct engine *g, const struct engine_opt *given, struct err *e)
{
    const struct engine_opt *o = &g->opt;
    struct arena arena = { 0 };
    struct hparams hp;
    struct place_opt p;
    int rc;

    if ((rc = hparams_read(&hp, &arena, g->source, e)) != OK) goto out;
    set_opt(g, &hp, given);
    p = (struct place_opt){ .backend = o->backend,
                            .kv_tokens = (uint64_t)o->kv_tokens,
                            .kv_type = o->kv_type,
                            .max_tokens = o->max_batch,
                            .max_out = o->max_seqs,
                            .n_states = o->max_seqs + engine_snaps(o->max_seqs) };
    rc = place_model(&g->place, &g->model, &p, g->source, e);
out:
    arena_release(&arena);
    return rc;
}

static void *engine_main(void *arg)
{
    struct engine *g = arg;

    for (;;) {
        /* Looked at before the round: what was submitted before the end is taken by it. */
        bool quit = atomic_load_explicit(&g->quit, memory_order_acquire);
        enum round what = engine_round(g);
        if (what == ROUND_WORKED) continue;
        if (what == ROUND_IDLE && quit) return NULL;
        chan_wait(g->in, what == ROUND_BLOCKED ? BLOCKED_NS : UINT64_MAX);
    }
}

static int start_thread(struct engine *g, struct err *e)
{
    int rc = pthread_create(&g->thread, NULL, engine_main, g);

    if (rc != 0) return err_set(e, E_NOMEM, "cannot start the engine's thread: %s", strerror(rc));
    pthread_setname_np(g->thread, "tern-engine");
    g->has_thread = true;
    return OK;
}

int engine_open(struct engine **out, const char *path, const struct engine_opt *opt, struct err *e)
{
    static const struct engine_opt defaults = { .kv_type = DT_NONE };
    const struct engine_opt *o = opt ? opt : &defaults;
    uint64_t start = clock_ns();
    struct engine *g = mem_new(struct engine);
    struct err local;
    int rc;

    if (!e) e = &local;
    if ((rc = check_opt(o, e)) != OK) goto out;
    if ((rc = source_open(&g->source, path, e)) != OK) goto out;
    if ((rc = open_tokenizer(g, e)) != OK) goto out;
    if ((rc = open_model(g, o, e)) != OK) goto out;
    if ((rc = open_memory(g, e)) != OK) goto out;
    g->card = g->model->hp.card;
    ends_find(&g->ends, g->source, g->tokenizer, g->model->hp.n_vocab);
    guided_init(&g->guided, g->tokenizer, &g->ends, g->lim.n_pick);
    compiler_init(&g->compiler, &g->guided);
    g->open_ms = clock_ms_since(start);
    if (!o->manual && (rc = start_thread(g, e)) != OK) goto out;
    *out = g;
    g = NULL;
out:
    engine_close(g);
    return rc;
}

void engine_close(struct engine *g)
{
    if (!g) return;
    engine_drain(g);
    atomic_store_explicit(&g->quit, true, memory_order_release);
    if (g->in) engine_abort(g);
    if (g->has_thread) pthread_join(g->thread, NULL);
    else if (g->in)
        while (engine_round(g) != ROUND_IDLE) {}
    compiler_close(&g->compiler);
    guided_release(&g->guided);
    step_release(&g->step);
    decoder_close(g->decoder);
    snaps_close(g->snaps);
    prefix_close(g->prefix);
    block_pool_close(g->pool);
    model_close(g->model);
    place_release(&g->place);
    tokenizer_close(g->tokenizer);
    source_close(g->source);
    chan_close(g->in);
    mem_free(g->live);
    mem_free(g->untold);
    mem_free(g->view);
    mem_free(g->order);
    mem_free(g->plan.run);
    mem_free(g->plan.begin);
    mem_free(g->plan.preempt);
    mem_free(g);
}

void engine_info(const struct engine *g, struct engine_info *out)
{
    const struct backend *last = place_last(&g->place);

    *out = (struct engine_info){ .model = g->model,
                                 .source = g->source,
                                 .place = &g->place,
                                 .opt = g->opt,
                                 .n_blocks = block_n(g->pool),
                                 .weight_bytes = g->model->weight_bytes,
                                 .kv_bytes = place_used(&g->place, MEM_KV),
                                 .scratch_bytes = place_used(&g->place, MEM_SCRATCH),
                                 .open_ms = g->open_ms };
    out->task = g->lim.classifies ? "classify" : g->lim.encoder ? "embed" : "generate";
    if (g->lim.classifies) out->labels = g->card->labels, out->n_labels = g->card->width;
    out->device.pack_ns = (uint64_t)(g->model->put_ms * 1e6);
    if (last->stats) last->stats(last, &out->device);
}

const struct tokenizer *engine_tokenizer(const struct engine *g) { return g->tokenizer; }
bool engine_is_end(const struct engine *g, int32_t id) { return ends_has(&g->ends, id); }
struct engine_stats *engine_stats(struct engine *g) { return &g->stats; }

int engine_grammar(struct engine *g, const struct grammar_spec *spec, struct grammar **out,
                   struct err *e)
{
    return guided_compile(&g->guided, spec, out, e);
}

int engine_grammar_soon(struct engine *g, const struct grammar_spec *spec,
                        void (*done)(struct compile_job *j), void *arg, void *owner,
                        struct grammar **out, struct compile_job **job, struct err *e)
{
    if ((*out = guided_kept(&g->guided, spec))) return OK;
    return compiler_ask(&g->compiler, spec, done, arg, owner, job, e);
}

static int reject_of(int rc)
{
    switch (rc) {
    case E_CONTEXT: return REJECT_CONTEXT;
    case E_QUEUE_FULL: return REJECT_QUEUE;
    case E_MEMORY: return REJECT_MEMORY;
    case E_DEADLINE: return REJECT_DEADLINE;
    case E_SHUTDOWN: return REJECT_SHUTDOWN;
    default: return REJECT_INVALID;
    }
}

int engine_submit(struct engine *g, struct request *r, struct err *e)
{
    int rc = seq_check(r, g->lim, e);

    if (rc == OK && g->lim.encoder && r->prompt.n > (size_t)g->opt.max_batch)
        rc = err_set(e, E_CONTEXT,
                     "the text has %zu tokens, but a step of this server only %d: see max-batch",
                     r->prompt.n, g->opt.max_batch);
    if (rc == OK && r->embed && !r->vec) r->vec = mem_array((size_t)g->lim.n_embd, sizeof *r->vec);
    r->submit_ns = clock_ns();
    if (rc == OK) rc = admit_take(&g->admit, r, r->submit_ns, e);
    if (rc != OK) {
        counter_add(&g->stats.rejected[reject_of(rc)], 1);
        return rc;
    }
    request_ref(r);
    atomic_store_explicit(&r->state, REQ_QUEUED, memory_order_relaxed);
    if (!chan_push(g->in, r)) { /* several threads passed admission at once */
        admit_give(&g->admit, r);
        request_unref(r);
        counter_add(&g->stats.rejected[REJECT_QUEUE], 1);
        rc = err_set(e, E_QUEUE_FULL, "%d requests wait or run, and no more may", g->max_live);
        if (e) e->retry_ms = admit_retry_ms(&g->admit);
        return rc;
    }
    if (!r->quiet) counter_add(&g->stats.submitted, 1);
    return OK;
}

void engine_drain(struct engine *g)
{
    atomic_store_explicit(&g->admit.closed, 1, memory_order_release);
}

void engine_abort(struct engine *g)
{
    atomic_store_explicit(&g->abort, true, memory_order_release);
    chan_poke(g->in);
}

bool engine_is_idle(struct engine *g)
{
    return atomic_load_explicit(&g->admit.n_requests, memory_order_acquire) == 0;
}

bool engine_step(struct engine *g)
{
    bool worked = engine_round(g) == ROUND_WORKED;

    engine_tell(g);
    return worked;
}

/* ---- warm-up ---- */

struct waiting {
    pthread_mutex_t lock;
    pthread_cond_t news;
    int n;
};

static void wake_waiting(struct request *r)
{
    struct waiting *w = r->owner;

    pthread_mutex_lock(&w->lock);
    w->n++;
    pthread_cond_signal(&w->news);
    pthread_mutex_unlock(&w->lock);
    request_unref(r);
}

static void wait_for_end(struct engine *g, struct request *r, struct waiting *w)
{
    struct event ev = { 0 };

    for (int seen = 0; ev.finish == FINISH_NONE;) {
        if (request_next(r, &ev)) continue;
        if (g->opt.manual) {
            engine_step(g);
            continue;
        }
        pthread_mutex_lock(&w->lock);
        while (w->n == seen) pthread_cond_wait(&w->news, &w->lock);
        seen = w->n;
        pthread_mutex_unlock(&w->lock);
    }
}

/* A GPU loads the code of large steps when the first one comes, which takes longer than the step.
 */
static int warm_tokens(const struct engine *g)
{
    int n = is_gpu(&g->opt.backend) && g->place.n_shares == 1 ? g->opt.max_batch : WARM_TOKENS;
    return n < g->opt.n_ctx / 2 ? n : g->opt.n_ctx / 2;
}

int engine_warm(struct engine *g, struct err *e)
{
    struct waiting w = { .lock = PTHREAD_MUTEX_INITIALIZER, .news = PTHREAD_COND_INITIALIZER };
    struct request *r = request_open();
    int n = warm_tokens(g), rc;

    if ((rc = guided_warm(&g->guided, e)) != OK) goto out;
    for (int i = 0; i < n; i++) ids_push(&r->prompt, i % g->lim.n_vocab);
    r->max_tokens = 1;
    r->sample.temp = 0;
    r->ignore_eos = r->quiet = true;
    r->embed = g->lim.encoder;
    r->classify = g->lim.classifies;
    r->salt = UINT64_MAX; /* nobody's prefix */
    r->owner = &w;
    r->notify = wake_waiting;
    if ((rc = engine_submit(g, r, e)) == OK) {
        wait_for_end(g, r, &w);
        if (r->finish == FINISH_ERROR) rc = err_set(e, r->err.code, "%s", r->err.msg);
    }
out:
    request_unref(r);
    return rc;
}
