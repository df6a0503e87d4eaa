/* abi_model.c - a model's handle: open, close, facts, default parameters, text ↔ token ids.
 *
 * The handle of tern_open has an engine of its own: the short form for programs with one model. */
#include "abi/abi_impl.h"

#include "base/keyring.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/thread.h"
#include "engine/engine.h"
#include "engine/request.h"
#include "engine/stats.h"
#include "format/modelref.h"
#include "base/memavail.h"
#include "pool/modelname.h"
#include "pool/pool.h"
#include "pool/prompter.h"
#include "pool/tiers.h"
#include "sample/sampler.h"
#include "token/tokenizer.h"

#include <string.h>
#include <sys/random.h>

/* ---- options ---- */

void tern_options_init_sized(tern_options *o, size_t size)
{
    tern_options full = { .size = size };

    if (o && size >= ABI_SIZE_LEAST) abi_write_sized(o, size, &full, sizeof full);
}

int abi_read_options(const char *call, tern_options *to, const tern_options *from)
{
    int rc;

    tern_options_init(to);
    if (from && (rc = abi_read_sized(call, to, sizeof *to, from, from->size)) != OK) return rc;
    if (to->threads < 0) return abi_invalid(call, "threads must be 0 or more");
    if (to->gpu_layers < 0)
        return abi_invalid(call, "gpu_layers must be 0 (as many as fit) or more");
    if (to->kv_tokens < 0) return abi_invalid(call, "kv_tokens must be 0 or more");
    if (to->n_cpu_moe < 0) return abi_invalid(call, "n_cpu_moe must be 0 (none) or more");
    if (to->queue < 0) return abi_invalid(call, "queue must be 0 or more");
    if (to->model_key_file && to->model_key_command)
        return abi_invalid(call, "model_key_file and model_key_command exclude each other");
    return OK;
}

struct engine_opt abi_engine_options(const tern_options *o)
{
    return (struct engine_opt){ .device = o->device,
                                .n_threads = o->threads,
                                .reference = o->reference != 0,
                                .isa = o->isa,
                                .numa = o->numa,
                                .gpu_layers = o->gpu_layers,
                                .vram_only = o->vram_only != 0,
                                .cpu_moe = o->cpu_moe != 0,
                                .n_cpu_moe = o->n_cpu_moe,
                                .place = o->place,
                                .allow_nan = o->allow_nan != 0,
                                .verify_manifest = o->verify_manifest,
                                .n_ctx = o->context,
                                .kv_tokens = o->kv_tokens,
                                .max_batch = o->batch,
                                .max_seqs = o->sequences,
                                .max_requests = o->queue,
                                .kv_type = DT_NONE,
                                .tells_callers = true };
}

/* ---- the handle ---- */

int abi_find_model(char **out, const char *name, struct err *e)
{
    if (modelref_is(str_c(name))) return modelref_resolve(out, str_c(name), e);
    *out = mem_strdup(name);
    return *out ? OK : err_nomem(e, "the path of a model");
}

int abi_model_init(struct tern_model *m, const char *id, const char *path, struct err *e)
{
    int rc = lock_init(&m->lock, &m->news, "the model", e);

    m->has_lock = rc == OK;
    if (rc != OK) return rc;
    m->id = id ? mem_strdup(id) : model_id_of(path);
    m->path = mem_strdup(path);
    return m->id && m->path ? OK : err_nomem(e, "the name of a model");
}

void abi_model_release(struct tern_model *m)
{
    dispatcher_close(m->dispatcher);
    if (m->has_lock) lock_destroy(&m->lock, &m->news);
    arena_release(&m->strings);
    mem_free(m->id);
    mem_free(m->path);
    mem_free(m);
}

void abi_model_ref(struct tern_model *m)
{
    if (m->rt) abi_runtime_ref(m->rt);
    else atomic_fetch_add_explicit(&m->n_refs, 1, memory_order_relaxed);
}

