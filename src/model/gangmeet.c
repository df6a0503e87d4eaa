/* gangmeet.c - cards of all members, and the division that follows from them. */
#include "model/gangmeet.h"

#include "base/log.h"
#include "base/mem.h"
#include "model/gangcard.h"
#include "model/gangsplit.h"
#include "model/mix.h"
#include "model/stepplan.h"

#include <string.h>

int gangmeet_send(struct comm *all, uint32_t kind, uint64_t number, const void *body, size_t n,
                  struct err *e)
{
    struct order o = { ORDER_MAGIC, kind, number, n, 0 };
    int rc;

    o.hash = order_hash(&o, body);
    if ((rc = comm_broadcast(all, 0, &o, sizeof o, e)) != OK) return rc;
    return comm_broadcast(all, 0, (void *)body, n, e);
}

/* ---- cards ---- */

/* What the members have to be, by the whole model. */
static struct gangneeds needs_of(const struct loadplan *p)
{
    struct gangneeds n = { .experts = p->shard->whole->moe.n > 0,
                           .reference = p->opt.backend.reference };

    for (int i = 0; i < p->weights->n; i++) {
        const struct weight_item *w = &p->weights->items[i];
        if (!row_is_vector(w->r)) n.types |= (uint64_t)1 << layout_type(&w->lay, w->t);
    }
    return n;
}

static int ask_members(struct gangcard *cards, struct comm *all, const struct gangask *ask,
                       uint64_t number, struct err *e)
{
    int rc = gangmeet_send(all, ORDER_CARD, number, ask, sizeof *ask, e);

    if (rc == OK) gangcard_fill(&cards[0], ask, 0); /* all measure at the same time */
    /* a driver that starts takes seconds */
    for (int r = 1; r < all->size && rc == OK; r++)
        rc = comm_recv_within(all, r, &cards[r], sizeof *cards, 0, e);
    for (int r = 0; r < all->size && rc == OK; r++) rc = gangcard_check(&cards[r], r, e);
    return rc;
}

/* ---- sizes ---- */

/* Bytes of an item's weights that a token reads. */
static double item_cost(const struct hparams *hp, const struct weight_item *w)
{
    double bytes = (double)w->t->bytes;

    if (weight_expert_matrix(w) < 0 || hp->moe.n < 1) return bytes;
    return bytes * hp->moe.n_used / hp->moe.n;
}

static uint64_t layer_cache(const struct loadplan *p, const struct hparams *hp, int l)
{
    struct kvshape kv = mix_kvshape(hp, l);
    struct stateshape st = mix_stateshape(hp, l);

    return kvstore_block_bytes(&kv, 1, p->opt.kv_type) * (uint64_t)p->n_blocks +
           state_bytes(&st, 1) * (uint64_t)(p->opt.max_seqs + p->n_saved);
}

/* The whole model, as the plan divides it. layers: [n_layers] zeroed. */
static void fill_model(struct gangsplit_in *in, struct gangsplit_layer *layers,
                       const struct loadplan *p)
{
    const struct hparams *hp = p->shard->whole;
    uint64_t first = 0, last = 0;

    for (int l = 0; l < hp->n_layers; l++) layers[l].bytes = layer_cache(p, hp, l);
    for (int i = 0; i < p->shard->list->n; i++) {
        const struct weight_item *w = &p->shard->list->items[i];
        if (row_in_layer(w->r)) {
            layers[w->layer].cost += item_cost(hp, w);
            layers[w->layer].bytes += w->t->bytes;
        } else {
            *(weight_is_first(w) ? &first : &last) += w->t->bytes;
        }
    }
    if (hp->tied && !hp->encoder) last += first;
    in->layers = layers;
    in->n_layers = hp->n_layers;
    in->embd_bytes = first;
    in->head_bytes = last;
    in->head_cost = (double)last;
    in->each_bytes = loadplan_bytes(p).scratch;
}

enum { KEPT_BACK = 20 }; /* a twentieth of what is free: parts are rounded to heads and blocks */

