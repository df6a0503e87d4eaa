/* place.c - how many layers go to the GPU, and the devices themselves.
 *
 * The last layers go to the GPU: the head is there too, so that logits and sampling need no
 * transfer of the hidden rows back to the host. Routed experts of these layers may lie on the CPU
 * (expertplace.h), which then is the first share even if it has no layers. */
#include "model/place.h"

#include "base/mem.h"
#include "model/scratch.h"
#include "model/weightlist.h"

#include <string.h>

bool place_is_gpu(const struct backend_opt *b)
{
    return b->device && strncmp(b->device, "cuda", 4) == 0;
}

/* ---- what fits ---- */

/* What a GPU must have room for. */
struct gpu_need {
    uint64_t *layer; /* [n_layers] weights, KV and recurrent state of each layer */
    uint64_t layers; /* sum of those */
    uint64_t first;  /* the embedding's side, only where the first layer is */
    uint64_t fixed;  /* the head's side and scratch */
};

/* Bytes of an item on a GPU, about: quantized layers of folders become F16 there. */
static uint64_t gpu_bytes(const struct weight_item *w)
{
    uint64_t n = (uint64_t)w->lay.count * (uint64_t)w->lay.rows * (uint64_t)w->lay.cols;
    return w->t->quant ? 2 * n : w->t->bytes;
}

/* layer may be NULL: then only the sums are made. */
static void measure_weights(struct gpu_need *g, const struct hparams *hp,
                            const struct weight_list *weights, const struct expert_place *x)
{
    for (int i = 0; i < weights->n; i++) {
        const struct weight_item *w = &weights->items[i];
        if (weight_expert_matrix(w) >= 0 && experts_lie_apart(x, NULL, w->layer)) continue;
        if (row_in_layer(w->r)) {
            if (g->layer) g->layer[w->layer] += gpu_bytes(w);
            g->layers += gpu_bytes(w);
        } else if (weight_is_first(w)) g->first += gpu_bytes(w);
        /* A tied embedding is needed on both sides. */
        if (!row_in_layer(w->r) && (hp->tied || !weight_is_first(w))) g->fixed += gpu_bytes(w);
        if (!row_in_layer(w->r) && hp->tied && !weight_is_first(w)) g->first += gpu_bytes(w);
    }
}

uint64_t place_gpu_weights(const struct hparams *hp, const struct weight_list *weights,
                           const struct expert_place *x)
{
    struct gpu_need g = { 0 };

    measure_weights(&g, hp, weights, x);
    return g.layers + g.first + g.fixed;
}

