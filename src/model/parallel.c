/* parallel.c - the leader's runner: orders out, its own part of each step, results in. */
#include "model/parallel.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "model/decoder.h"
#include "model/gangmeet.h"
#include "model/loadorder.h"
#include "model/pieces.h"
#include "model/stagerun.h"

#include <stdio.h>
#include <string.h>

enum {
    PIECE_LEAST = 32, /* tokens: fewer read the weights once more for little work */
    PIECES = 4        /* per stage: the stages are idle for about 1 / PIECES of a long step */
};

struct parallel {
    struct runner r; /* first */
    struct loadplan *plan;
    struct gang *gang;
    struct runner *local; /* the leader's decoder */
    struct stagerun s;
    uint64_t number;         /* of the next order */
    char *body;              /* of an order of a step, with room for the order before it */
    float *logits;           /* [max_out][n_vocab] of all members */
    float *piece;            /* [max_out][widest part of the vocabulary] of one member */
    int32_t *seq_end, *n_of; /* [max_seqs] */
    struct stepplan step;    /* that was started */
    uint64_t step_ns, n_steps;
    struct pieces pieces; /* of decode steps */
    int forced_pieces;    /* of all steps, in tests; 0: as is fastest */
    uint64_t start_ns;    /* of the step */
    struct gang_seat seats[COMM_MAX];
};

static struct parallel *parallel_of(const struct runner *r) { return (struct parallel *)r; }

struct shard_opt parallel_shard(const struct gang_shape *g, int rank)
{
    struct shard_opt o = {
        .tp = g->tp, .pp = g->pp, .tp_rank = rank % g->tp, .stage = rank / g->tp, .ep = g->ep
    };

    memcpy(o.layers, g->layers, sizeof o.layers);
    if (g->tp == 1) memcpy(o.shares, g->shares, sizeof o.shares);
    else memcpy(o.shares, g->shares + o.stage * g->tp, (size_t)g->tp * sizeof *o.shares);
    return o;
}

/* ---- a step ---- */

/* The process of this leader may end here. */
static void tell_lost(struct parallel *p, const struct err *why)
{
    struct gang *g = p->gang;

    if (!g->over) return;
    if (g->kill) g->kill(g);
    g->over(g->over_arg, why);
}

/* A member that is gone, or out of step, is as bad as a device that is: nothing runs any more. */
static int lose(struct parallel *p, int rc, struct err *e)
{
    struct err why = { 0 };

    for (int i = 0; i < p->plan->place.n_shares; i++) p->plan->place.shares[i].be->lost = true;
    if (!gang_is_lost(p->gang, &why)) why = e ? *e : (struct err){ .code = rc };
    if (e) *e = why;
    comm_abort(&p->s.all, why.msg);
    tell_lost(p, &why);
    return rc;
}

/* One token of each sequence. */
static bool is_decode(const struct batch *b) { return b->n_tokens == b->n_seqs; }

/* Tokens of a piece: all at once where there is one stage. */
static int piece_tokens(const struct parallel *p, const struct batch *b)
{
    int pp = p->s.shard->opt.pp, n = b->n_tokens / (pp * PIECES);

    if (pp == 1 || p->r.lim.bidirectional) return b->n_tokens;
    if (p->forced_pieces) return (b->n_tokens + p->forced_pieces - 1) / p->forced_pieces;
    if (is_decode(b)) return pieces_tokens(&p->pieces, b->n_tokens);
    return n < PIECE_LEAST ? PIECE_LEAST : n;
}

static int start_step(struct runner *r, const struct batch *b, struct err *e)
{
    struct parallel *p = parallel_of(r);
    uint64_t start = clock_ns();
    size_t n;
    int rc;

    if ((rc = batch_check(b, &r->lim, p->seq_end, p->n_of, e)) != OK) return rc;
    if ((rc = decoder_check(p->s.local, b, e)) != OK) return rc;
    p->step = (struct stepplan){ .b = *b, .micro = piece_tokens(p, b) };
    p->step.b.seq_len = p->seq_end; /* pieces of a sequence use the rotary scaling of all of it */
    n = stepplan_write(p->body, &p->step.b, p->step.micro);
    rc = gangmeet_send(&p->s.all, ORDER_STEP, p->number++, p->body, n, e);
    p->step_ns += clock_ns() - start;
    p->start_ns = start;
    return rc == OK ? OK : lose(p, rc, e);
}

