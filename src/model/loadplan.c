/* loadplan.c - what all kinds of models have in common: the source, the options with their
 * defaults, and the sums. The rest is in the loaders (decoderload.c, onnxrunner.c). */
#include "model/loadplan.h"

#include "base/log.h"
#include "base/mem.h"
#include "comm/gang.h"
#include "format/source.h"
#include "model/scan.h"

enum { CTX_MAX = 1 << 24, BATCH_MAX = 1 << 16, SEQS_MAX = 4096 };

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
    if ((rc = source_open_head(&p->source, path, e)) != OK) goto out;
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
    gang_close(p->opt.gang);
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

/* Learned positions are a hard limit; the training length is only a recommendation. */
static void warn_context(const struct load_opt *o, const struct model_facts *f)
{
    if (f->max_ctx && o->n_ctx > f->max_ctx)
        log_warn("a context of %d tokens, but the model has learned %d positions: using %d",
                 o->n_ctx, f->max_ctx, f->max_ctx);
    else if (f->n_ctx > 1 && o->n_ctx > f->n_ctx)
        log_warn("a context of %d tokens, but the model was trained for %d", o->n_ctx, f->n_ctx);
}

/* Scores of a classifier are read as numbers, and one near 0 has no digits to lose: keys and values
 * in F16 change it by 1 %. They are kept for one pass only. */
static enum dtype default_kv_type(const struct loadplan *p)
{
    bool scores = p->facts.task == TASK_CLASSIFY && p->facts.bidirectional;

    return p->opt.backend.reference || scores ? DT_F32 : DT_F16;
}

/* Once per plan: devices are opened here. */
int loadplan_make(struct loadplan *p, const struct load_opt *opt, struct err *e)
{
    int rc;

    p->opt = *opt;
    if ((rc = check_opt(opt, e)) != OK) return rc;
    if (p->opt.kv_type == DT_NONE) p->opt.kv_type = default_kv_type(p);
    warn_context(opt, &p->facts);
    return p->loader->place(p, e);
}

/* ---- sizes ---- */

/* The reasons, without the sizes themselves: "context as trained; KV cache as given". */
static void describe_sizes(const struct loadplan *p, const struct sizes_in *in, struct buf *b)
{
    const struct sizes_out *z = &p->sizes;
    const struct sizes_memory *m = in->memory ? &in->memory[z->limited_by] : NULL;

    if (in->given.n_ctx) buf_puts(b, "context as given");
    else if (in->trained_ctx < 2) buf_puts(b, "context of a model that names none");
    else if (z->s.n_ctx == in->trained_ctx) buf_puts(b, "context as trained");
    else
        buf_printf(b, "context of %d tokens trained, cut to %s", in->trained_ctx,
                   in->known ? "the KV cache" : "the small default");
    buf_puts(b, "; KV cache ");
    switch (z->kv_why) {
    case SIZES_GIVEN: buf_puts(b, "as given"); break;
    case SIZES_UNKNOWN: buf_puts(b, "of four contexts"); break;
    case SIZES_OF_USE:
        if (in->at_once) buf_puts(b, "of the largest step");
        else if (z->s.kv_tokens / z->s.max_seqs >= z->s.n_ctx)
            buf_puts(b, "for a full context of every sequence");
        else buf_puts(b, "of the most tokens that a default has");
        break;
    case SIZES_LEAST: buf_puts(b, "of the least size: memory is scarce"); break;
    case SIZES_MEMORY:
        buf_printf(b, "of %.0f %% of what weights and scratch leave of %.1f MiB", m->share * 100,
                   (double)m->room / 1048576);
    }
    if (p->opt.room.share > 0 && p->opt.room.share < 1)
        buf_printf(b, " (%.0f %% of the memory for KV caches is this model's)",
                   p->opt.room.share * 100);
}