/* Kernels keep activations in a second type too: scratch counts twice. */
static int measure_gpu(struct gpu_need *g, const struct backend *be, const struct expert_place *x,
                       const struct place_need *need, struct err *e)
{
    const struct hparams *hp = need->hp;
    struct scratch_use use = { true, be->sample != NULL,
                               expert_place_kinds(x, hp, be, 0, hp->n_layers) };
    struct scratch_size z;
    int rc = scratch_measure(&z, hp, use, need->dec, e);

    if (rc != OK) return rc;
    measure_weights(g, hp, need->weights, x);
    g->fixed += 2 * scratch_bytes(&z);
    for (int l = 0; l < hp->n_layers; l++) {
        struct kvshape kv = mix_kvshape(hp, l);
        struct stateshape st = mix_stateshape(hp, l);
        uint64_t bytes =
            kvstore_block_bytes(&kv, 1, need->dec->kv_type) * (uint64_t)need->dec->n_blocks +
            state_bytes(&st, 1) * (uint64_t)need->dec->n_slots;
        g->layer[l] += bytes;
        g->layers += bytes;
    }
    return OK;
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

/* *n: as many of the last layers as the GPU has room for; with vram_only all of them, or
 * E_DEVICE_MEMORY. p->lack: bytes that are missing for all of them. */
static int fit_layers(int *n, struct place *p, const struct backend_opt *opt,
                      const struct place_need *need, struct err *e)
{
    int n_layers = need->hp->n_layers, rc = OK;
    struct backend *be = place_last(p);
    struct gpu_need g = { .layer = mem_array((size_t)n_layers, sizeof *g.layer) };
    uint64_t room = be->available_bytes(be);

    if (need->most && need->most < room) room = need->most;
    if (!g.layer) return err_nomem(e, "the sizes of the layers");
    if ((rc = measure_gpu(&g, be, &p->experts, need, e)) != OK) goto out;
    *n = n_layers;
    if (g.layers + g.fixed + g.first <= room) goto out;
    p->lack = g.layers + g.fixed + g.first - room;
    *n = place_fit(g.layer, n_layers, g.fixed, room);
    if (*n == n_layers) --*n; /* all layers fit, but not the embedding beside them */
    if (*n == 0 || opt->vram_only)
        rc = err_set(e, E_DEVICE_MEMORY,
                     "%s: %s has no room for %s of %d: %llu MiB are needed for layers and their "
                     "KV, %llu MiB for embedding, head and scratch; %llu MiB are free%s%s",
                     need->path, be->name, *n ? "all layers" : "a single layer", n_layers,
                     mib(g.layers), mib(g.fixed + g.first), mib(room),
                     room == need->most ? " by memory-limit" : "",
                     *n ? " (vram-only forbids layers on the CPU)" : "");
out:
    mem_free(g.layer);
    return rc;
}

/* ---- opening ---- */

int place_check_vram_only(const struct backend_opt *b, int n_layers, struct err *e)
{
    bool gpu = place_is_gpu(b);

    if (!b->vram_only || (gpu && (b->gpu_layers <= 0 || b->gpu_layers >= n_layers))) return OK;
    return err_set(e, E_INVALID, "vram-only wants all %d layers on a GPU, but %s", n_layers,
                   gpu ? "gpu-layers asks for fewer" : "the device is the CPU");
}

int place_open_one(struct place *p, const struct backend_opt *opt, int n_layers, struct err *e)
{
    int rc;

    *p = (struct place){ 0 };
    if ((rc = backend_open(&p->shares[0].be, opt, e)) != OK) return rc;
    p->shares[0].n_layers = n_layers;
    p->n_shares = 1;
    return OK;
}

/* Moves the first n_layers from the GPU to the CPU; 0: experts only. */
static int add_host(struct place *p, const struct backend_opt *opt, int n_layers, struct err *e)
{
    struct backend_opt host = *opt;
    struct backend *be = NULL;
    int rc;

    if (p->n_shares == 2) { /* it is there, for experts */
        p->shares[0].n_layers += n_layers;
        p->shares[1].n_layers -= n_layers;
        return OK;
    }
    host.device = NULL;
    if ((rc = backend_open(&be, &host, e)) != OK) return rc;
    p->shares[1] = p->shares[0];
    p->shares[1].n_layers -= n_layers;
    p->shares[0] = (struct backend_share){ be, n_layers };
    p->n_shares = 2;
    return OK;
}

int place_open(struct place *p, const struct backend_opt *opt, int n_layers, const bool *apart,
               struct err *e)
{
    int n = opt->gpu_layers, rc;

    *p = (struct place){ 0 };
    if ((rc = place_check_vram_only(opt, n_layers, e)) != OK) return rc;
    if ((rc = place_open_one(p, opt, n_layers, e)) != OK) return rc;
    if (!place_is_gpu(opt)) return OK;
    if (n <= 0 || n > n_layers) n = n_layers;
    if ((n < n_layers || apart) && (rc = add_host(p, opt, n_layers - n, e)) != OK) place_release(p);
    if (rc == OK && apart) p->experts = (struct expert_place){ p->shares[0].be, apart };
    return rc;
}

void place_set_layers(struct place *p, const struct backend_opt *opt, int n_layers)
{
    int n = opt->gpu_layers, last = p->n_shares - 1;

    if (n <= 0 || n > n_layers) n = n_layers;
    if (last > 0) p->shares[0].n_layers = n_layers - n;
    p->shares[last].n_layers = last > 0 ? n : n_layers;
    p->lack = 0;
}

/* The CPU has no available_bytes: everything stays there. */
int place_fit_gpu(struct place *p, const struct backend_opt *opt, const struct place_need *need,
                  struct err *e)
{
    int n_layers = need->hp->n_layers, n = n_layers, rc;

    if (opt->gpu_layers > 0 || !place_last(p)->available_bytes) return OK;
    if (p->shares[p->n_shares - 1].n_layers < n_layers) return OK;
    if ((rc = fit_layers(&n, p, opt, need, e)) != OK || n == n_layers) return rc;
    return add_host(p, opt, n_layers - n, e);
}

void place_release(struct place *p)
{
    for (int i = 0; i < p->n_shares; i++) backend_close(p->shares[i].be);
    *p = (struct place){ 0 };
}
