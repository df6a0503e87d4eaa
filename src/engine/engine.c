#include "engine/engine.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/ends.h"
#include "engine/step.h"

#include <string.h>

enum {
    CTX_DEFAULT = 4096,
    CTX_MAX = 1 << 24,
    BATCH_DEFAULT = 512,
    BATCH_MAX = 1 << 16,
    SEQS_DEFAULT = 16,
    SEQS_MAX = 4096
};

struct engine {
    struct source *source;
    struct tokenizer *tokenizer;
    struct backend *backend;
    struct model *model;
    struct block_pool *pool;
    struct decoder *decoder;
    struct ends ends;
    int n_ctx, max_batch, max_seqs;
    double open_ms;

    struct seq **running;        /* [max_seqs], oldest first */
    int n_running;
    struct seq *waiting;         /* in order of arrival */
    struct past past;
    struct step step;
};

static int check_opt(const struct engine_opt *o, struct err *e)
{
    if (o->n_ctx < 0 || o->n_ctx == 1 || o->n_ctx > CTX_MAX)
        return err_set(e, E_INVALID, "a context of %d tokens: it must be from 2 to %d, or 0",
                       o->n_ctx, CTX_MAX);
    if (o->max_batch < 0 || o->max_batch > BATCH_MAX)
        return err_set(e, E_INVALID, "a batch of %d tokens: it must be from 1 to %d, or 0",
                       o->max_batch, BATCH_MAX);
    if (o->max_seqs < 0 || o->max_seqs > SEQS_MAX)
        return err_set(e, E_INVALID, "%d sequences at once: it must be from 1 to %d, or 0",
                       o->max_seqs, SEQS_MAX);
    return OK;
}

static void set_limits(struct engine *g, const struct engine_opt *o)
{
    int trained = g->model->hp.n_ctx;

    g->n_ctx = o->n_ctx;
    if (g->n_ctx == 0) g->n_ctx = trained > 1 && trained < CTX_DEFAULT ? trained : CTX_DEFAULT;
    else if (trained > 1 && g->n_ctx > trained)
        log_warn("a context of %d tokens, but the model was trained for %d", g->n_ctx, trained);
    g->max_batch = o->max_batch ? o->max_batch : BATCH_DEFAULT;
    if (g->max_batch > g->n_ctx) g->max_batch = g->n_ctx;
    g->max_seqs = o->max_seqs ? o->max_seqs : SEQS_DEFAULT;
    if (g->max_seqs > g->max_batch) g->max_seqs = g->max_batch;
}

static int open_tokenizer(struct engine *g, struct err *e)
{
    int rc = tokenizer_from_source(&g->tokenizer, g->source, e);
    if (rc == E_NOTFOUND) return OK;
    if (rc == E_UNSUPPORTED) log_warn("%s; running on token ids only", e->msg);
    return rc == E_UNSUPPORTED ? OK : rc;
}

/* Memory of all steps to come: KV blocks, scratch, arrays. */
static int open_memory(struct engine *g, const struct engine_opt *o, struct err *e)
{
    int table = (g->n_ctx + KV_BLOCK - 1) / KV_BLOCK, rc;
    enum dtype kv = o->kv_type;
    struct decoder_opt d = { .max_tokens = g->max_batch, .max_seqs = g->max_seqs, .max_table = table,
                             .max_out = g->max_seqs };

    if (kv == DT_NONE) kv = o->backend.reference ? DT_F32 : DT_F16;
    rc = block_pool_open(&g->pool, g->backend, model_kvshape(g->model), g->model->hp.n_layers, kv,
                         table + g->max_seqs, e);
    if (rc != OK) return rc;
    if ((rc = decoder_open(&g->decoder, g->model, g->pool, d, e)) != OK) return rc;
    return step_init(&g->step, g->max_batch, g->max_seqs, table, e);
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
    if ((rc = backend_open(&g->backend, &o->backend, e)) != OK) goto out;
    if ((rc = model_open(&g->model, g->source, g->backend, e)) != OK) goto out;
    set_limits(g, o);
    if ((rc = open_memory(g, o, e)) != OK) goto out;
    ends_find(&g->ends, g->source, g->tokenizer, g->model->hp.n_vocab);
    g->running = mem_array((size_t)g->max_seqs, sizeof *g->running);
    g->open_ms = clock_ms_since(start);
    *out = g;
    g = NULL;
out:
    engine_close(g);
    return rc;
}