/* The last reference closes the engine, which cancels and joins its thread. */
void abi_model_unref(struct tern_model *m)
{
    if (!m) return;
    if (m->rt) {
        abi_runtime_unref(m->rt);
        return;
    }
    if (atomic_fetch_sub_explicit(&m->n_refs, 1, memory_order_acq_rel) != 1) return;
    prompter_close(m->prompter);
    engine_close(m->engine);
    abi_model_release(m);
}

/* Plan → engine → prompter. The caller unrefs the model after a failure. */
static int open_engine(struct tern_model *m, const tern_options *o, struct err *e)
{
    struct engine_opt eo = abi_engine_options(o);
    const struct tokenizer *t;
    struct loadplan *plan = NULL;
    struct memavail free;
    int rc;

    memavail_read(&free, "");
    eo.room = membudget_room(&free, &(struct membudget){ 0 }, 0);
    eo.progress = (struct loadprogress){ o->on_progress, o->progress_arg };
    eo.room.share = 0.5; /* a program may open several models, and has its own needs */
    if ((rc = engine_plan(&plan, m->path, &eo, e)) != OK) return rc;
    if ((rc = engine_open_plan(&m->engine, plan, &eo, e)) != OK) return rc;
    m->need = membudget_of(plan); /* the engine's now, which may have corrected it */
    t = engine_tokenizer(m->engine);
    if (t && (rc = prompter_open(&m->prompter, t, o->chat_template, e)) != OK) return rc;
    engine_info(m->engine, &m->facts.info);
    engine_sample_defaults(m->engine, &m->facts.sample);
    m->facts.has_chat = m->prompter && prompter_knows_chat(m->prompter);
    atomic_store(&m->has_facts, true);
    return OK;
}

/* The keys of an encrypted model are in the process for the time of the load. */
static int open_with_keys(struct tern_model *m, const tern_options *o, struct err *e)
{
    struct keyset *keys = NULL;
    int rc = keyset_open(&keys, o->model_key_file, o->model_key_command, 0, e);

    keyset_join(keys);
    if (rc == OK) rc = open_engine(m, o, e);
    keyset_close(keys);
    return rc;
}

int tern_open(tern_model **out, const char *path, const tern_options *o)
{
    tern_options opt;
    struct tern_model *m;
    struct err e = { 0 };
    char *found = NULL;
    int rc;

    if (!out || !path) return abi_invalid("tern_open", "out and path must not be NULL");
    *out = NULL;
    if ((rc = abi_read_options("tern_open", &opt, o)) != OK) return rc;
    if (!(m = mem_new(struct tern_model))) return err_nomem(&abi_last, "the model");
    atomic_init(&m->n_refs, 1);
    rc = abi_find_model(&found, path, &e);
    if (rc == OK) rc = abi_model_init(m, NULL, found, &e);
    if (rc == OK) rc = open_with_keys(m, &opt, &e);
    mem_free(found);
    if (rc != OK) {
        abi_model_unref(m);
        return abi_fail(&e);
    }
    *out = m;
    return TERN_OK;
}

void tern_close(tern_model *m) { abi_model_unref(m); }

/* ---- facts ---- */

/* Memory of the host that holds something: what was allocated and used, and the file's pages. */
static uint64_t resident_bytes(const struct tern_model *m, const struct membudget *b,
                               const struct engine_stats *s)
{
    double cached = b->mapped ? tier_look(m->path) : 0, kv = 0;
    int64_t total = s ? gauge_get(&s->kv_total) : 0;

    if (total > 0) kv = (double)(gauge_get(&s->kv_used) + gauge_get(&s->kv_idle)) / (double)total;
    return b->copied + b->host_scratch + (uint64_t)(kv * (double)b->host_kv) +
           (cached > 0 ? (uint64_t)(cached * (double)b->mapped) : 0);
}

static void fill_memory(const struct tern_model *m, const struct membudget *b,
                        const struct engine_stats *s, tern_model_info *out)
{
    out->weight_bytes = b->weights;
    out->kv_bytes = b->kv;
    out->scratch_bytes = b->scratch;
    out->mapped_bytes = b->mapped;
    out->device_bytes = membudget_device(b);
    out->resident_bytes = resident_bytes(m, b, s);
}

