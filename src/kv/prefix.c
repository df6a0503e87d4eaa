#include "kv/prefix.h"

#include "base/clock.h"
#include "base/mem.h"

#include <assert.h>
#include <string.h>
#include <sys/random.h>

#define NONE (-1)

/* What is cached in a block; the array is indexed by block id. A parent's block id identifies the
 * parent, because a parent is never evicted before its children. */
struct node {
    uint64_t hash; /* of salt, parent and tokens */
    uint64_t salt;
    int32_t parent;         /* block id; NONE: the first block of a prompt */
    int32_t next;           /* next block id in the hash bucket */
    int32_t older, newer;   /* neighbours in the list of idle blocks */
    int32_t n_kids, n_busy; /* cached children; children that are not idle */
    bool cached, idle;
    int32_t ids[KV_BLOCK];
};

/* The idle list is ordered by when a block became idle. A block becomes idle after the last of its
 * children did, so children always stand before their parent: the oldest entry is a leaf, and
 * evicting from that end evicts least recently used leaves first. */
struct prefix {
    struct block_pool *pool;
    struct node *nodes; /* [block_n(pool)] */
    int32_t *buckets;   /* [mask + 1] first block id of each bucket */
    uint32_t mask;
    uint64_t seed, hash_mask;
    int32_t oldest, newest; /* ends of the idle list */
    int n, n_idle;
};

static void remove_idle(struct prefix *p, int id)
{
    struct node *x = &p->nodes[id];

    if (x->older != NONE) p->nodes[x->older].newer = x->newer;
    else p->oldest = x->newer;
    if (x->newer != NONE) p->nodes[x->newer].older = x->older;
    else p->newest = x->older;
    x->idle = false;
    p->n_idle--;
}

static void append_idle(struct prefix *p, int id)
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

static bool should_be_idle(const struct prefix *p, int id)
{
    return block_refs(p->pool, id) == 1 && p->nodes[id].n_busy == 0;
}

/* Updates whether block id is idle after its references or children changed, and then its parents.
 * A sequence releases its last block first, so while it does, each parent still has a reference and
 * the walk ends at once. */
static void update_idle(struct prefix *p, int id)
{
    while (id != NONE) {
        struct node *x = &p->nodes[id];
        bool idle = should_be_idle(p, id);
        if (idle == x->idle) return;
        if (idle) append_idle(p, id);
        else remove_idle(p, id);
        id = x->parent;
        if (id != NONE) p->nodes[id].n_busy += idle ? -1 : 1;
    }
}

static void on_refs_changed(void *arg, int id, bool idle)
{
    (void)idle;
    update_idle(arg, id);
}

int prefix_open(struct prefix **out, struct block_pool *pool, struct err *e)
{
    struct prefix *p = mem_new(struct prefix);
    size_t n = (size_t)block_n(pool), n_buckets = 1;

    if (!p) return err_nomem(e, "the prefix cache");
    while (n_buckets < n) n_buckets *= 2;
    *p = (struct prefix){ .pool = pool,
                          .mask = (uint32_t)(n_buckets - 1),
                          .hash_mask = UINT64_MAX,
                          .oldest = NONE,
                          .newest = NONE };
    p->nodes = mem_array(n, sizeof *p->nodes);
    p->buckets = mem_array(n_buckets, sizeof *p->buckets);
    if (!p->nodes || !p->buckets) {
        prefix_close(p);
        return err_nomem(e, "the prefix cache's table of blocks");
    }
    for (size_t i = 0; i < n_buckets; i++) p->buckets[i] = NONE;
    /* A secret seed: clients cannot choose tokens that all fall into one bucket. */
    if (getrandom(&p->seed, sizeof p->seed, GRND_NONBLOCK) != sizeof p->seed) p->seed = clock_ns();
    block_set_watcher(pool, on_refs_changed, p);
    *out = p;
    return OK;
}