void engine_close(struct engine *g)
{
    if (!g) return;
    while (g->n_running > 0) engine_drop(g, g->running[0]->r);
    while (g->waiting) engine_drop(g, g->waiting->r);
    past_drop(&g->past, g->pool);
    step_release(&g->step);
    decoder_close(g->decoder);
    block_pool_close(g->pool);
    model_close(g->model);
    backend_close(g->backend);
    tokenizer_close(g->tokenizer);
    source_close(g->source);
    mem_free(g->running);
    mem_free(g);
}

void engine_info(const struct engine *g, struct engine_info *out)
{
    *out = (struct engine_info){ .model = g->model,
                                 .source = g->source,
                                 .backend = g->backend,
                                 .n_ctx = g->n_ctx,
                                 .max_batch = g->max_batch,
                                 .max_seqs = g->max_seqs,
                                 .kv_bytes = g->backend->used_bytes[MEM_KV],
                                 .scratch_bytes = g->backend->used_bytes[MEM_SCRATCH],
                                 .open_ms = g->open_ms };
}

const struct tokenizer *engine_tokenizer(const struct engine *g) { return g->tokenizer; }

bool engine_is_end(const struct engine *g, int32_t id) { return ends_has(&g->ends, id); }

int engine_submit(struct engine *g, struct request *r, struct err *e)
{
    struct seq_limits lim = { .n_ctx = g->n_ctx, .n_vocab = g->model->hp.n_vocab };
    struct seq *s, **tail = &g->waiting;
    int rc;

    /* Rows that only pad the matrix have no text. */
    lim.n_pick = lim.n_vocab;
    if (g->tokenizer && tokenizer_n(g->tokenizer) < lim.n_pick) lim.n_pick = tokenizer_n(g->tokenizer);
    if ((rc = seq_open(&s, r, lim, e)) != OK) return rc;
    while (*tail) tail = &(*tail)->next;
    *tail = s;
    return OK;
}

static void remove_running(struct engine *g, int i)
{
    g->n_running--;
    memmove(g->running + i, g->running + i + 1, (size_t)(g->n_running - i) * sizeof *g->running);
}

/* Its blocks stay as the past, unless something went wrong with them. */
static void retire(struct engine *g, struct seq *s)
{
    if (s->n_kv > 0 && s->r->finish != FINISH_ERROR) past_keep(&g->past, s, g->pool);
    seq_close(s, g->pool);
}

void engine_drop(struct engine *g, struct request *r)
{
    struct seq *s = r->seq;

    if (!s) return;
    for (int i = 0; i < g->n_running; i++)
        if (g->running[i] == s) {
            remove_running(g, i);
            break;
        }
    for (struct seq **p = &g->waiting; *p; p = &(*p)->next)
        if (*p == s) {
            *p = s->next;
            break;
        }
    retire(g, s);
}

static bool is_cancelled(const struct seq *s)
{
    return __atomic_load_n(&s->r->cancel, __ATOMIC_RELAXED) != 0;
}

static void end_cancelled(struct engine *g)
{
    struct seq **p = &g->waiting;

    for (int i = 0; i < g->n_running; i++)
        if (is_cancelled(g->running[i])) seq_finish(g->running[i], FINISH_CANCELLED, NULL);
    while (*p) {
        struct seq *s = *p;
        if (!is_cancelled(s)) {
            p = &s->next;
            continue;
        }
        *p = s->next;
        seq_finish(s, FINISH_CANCELLED, NULL);
        seq_close(s, g->pool);
    }
}