static tern_state state_of(enum pool_state s)
{
    switch (s) {
    case POOL_LOADING: return TERN_LOADING;
    case POOL_READY: return TERN_READY;
    case POOL_DRAINING: return TERN_DRAINING;
    case POOL_FAILED: return TERN_FAILED;
    default: return TERN_UNLOADED;
    }
}

/* The pool's view of a record. */
static void fill_pooled(const struct tern_model *m, tern_model_info *out)
{
    struct pool *p = abi_pool(m->rt);
    const struct pool_counts *c = pool_counts(p, m->index);
    struct pool_instance *now = pool_acquire(p, m->index);
    struct pool_view v;

    pool_view(p, m->index, &v);
    out->state = state_of(v.state);
    out->progress = v.progress;
    out->n_loads = counter_get(&c->loads);
    out->n_evictions =
        counter_get(&c->unloads[POOL_UNLOAD_ROOM]) + counter_get(&c->unloads[POOL_UNLOAD_IDLE]);
    if (now) fill_memory(m, &now->need, pool_stats(p, m->index), out);
    if (now) out->load_ms = now->load_ms;
    pool_release(now);
}

int tern_info_sized(const tern_model *m, tern_model_info *out, size_t size)
{
    tern_model_info full = { .name = "", .arch = "", .device = "", .dtype = "" };

    if (!m || !out) return abi_invalid("tern_info", "the model and out must not be NULL");
    if (atomic_load(&m->has_facts)) {
        const struct engine_info *i = &m->facts.info;

        full = (tern_model_info){ .name = i->name,
                                  .arch = i->arch,
                                  .device = i->devices,
                                  .dtype = i->dtype,
                                  .n_params = i->n_params,
                                  .context = i->opt.n_ctx,
                                  .vocab = i->n_vocab,
                                  .has_chat = m->facts.has_chat,
                                  .load_ms = i->open_ms,
                                  .pack_ms = i->pack_ms,
                                  .embedding = i->n_vec,
                                  .sequences = i->opt.max_seqs };
    }
    full.id = m->id;
    full.path = m->path;
    if (m->rt) {
        fill_pooled(m, &full);
    } else {
        full.state = TERN_READY;
        full.progress = 100;
        full.n_loads = 1;
        fill_memory(m, &m->need, engine_stats(m->engine), &full);
    }
    abi_write_sized(out, size, &full, sizeof full);
    return TERN_OK;
}

/* NULL: a model of a runtime that never was loaded. */
static const struct engine_stats *stats_of(const struct tern_model *m)
{
    return m->rt ? pool_stats(abi_pool(m->rt), m->index) : engine_stats(m->engine);
}

int tern_model_counts_sized(const tern_model *m, tern_counts *out, size_t size)
{
    const struct engine_stats *s;
    tern_counts full = { 0 };

    if (!m || !out) return abi_invalid("tern_model_counts", "the model and out must not be NULL");
    if ((s = stats_of(m))) {
        full = (tern_counts){
            .n_submitted = counter_get(&s->submitted),
            .n_finished =
                counter_get(&s->finished[FINISH_STOP]) + counter_get(&s->finished[FINISH_LENGTH]),
            .n_cancelled = counter_get(&s->finished[FINISH_CANCELLED]),
            .n_failed = counter_get(&s->finished[FINISH_ERROR]) +
                        counter_get(&s->finished[FINISH_DEADLINE]),
            .prompt_tokens = counter_get(&s->prompt_tokens),
            .cached_tokens = counter_get(&s->cached_tokens),
            .tokens = counter_get(&s->generated_tokens),
            .waiting = (int)gauge_get(&s->waiting),
            .running = (int)gauge_get(&s->running),
            .queue_peak = (int)gauge_get(&s->queue_peak),
            .kv_blocks = (int)gauge_get(&s->kv_total),
            .kv_blocks_used = (int)gauge_get(&s->kv_used),
            .block_tokens = m->facts.info.block_tokens,
        };
        for (int i = 0; i < N_REJECT; i++) full.n_rejected += counter_get(&s->rejected[i]);
    }
    abi_write_sized(out, size, &full, sizeof full);
    return TERN_OK;
}

