/* decoderload.c - the load plan of a decoder: hyper-parameters, tensors, layers on devices. */
#include "model/decoder.h"

#include "base/log.h"
#include "model/apart.h"
#include "model/loadplan.h"
#include "model/parallel.h"
#include "model/scan.h"
#include "model/scratch.h"
#include "model/vechead.h"
#include "model/weightlist.h"

#include <string.h>

/* Dense layers or a classifier behind the encoder. */
static int read_head(struct loadplan *p, struct err *e)
{
    struct model_facts *f = &p->facts;
    const struct vec_head *h;
    int rc = vechead_read(&h, &p->arena, p->source, p->hp->n_embd, e);

    if (rc != OK || !h) return rc;
    f->pooler.head = h;
    f->n_vec = vechead_out(h);
    if (h->mean) f->pooler.pooling = POOL_MEAN;
    if (h->cls) f->pooler.pooling = POOL_CLS;
    if (!h->classifies) return OK;
    f->task = TASK_CLASSIFY;
    f->labels = h->labels;
    f->n_labels = h->n_labels;
    f->pooler.form = h->n_labels > 1 ? VEC_SOFTMAX : VEC_SIGMOID;
    return OK;
}

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
    return read_head(p, e);
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

/* The decoder's limits for steps of that size. */
static struct decoder_opt decoder_opt_for(const struct loadplan *p, const struct sizes *s)
{
    return (struct decoder_opt){ .max_tokens = s->max_batch,
                                 .max_seqs = s->max_seqs,
                                 .max_table = (s->n_ctx + KV_BLOCK - 1) / KV_BLOCK,
                                 .max_out = p->opt.max_out ? p->opt.max_out : s->max_seqs,
                                 .n_blocks = p->n_blocks,
                                 .kv_type = p->opt.kv_type,
                                 .n_slots = s->max_seqs + p->n_saved,
                                 .owns_model = true };
}

/* For planning and for opening: the same numbers. */
static struct decoder_opt decoder_opt_of(const struct loadplan *p)
{
    return decoder_opt_for(p, &p->sizes.s);
}

/* ---- sizes ---- */

#define HOST_KV 0.5     /* part of the host's rest for KV caches: see sizes.h */
#define LAYER_ALIGN 128 /* bytes by which a layer's KV may be aligned */

enum { VOCAB_BYTES = 120, FORM_BYTES = 2 }; /* of a token of the vocabulary; of an activation */