static void end_finished(struct engine *g)
{
    for (int i = 0; i < g->n_running;) {
        struct seq *s = g->running[i];
        if (s->r->finish == FINISH_NONE) {
            i++;
            continue;
        }
        remove_running(g, i);
        retire(g, s);
    }
}

static void admit(struct engine *g)
{
    while (g->waiting && g->n_running < g->max_seqs) {
        struct seq *s = g->waiting;
        int room = block_n_free(g->pool) + g->past.chain.n;

        if (g->n_running > 0 && (size_t)room * KV_BLOCK < s->tokens.n + KV_BLOCK) break;
        g->waiting = s->next;
        s->next = NULL;
        g->running[g->n_running++] = s;
        past_give(&g->past, s, g->pool);
        if (s->r->out.n == 0) s->r->n_cached = s->n_kv;
        if (s->r->start_ns == 0) s->r->start_ns = clock_ns();
    }
}

static bool in_step(const struct engine *g, const struct seq *s)
{
    for (int i = 0; i < g->step.n_seqs; i++)
        if (g->step.seqs[i] == s) return true;
    return false;
}

/* Blocks for n more tokens of running[i]: first from the past, then from the youngest that is
 * younger. */
static bool make_room(struct engine *g, int i, int n)
{
    struct seq *s = g->running[i];

    while (!chain_reserve(&s->chain, g->pool, s->n_kv + n)) {
        struct seq *young = g->running[g->n_running - 1];
        if (g->past.chain.n > 0) {
            past_drop(&g->past, g->pool);
            continue;
        }
        if (young == s || in_step(g, young)) return false;
        g->n_running--;
        seq_forget(young, g->pool);
        young->next = g->waiting;
        g->waiting = young;
    }
    return true;
}

/* Decode first: a late prompt costs one reader once, a stalled decode every one. */
static void plan(struct engine *g)
{
    step_begin(&g->step);
    for (int i = 0; i < g->n_running; i++) {
        struct seq *s = g->running[i];
        if (s->tokens.n - (size_t)s->n_kv == 1 && make_room(g, i, 1)) step_add(&g->step, s, 1);
    }
    for (int i = 0; i < g->n_running; i++) {
        struct seq *s = g->running[i];
        int n = (int)s->tokens.n - s->n_kv, room = g->max_batch - g->step.n_tokens;
        if (n == 1) continue;
        if (n > room) n = room;
        if (n > 0 && make_room(g, i, n)) step_add(&g->step, s, n);
    }
}

static void pick_tokens(struct engine *g, const float *logits)
{
    for (int i = 0; i < g->step.n_seqs; i++) {
        struct seq *s = g->step.seqs[i];
        struct err e = { 0 };
        int32_t id;

        if (g->step.out[i] < 0) continue;
        if (sampler_pick(s->sampler, logits + (size_t)g->step.out[i] * (size_t)g->model->hp.n_vocab,
                         &id, &e) != OK)
            seq_finish(s, FINISH_ERROR, &e);
        else
            seq_take(s, id, ends_has(&g->ends, id));
    }
}

int engine_step(struct engine *g, bool *more, struct err *e)
{
    const float *logits = NULL;
    struct err why = { 0 };

    end_cancelled(g);
    end_finished(g);
    admit(g);
    plan(g);
    if (g->step.n_tokens > 0) {
        if (step_run(&g->step, g->decoder, &logits, &why) == OK) pick_tokens(g, logits);
        else
            for (int i = 0; i < g->step.n_seqs; i++) seq_finish(g->step.seqs[i], FINISH_ERROR, &why);
    } else if (g->n_running > 0) {
        err_set(&why, E_NOMEM, "no KV block is free for a sequence of %zu tokens",
                g->running[0]->tokens.n);
        seq_finish(g->running[0], FINISH_ERROR, &why);
    }
    end_finished(g);
    *more = g->n_running > 0 || g->waiting;
    if (e) e->code = OK;
    return OK;
}
