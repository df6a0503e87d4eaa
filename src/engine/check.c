/* check.c - what must always be true of an engine between two rounds, as code. Hard mode calls it
 * after every round (engine/hard.h); tests call it after every step. */
#include "base/mem.h"
#include "engine/engine_impl.h"

#include <string.h>

/* A sequence: computed tokens are tokens, their blocks are there, and a preempted one holds
 * nothing. */
static int check_seq(const struct engine *g, const struct seq *s, struct err *e)
{
    if (s->n_kv < 0 || (size_t)s->n_kv > s->tokens.n || s->n_kv > s->chain.n * KV_BLOCK)
        return err_set(e, E_INTERNAL, "a sequence of %zu tokens and %d blocks has %d in KV",
                       s->tokens.n, s->chain.n, s->n_kv);
    if (s->n_published > s->n_kv || s->tokens.n > (size_t)s->n_max)
        return err_set(e, E_INTERNAL, "%d tokens are published of %d in KV; %zu of at most %d",
                       s->n_published, s->n_kv, s->tokens.n, s->n_max);
    if (!s->running && (s->chain.n > 0 || s->slot >= 0))
        return err_set(e, E_INTERNAL, "a preempted sequence has %d blocks and slot %d", s->chain.n,
                       s->slot);
    if (s->running && (s->slot >= 0) != (g->slots.n > 0))
        return err_set(e, E_INTERNAL, "a running sequence has slot %d of %d", s->slot, g->slots.n);
    return OK;
}

/* Counts the uses of every block by sequences and prefix cache, against the reference counts. */
static int check_blocks(struct engine *g, struct err *e)
{
    size_t n = (size_t)block_n(g->pool);
    int32_t *uses = g->block_uses ? g->block_uses : mem_array(n, sizeof *uses);
    int rc;

    if (!uses) return err_nomem(e, "the uses of blocks");
    memset(uses, 0, n * sizeof *uses);
    for (int i = 0; i < g->n_live; i++)
        if (g->live[i]->seq) chain_count_uses(&g->live[i]->seq->chain, uses);
    if (g->prefix) prefix_count_uses(g->prefix, uses);
    rc = block_check(g->pool, uses, e);
    if (uses != g->block_uses) mem_free(uses);
    return rc;
}

/* All live requests, and the sums over them: sequences and slots. */
static int check_live(const struct engine *g, struct err *e)
{
    int n_running = 0, n_slots = 0, rc;

    for (int i = 0; i < g->n_live; i++) {
        const struct request *r = g->live[i];
        if (!r->admitted.held)
            return err_set(e, E_INTERNAL, "a live request is not counted by admission");
        if ((rc = outbox_check(&r->out, e)) != OK) return rc;
        if (!r->seq) continue;
        if (r->seq->r != r) return err_set(e, E_INTERNAL, "a sequence has another request");
        if ((rc = check_seq(g, r->seq, e)) != OK) return rc;
        n_running += r->seq->running;
        n_slots += r->seq->slot >= 0;
    }
    if (n_running > g->opt.max_seqs)
        return err_set(e, E_INTERNAL, "%d sequences run, at most %d may", n_running,
                       g->opt.max_seqs);
    if (g->slots.n - g->slots.n_free != n_slots)
        return err_set(e, E_INTERNAL, "%d slots are taken, %d sequences have one",
                       g->slots.n - g->slots.n_free, n_slots);
    return OK;
}

int engine_check(struct engine *g, struct err *e)
{
    int rc = check_live(g, e);

    if (rc == OK && g->prefix) rc = prefix_check(g->prefix, e);
    if (rc == OK) rc = check_blocks(g, e);
    return rc;
}
