/* snap.c - a small table (at most 32 entries), searched linearly: comparing tokens is the work, and
 * a snapshot of another length or salt is skipped at once. */
#include "kv/snap.h"

#include "base/mem.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

struct snapshot {
    int32_t *ids; /* [max_tokens] */
    int n;        /* tokens; 0: empty */
    uint64_t salt;
    uint64_t age; /* of the table when it was used last */
    bool moves;   /* with a sequence: snaps_move */
};

struct snaps {
    struct snapshot *all; /* [n]; the i-th lies in slot first_slot + i */
    int n, first_slot, max_tokens;
    uint64_t age; /* worth of the snapshot that was replaced last; never falls */
};

int snaps_open(struct snaps **out, int first_slot, int n, int max_tokens, struct err *e)
{
    struct snaps *s = mem_new(struct snaps);

    if (!s || !(s->all = mem_array((size_t)n, sizeof *s->all))) goto fail;
    s->n = n;
    s->first_slot = first_slot;
    s->max_tokens = max_tokens;
    for (int i = 0; i < n; i++)
        if (!(s->all[i].ids = mem_array((size_t)max_tokens, sizeof *s->all[i].ids))) goto fail;
    *out = s;
    return OK;
fail:
    snaps_close(s);
    return err_nomem(e, "the table of state snapshots");
}

void snaps_close(struct snaps *s)
{
    if (!s) return;
    for (int i = 0; i < s->n; i++) mem_free(s->all[i].ids);
    mem_free(s->all);
    mem_free(s);
}

static bool is_prefix_of(const struct snapshot *x, uint64_t salt, const int32_t *ids, int n)
{
    return x->n > 0 && x->salt == salt && x->n <= n &&
           memcmp(x->ids, ids, (size_t)x->n * sizeof *ids) == 0;
}

static struct snapshot *find_exact(const struct snaps *s, uint64_t salt, const int32_t *ids, int n)
{
    for (int i = 0; i < s->n; i++)
        if (s->all[i].n == n && is_prefix_of(&s->all[i], salt, ids, n)) return &s->all[i];
    return NULL;
}

int snaps_find(const struct snaps *s, uint64_t salt, const int32_t *ids, int n)
{
    int best = 0;

    for (int i = 0; i < s->n; i++)
        if (s->all[i].n > best && is_prefix_of(&s->all[i], salt, ids, n)) best = s->all[i].n;
    return best;
}

/* The caller copies the state right after. */
int snaps_use(struct snaps *s, uint64_t salt, const int32_t *ids, int n)
{
    struct snapshot *x = find_exact(s, salt, ids, n);

    assert(x);
    x->age = s->age;
    return s->first_slot + (int)(x - s->all);
}

/* Tokens of x behind the next shorter snapshot of the same text. */
static int count_own_tokens(const struct snaps *s, const struct snapshot *x)
{
    int best = 0;

    for (int i = 0; i < s->n; i++) {
        const struct snapshot *y = &s->all[i];
        if (y->n > best && y->n < x->n && is_prefix_of(y, x->salt, x->ids, x->n)) best = y->n;
    }
    return x->n - best;
}

/* An empty place, or that of the snapshot of the least worth. */
static struct snapshot *take_place(struct snaps *s)
{
    struct snapshot *least = NULL;
    uint64_t least_worth = UINT64_MAX;

    for (int i = 0; i < s->n; i++) {
        uint64_t worth;
        if (s->all[i].n == 0) return &s->all[i];
        worth = s->all[i].age + (uint64_t)count_own_tokens(s, &s->all[i]);
        if (worth < least_worth) least_worth = worth, least = &s->all[i];
    }
    s->age = least_worth;
    return least;
}

/* Hashes ids from `from` on: the earlier ones are in x already. */
static int fill_place(struct snaps *s, struct snapshot *x, const int32_t *ids, int from, int n)
{
    x->age = s->age;
    x->n = n;
    memcpy(x->ids + from, ids + from, (size_t)(n - from) * sizeof *ids);
    return s->first_slot + (int)(x - s->all);
}

int snaps_add(struct snaps *s, uint64_t salt, const int32_t *ids, int n)
{
    struct snapshot *x = find_exact(s, salt, ids, n);

    if (n < 1 || n > s->max_tokens) return -1;
    if (x) {
        x->age = s->age;
        x->moves = false;
        return -1;
    }
    x = take_place(s);
    x->salt = salt;
    x->moves = false;
    return fill_place(s, x, ids, 0, n);
}

int snaps_move(struct snaps *s, uint64_t salt, const int32_t *ids, int from, int n)
{
    struct snapshot *old = from > 0 ? find_exact(s, salt, ids, from) : NULL, *x;

    if (n < 1 || n > s->max_tokens) return -1;
    if (old && !old->moves) old = NULL;
    if ((x = find_exact(s, salt, ids, n))) {
        x->age = s->age;
        if (old) old->n = 0;
        return -1;
    }
    if (old) return fill_place(s, old, ids, from, n);
    x = take_place(s);
    x->salt = salt;
    x->moves = true;
    return fill_place(s, x, ids, 0, n);
}

int snaps_n(const struct snaps *s)
{
    int n = 0;

    for (int i = 0; i < s->n; i++) n += s->all[i].n > 0;
    return n;
}

int snaps_max(const struct snaps *s) { return s->n; }
