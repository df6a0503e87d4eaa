/* decoderload.c - the load plan of a decoder: hyper-parameters, tensors, layers on devices. */
#include "model/decoder.h"

#include "base/log.h"
#include "model/loadplan.h"
#include "model/scan.h"
#include "model/scratch.h"
#include "model/weightlist.h"

/* Facts for the engine, from the hyper-parameters. */
static int read_decoder(struct loadplan *p, struct err *e)
{
    struct hparams *hp = p->hp = arena_alloc(&p->arena, sizeof *p->hp);
    int rc;

    p->weights = arena_alloc(&p->arena, sizeof *p->weights);
    if (!hp || !p->weights) return err_nomem(e, "the load plan");

    if ((rc = hparams_read(hp, &p->arena, p->source, e)) != OK) return rc;
    if ((rc = arena_check(&p->arena, e)) != OK) return rc;
    p->facts = (struct model_facts){
        .arch = hp->arch,
        .task = hp->encoder ? TASK_EMBED : TASK_GENERATE,
        .n_vocab = hp->n_vocab,
        .n_vec = hp->n_embd,
        .n_ctx = hp->n_ctx,
        .max_ctx = hparams_max_ctx(hp),
        .bidirectional = hp->encoder,
        .pooler = { .pooling = hp->pooling, .form = VEC_UNIT, .width = hp->n_embd },
    };
    return OK;
}

/* Snapshots are planned only for models with recurrent state. */
static bool has_state(const struct hparams *hp)
{
    for (int l = 0; l < hp->n_layers; l++) {
        struct stateshape s = mix_stateshape(hp, l);
        if (state_bytes(&s, 1) > 0) return true;
    }
    return false;
}

/* The decoder's limits, for planning and for opening: the same numbers. */
static struct decoder_opt decoder_opt_of(const struct loadplan *p)
{
    const struct load_opt *o = &p->opt;

    return (struct decoder_opt){ .max_tokens = o->max_batch,
                                 .max_seqs = o->max_seqs,
                                 .max_table = (o->n_ctx + KV_BLOCK - 1) / KV_BLOCK,
                                 .max_out = o->max_out,
                                 .n_blocks = p->n_blocks,
                                 .kv_type = o->kv_type,
                                 .n_slots = o->max_seqs + p->n_saved,
                                 .owns_model = true };
}

/* KV cache and recurrent state of the layers [first, first + n). */
static int measure_kv(uint64_t *out, const struct loadplan *p, const struct decoder_opt *dec,
                      int first, int n, struct err *e)
{
    struct arena a = { 0 };
    struct kvshape *kv = arena_array(&a, (size_t)n, sizeof *kv);
    uint64_t state = 0;
    int rc = kv ? OK : err_nomem(e, "the shapes of the layers");

    for (int l = 0; rc == OK && l < n; l++) {
        struct stateshape s = mix_stateshape(p->hp, first + l);
        kv[l] = mix_kvshape(p->hp, first + l);
        state += state_bytes(&s, 1);
    }
    if (rc == OK) rc = kvstore_bytes(out, kv, n, dec->kv_type, dec->n_blocks, e);
    if (rc == OK) *out += state * (uint64_t)dec->n_slots;
    arena_release(&a);
    return rc;
}

/* Bytes per device, by the functions that later allocate them. */
static int measure_memory(struct loadplan *p, const struct decoder_opt *dec, struct err *e)
{
    struct weight_memory w[PLACE_DEVICES];
    struct scratch_size z;
    int first = 0, rc;

    weights_measure(w, p->weights, p->hp, p->place.shares, p->place.n_shares);
    for (int i = 0; i < p->place.n_shares; i++) {
        const struct backend_share *s = &p->place.shares[i];
        struct load_memory *m = &p->memory[i];
        bool last = i == p->place.n_shares - 1;

        *m = (struct load_memory){ .mapped = w[i].mapped, .weights = w[i].allocated };
        if ((rc = measure_kv(&m->kv, p, dec, first, s->n_layers, e)) != OK) return rc;
        if ((rc = scratch_measure(&z, p->hp, last, s->be->sample != NULL, dec, e)) != OK) return rc;
        m->scratch = scratch_bytes(&z);
        first += s->n_layers;
    }
    return OK;
}

/* The tensor list comes before the devices: how many layers fit depends on its bytes. */
static int place_decoder(struct loadplan *p, struct err *e)
{
    struct decoder_opt dec;
    struct place_need need = {
        .path = source_path(p->source), .hp = p->hp, .weights = p->weights, .dec = &dec
    };
    int rc;

    if (!has_state(p->hp) || p->facts.bidirectional) p->n_saved = 0;
    dec = decoder_opt_of(p);
    if ((rc = weights_find(p->weights, &p->arena, p->hp, p->source, e)) != OK) return rc;
    p->facts.n_params = p->weights->n_params;
    if ((rc = place_open(&p->place, &p->opt.backend, &need, e)) != OK) return rc;
    return measure_memory(p, &dec, e);
}

/* Weights, then KV, state and scratch. The decoder owns the model. */
static int open_decoder(struct runner **out, struct loadplan *p, struct err *e)
{
    struct model_input in = { .source = p->source,
                              .hp = p->hp,
                              .weights = p->weights,
                              .shares = p->place.shares,
                              .n_shares = p->place.n_shares,
                              .allow_nan = p->opt.allow_nan };
    struct decoder_opt dec = decoder_opt_of(p);
    struct model *m = NULL;
    int rc;

    if ((rc = model_open(&m, &in, e)) != OK) return rc;
    if ((rc = decoder_open(out, m, &dec, e)) != OK) {
        model_close(m);
        return rc;
    }
    if (!p->opt.allow_nan && p->weights->file_bytes > SCAN_AT_ONCE &&
        !(p->scan = scan_start(p->source, p->weights)))
        log_warn("%s: no thread to look for NaN in the weights", source_path(p->source));
    return OK;
}

const struct loader decoder_loader = { read_decoder, place_decoder, open_decoder, NULL };