static int note_sizes(struct loadplan *p, const struct sizes_in *in, struct err *e)
{
    struct buf b = { 0 };
    int rc;

    describe_sizes(p, in, &b);
    p->sizes_text = arena_cstr(&p->arena, str_of(b.p, b.n));
    rc = buf_check(&b, e);
    if (rc == OK && !p->sizes_text) rc = err_nomem(e, "the load plan");
    buf_release(&b);
    return rc;
}

int loadplan_choose_sizes(struct loadplan *p, struct sizes_in *in, struct err *e)
{
    struct load_opt *o = &p->opt;
    const struct sizes *s = &p->sizes.s;

    in->given = (struct sizes){ o->n_ctx, o->kv_tokens, o->max_batch, o->max_seqs };
    in->trained_ctx = p->facts.n_ctx;
    in->max_ctx = p->facts.max_ctx;
    in->at_once = p->facts.bidirectional;
    in->no_prefix = o->no_prefix;
    in->few_saved = o->shard.tp * o->shard.pp > 1;
    sizes_choose(&p->sizes, in);
    o->n_ctx = s->n_ctx;
    o->kv_tokens = s->kv_tokens;
    o->max_batch = s->max_batch;
    o->max_seqs = s->max_seqs;
    if (o->max_out == 0) o->max_out = o->max_seqs;
    p->n_blocks = sizes_blocks(o->kv_tokens);
    p->n_saved = p->sizes.n_saved;
    return note_sizes(p, in, e);
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
        sum.scratch += m->scratch + m->backend + m->tables;
    }
    return sum;
}

/* Layers whose experts lie on another device than the rest. */
static int count_apart(const struct loadplan *p)
{
    int n = 0, l = 0;

    for (int i = 0; i < p->place.n_shares; i++)
        for (int end = l + p->place.shares[i].n_layers; l < end; l++)
            n += experts_lie_apart(&p->place.experts, p->place.shares[i].be, l);
    return n;
}

void loadplan_describe_devices(const struct loadplan *p, struct buf *out)
{
    for (int i = 0; i < p->place.n_shares; i++) {
        const struct backend_share *s = &p->place.shares[i];
        int n = s->be == p->place.experts.be ? count_apart(p) : 0;
        buf_printf(out, "%s%s (%s)", i ? ", " : "", s->be->name, s->be->detail);
        if (p->place.n_shares == 1) return;
        buf_puts(out, ": ");
        if (s->n_layers) buf_printf(out, "%d layers", s->n_layers);
        if (n) buf_printf(out, "%sthe experts of %d", s->n_layers ? " and " : "", n);
        if (n && !s->n_layers) buf_puts(out, " layers");
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

/* Decrypting an encrypted model is most of the work, and comes first. */
enum { DECRYPTED_PERCENT = 80 };

static void on_decrypted(void *arg, uint64_t done, uint64_t total)
{
    const struct loadprogress *to = arg;

    if (to->fn) to->fn(to->arg, (int)((double)DECRYPTED_PERCENT * (double)done / (double)total));
}

static void on_rest(void *arg, int percent)
{
    const struct loadprogress *to = arg;

    if (to->fn) to->fn(to->arg, DECRYPTED_PERCENT + (100 - DECRYPTED_PERCENT) * percent / 100);
}

/* The tensors of an encrypted model are decrypted before the loader reads them. */
static int fill_and_open(struct runner **out, struct loadplan *p, struct err *e)
{
    struct loadprogress to = p->opt.progress;
    int rc = source_fill(p->source, on_decrypted, &to, e);

    if (rc != OK) return rc;
    if (source_is_sealed(p->source)) p->opt.progress = (struct loadprogress){ on_rest, &to };
    rc = p->loader->open(out, p, e);
    p->opt.progress = to;
    return rc;
}

int runner_open(struct runner **out, struct loadplan *p, struct err *e)
{
    int rc = p->refused.code;

    if (rc != OK) {
        if (e) *e = p->refused;
        return rc;
    }
    if ((rc = fill_and_open(out, p, e)) != OK) return rc;
    note_backends(p);
    if (!source_is_damaged(p->source, e)) return OK;
    runner_close(*out);
    *out = NULL;
    return E_DAMAGED;
}
