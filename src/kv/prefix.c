#include "kv/prefix.h"

#include "base/clock.h"
#include "base/mem.h"

#include <assert.h>
#include <string.h>
#include <sys/random.h>

#define NONE (-1)

/* What is known of a block, at its id. The parent's id is as good as its identity: a parent does
 * not go before its children. */
struct node {
    uint64_t hash; /* of salt, parent and tokens */
    uint64_t salt;
    int32_t parent;         /* NONE: the first of a prompt */
    int32_t next;           /* in its bucket */
    int32_t older, newer;   /* among the idle */
    int32_t n_kids, n_busy; /* children known; of those, not idle */
    bool known, idle;
    int32_t ids[KV_BLOCK];
};

/* Idle are blocks that only the index refers to, and below which all are idle. Since a block turns
 * idle after the last of its children did, children always stand before their parent in the list of
 * the idle: its oldest end is a leaf, and going from there evicts least recently used leaves first.
 */
struct prefix {
    struct block_pool *pool;
    struct node *nodes; /* [block_n(pool)] */
    int32_t *buckets;   /* [mask + 1] */
    uint32_t mask;
    uint64_t seed, hash_mask;
    int32_t oldest, newest;
    int n, n_idle;
};

static void unlist(struct prefix *p, int id)
{
    struct node *x = &p->nodes[id];
    if (x->older != NONE) p->nodes[x->older].newer = x->newer;
    else p->oldest = x->newer;
    if (x->newer != NONE) p->nodes[x->newer].older = x->older;
    else p->newest = x->older;
    x->idle = false;
    p->n_idle--;
}

static void list_newest(struct prefix *p, int id)
{
    struct node *x = &p->nodes[id];
    x->older = p->newest;
    x->newer = NONE;
    if (p->newest != NONE) p->nodes[p->newest].newer = id;
    else p->oldest = id;
    p->newest = id;
    x->idle = true;
    p->n_idle++;
}

/* References or children of id changed: is it idle now? What changes goes up. While a sequence
 * gives its blocks back, last one first, each parent is still its own and this stops at once. */
static void settle(struct prefix *p, int id)
{
    while (id != NONE) {
        struct node *x = &p->nodes[id];
        bool idle = block_refs(p->pool, id) == 1 && x->n_busy == 0;
        if (idle == x->idle) return;
        if (idle) list_newest(p, id);
        else unlist(p, id);
        id = x->parent;
        if (id != NONE) p->nodes[id].n_busy += idle ? -1 : 1;
    }
}

static void refs_changed(void *arg, int id, bool idle)
{
    (void)idle;
    settle(arg, id);
}

int prefix_open(struct prefix **out, struct block_pool *pool, struct err *e)
{
    struct prefix *p = mem_new(struct prefix);
    size_t n = (size_t)block_n(pool), n_buckets = 1;
    int rc = OK;

    while (n_buckets < n) n_buckets *= 2;
    *p = (struct prefix){ .pool = pool,
                          .mask = (uint32_t)(n_buckets - 1),
                          .hash_mask = UINT64_MAX,
                          .oldest = NONE,
                          .newest = NONE };
    p->nodes = mem_array(n, sizeof *p->nodes);
    p->buckets = mem_array(n_buckets, sizeof *p->buckets);
    if (!p->nodes || !p->buckets) {
        rc = err_set(e, E_NOMEM, "no memory for an index of %zu blocks", n);
        goto out;
    }
    for (size_t i = 0; i < n_buckets; i++) p->buckets[i] = NONE;
    /* Nobody can choose tokens that all fall into one bucket. */
    if (getrandom(&p->seed, sizeof p->seed, GRND_NONBLOCK) != sizeof p->seed) p->seed = clock_ns();
    block_set_watcher(pool, refs_changed, p);
    *out = p;
    p = NULL;
out:
    prefix_close(p);
    return rc;
}

void prefix_close(struct prefix *p)
{
    if (!p) return;
    for (int id = 0; p->n > 0; id++) {
        if (!p->nodes[id].known) continue;
        block_watch(p->pool, id, false);
        block_unref(p->pool, id);
        p->n--;
    }
    block_set_watcher(p->pool, NULL, NULL);
    mem_free(p->nodes);
    mem_free(p->buckets);
    mem_free(p);
}

void prefix_set_hash_bits(struct prefix *p, int bits)
{
    assert(p->n == 0);
    p->hash_mask = bits >= 64 ? UINT64_MAX : (UINT64_C(1) << bits) - 1;
}

static uint64_t mix(uint64_t h, uint64_t w)
{
    h = (h ^ w) * 0x9e3779b97f4a7c15u;
    h = (h ^ h >> 32) * 0xd6e8feb86659fd93u;
    return h ^ h >> 29;
}

static uint64_t hash_of(const struct prefix *p, int parent, uint64_t salt, const int32_t *ids)
{
    uint64_t h = mix(p->seed, parent == NONE ? salt : p->nodes[parent].hash), w;
    for (int i = 0; i < KV_BLOCK; i += 2) {
        memcpy(&w, ids + i, sizeof w);
        h = mix(h, w);
    }
    return h & p->hash_mask;
}

