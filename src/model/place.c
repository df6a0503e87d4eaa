#include "model/place.h"

#include "base/log.h"
#include "model/layout.h"

static bool is_gpu(const struct backend_opt *b)
{
    return b->device && strncmp(b->device, "cuda", 4) == 0;
}

/* ---- what fits ---- */

static uint64_t tensor_bytes(const struct hparams *hp, const struct source *src,
                             const struct tensor_row *r, int l)
{
    const struct source_tensor *t;
    struct layout y;
    char name[256];
    uint64_t sum = 0;

    if (!hparams_has(hp, r, l) || !hparams_name(hp, r, l, 0, hp->from, name, sizeof name)) return 0;
    layout_of(&y, hp, r, l, hp->from);
    for (int i = 0; i < y.tensors; i++) {
        hparams_name(hp, r, l, i, hp->from, name, sizeof name);
        if ((t = source_find(src, name))) sum += t->bytes;
    }
    return sum;
}

/* first: what is read before the first layer, else what is read behind the last. */
static uint64_t end_bytes(const struct hparams *hp, const struct source *src, bool first)
{
    uint64_t sum = 0;
    int it = 0;

    for (const struct tensor_row *r = arch_row(hp->info, &it); r; r = arch_row(hp->info, &it))
        if (!row_in_layer(r) && (((r->flags & ROW_FIRST) != 0) == first || hp->tied))
            sum += tensor_bytes(hp, src, r, 0);
    return sum;
}

static uint64_t layer_bytes(const struct place_opt *o, const struct hparams *hp,
                            const struct source *src, int l)
{
    struct kvshape kv = mix_kvshape(hp, l);
    struct stateshape st = mix_stateshape(hp, l);
    uint64_t sum = block_bytes(&kv, 1, o->kv_type) * ((o->kv_tokens + KV_BLOCK - 1) / KV_BLOCK + 1);
    int it = 0;

    sum += state_bytes(&st, 1) * (uint64_t)o->n_states;
    for (const struct tensor_row *r = arch_row(hp->info, &it); r; r = arch_row(hp->info, &it))
        if (row_in_layer(r)) sum += tensor_bytes(hp, src, r, l);
    return sum;
}

/* Activations of the largest step, twice: what products keep of them in another type. */
static uint64_t scratch_bytes(const struct place_opt *o, const struct hparams *hp)
{
    uint64_t row = hparams_step_row(hp);

    return 2 * sizeof(float) *
           ((uint64_t)o->max_tokens * row + (uint64_t)o->max_out * (uint64_t)hp->n_vocab);
}

int place_fit(const uint64_t *bytes, int n_layers, uint64_t fixed, uint64_t room)
{
    int n = 0;

    if (fixed > room) return 0;
    for (room -= fixed; n < n_layers && bytes[n_layers - 1 - n] <= room; n++)
        room -= bytes[n_layers - 1 - n];
    return n;
}

static unsigned long long mib(uint64_t n) { return (unsigned long long)((n + 0xfffff) >> 20); }

/* As many layers as there is room for; all of them with vram_only. */
static int fit_layers(int *n, const struct backend *be, const struct place_opt *o,
                      const struct source *src, const struct hparams *hp, struct err *e)
{
    struct arena a = { 0 };
    uint64_t *bytes = arena_array(&a, (size_t)hp->n_layers, sizeof *bytes), all = 0;
    uint64_t fixed = end_bytes(hp, src, false) + scratch_bytes(o, hp),
             first = end_bytes(hp, src, true);
    uint64_t room = be->available_bytes((struct backend *)be);
    int rc = OK;

    for (int l = 0; l < hp->n_layers; l++) all += bytes[l] = layer_bytes(o, hp, src, l);
    *n = hp->n_layers;
    if (all + fixed + first > room) {
        *n = place_fit(bytes, hp->n_layers, fixed, room);
        if (*n == hp->n_layers) --*n; /* only the embedding is too much */
        if (*n == 0 || o->backend.vram_only)
            rc = err_set(e, E_NOMEM,
                         "%s: %s has no room for %s of %d: needed are %llu MiB for layers and "
                         "their KV, %llu for the "
                         "ends and scratch, free are %llu%s",
                         source_path(src), be->name, *n ? "all layers" : "a single layer",
                         hp->n_layers, mib(all), mib(fixed + first), mib(room),
                         *n ? " (and vram-only forbids the CPU)" : "");
        else
            log_warn("%s: %d of %d layers fit on %s (%llu MiB free), the others and the embedding "
                     "run on the CPU",
                     source_path(src), *n, hp->n_layers, be->name, mib(room));
    }
    arena_release(&a);
    return rc;
}

