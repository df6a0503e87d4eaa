/* member.c - a member of a gang that is not its leader: it loads and computes what it is told. */
#include "model/parallel.h"

#include "base/clock.h"
#include "base/mem.h"
#include "model/decoder.h"
#include "model/gangcard.h"
#include "model/loadorder.h"
#include "model/stagerun.h"

#include <stdio.h>

struct member {
    struct comm all; /* until the stage has its own */
    struct loadorder *order;
    struct loadplan *plan;
    struct runner *runner;
    struct stagerun s;
    uint64_t number;
    char *body;
    size_t n_body; /* room */
};

/* The next order, for which a member waits as long as its leader lives. */
static int take_order(struct member *m, struct comm *all, struct order *o, struct err *e)
{
    int rc = comm_recv_within(all, 0, o, sizeof *o, 0, e);

    if (rc == OK) rc = order_check(o, m->number++, e);
    if (rc == OK && o->bytes > m->n_body) {
        mem_free(m->body);
        m->n_body = (size_t)o->bytes;
        if (!(m->body = mem_alloc(m->n_body))) rc = err_nomem(e, "an order of the leader");
    }
    if (rc == OK && o->bytes) rc = comm_recv(all, 0, m->body, (size_t)o->bytes, e);
    return rc == OK ? order_check_body(o, m->body, e) : rc;
}

/* The body of an order is what it came as. */
static int load_part(struct member *m, size_t n, int rank, struct err *e)
{
    struct load_opt opt;
    int rc = loadorder_read(m->order, m->body, n, e);

    if (rc != OK) return rc;
    opt = loadorder_opt(m->order, rank);
    if ((rc = loadplan_read(&m->plan, m->order->path, e)) != OK) return rc;
    if ((rc = loadplan_make(m->plan, &opt, e)) != OK) return rc;
    if ((rc = loadorder_compare(m->order, m->plan, e)) != OK) return rc;
    if ((rc = runner_open(&m->runner, m->plan, e)) != OK) return rc;
    place_drive(&m->plan->place);
    return OK;
}

/* The member's card, for the leader to compare. */
static int show_card(struct member *m, size_t n, int rank, struct err *e)
{
    struct gangask *a = mem_new(struct gangask);
    struct gangcard c;
    int rc = a ? gangask_read(a, m->body, n, e) : err_nomem(e, "the question of the leader");

    if (rc == OK) {
        gangcard_fill(&c, a, rank);
        rc = comm_send(&m->all, 0, &c, sizeof c, e);
    }
    mem_free(a);
    return rc;
}

/* The first orders: who are you, and what to load. E_CANCELLED: the leader has ended the gang. */
static int load(struct member *m, struct comm_link *link, struct err *e)
{
    struct order o;
    struct loadreply y = { 0 };
    struct err why = { 0 };
    uint64_t start;
    int rc = take_order(m, &m->all, &o, e);

    while (rc == OK && o.kind == ORDER_CARD) {
        if ((rc = show_card(m, (size_t)o.bytes, link->rank, e)) != OK) return rc;
        rc = take_order(m, &m->all, &o, e);
    }
    if (rc != OK) return rc;
    start = clock_ns();
    if (!(m->order = mem_new(struct loadorder))) return err_nomem(e, "the order to load");
    rc = o.kind == ORDER_END ? E_CANCELLED : load_part(m, (size_t)o.bytes, link->rank, &why);
    if (o.kind == ORDER_END) return rc;
    if (rc == OK)
        rc = stagerun_open(&m->s, m->runner, m->plan->shard, link, &m->order->shape, &why);
    y.code = rc;
    snprintf(y.text, sizeof y.text, "%.479s", why.msg);
    if (rc == OK) loadreply_introduce(&y, m->plan);
    y.ms = clock_ms_since(start);
    if (comm_send(&m->all, 0, &y, sizeof y, e) != OK) return E_WORKER;
    if (rc != OK && e) *e = why;
    return rc;
}

/* The member's columns of the logits, and of a stage's first member the hidden rows. */
static int send_results(struct member *m, const struct batch *b, struct err *e)
{
    struct stagerun *s = &m->s;
    size_t logits = (size_t)b->n_out * (size_t)s->n_logits * sizeof(float),
           hidden = (size_t)b->n_hidden * (size_t)s->n_vec * sizeof(float);
    int rc = OK;

    if (!s->shard->has_head) return OK;
    if (logits) rc = comm_send(&s->all, 0, s->logits, logits, e);
    if (rc == OK && hidden && s->shard->opt.tp_rank == 0)
        rc = comm_send(&s->all, 0, s->hidden, hidden, e);
    return rc;
}

static int run_step(struct member *m, size_t n, struct err *e)
{
    struct stepplan p;
    int rc = stepplan_read(&p, m->body, n, e);

    if (rc == OK) rc = stagerun_step(&m->s, &p, e);
    return rc == OK ? send_results(m, &p.b, e) : rc;
}

/* The leader hears how it went. */
static int join_group(struct member *m, struct err *e)
{
    struct loadreply y = { 0 };
    struct err why = { 0 };

    y.code = stagerun_group(&m->s, &m->order->shape, &why);
    snprintf(y.text, sizeof y.text, "%.479s", why.msg);
    return comm_send(&m->s.all, 0, &y, sizeof y, e);
}

static int copy_state(struct member *m, size_t n, struct err *e)
{
    const int32_t *body = (const int32_t *)(const void *)m->body;
    int slots = m->runner->lim.n_slots;

    if (n != 2 * sizeof *body) return err_set(e, E_FORMAT, "a copy of state of %zu bytes", n);
    if (slots == 0) return OK; /* this stage has no state */
    if (body[0] < 0 || body[0] >= slots || body[1] < 0 || body[1] >= slots)
        return err_set(e, E_FORMAT, "a copy of slot %d to slot %d of %d", body[1], body[0], slots);
    runner_copy_state(m->runner, body[0], body[1]);
    return OK;
}

static int serve(struct member *m, struct err *e)
{
    struct order o;
    int rc = OK;

    while (rc == OK) {
        if ((rc = take_order(m, &m->s.all, &o, e)) != OK) break;
        if (o.kind == ORDER_END) return OK;
        if (o.kind == ORDER_STEP) rc = run_step(m, (size_t)o.bytes, e);
        else if (o.kind == ORDER_COPY) rc = copy_state(m, (size_t)o.bytes, e);
        else if (o.kind == ORDER_GROUP) rc = join_group(m, e);
        else rc = err_set(e, E_FORMAT, "an order of kind %u in the middle", o.kind);
    }
    return rc;
}

int member_serve(struct comm_link *link, struct err *e)
{
    struct member m = { 0 };
    struct err why = { 0 };
    int rc = comm_open(&m.all, link, 0, &why);

    if (rc == OK) rc = load(&m, link, &why);
    if (rc == OK) {
        rc = serve(&m, &why);
        if (rc != OK) comm_abort(&m.all, why.msg);
    }
    stagerun_release(&m.s);
    runner_close(m.runner);
    loadplan_close(m.plan);
    comm_release(&m.all);
    mem_free(m.order);
    mem_free(m.body);
    if (e) *e = why;
    return rc == E_CANCELLED ? OK : rc;
}