static bool is_block_of(const struct node *x, uint64_t salt, const int32_t *ids)
{
    return x->known && x->salt == salt && memcmp(x->ids, ids, sizeof x->ids) == 0;
}

static int find(const struct prefix *p, uint64_t hash, int parent, uint64_t salt,
                const int32_t *ids)
{
    int id = p->buckets[hash & p->mask];
    while (id != NONE) {
        const struct node *x = &p->nodes[id];
        if (x->hash == hash && x->parent == parent && is_block_of(x, salt, ids)) break;
        id = x->next;
    }
    return id;
}

int prefix_take(struct prefix *p, uint64_t salt, const int32_t *ids, int n, struct chain *to)
{
    int most = n > 0 ? (n - 1) / KV_BLOCK : 0, id = NONE;
    assert(to->n == 0);
    if (most > to->cap) most = to->cap;
    while (to->n < most) {
        const int32_t *at = ids + to->n * KV_BLOCK;
        id = find(p, hash_of(p, id, salt, at), id, salt, at);
        if (id == NONE) break;
        block_ref(p->pool, id);
        to->blocks[to->n++] = id;
    }
    return to->n * KV_BLOCK;
}

int prefix_look(const struct prefix *p, uint64_t salt, const int32_t *ids, int n, int *n_used)
{
    int most = n > 0 ? (n - 1) / KV_BLOCK : 0, i, used = 0, id = NONE;
    for (i = 0; i < most; i++) {
        const int32_t *at = ids + i * KV_BLOCK;
        id = find(p, hash_of(p, id, salt, at), id, salt, at);
        if (id == NONE) break;
        used += !p->nodes[id].idle;
    }
    if (n_used) *n_used = used * KV_BLOCK;
    return i * KV_BLOCK;
}

int prefix_probe(const struct prefix *p, uint64_t salt, const int32_t *ids, int n)
{
    return prefix_look(p, salt, ids, n, NULL);
}

static void insert(struct prefix *p, int id, uint64_t hash, int parent, uint64_t salt,
                   const int32_t *ids)
{
    struct node *x = &p->nodes[id];
    int32_t *bucket = &p->buckets[hash & p->mask];
    *x = (struct node){
        .hash = hash, .salt = salt, .parent = parent, .next = *bucket, .known = true
    };
    memcpy(x->ids, ids, sizeof x->ids);
    *bucket = id;
    p->n++;
    block_ref(p->pool, id);
    block_watch(p->pool, id, true);
    if (parent == NONE) return;
    p->nodes[parent].n_kids++;
    p->nodes[parent].n_busy++;
    settle(p, parent);
}

void prefix_add(struct prefix *p, uint64_t salt, const int32_t *ids, int n, int from,
                const struct chain *c)
{
    int end = n / KV_BLOCK, i = from / KV_BLOCK, parent = NONE;
    if (end > c->n) end = c->n;
    if (i >= end) return;
    /* Back to a block that is known by itself: most often the one before, but for those that are
     * the sequence's own. */
    while (i > 0 && !is_block_of(&p->nodes[c->blocks[i - 1]], salt, ids + (i - 1) * KV_BLOCK)) i--;
    if (i > 0) parent = c->blocks[i - 1];
    for (; i < end; i++) {
        const int32_t *at = ids + i * KV_BLOCK;
        uint64_t hash = hash_of(p, parent, salt, at);
        int id = find(p, hash, parent, salt, at);
        if (id == NONE) {
            id = c->blocks[i];
            if (p->nodes[id].known) return; /* as something else: the caller's mistake */
            insert(p, id, hash, parent, salt, at);
        }
        parent = id;
    }
}

int prefix_n(const struct prefix *p) { return p->n; }
int prefix_n_idle(const struct prefix *p) { return p->n_idle; }

int prefix_n_gain(const struct prefix *p, const struct chain *c)
{
    int gain = 0, freed = NONE; /* freed: the parent that has one busy child less */
    for (int i = c->n - 1; i >= 0; i--) {
        const struct node *x = &p->nodes[c->blocks[i]];
        int others = block_refs(p->pool, c->blocks[i]) - 1 - x->known;
        int busy = x->known ? x->n_busy - (freed == c->blocks[i]) : 0;
        freed = NONE;
        if (others > 0 || busy > 0) continue;
        gain++;
        if (x->known) freed = x->parent;
    }
    return gain;
}

/* Forgets the oldest idle one: a leaf. */
static void drop_oldest(struct prefix *p)
{
    int id = p->oldest;
    struct node *x = &p->nodes[id];
    int32_t *at = &p->buckets[x->hash & p->mask];
    assert(x->n_kids == 0);
    unlist(p, id);
    while (*at != id) at = &p->nodes[*at].next;
    *at = x->next;
    if (x->parent != NONE) p->nodes[x->parent].n_kids--;
    x->known = false;
    p->n--;
    block_watch(p->pool, id, false);
    block_unref(p->pool, id);
}

bool prefix_evict(struct prefix *p, int n_free)
{
    while (block_n_free(p->pool) < n_free && p->oldest != NONE) drop_oldest(p);
    return block_n_free(p->pool) >= n_free;
}

void prefix_clear(struct prefix *p)
{
    while (p->oldest != NONE) drop_oldest(p);
}