static void fill_members(struct gangsplit_in *in, const struct loadplan *p,
                         const struct gangcard *cards, int n)
{
    uint64_t limit = p->opt.room.limit_bytes;

    gangcards_memories(cards, n, in->memories);
    for (int r = n - 1; r >= 0; r--) {
        uint64_t free = cards[r].memory_bytes;
        if (r == 0 && limit && limit < free) free = limit;
        in->rooms[in->memories[r]] = free == UINT64_MAX ? free : free - free / KEPT_BACK;
        in->speeds[r] = 1;
    }
}

static void fill_speeds(struct gangsplit_in *in, const struct gangcard *cards, int n)
{
    struct gangspeed of[COMM_MAX];

    for (int r = 0; r < n; r++) of[r] = cards[r].speed;
    gangspeed_compare(in->speeds, of, n);
}

/* ---- parts ---- */

struct meeting {
    struct gangask ask;
    struct gangcard cards[COMM_MAX];
    struct gangsplit_in in;
    struct gangsplit parts;
};

static void use_parts(struct loadplan *p, const struct meeting *m, int n)
{
    struct gang_shape *g = &p->opt.gang->shape;

    memcpy(g->shares, m->parts.shares, sizeof g->shares);
    memcpy(g->layers, m->parts.layers, sizeof g->layers);
    for (int r = 0; r < n; r++)
        log_info("member %d: %d layers, %.1f %% of each; speed %.2f, %.1f GB/s, %.0f GFLOP/s", r,
                 g->layers[r / g->tp], 100.0 * g->shares[r] / GANGSPLIT_WHOLE, m->in.speeds[r],
                 m->cards[r].speed.read_gb_s, m->cards[r].speed.product_gflops);
}

static int choose_parts(struct loadplan *p, struct comm *all, uint64_t *number, struct meeting *m,
                        struct gangsplit_layer *layers, bool *uneven, struct err *e)
{
    struct gang_shape *g = &p->opt.gang->shape;
    bool alike = gangcards_alike(m->cards, all->size);
    int rc = OK;

    if (g->split == SPLIT_EVEN || g->split == SPLIT_GIVEN) return OK;
    m->in = (struct gangsplit_in){ .tp = g->tp, .pp = g->pp };
    fill_model(&m->in, layers, p);
    fill_members(&m->in, p, m->cards, all->size);
    if (g->split == SPLIT_DEFAULT && alike && m->in.memories[all->size - 1] == 0) return OK;
    if (g->split == SPLIT_DEFAULT && alike && gangsplit_even_fits(&m->in)) return OK;
    if (g->split == SPLIT_AUTO || !alike) {
        m->ask.measure = 1;
        rc = ask_members(m->cards, all, &m->ask, (*number)++, e);
        if (rc != OK) return rc;
        fill_members(&m->in, p, m->cards, all->size);
        fill_speeds(&m->in, m->cards, all->size);
    }
    if ((rc = gangsplit_choose(&m->parts, &m->in, e)) != OK) return rc;
    use_parts(p, m, all->size);
    *uneven = true;
    return OK;
}

int gangmeet(struct loadplan *p, struct comm *all, uint64_t *number, bool *uneven, struct err *e)
{
    const struct gang_shape *shape = &p->opt.gang->shape;
    struct gangneeds needs = needs_of(p);
    struct meeting *m = mem_new(struct meeting);
    struct gangsplit_layer *layers = mem_array((size_t)p->shard->whole->n_layers, sizeof *layers);
    int rc = m && layers ? OK : err_nomem(e, "the cards of a gang's members");

    *uneven = false;
    if (rc == OK) {
        memset(layers, 0, (size_t)p->shard->whole->n_layers * sizeof *layers);
        gangask_fill(&m->ask, shape, &p->opt.backend);
        rc = ask_members(m->cards, all, &m->ask, (*number)++, e);
    }
    if (rc == OK) rc = gangcards_match(m->cards, shape, &needs, e);
    if (rc == OK) rc = choose_parts(p, all, number, m, layers, uneven, e);
    mem_free(layers);
    mem_free(m);
    return rc;
}