static uint64_t less(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

/* Host memory that is not allocated through the backend, about: text, ranks and hash tables of the
 * vocabulary, and the widest activations of a step once more, in the form of the kernels. */
static uint64_t share_tables(const struct loadplan *p, int i, const struct decoder_opt *dec)
{
    uint64_t cols = (uint64_t)p->hp->n_embd;

    if (i > 0 || p->place.shares[i].be->available_bytes) return 0;
    for (int l = 0; l < p->hp->n_layers; l++)
        if ((uint64_t)p->hp->layers[l].n_ff > cols) cols = (uint64_t)p->hp->layers[l].n_ff;
    return (uint64_t)p->hp->n_vocab * VOCAB_BYTES + (uint64_t)dec->max_tokens * cols * FORM_BYTES +
           (p->place.experts.be ? apart_host_bytes(p->hp, dec->max_tokens) : 0);
}

/* The first layer of share i. */
static int first_layer(const struct place *p, int i)
{
    int first = 0;

    while (i > 0) first += p->shares[--i].n_layers;
    return first;
}

/* Scratch of the step on share i: of its layers, and of the experts of others' layers. */
static int measure_scratch(uint64_t *out, const struct loadplan *p, int i,
                           const struct decoder_opt *dec, struct err *e)
{
    const struct place *place = &p->place;
    const struct backend_share *s = &place->shares[i];
    const struct expert_place *x = &place->experts;
    int first = first_layer(place, i), rc = OK;
    struct scratch_use use = { i == place->n_shares - 1, s->be->sample != NULL,
                               expert_place_kinds(x, p->hp, s->be, first, first + s->n_layers) };
    struct scratch_size z = { 0 };

    if (s->n_layers) rc = scratch_measure(&z, p->hp, use, dec, e);
    *out = scratch_bytes(&z);
    for (int k = 0; s->be == x->be && k < place->n_shares; k++) {
        int at = first_layer(place, k), end = at + place->shares[k].n_layers;
        if (expert_place_kinds(x, p->hp, place->shares[k].be, at, end) & EXPERTS_APART)
            *out += apart_scratch_bytes(p->hp, dec->max_tokens);
    }
    return rc;
}

/* Scratch on share i; the backend of a GPU takes about as much again. */
static uint64_t share_scratch(const struct loadplan *p, int i, const struct sizes *s)
{
    const struct backend *be = p->place.shares[i].be;
    struct decoder_opt dec = decoder_opt_for(p, s);
    uint64_t bytes;

    if (measure_scratch(&bytes, p, i, &dec, NULL) != OK) return UINT64_MAX;
    return bytes * (be->available_bytes ? 2 : 1) + share_tables(p, i, &dec);
}

/* Memory i is that of share i; the one behind them is the limit of all. */
static uint64_t plan_scratch(const void *arg, int i, const struct sizes *s)
{
    const struct loadplan *p = arg;
    uint64_t sum = 0, one;

    if (i < p->place.n_shares) return share_scratch(p, i, s);
    for (i = 0; i < p->place.n_shares; i++) {
        if ((one = share_scratch(p, i, s)) == UINT64_MAX) return one;
        sum += one;
    }
    return sum;
}

/* Members of the gang on the leader's own GPU: each needs its part of what is free there. Other members
 * are told their sizes. */
static uint64_t count_sharers(const struct load_opt *o)
{
    const struct gang_shape *g = o->gang ? &o->gang->shape : &o->gang_source.shape;
    const char *mine = o->backend.device ? o->backend.device : "cpu";
    uint64_t n = 1;

    for (int r = 1; r < g->tp * g->pp; r++)
        n += strcmp(g->devices[r], mine) == 0 ||
             (strcmp(mine, "cuda") == 0 && strcmp(g->devices[r], "cuda:0") == 0) ||
             (strcmp(mine, "cuda:0") == 0 && strcmp(g->devices[r], "cuda") == 0);
    return n;
}

static uint64_t gpu_room(struct backend *be, const struct load_opt *o)
{
    uint64_t has = be->available_bytes(be) / count_sharers(o), most = o->room.device_bytes;

    return most && most < has ? most : has;
}

/* The memory of a share of the layers: what it has room for, and what lies in it whatever the
 * sizes. */
static void fill_memory(struct sizes_memory *m, const struct loadplan *p, int i, int first)
{
    const struct sizes_room *r = &p->opt.room;
    struct backend *be = p->place.shares[i].be;
    int end = first + p->place.shares[i].n_layers;
    bool gpu = be->available_bytes != NULL;

    m->room = less(gpu ? gpu_room(be, &p->opt) : r->host_bytes, r->later_bytes);
    if (!gpu && r->host_bytes == 0) m->room = UINT64_MAX; /* not known */
    m->share = sizes_share(r, gpu ? 1 : HOST_KV);
    for (int l = first; l < end; l++) {
        struct kvshape kv = mix_kvshape(p->hp, l);
        struct stateshape st = mix_stateshape(p->hp, l);
        m->block_bytes += kvstore_block_bytes(&kv, 1, p->opt.kv_type);
        m->slot_bytes += state_bytes(&st, 1);
        m->weights += LAYER_ALIGN;
    }
}

/* The limit on the memory of the host. */
static void add_limit(struct sizes_memory *limit, const struct sizes_memory *m,
                      const struct place *place, const struct sizes_room *r)
{
    *limit = (struct sizes_memory){ .room = less(r->limit_bytes, r->later_bytes),
                                    .share = sizes_share(r, 1) };
    for (int i = 0; i < place->n_shares; i++) {
        if (place->shares[i].be->available_bytes) continue;
        limit->weights += m[i].weights;
        limit->block_bytes += m[i].block_bytes;
        limit->slot_bytes += m[i].slot_bytes;
    }
}

/* Every memory with a part of the model limits the sizes, and the limit of all models. */
static int choose_sizes(struct loadplan *p, struct err *e)
{
    const struct place *place = &p->place;
    struct sizes_memory m[SIZES_MEMORIES] = { 0 };
    struct weight_memory w[PLACE_DEVICES];
    struct sizes_in in = { .gpu = place_is_gpu(&p->opt.backend),
                           .memory = m,
                           .n_memories = place->n_shares,
                           .scratch = plan_scratch,
                           .arg = p };
    int first = 0, last;

    in.known = in.gpu || p->opt.room.host_bytes > 0;
    weights_measure(w, p->weights, p->hp, place->shares, place->n_shares, &place->experts);
    for (int i = 0; i < place->n_shares; i++) {
        fill_memory(&m[i], p, i, first);
        m[i].weights += w[i].mapped + w[i].allocated;
        first += place->shares[i].n_layers;
    }
    last = place->n_shares - 1;
    if (in.gpu && place->shares[last].n_layers == p->hp->n_layers) {
        /* place_fit_gpu must find the same room */
        uint64_t bytes = place_gpu_weights(p->hp, p->weights, &place->experts);
        if (bytes > m[last].weights) m[last].weights = bytes;
    }
    if (p->opt.room.limit_bytes) add_limit(&m[in.n_memories++], m, place, &p->opt.room);
    return loadplan_choose_sizes(p, &in, e);
}

/* ---- memory ---- */

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
    int rc;

    weights_measure(w, p->weights, p->hp, p->place.shares, p->place.n_shares, &p->place.experts);
    for (int i = 0; i < p->place.n_shares; i++) {
        struct load_memory *m = &p->memory[i];
        int first = first_layer(&p->place, i), n = p->place.shares[i].n_layers;

        *m = (struct load_memory){ .mapped = w[i].mapped, .weights = w[i].allocated };
        if (n && (rc = measure_kv(&m->kv, p, dec, first, n, e)) != OK) return rc;
        if ((rc = measure_scratch(&m->scratch, p, i, dec, e)) != OK) return rc;
        m->tables = share_tables(p, i, dec);
    }
    return OK;
}