void tern_params_init_sized(tern_params *p, size_t size, const tern_model *m)
{
    struct sample_opt d = sample_defaults();
    tern_params full;

    if (!p || size < ABI_SIZE_LEAST) return;
    if (m && atomic_load(&m->has_facts)) d = m->facts.sample;
    full = (tern_params){ .size = size,
                          .temp = d.temp,
                          .top_p = d.top_p,
                          .min_p = d.min_p,
                          .typical = d.typical,
                          .repeat_penalty = d.repeat_penalty,
                          .top_k = d.top_k,
                          .repeat_last = d.repeat_last,
                          .priority = PRIORITY_INTERACTIVE };
    if (getrandom(&full.seed, sizeof full.seed, 0) != (ssize_t)sizeof full.seed)
        full.seed = clock_ns();
    full.seed >>= 32; /* short enough for a person to type again */
    abi_write_sized(p, size, &full, sizeof full);
}

/* ---- text and token ids ---- */

static int encode_text(const struct lease *l, const struct tern_model *m, struct str text,
                       bool special, struct ids *ids, struct err *e)
{
    const struct tokenizer *t = lease_tokenizer(l, m, e);
    int rc;

    if (!t) return e->code;
    ids_reserve(ids, 1); /* not NULL, also without a token */
    rc = tokenizer_encode(t, text, special ? ENCODE_SPECIAL : ENCODE_PLAIN, ids, e);
    return rc == OK ? ids_check(ids, e) : rc;
}

/* Ids belong to the caller, also an empty list. */
int tern_tokenize(tern_model *m, const char *text, size_t n, int special, int32_t **out,
                  size_t *n_out)
{
    struct ids ids = { 0 };
    struct err e = { 0 };
    struct lease l;
    int rc;

    if (!m || (!text && n) || !out || !n_out)
        return abi_invalid("tern_tokenize", "model, text, out and n_out must not be NULL");
    *out = NULL;
    *n_out = 0;
    if ((rc = lease_take(&l, m, 0, &e)) == OK)
        rc = encode_text(&l, m, str_of(text, n), special != 0, &ids, &e);
    lease_end(&l);
    if (rc != OK) {
        ids_release(&ids);
        return abi_fail(&e);
    }
    *out = ids.p;
    *n_out = ids.n;
    return TERN_OK;
}

static int decode_ids(const struct lease *l, const struct tern_model *m, const int32_t *ids,
                      size_t n, struct buf *out, struct err *e)
{
    const struct tokenizer *t = lease_tokenizer(l, m, e);
    int n_vocab = m->facts.info.n_vocab;

    if (!t) return e->code;
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= n_vocab)
            return err_set(e, E_INVALID,
                           "tern_detokenize: id %d, but ids are from 0 to %d for this model",
                           ids[i], n_vocab - 1);
    tokenizer_decode(t, ids, n, false, out);
    buf_cstr(out);
    return buf_check(out, e);
}

int tern_detokenize(tern_model *m, const int32_t *ids, size_t n, char **out, size_t *n_out)
{
    struct buf b = { 0 };
    struct err e = { 0 };
    struct lease l;
    int rc;

    if (!m || (!ids && n) || !out || !n_out)
        return abi_invalid("tern_detokenize", "model, ids, out and n_out must not be NULL");
    *out = NULL;
    *n_out = 0;
    if ((rc = lease_take(&l, m, 0, &e)) == OK) rc = decode_ids(&l, m, ids, n, &b, &e);
    lease_end(&l);
    if (rc != OK) {
        buf_release(&b);
        return abi_fail(&e);
    }
    *out = b.p;
    *n_out = b.n;
    return TERN_OK;
}
