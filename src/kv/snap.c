/* snap.c - a small table (at most 8 entries), searched linearly: comparing tokens is the work, and
 * a snapshot of another length or salt is skipped at once. */
#include "kv/snap.h"

#include "base/mem.h"

#include <assert.h>
#include <string.h>

struct snapshot {
    int32_t *ids; /* [max_tokens] */
    int n;        /* tokens; 0: empty */
    uint64_t salt, used;
};

struct snaps {
    struct snapshot *all; /* [n]; the i-th lies in slot first_slot + i */
    int n, first_slot, max_tokens;
    uint64_t clock; /* counts uses, for the least recently used */
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
    x->used = ++s->clock;
    return s->first_slot + (int)(x - s->all);
}

int snaps_add(struct snaps *s, uint64_t salt, const int32_t *ids, int n)
{
    struct snapshot *x = find_exact(s, salt, ids, n), *oldest = &s->all[0];

    if (n < 1 || n > s->max_tokens) return -1;
    if (x) {
        x->used = ++s->clock;
        return -1;
    }
    for (int i = 1; i < s->n; i++)
        if (s->all[i].used < oldest->used) oldest = &s->all[i];
    oldest->salt = salt;
    oldest->used = ++s->clock;
    oldest->n = n;
    memcpy(oldest->ids, ids, (size_t)n * sizeof *ids);
    return s->first_slot + (int)(oldest - s->all);
}

int snaps_n(const struct snaps *s)
{
    int n = 0;

    for (int i = 0; i < s->n; i++) n += s->all[i].n > 0;
    return n;
}