void prefix_close(struct prefix *p)
{
    if (!p) return;
    for (int id = 0; p->n > 0; id++) {
        if (!p->nodes[id].cached) continue;
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

/* One round of a multiply-xorshift hash. */
static uint64_t mix_word(uint64_t h, uint64_t w)
{
    h = (h ^ w) * 0x9e3779b97f4a7c15u;
    h = (h ^ h >> 32) * 0xd6e8feb86659fd93u;
    return h ^ h >> 29;
}

/* Chained: the hash of a block covers all blocks before it through its parent's hash. */
uint64_t prefix_hash_block(uint64_t seed, uint64_t before, const int32_t *ids)
{
    uint64_t h = mix_word(seed, before), w;

    for (int i = 0; i < KV_BLOCK; i += 2) {
        memcpy(&w, ids + i, sizeof w);
        h = mix_word(h, w);
    }
    return h;
}

static uint64_t hash_block(const struct prefix *p, int parent, uint64_t salt, const int32_t *ids)
{
    uint64_t before = parent == NONE ? salt : p->nodes[parent].hash;

    return prefix_hash_block(p->seed, before, ids) & p->hash_mask;
}

static bool holds_tokens(const struct node *x, uint64_t salt, const int32_t *ids)
{
    return x->cached && x->salt == salt && memcmp(x->ids, ids, sizeof x->ids) == 0;
}

static int find_block(const struct prefix *p, uint64_t hash, int parent, uint64_t salt,
                      const int32_t *ids)
{
    int id = p->buckets[hash & p->mask];

    while (id != NONE) {
        const struct node *x = &p->nodes[id];
        if (x->hash == hash && x->parent == parent && holds_tokens(x, salt, ids)) break;
        id = x->next;
    }
    return id;
}

/* The child of block `id` (NONE: the first block) that holds the KV_BLOCK tokens at ids. */
static int find_child(const struct prefix *p, int id, uint64_t salt, const int32_t *ids)
{
    return find_block(p, hash_block(p, id, salt, ids), id, salt, ids);
}

/* Walks down the tree; every block found gets a reference of the chain. */
int prefix_take(struct prefix *p, uint64_t salt, const int32_t *ids, int n, struct chain *to)
{
    int most = n > 0 ? (n - 1) / KV_BLOCK : 0, id = NONE;

    assert(to->n == 0);
    if (most > to->cap) most = to->cap;
    while (to->n < most) {
        id = find_child(p, id, salt, ids + to->n * KV_BLOCK);
        if (id == NONE) break;
        block_ref(p->pool, id);
        to->blocks[to->n++] = id;
    }
    return to->n * KV_BLOCK;
}

int prefix_lookup(const struct prefix *p, uint64_t salt, const int32_t *ids, int n, int *n_used)
{
    int most = n > 0 ? (n - 1) / KV_BLOCK : 0, i, used = 0, id = NONE;

    for (i = 0; i < most; i++) {
        id = find_child(p, id, salt, ids + i * KV_BLOCK);
        if (id == NONE) break;
        used += !p->nodes[id].idle;
    }
    if (n_used) *n_used = used * KV_BLOCK;
    return i * KV_BLOCK;
}

/* The new node starts busy: its sequence holds it. Its ancestors become busy with it. */
static void insert_block(struct prefix *p, int id, uint64_t hash, int parent, uint64_t salt,
                         const int32_t *ids)
{
    struct node *x = &p->nodes[id];
    int32_t *bucket = &p->buckets[hash & p->mask];

    *x = (struct node){
        .hash = hash, .salt = salt, .parent = parent, .next = *bucket, .cached = true
    };
    memcpy(x->ids, ids, sizeof x->ids);
    *bucket = id;
    p->n++;
    block_ref(p->pool, id);
    block_watch(p->pool, id, true);
    if (parent == NONE) return;
    p->nodes[parent].n_kids++;
    p->nodes[parent].n_busy++;
    update_idle(p, parent);
}

void prefix_add(struct prefix *p, uint64_t salt, const int32_t *ids, int n, int from,
                const struct chain *c)
{
    int end = n / KV_BLOCK, i = from / KV_BLOCK, parent = NONE;

    if (end > c->n) end = c->n;
    if (i >= end) return;
    /* Go back to a block of the chain that is cached itself. Most often that is the one before;
     * blocks private to the sequence are skipped. */
    while (i > 0 && !holds_tokens(&p->nodes[c->blocks[i - 1]], salt, ids + (i - 1) * KV_BLOCK)) i--;
    if (i > 0) parent = c->blocks[i - 1];
    for (; i < end; i++) {
        const int32_t *at = ids + i * KV_BLOCK;
        uint64_t hash = hash_block(p, parent, salt, at);
        int id = find_block(p, hash, parent, salt, at);
        if (id == NONE) {
            id = c->blocks[i];
            if (p->nodes[id].cached) return; /* with other tokens: a mistake of the caller */
            insert_block(p, id, hash, parent, salt, at);
        }
        parent = id;
    }
}

int prefix_next_idle(const struct prefix *p, int id)
{
    return id == NONE ? p->newest : p->nodes[id].older;
}

void prefix_get(const struct prefix *p, int id, struct prefix_block *out)
{
    const struct node *x = &p->nodes[id];

    assert(x->cached);
    *out = (struct prefix_block){ x->parent, x->salt, x->ids };
}

/* The reference of block_get keeps the block busy until it is in the tree. */
int prefix_restore(struct prefix *p, const struct prefix_block *b, bool *is_new)
{
    uint64_t hash = hash_block(p, b->parent, b->salt, b->ids);
    int id = find_block(p, hash, b->parent, b->salt, b->ids);

    *is_new = false;
    if (id != NONE || (id = block_get(p->pool)) < 0) return id;
    insert_block(p, id, hash, b->parent, b->salt, b->ids);
    block_unref(p->pool, id);
    *is_new = true;
    return id;
}

int prefix_n(const struct prefix *p) { return p->n; }
int prefix_n_idle(const struct prefix *p) { return p->n_idle; }

/* From the last block up, as chain_truncate would: a parent can become idle only if its busy child
 * did. A lower bound, because other busy children may end at the same time. */
int prefix_n_gain(const struct prefix *p, const struct chain *c)
{
    int gain = 0, relieved = NONE; /* relieved: the parent that would have one busy child less */

    for (int i = c->n - 1; i >= 0; i--) {
        const struct node *x = &p->nodes[c->blocks[i]];
        int others = block_refs(p->pool, c->blocks[i]) - 1 - x->cached;
        int busy = x->cached ? x->n_busy - (relieved == c->blocks[i]) : 0;
        relieved = NONE;
        if (others > 0 || busy > 0) continue;
        gain++;
        if (x->cached) relieved = x->parent;
    }
    return gain;
}

/* The oldest idle block is a leaf. */
static void evict_oldest(struct prefix *p)
{
    int id = p->oldest;
    struct node *x = &p->nodes[id];
    int32_t *at = &p->buckets[x->hash & p->mask];

    assert(x->n_kids == 0);
    remove_idle(p, id);
    while (*at != id) at = &p->nodes[*at].next;
    *at = x->next;
    if (x->parent != NONE) p->nodes[x->parent].n_kids--;
    x->cached = false;
    p->n--;
    block_watch(p->pool, id, false);
    block_unref(p->pool, id);
}

/* Evicting may stop early: blocks are freed one by one until there are enough. */
bool prefix_evict(struct prefix *p, int n_free)
{
    while (block_n_free(p->pool) < n_free && p->oldest != NONE) evict_oldest(p);
    return block_n_free(p->pool) >= n_free;
}

void prefix_clear(struct prefix *p)
{
    while (p->oldest != NONE) evict_oldest(p);
}

/* ---- invariants ---- */

void prefix_count_uses(const struct prefix *p, int32_t *uses)
{
    for (int id = 0; id < block_n(p->pool); id++) uses[id] += p->nodes[id].cached;
}

/* Its children as their parent field says, and how many of them are busy. */
static void count_children(const struct prefix *p, int id, int *n_kids, int *n_busy)
{
    *n_kids = *n_busy = 0;
    for (int k = 0; k < block_n(p->pool); k++)
        if (p->nodes[k].cached && p->nodes[k].parent == id) {
            ++*n_kids;
            *n_busy += !p->nodes[k].idle;
        }
}

static int check_node(const struct prefix *p, int id, struct err *e)
{
    const struct node *x = &p->nodes[id];
    int n_kids, n_busy;

    if (block_refs(p->pool, id) < 1)
        return err_set(e, E_INTERNAL, "block %d is cached without a reference", id);
    if (x->parent != NONE && !p->nodes[x->parent].cached)
        return err_set(e, E_INTERNAL, "block %d is cached but its parent %d is not", id, x->parent);
    if (find_block(p, x->hash, x->parent, x->salt, x->ids) != id)
        return err_set(e, E_INTERNAL, "block %d is not found by its own tokens", id);
    count_children(p, id, &n_kids, &n_busy);
    if (n_kids != x->n_kids || n_busy != x->n_busy)
        return err_set(e, E_INTERNAL, "block %d counts %d children, %d busy; there are %d, %d", id,
                       x->n_kids, x->n_busy, n_kids, n_busy);
    if (x->idle != should_be_idle(p, id))
        return err_set(e, E_INTERNAL, "block %d with %d references and %d busy children is %sidle",
                       id, block_refs(p->pool, id), x->n_busy, x->idle ? "" : "not ");
    return OK;
}

/* Every entry is idle, links both ways, and stands before its parent. */
static int check_idle_list(const struct prefix *p, struct err *e)
{
    int n = 0, before = NONE;

    for (int id = p->oldest; id != NONE; before = id, id = p->nodes[id].newer) {
        const struct node *x = &p->nodes[id];
        if (!x->cached || !x->idle || x->older != before || ++n > p->n_idle)
            return err_set(e, E_INTERNAL, "block %d is wrong in the list of idle blocks", id);
        for (int k = x->older; k != NONE; k = p->nodes[k].older)
            if (k == x->parent)
                return err_set(e, E_INTERNAL, "idle block %d stands behind its parent", id);
    }
    if (n != p->n_idle || before != p->newest)
        return err_set(e, E_INTERNAL, "%d idle blocks are listed, %d are counted", n, p->n_idle);
    return OK;
}

int prefix_check(const struct prefix *p, struct err *e)
{
    int n = 0, rc;

    for (int id = 0; id < block_n(p->pool); id++) {
        if (!p->nodes[id].cached) continue;
        n++;
        if ((rc = check_node(p, id, e)) != OK) return rc;
    }
    if (n != p->n) return err_set(e, E_INTERNAL, "%d blocks are cached, %d are counted", n, p->n);
    return check_idle_list(p, e);
}