/* Too little memory on the device is no error of the plan yet. */
static int fit_gpu(struct loadplan *p, const struct place_need *need, struct err *e)
{
    struct err why = { 0 };
    int rc = place_fit_gpu(&p->place, &p->opt.backend, need, &why);

    if (rc == E_DEVICE_MEMORY && p->place.lack > 0) {
        p->refused = why;
        rc = OK;
    } else if (rc != OK && e) {
        *e = why;
    }
    return rc;
}

/* From here on the plan is that of this member's part. */
static int take_shard(struct loadplan *p, struct err *e)
{
    const struct shard_opt *o = &p->opt.shard;
    int rc;

    if (o->tp * o->pp < 2) return OK;
    if (expert_place_is_given(&p->opt.backend))
        return err_set(
            e, E_UNSUPPORTED,
            "cpu-moe, n-cpu-moe and place are for a model of one process: not with tp or "
            "pp");
    if ((rc = shard_make(&p->shard, &p->arena, p->hp, p->weights, o, e)) != OK) return rc;
    p->hp = &p->shard->hp;
    p->weights = &p->shard->weights;
    return OK;
}

/* The tensor list comes before the sizes, and these before the layers on devices: what fits depends
 * on the bytes of both. */
static int place_decoder(struct loadplan *p, struct err *e)
{
    struct decoder_opt dec;
    struct place_need need = { .path = source_path(p->source),
                               .hp = p->hp,
                               .weights = p->weights,
                               .dec = &dec,
                               .most = p->opt.room.device_bytes };
    const bool *apart = NULL;
    bool state;
    int rc;

    if ((rc = weights_find(p->weights, &p->arena, p->hp, p->source, e)) != OK) return rc;
    p->facts.n_params = p->weights->n_params;
    state = has_state(p->hp);
    if ((rc = take_shard(p, e)) != OK) return rc;
    need.hp = p->hp;
    need.weights = p->weights;
    if ((rc = expert_place_find(&apart, &p->arena, p->hp, p->weights, &p->opt.backend, e)) != OK)
        return rc;
    if (p->opt.place) p->place = *p->opt.place;
    else if ((rc = place_open(&p->place, &p->opt.backend, p->hp->n_layers, apart, e)) != OK)
        return rc;
    if ((rc = choose_sizes(p, e)) != OK) return rc;
    if (!state || p->facts.bidirectional) p->n_saved = 0;
    dec = decoder_opt_of(p);
    if ((rc = fit_gpu(p, &need, e)) != OK) return rc;
    return measure_memory(p, &dec, e);
}