/* A member's columns of the logits to their place in all of them. */
static void place_columns(struct parallel *p, const float *from, int n_out, int first, int n)
{
    size_t all = (size_t)p->r.lim.n_vocab;

    for (int i = 0; i < n_out; i++)
        memcpy(p->logits + (size_t)i * all + (size_t)first, from + (size_t)i * (size_t)n,
               (size_t)n * sizeof *from);
}

/* The columns of member r of the last stage, as shard.c divides them. */
static struct span columns_of(const struct parallel *p, int r)
{
    const struct gang_shape *g = &p->gang->shape;
    struct shard_opt o = parallel_shard(g, (g->pp - 1) * g->tp + r);

    return shard_vocab(p->s.shard->whole, &o);
}

static int collect(struct parallel *p, struct err *e)
{
    const struct shard_opt *o = &p->s.shard->opt;
    const struct batch *b = &p->step.b;
    bool mine = p->s.shard->has_head;
    int rc = OK, n_vec = p->r.lim.n_vec;
    size_t hidden = (size_t)b->n_hidden * (size_t)n_vec * sizeof(float);

    for (int r = 0; r < o->tp && b->n_out && rc == OK; r++) {
        struct span c = columns_of(p, r);
        int from = stage_rank(o, o->pp - 1, r);
        if (from > 0)
            rc = comm_recv(&p->s.all, from, p->piece,
                           (size_t)b->n_out * (size_t)c.n * sizeof(float), e);
        if (rc == OK)
            place_columns(p, from > 0 ? p->piece : p->s.logits, b->n_out, (int)c.at, (int)c.n);
    }
    if (rc != OK || !hidden) return rc;
    if (!mine) return comm_recv(&p->s.all, stage_rank(o, o->pp - 1, 0), b->hidden, hidden, e);
    memcpy(b->hidden, p->s.hidden, hidden);
    return OK;
}

static int wait_step(struct runner *r, const float **logits, struct err *e)
{
    struct parallel *p = parallel_of(r);
    uint64_t start = clock_ns();
    int rc = stagerun_step(&p->s, &p->step, e);

    if (rc == OK) rc = collect(p, e);
    p->step_ns += clock_ns() - start;
    p->n_steps++;
    if (rc == OK && is_decode(&p->step.b))
        pieces_note(&p->pieces, p->step.b.n_tokens, p->step.micro, clock_ns() - p->start_ns);
    *logits = p->logits;
    return rc == OK ? OK : lose(p, rc, e);
}

/* ---- the other calls ---- */

static void copy_states(struct runner *r, int to, int from)
{
    struct parallel *p = parallel_of(r);
    int32_t body[2] = { to, from };
    struct err e = { 0 };

    if (gangmeet_send(&p->s.all, ORDER_COPY, p->number++, body, sizeof body, &e) != OK)
        log_error("state was not copied: %s", e.msg); /* the next step fails with the same reason */
    if (p->s.local->lim.n_slots) runner_copy_state(p->s.local, to, from);
}

static int list_devices(const struct runner *r, struct runner_device *out, int max)
{
    return runner_devices(parallel_of(r)->s.local, out, max);
}

static bool is_lost(struct runner *r, struct err *e)
{
    struct err why = { 0 };

    if (!gang_is_lost(parallel_of(r)->gang, &why)) return false;
    tell_lost(parallel_of(r), &why);
    if (e) *e = why;
    return true;
}

static void on_lost(struct runner *r, void (*fn)(void *arg), void *arg)
{
    struct gang *g = parallel_of(r)->gang;

    if (g->on_lost) g->on_lost(g, fn, arg);
}

static void close_parallel(struct runner *r)
{
    struct parallel *p = parallel_of(r);
    struct runner *local = p->local;

    if (p->gang && !gang_is_lost(p->gang, NULL)) {
        atomic_store(&p->gang->ends, true); /* members that go now are not lost */
        if (gangmeet_send(&p->s.all, ORDER_END, p->number++, "", 0, NULL) != OK)
            atomic_store(&p->gang->ends, false);
    }
    stagerun_release(&p->s);
    runner_close(local);
    gang_close(p->gang);
    mem_free(p->body);
    mem_free(p->logits);
    mem_free(p->piece);
    mem_free(p->seq_end);
    mem_free(p->n_of);
    mem_free(p);
}

