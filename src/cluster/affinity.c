#include "cluster/affinity.h"

#include "base/mem.h"
#include "kv/prefix.h"

#include <assert.h>
#include <string.h>

enum { SET = 4, NOBODY = 0xffff };

#define SEED UINT64_C(0x7465726e)

struct slot {
    uint64_t key; /* of the block; 0: empty */
    uint16_t who[AFFINITY_WAYS];
    uint32_t used; /* tick */
};

struct affinity {
    struct slot *slots; /* [n] in sets of SET */
    size_t n;
    uint32_t tick;
};

int affinity_open(struct affinity **out, int n_blocks, struct err *e)
{
    struct affinity *a = mem_new(struct affinity);

    assert(n_blocks >= SET && (n_blocks & (n_blocks - 1)) == 0);
    if (a) a->slots = mem_array((size_t)n_blocks, sizeof *a->slots);
    if (!a || !a->slots) {
        affinity_close(a);
        return err_nomem(e, "the index of prefixes");
    }
    a->n = (size_t)n_blocks;
    *out = a;
    return OK;
}

void affinity_close(struct affinity *a)
{
    if (!a) return;
    mem_free(a->slots);
    mem_free(a);
}

static struct slot *set_of(const struct affinity *a, uint64_t key)
{
    return a->slots + (key & (a->n / SET - 1)) * SET;
}

static struct slot *find_slot(const struct affinity *a, uint64_t key)
{
    struct slot *s = set_of(a, key);

    for (int i = 0; i < SET; i++)
        if (s[i].key == key) return &s[i];
    return NULL;
}

static bool has_worker(const struct slot *s, int worker)
{
    for (int i = 0; i < AFFINITY_WAYS; i++)
        if (s->who[i] == worker) return true;
    return false;
}

/* From the last block: its hash covers all before it, so a worker that is listed there has them all. A
 * block of a common prefix cannot list every worker that has it. */
void affinity_match(struct affinity *a, const uint64_t *hashes, int n, int *match, int n_workers)
{
    for (int w = 0; w < n_workers; w++) match[w] = 0;
    for (int i = n - 1; i >= 0; i--) {
        struct slot *s = find_slot(a, hashes[i]);

        for (int k = 0; s && k < AFFINITY_WAYS; k++) {
            int w = s->who[k];
            if (w < n_workers && match[w] == 0) match[w] = i + 1;
        }
        if (s) s->used = ++a->tick;
    }
}

/* The slot of the block, or the one of its set that was not used for the longest time. */
static struct slot *find_or_add_slot(struct affinity *a, uint64_t key)
{
    struct slot *s = find_slot(a, key), *set = set_of(a, key);

    if (s) return s;
    s = &set[0];
    for (int i = 1; i < SET; i++)
        if (set[i].key == 0 || (s->key && set[i].used < s->used)) s = &set[i];
    *s = (struct slot){ .key = key };
    for (int i = 0; i < AFFINITY_WAYS; i++) s->who[i] = NOBODY;
    return s;
}

/* The worker used last comes first. */
void affinity_add(struct affinity *a, const uint64_t *hashes, int n, int worker)
{
    for (int i = 0; i < n; i++) {
        struct slot *s = find_or_add_slot(a, hashes[i]);
        int at = 0;

        s->used = ++a->tick;
        if (has_worker(s, worker))
            while (s->who[at] != worker) at++;
        else at = AFFINITY_WAYS - 1;
        memmove(s->who + 1, s->who, (size_t)at * sizeof *s->who);
        s->who[0] = (uint16_t)worker;
    }
}

void affinity_forget(struct affinity *a, int worker)
{
    for (size_t i = 0; i < a->n; i++)
        for (int k = 0; k < AFFINITY_WAYS && a->slots[i].key; k++)
            if (a->slots[i].who[k] == worker) a->slots[i].who[k] = NOBODY;
}

/* 0 marks an empty slot. */
static uint64_t key_of(uint64_t h) { return h ? h : 1; }

int affinity_hash_ids(uint64_t salt, const int32_t *ids, size_t n, uint64_t *out)
{
    uint64_t h = salt;
    int k = 0;

    for (size_t at = 0; at + KV_BLOCK <= n && k < AFFINITY_BLOCKS; at += KV_BLOCK) {
        h = prefix_hash_block(SEED, h, ids + at);
        out[k++] = key_of(h);
    }
    return k;
}

int affinity_hash_text(uint64_t salt, const char *text, size_t n, uint64_t *out)
{
    int32_t words[KV_BLOCK];
    uint64_t h = salt;
    int k = 0;

    _Static_assert(AFFINITY_BYTES == sizeof words, "a piece of text fills a block");
    for (size_t at = 0; at + AFFINITY_BYTES <= n && k < AFFINITY_BLOCKS; at += AFFINITY_BYTES) {
        memcpy(words, text + at, sizeof words);
        h = prefix_hash_block(SEED, h, words);
        out[k++] = key_of(h);
    }
    return k;
}