/* The members' parts are known by now: the leader's own may be another than the one that was planned.
 * Sizes of context, KV cache and batch stay. */
static int plan_again(struct loadplan *p, struct err *e)
{
    struct decoder_opt dec = decoder_opt_of(p);
    struct place_need need = { .path = source_path(p->source),
                               .dec = &dec,
                               .most = p->opt.room.device_bytes };
    const struct shard *s = p->shard;
    int rc = shard_make(&p->shard, &p->arena, s->whole, s->list, &p->opt.shard, e);

    if (rc != OK) return rc;
    need.hp = p->hp = &p->shard->hp;
    need.weights = p->weights = &p->shard->weights;
    place_set_layers(&p->place, &p->opt.backend, p->hp->n_layers);
    if ((rc = fit_gpu(p, &need, e)) != OK) return rc;
    if (p->refused.code != OK) {
        if (e) *e = p->refused;
        return p->refused.code;
    }
    return measure_memory(p, &dec, e);
}

/* The leader: the members are there, compared, and told to load. */
static int start_members(struct loadplan *p, uint64_t *number, struct err *e)
{
    bool uneven = false;
    int rc = parallel_meet(p, number, &uneven, e);

    if (rc == OK && uneven) rc = plan_again(p, e);
    return rc == OK ? parallel_announce(p, number, e) : rc;
}

/* Said when the model is opened: after the plan, others may still be unloaded to make room. */
static void warn_of_cpu_layers(const struct loadplan *p)
{
    const struct backend_share *gpu = &p->place.shares[p->place.n_shares - 1];

    if (p->place.lack == 0) return;
    log_warn("%s: %d of %d layers fit on %s, the others and the embedding run on the CPU; all of "
             "them need %llu MiB more",
             source_path(p->source), gpu->n_layers, p->hp->n_layers, gpu->be->name,
             (unsigned long long)((p->place.lack + 0xfffff) >> 20));
}

/* Weights, then KV, state and scratch. The decoder owns the model. */
static int start_gang(struct loadplan *p, struct err *e)
{
    const struct gang_source *s = &p->opt.gang_source;
    int rc = s->open ? s->open(s->arg, &p->opt.gang, e) : OK;

    if (rc != OK || !p->opt.gang) return rc;
    p->opt.gang->over = s->over;
    p->opt.gang->over_arg = s->over_arg;
    return OK;
}

static int open_decoder(struct runner **out, struct loadplan *p, struct err *e)
{
    struct model_input in = { .source = p->source,
                              .allow_nan = p->opt.allow_nan,
                              .progress = p->opt.progress };
    struct decoder_opt dec = decoder_opt_of(p);
    struct model *m = NULL;
    uint64_t number = 0;
    int rc;

    if (!p->opt.gang && (rc = start_gang(p, e)) != OK) return rc;
    if (p->opt.gang && (rc = start_members(p, &number, e)) != OK) return rc;
    in.hp = p->hp;
    in.weights = p->weights;
    in.experts = p->place.experts;
    in.shares = place_layers(&p->place, &in.n_shares);
    warn_of_cpu_layers(p);
    if ((rc = model_open(&m, &in, e)) != OK) return rc;
    if ((rc = decoder_open(out, m, &dec, e)) != OK) {
        model_close(m);
        return rc;
    }
    if (p->opt.gang && (rc = parallel_open(out, p, number, e)) != OK) {
        runner_close(*out);
        *out = NULL;
        return rc;
    }
    if (!p->opt.allow_nan && p->weights->file_bytes > SCAN_AT_ONCE && p->opt.shard.tp_rank == 0 &&
        !(p->scan = scan_start(p->source, p->weights)))
        log_warn("%s: no thread to look for NaN in the weights", source_path(p->source));
    return OK;
}

const struct loader decoder_loader = { read_decoder, place_decoder, open_decoder, NULL };