/* ---- opening ---- */

static int open_host(struct place *p, const struct place_opt *o, int n_layers, struct err *e)
{
    struct backend_opt host = o->backend;
    int rc;

    host.device = NULL;
    p->shares[1] = p->shares[0];
    p->shares[0] = (struct backend_share){ .n_layers = n_layers };
    p->shares[1].n_layers -= n_layers;
    p->n_shares = 2;
    if ((rc = backend_open(&p->shares[0].be, &host, e)) == OK) return OK;
    p->shares[0] = p->shares[1];
    p->n_shares = 1;
    return rc;
}

static int open_devices(struct place *p, const struct place_opt *o, const struct source *src,
                        const struct hparams *hp, struct err *e)
{
    const struct backend_opt *b = &o->backend;
    struct backend_opt host = o->backend;
    struct backend *be;
    int n = hp->n_layers, rc;

    if (hp->card && is_gpu(b)) {
        log_warn("%s: ONNX graphs run on the CPU", source_path(src));
        host.device = NULL;
        b = &host;
    }
    if (b->vram_only && (!is_gpu(b) || (b->gpu_layers > 0 && b->gpu_layers < n)))
        return err_set(e, E_INVALID, "vram-only wants all %d layers on a GPU, but %s", n,
                       is_gpu(b) ? "gpu-layers asks for fewer" : "the device is the CPU");
    if ((rc = backend_open(&p->shares[0].be, b, e)) != OK) return rc;
    p->shares[0].n_layers = n;
    p->n_shares = 1;
    be = p->shares[0].be;
    if (b->gpu_layers > 0) n = b->gpu_layers < n ? b->gpu_layers : n;
    else if (be->available_bytes) rc = fit_layers(&n, be, o, src, hp, e);
    if (rc == OK && is_gpu(b) && n < hp->n_layers) rc = open_host(p, o, hp->n_layers - n, e);
    return rc;
}

int place_model(struct place *p, struct model **out, const struct place_opt *o,
                const struct source *src, struct err *e)
{
    struct arena arena = { 0 };
    struct hparams hp;
    int rc;

    if ((rc = hparams_read(&hp, &arena, src, e)) != OK) goto out;
    if ((rc = open_devices(p, o, src, &hp, e)) != OK) goto out;
    rc = model_open_over(out, src, p->shares, p->n_shares, e);
out:
    arena_release(&arena);
    if (rc != OK) place_release(p);
    return rc;
}

void place_release(struct place *p)
{
    for (int i = 0; i < p->n_shares; i++) backend_close(p->shares[i].be);
    *p = (struct place){ 0 };
}

uint64_t place_used(const struct place *p, enum mem_kind kind)
{
    uint64_t sum = 0;
    for (int i = 0; i < p->n_shares; i++) sum += p->shares[i].be->used_bytes[kind];
    return sum;
}

void place_describe(const struct place *p, struct buf *out)
{
    for (int i = 0; i < p->n_shares; i++) {
        const struct backend_share *s = &p->shares[i];
        buf_printf(out, "%s%s (%s)", i ? ", " : "", s->be->name, s->be->detail);
        if (p->n_shares > 1) buf_printf(out, ": %d layers", s->n_layers);
    }
}