/* ---- opening ---- */

/* The leader's own device is that of its plan. */
static int note_device(struct loadplan *p, struct err *e)
{
    char *to = p->opt.gang->shape.devices[0];
    const char *mine = p->opt.backend.device ? p->opt.backend.device : "cpu";

    if (!*to) snprintf(to, GANG_DEVICE, "%s", mine);
    if (strncmp(to, mine, GANG_DEVICE - 1) == 0) return OK;
    return err_set(e, E_INVALID, "the leader computes on %s, but devices names %s for it", mine,
                   to);
}

int parallel_meet(struct loadplan *p, uint64_t *number, bool *uneven, struct err *e)
{
    struct gang *g = p->opt.gang;
    struct comm all = { 0 };
    int rc = note_device(p, e);

    if (rc == OK) rc = comm_open(&all, g->link, g->shape.step_ns, e);
    if (rc == OK) rc = gangmeet(p, &all, number, uneven, e);
    if (rc == OK && *uneven) p->opt.shard = parallel_shard(&g->shape, 0);
    comm_release(&all);
    return rc;
}

int parallel_announce(struct loadplan *p, uint64_t *number, struct err *e)
{
    struct gang *g = p->opt.gang;
    struct loadorder *o = mem_new(struct loadorder);
    struct comm all = { 0 };
    int rc = o ? loadorder_fill(o, p, &g->shape, e) : err_nomem(e, "the order to load");

    if (rc == OK) rc = comm_open(&all, g->link, g->shape.step_ns, e);
    if (rc == OK) rc = gangmeet_send(&all, ORDER_LOAD, (*number)++, o, sizeof *o, e);
    comm_release(&all);
    mem_free(o);
    return rc;
}

/* Every member's answer to a load, or to the order to group; the first that failed is the reason. */
static int hear_members(struct parallel *p, struct err *e)
{
    struct loadreply y;
    int rc = OK, one;

    for (int r = 1; r < p->s.all.size; r++) {
        /* a load takes as long as it takes; a member that dies meanwhile is noticed */
        if ((one = comm_recv_within(&p->s.all, r, &y, sizeof y, 0, e)) != OK) return one;
        y.text[sizeof y.text - 1] = 0;
        if (y.code != OK && rc == OK) rc = err_set(e, y.code, "member %d: %s", r, y.text);
        if (y.bytes.weights) loadreply_seat(&y, r, &p->seats[r]);
        if (y.code == OK && y.bytes.weights)
            log_debug("member %d has loaded %llu bytes of weights in %.0f ms", r,
                      (unsigned long long)y.bytes.weights, y.ms);
    }
    return rc;
}

/* All members have loaded: those of each stage agree on how sums travel. A failure of the leader counts
 * more than those that it leads to. */
static int group_members(struct parallel *p, struct err *e)
{
    int rc, heard;

    if (p->s.shard->opt.tp < 2) return OK;
    if ((rc = gangmeet_send(&p->s.all, ORDER_GROUP, p->number++, "", 0, e)) != OK) return rc;
    rc = stagerun_group(&p->s, &p->gang->shape, e);
    heard = hear_members(p, rc == OK ? e : NULL);
    return rc == OK ? heard : rc;
}

static int alloc_parallel(struct parallel *p, struct err *e)
{
    const struct runner_limits *lim = &p->r.lim;
    const struct shard_opt *o = &p->s.shard->opt;
    int64_t widest = 0;

    for (int r = 0; r < o->tp; r++)
        if (columns_of(p, r).n > widest) widest = columns_of(p, r).n;
    p->body = mem_alloc(stepplan_bytes(lim));
    p->logits = mem_array((size_t)lim->max_out, (size_t)lim->n_vocab * sizeof *p->logits);
    p->piece = mem_array((size_t)lim->max_out, (size_t)widest * sizeof *p->piece);
    p->seq_end = mem_array((size_t)lim->max_seqs, sizeof *p->seq_end);
    p->n_of = mem_array((size_t)lim->max_seqs, sizeof *p->n_of);
    return p->body && p->logits && p->piece && p->seq_end && p->n_of
               ? OK
               : err_nomem(e, "the results of all members");
}

