#include "kv/snap.h"

#include "base/mem.h"

#include <assert.h>
#include <string.h>

struct one {
    int slot; /* -1: empty */
    uint64_t salt, used;
    int32_t *ids; /* [max_tokens] */
    int n;
};

struct snaps {
    struct state_pool *pool;
    struct one *all; /* [n] */
    int n, max_tokens;
    uint64_t clock;
};

int snaps_open(struct snaps **out, const struct backend_share *shares, int n_shares,
               const struct stateshape *layers, int n, int max_tokens, struct err *e)
{
    struct snaps *s = mem_new(struct snaps);
    int rc;

    *s = (struct snaps){ .n = n, .max_tokens = max_tokens };
    s->all = mem_array((size_t)n, sizeof *s->all);
    if ((rc = state_pool_open(&s->pool, shares, n_shares, layers, n, e)) != OK) goto out;
    for (int i = 0; i < n; i++) {
        s->all[i].slot = -1;
        s->all[i].ids = mem_array((size_t)max_tokens, sizeof *s->all[i].ids);
        if (s->all[i].ids) continue;
        rc = err_set(e, E_NOMEM, "no memory for snapshots of texts of %d tokens", max_tokens);
        goto out;
    }
    *out = s;
    s = NULL;
out:
    snaps_close(s);
    return rc;
}

void snaps_close(struct snaps *s)
{
    if (!s) return;
    for (int i = 0; i < s->n; i++) mem_free(s->all[i].ids);
    state_pool_close(s->pool);
    mem_free(s->all);
    mem_free(s);
}

static bool begins(const struct one *x, uint64_t salt, const int32_t *ids, int n)
{
    return x->slot >= 0 && x->salt == salt && x->n <= n &&
           memcmp(x->ids, ids, (size_t)x->n * sizeof *ids) == 0;
}

static struct one *find(const struct snaps *s, uint64_t salt, const int32_t *ids, int n)
{
    for (int i = 0; i < s->n; i++)
        if (s->all[i].n == n && begins(&s->all[i], salt, ids, n)) return &s->all[i];
    return NULL;
}

int snaps_look(const struct snaps *s, uint64_t salt, const int32_t *ids, int n)
{
    int best = 0;

    for (int i = 0; i < s->n; i++)
        if (s->all[i].n > best && begins(&s->all[i], salt, ids, n)) best = s->all[i].n;
    return best;
}

void snaps_take(struct snaps *s, uint64_t salt, const int32_t *ids, int n, struct state_pool *to,
                int slot)
{
    struct one *x = find(s, salt, ids, n);

    assert(x);
    x->used = ++s->clock;
    state_copy_from(to, slot, s->pool, x->slot);
}

void snaps_keep(struct snaps *s, uint64_t salt, const int32_t *ids, int n, struct state_pool *from,
                int slot)
{
    struct one *x = find(s, salt, ids, n), *oldest = &s->all[0];

    if (n < 1 || n > s->max_tokens) return;
    if (x) {
        x->used = ++s->clock;
        return;
    }
    for (int i = 1; i < s->n; i++)
        if (s->all[i].used < oldest->used) oldest = &s->all[i];
    if (oldest->slot < 0) oldest->slot = state_get(s->pool);
    oldest->salt = salt;
    oldest->used = ++s->clock;
    oldest->n = n;
    memcpy(oldest->ids, ids, (size_t)n * sizeof *ids);
    state_copy_from(s->pool, oldest->slot, from, slot);
}

int snaps_n(const struct snaps *s)
{
    int n = 0;
    for (int i = 0; i < s->n; i++) n += s->all[i].slot >= 0;
    return n;
}
