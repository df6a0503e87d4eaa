/* loadplan.c - what all kinds of models have in common: the source, the options with their
 * defaults, and the sums. The rest is in the loaders (decoderload.c, onnxrunner.c). */
#include "model/loadplan.h"

#include "base/log.h"
#include "base/mem.h"
#include "format/source.h"
#include "model/scan.h"

enum {
    CTX_DEFAULT = 4096,
    CTX_MAX = 1 << 24,
    BATCH_DEFAULT = 512,
    BATCH_DEFAULT_GPU = 2048,
    BATCH_MAX = 1 << 16,
    SEQS_DEFAULT = 16,
    SEQS_MAX = 4096,
    KV_CONTEXTS = 4
};

/* ---- reading ---- */

int loadplan_read(struct loadplan **out, const char *path, struct err *e)
{
    struct loadplan *p = mem_new(struct loadplan);
    int rc;

    if (!p) return err_nomem(e, "the load plan");
    if (!(p->path = arena_cstr(&p->arena, str_c(path)))) {
        rc = err_nomem(e, "the load plan");
        goto out;
    }
    if ((rc = source_open(&p->source, path, e)) != OK) goto out;
    /* The one place that chooses the kind of runner. */
    p->loader = source_onnx(p->source) ? &onnx_loader : &decoder_loader;
    if ((rc = p->loader->read(p, e)) != OK) goto out;
    *out = p;
    p = NULL;
out:
    loadplan_close(p);
    return rc;
}

void loadplan_close(struct loadplan *p)
{
    if (!p) return;
    scan_stop(p->scan);
    if (p->loader && p->loader->release) p->loader->release(p);
    place_release(&p->place);
    source_close(p->source);
    arena_release(&p->arena);
    mem_free(p);
}

/* ---- options ---- */

static int check_range(const char *what, int v, int least, int most, struct err *e)
{
    if (v == 0 || (v >= least && v <= most)) return OK;
    return err_set(e, E_INVALID, "%s is %d: it must be from %d to %d, or 0 for the default", what,
                   v, least, most);
}

static int check_opt(const struct load_opt *o, struct err *e)
{
    int rc = check_range("the context in tokens", o->n_ctx, 2, CTX_MAX, e);

    if (rc == OK) rc = check_range("the KV cache in tokens", o->kv_tokens, 1, CTX_MAX * 8, e);
    if (rc == OK) rc = check_range("the batch in tokens", o->max_batch, 1, BATCH_MAX, e);
    if (rc == OK) rc = check_range("the number of sequences at once", o->max_seqs, 1, SEQS_MAX, e);
    return rc;
}

static int at_least(int v, int least) { return v < least ? least : v; }
static int at_most(int v, int most) { return v > most ? most : v; }

/* Learned positions are a hard limit; the training length is only a recommendation. */
static void set_context(struct load_opt *o, const struct model_facts *f)
{
    bool knows = f->n_ctx > 1; /* the model's files say how long its training texts were */

    if (f->max_ctx && o->n_ctx > f->max_ctx) {
        log_warn("a context of %d tokens, but the model has learned %d positions: using %d",
                 o->n_ctx, f->max_ctx, f->max_ctx);
        o->n_ctx = f->max_ctx;
    }
    if (o->n_ctx == 0) o->n_ctx = knows && f->n_ctx < CTX_DEFAULT ? f->n_ctx : CTX_DEFAULT;
    else if (knows && o->n_ctx > f->n_ctx)
        log_warn("a context of %d tokens, but the model was trained for %d", o->n_ctx, f->n_ctx);
}

/* Replaces zeros by defaults and lowers limits that cannot be reached. */
static void set_defaults(struct loadplan *p)
{
    struct load_opt *o = &p->opt;

    set_context(o, &p->facts);
    if (o->kv_tokens == 0)
        o->kv_tokens = o->n_ctx < CTX_MAX / KV_CONTEXTS ? KV_CONTEXTS * o->n_ctx : o->n_ctx;
    o->kv_tokens = at_least(o->kv_tokens, o->n_ctx);
    if (o->max_batch == 0)
        o->max_batch = place_is_gpu(&o->backend) ? BATCH_DEFAULT_GPU : BATCH_DEFAULT;
    o->max_batch = at_most(o->max_batch, o->kv_tokens);
    if (o->max_seqs == 0) o->max_seqs = SEQS_DEFAULT;
    o->max_seqs = at_most(o->max_seqs, o->max_batch);
    if (o->max_out == 0) o->max_out = o->max_seqs;
    if (o->kv_type == DT_NONE) o->kv_type = o->backend.reference ? DT_F32 : DT_F16;
    /* One block more than the tokens need: the scheduler keeps one free beside the blocks of a
     * sequence that begins. */
    p->n_blocks = (o->kv_tokens + KV_BLOCK - 1) / KV_BLOCK + 1;
    p->n_saved = o->no_prefix ? 0 : o->max_seqs < 4 ? 2 : o->max_seqs > 16 ? 8 : o->max_seqs / 2;
}

/* Once per plan: devices are opened here. */
int loadplan_make(struct loadplan *p, const struct load_opt *opt, struct err *e)
{
    int rc = check_opt(opt, e);

    if (rc != OK) return rc;
    p->opt = *opt;
    set_defaults(p);
    return p->loader->place(p, e);
}

/* ---- using ---- */

/* Mapped weights count as memory: they must stay in it for speed. */
struct load_bytes loadplan_bytes(const struct loadplan *p)
{
    struct load_bytes sum = { 0 };

    for (int i = 0; i < p->place.n_shares; i++) {
        const struct load_memory *m = &p->memory[i];
        sum.weights += m->mapped + m->weights;
        sum.kv += m->kv;
        sum.scratch += m->scratch + m->backend;
    }
    return sum;
}

void loadplan_describe_devices(const struct loadplan *p, struct buf *out)
{
    for (int i = 0; i < p->place.n_shares; i++) {
        const struct backend_share *s = &p->place.shares[i];
        buf_printf(out, "%s%s (%s)", i ? ", " : "", s->be->name, s->be->detail);
        if (p->place.n_shares > 1) buf_printf(out, ": %d layers", s->n_layers);
    }
}

const char *model_task_name(enum model_task t)
{
    static const char *const names[] = { "generate", "embed", "classify" };
    return names[t];
}

/* Memory that a GPU's backend took beside what was asked of it is known only now. */
static void note_backends(struct loadplan *p)
{
    for (int i = 0; i < p->place.n_shares; i++) {
        uint64_t used = p->place.shares[i].be->used_bytes[MEM_SCRATCH];
        p->memory[i].backend = used > p->memory[i].scratch ? used - p->memory[i].scratch : 0;
    }
}

int runner_open(struct runner **out, struct loadplan *p, struct err *e)
{
    int rc = p->loader->open(out, p, e);

    if (rc != OK) return rc;
    note_backends(p);
    if (!source_is_damaged(p->source, e)) return OK;
    runner_close(*out);
    *out = NULL;
    return E_DAMAGED;
}