/* The whole model's: a stage without recurrent layers has no slots of its own. */
static int whole_slots(const struct loadplan *p)
{
    const struct hparams *hp = p->shard->whole;

    for (int l = 0; l < hp->n_layers; l++) {
        struct stateshape s = mix_stateshape(hp, l);
        if (state_bytes(&s, 1) > 0) return p->opt.max_seqs + p->n_saved;
    }
    return 0;
}

int parallel_open(struct runner **out, struct loadplan *plan, uint64_t number, struct err *e)
{
    struct gang *g = plan->opt.gang;
    struct parallel *p = mem_new(struct parallel);
    struct runner *local = *out;
    struct loadreply own = { 0 };
    int rc;

    if (!p) return err_nomem(e, "the runner of a gang"); /* the decoder stays the caller's */
    *p =
        (struct parallel){ .r = *local, .plan = plan, .gang = g, .local = local, .number = number };
    p->pieces.stages = g->shape.pp;
    p->r.start = start_step;
    p->r.wait = wait_step;
    p->r.copy_state = copy_states;
    p->r.read_block = NULL;
    p->r.write_block = NULL;
    p->r.sync_blocks = NULL;
    p->r.devices = list_devices;
    p->r.is_lost = is_lost;
    p->r.on_lost = on_lost;
    p->r.close = close_parallel;
    p->r.lim.block_bytes = 0;
    p->r.lim.n_slots = whole_slots(plan);
    rc = stagerun_open(&p->s, local, plan->shard, g->link, &g->shape, e);
    if (rc == OK) rc = alloc_parallel(p, e);
    if (rc == OK) rc = hear_members(p, e);
    if (rc == OK) rc = group_members(p, e);
    p->s.group.stats = (struct comm_stats){ 0 };
    p->s.all.stats = (struct comm_stats){ 0 }; /* of steps only, without the load */
    loadreply_introduce(&own, plan);
    loadreply_seat(&own, 0, &p->seats[0]);
    *out = &p->r;
    plan->opt.gang = NULL; /* the runner's from here on */
    return rc;
}

/* Time of sums that the leader's device has made by itself. */
static uint64_t device_sum_ns(const struct parallel *p)
{
    struct runner_device d[PLACE_DEVICES];
    int n = runner_devices(p->s.local, d, PLACE_DEVICES);
    uint64_t ns = 0;

    for (int i = 0; i < n && i < PLACE_DEVICES; i++) ns += d[i].stats.sum_ns;
    return ns;
}

/* How sums travel, in a word. */
static const char *name_sums(const struct parallel *p)
{
    const struct stagerun *s = &p->s;

    if (s->shard->opt.tp < 2) return "none";
    if (s->dev.be) return group_way_name(s->dev.way);
    return s->all.link->name;
}

bool parallel_stats(const struct runner *r, struct parallel_stats *out)
{
    const struct parallel *p = parallel_of(r);

    if (r->close != close_parallel) return false;
    *out = (struct parallel_stats){ .members = p->s.all.size,
                                    .tp = p->s.shard->opt.tp,
                                    .pp = p->s.shard->opt.pp,
                                    .step_ns = p->step_ns,
                                    .sums = name_sums(p),
                                    .comm_ns =
                                        p->s.all.stats.ns + p->s.group.stats.ns + device_sum_ns(p),
                                    .bytes = p->s.all.stats.bytes + p->s.group.stats.bytes,
                                    .n_steps = p->n_steps };
    return true;
}

const struct gang_seat *parallel_seats(const struct runner *r, int *n)
{
    const struct parallel *p = parallel_of(r);
    bool is_gang = r->close == close_parallel;

    *n = is_gang ? p->s.all.size : 0;
    return is_gang ? p->seats : NULL;
}

const char *parallel_transport(const struct runner *r)
{
    return r->close == close_parallel ? parallel_of(r)->gang->link->name : NULL;
}

void parallel_force_pieces(struct runner *r, int n)
{
    if (r->close == close_parallel) parallel_of(r)->forced_pieces = n;
}

struct runner *parallel_local(struct runner *r)
{
    return r && r->close == close_parallel ? parallel_of(r)->s.local : r;
}
