/* engine_state.c - snapshots of recurrent state: where they are taken, and how a sequence begins with
 * one.
 *
 * State describes a sequence up to its last token only, so a later prompt can begin with it only where
 * a snapshot was taken, and blocks of attention layers are shared as a whole only. So snapshots are
 * taken at ends of blocks: before each border of the prompt that the request names, and with the
 * completion, whose snapshot moves on from block to block until it ends. The next turn of a
 * conversation then computes its new tokens and at most the rest of a block. An edit in the middle
 * finds the last border before it.
 *
 * A completion's snapshot costs a copy of the state every KV_BLOCK tokens: at most a sixteenth of what
 * the steps between read and write of the state itself. */
#include "engine/engine_impl.h"

#include <string.h>

/* The i-th snapshot of r's prompt: the end of the last full block before a border. The last token of a
 * prompt is never in it: it must be computed, for its logits. 0: the border is in the first block. */
static int snapshot_pos(const struct request *r, int i)
{
    int last = (int)r->prompt.n - 1, at = r->n_borders ? r->borders[i] : last;

    return (at < last ? at : last) / KV_BLOCK * KV_BLOCK;
}

static int count_snapshots(const struct request *r) { return r->n_borders ? r->n_borders : 1; }

int engine_next_snapshot(const struct request *r, int n_kv)
{
    int next = 0;

    for (int i = 0; i < count_snapshots(r); i++) {
        int at = snapshot_pos(r, i);
        if (at > n_kv && (next == 0 || at < next)) next = at;
    }
    return next;
}

static bool is_snapshot_pos(const struct request *r, int n_kv)
{
    for (int i = 0; i < count_snapshots(r); i++)
        if (snapshot_pos(r, i) == n_kv) return n_kv > 0;
    return false;
}

/* Will o reach a snapshot that r can begin with? */
static bool makes_state_for(const struct request *o, const struct request *r)
{
    for (int i = 0; i < count_snapshots(o); i++) {
        int end = snapshot_pos(o, i);

        if (end <= r->n_hit || (size_t)end >= r->prompt.n || (o->seq && o->seq->n_kv >= end))
            continue;
        if (memcmp(o->prompt.p, r->prompt.p, (size_t)end * sizeof *r->prompt.p) == 0) return true;
    }
    return false;
}

bool engine_is_state_coming(const struct engine *g, const struct request *r, int n_before)
{
    for (int i = 0; i < n_before; i++) {
        const struct request *o = g->live[i];

        if (g->view[i].held || o->embed || o->salt != r->salt || o->priority < r->priority)
            continue;
        if (makes_state_for(o, r)) return true;
    }
    return false;
}

/* Snapshots that move on have half of the table at most: those of prompts stay when many sequences
 * decode. */
static bool may_move_one_more(const struct engine *g)
{
    int n = 0;

    for (int i = 0; i < g->n_live; i++) n += g->live[i]->seq && g->live[i]->seq->n_moved > 0;
    return n < snaps_max(g->snaps) / 2;
}

/* Every KV_BLOCK tokens of a completion. */
static int move_snapshot(struct engine *g, struct seq *s)
{
    int slot;

    if (s->n_moved == 0 && !may_move_one_more(g)) return -1;
    slot = snaps_move(g->snaps, s->r->salt, s->tokens.p, s->n_moved, s->n_kv);
    s->n_moved = slot >= 0 ? s->n_kv : 0;
    return slot;
}

void engine_save_state(struct engine *g, struct seq *s)
{
    int slot = -1;

    if (s->r->embed) return;
    if (is_snapshot_pos(s->r, s->n_kv))
        slot = snaps_add(g->snaps, s->r->salt, s->tokens.p, s->n_kv);
    else if ((size_t)s->n_kv >= s->r->prompt.n && s->n_kv % KV_BLOCK == 0 && !s->r->quiet)
        slot = move_snapshot(g, s);
    if (slot >= 0) runner_copy_state(g->runner, slot, s->slot);
}

void engine_restore_state(struct engine *g, struct seq *s)
{
    int n = snaps_find(g->snaps, s->r->salt, s->tokens.p, s->n_kv);

    chain_truncate(&s->chain, g->pool, n);
    s->n_kv = s->n_published = n;
    if (n > 0)
        runner_copy_state(g->runner, s->slot, snaps_use(g->snaps, s->r->salt, s->tokens.p, n));
}
