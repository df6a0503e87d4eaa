/* respstore.c - a list in the order of last use, and copies of texts. Two hash tables find an entry by
 * its id and by the ids of its items: the lock is held for a few comparisons and a copy. */
#include "api/respstore.h"

#include "base/map.h"
#include "base/mem.h"

#include <pthread.h>
#include <stdio.h>

enum { ID_BUCKETS = RESPSTORE_MAX, ITEM_BUCKETS = 4 * RESPSTORE_MAX }; /* powers of two */

struct item {
    struct item *chain; /* of its bucket */
    struct entry *of;
    char id[RESPSTORE_ITEM_ID];
};

struct entry {
    struct entry *prev, *next;
    struct entry *chain; /* of its bucket */
    char id[64];
    struct item *items; /* [n_items] */
    size_t n_items;
    uint32_t tenant;
    struct buf parts[3]; /* enum respstore_part */
    size_t bytes;
};

struct respstore {
    pthread_mutex_t lock;
    struct entry *first, *last; /* first: used last */
    size_t bytes, max_bytes;
    int n;
    struct entry *ids[ID_BUCKETS];
    struct item *items[ITEM_BUCKETS];
};

struct respstore *respstore_open(size_t max_bytes)
{
    struct respstore *s = mem_new(struct respstore);

    if (s && pthread_mutex_init(&s->lock, NULL) != 0) {
        mem_free(s);
        return NULL;
    }
    if (s) s->max_bytes = max_bytes;
    return s;
}

static void unlink_entry(struct respstore *s, struct entry *x)
{
    if (x->prev) x->prev->next = x->next;
    else s->first = x->next;
    if (x->next) x->next->prev = x->prev;
    else s->last = x->prev;
    s->bytes -= x->bytes;
    s->n--;
}

static void link_first(struct respstore *s, struct entry *x)
{
    x->prev = NULL;
    x->next = s->first;
    if (s->first) s->first->prev = x;
    else s->last = x;
    s->first = x;
    s->bytes += x->bytes;
    s->n++;
}

static struct entry **find_bucket(struct respstore *s, struct str id)
{
    return &s->ids[map_hash(id) & (ID_BUCKETS - 1)];
}

static struct item **find_item_bucket(struct respstore *s, struct str id)
{
    return &s->items[map_hash(id) & (ITEM_BUCKETS - 1)];
}

static void add_to_tables(struct respstore *s, struct entry *x)
{
    struct entry **at = find_bucket(s, str_c(x->id));

    x->chain = *at;
    *at = x;
    for (size_t i = 0; i < x->n_items; i++) {
        struct item **bucket = find_item_bucket(s, str_c(x->items[i].id));
        x->items[i].chain = *bucket;
        *bucket = &x->items[i];
    }
}

static void take_from_tables(struct respstore *s, struct entry *x)
{
    struct entry **at = find_bucket(s, str_c(x->id));

    while (*at != x) at = &(*at)->chain;
    *at = x->chain;
    for (size_t i = 0; i < x->n_items; i++) {
        struct item **bucket = find_item_bucket(s, str_c(x->items[i].id));
        while (*bucket != &x->items[i]) bucket = &(*bucket)->chain;
        *bucket = x->items[i].chain;
    }
}

static void free_entry(struct entry *x)
{
    mem_free(x->items);
    for (int i = 0; i < 3; i++) buf_release(&x->parts[i]);
    mem_free(x);
}

void respstore_close(struct respstore *s)
{
    if (!s) return;
    for (struct entry *x = s->first, *next; x; x = next) {
        next = x->next;
        free_entry(x);
    }
    pthread_mutex_destroy(&s->lock);
    mem_free(s);
}

static struct entry *make_entry(const struct respstore_entry *in)
{
    const struct str parts[3] = { in->response, in->items, in->history };
    struct entry *x = mem_new(struct entry);
    bool failed = false;

    if (!x) return NULL;
    snprintf(x->id, sizeof x->id, "%s", in->id);
    x->tenant = in->tenant;
    x->n_items = in->n_items;
    x->bytes = sizeof *x + x->n_items * sizeof *x->items;
    if (x->n_items && !(x->items = mem_array(x->n_items, sizeof *x->items))) {
        free_entry(x);
        return NULL;
    }
    for (size_t i = 0; i < x->n_items; i++) {
        x->items[i].of = x;
        memcpy(x->items[i].id, in->item_ids[i], sizeof x->items[i].id);
    }
    for (int i = 0; i < 3; i++) {
        buf_put_str(&x->parts[i], parts[i]);
        failed |= x->parts[i].failed;
        x->bytes += x->parts[i].cap;
    }
    if (!failed) return x;
    free_entry(x);
    return NULL;
}

bool respstore_put(struct respstore *s, const struct respstore_entry *in)
{
    size_t bytes = in->response.n + in->items.n + in->history.n;
    struct entry *x = bytes < s->max_bytes ? make_entry(in) : NULL;

    if (!x) return false;
    if (x->bytes > s->max_bytes) {
        free_entry(x);
        return false;
    }
    pthread_mutex_lock(&s->lock);
    while (s->last && (s->bytes + x->bytes > s->max_bytes || s->n >= RESPSTORE_MAX)) {
        struct entry *old = s->last;
        unlink_entry(s, old);
        take_from_tables(s, old);
        free_entry(old);
    }
    link_first(s, x);
    add_to_tables(s, x);
    pthread_mutex_unlock(&s->lock);
    return true;
}

static void use_entry(struct respstore *s, struct entry *x)
{
    unlink_entry(s, x);
    link_first(s, x);
}

/* Under the lock. It is used now. */
static struct entry *find_entry(struct respstore *s, struct str id, uint32_t tenant)
{
    for (struct entry *x = *find_bucket(s, id); x; x = x->chain) {
        if (x->tenant != tenant || !str_is(id, x->id)) continue;
        use_entry(s, x);
        return x;
    }
    return NULL;
}

static struct entry *find_by_item(struct respstore *s, struct str id, uint32_t tenant)
{
    for (struct item *i = *find_item_bucket(s, id); i; i = i->chain) {
        if (i->of->tenant != tenant || !str_is(id, i->id)) continue;
        use_entry(s, i->of);
        return i->of;
    }
    return NULL;
}

bool respstore_get(struct respstore *s, struct str id, uint32_t tenant, enum respstore_part part,
                   struct buf *out)
{
    struct entry *x;

    pthread_mutex_lock(&s->lock);
    if ((x = find_entry(s, id, tenant))) buf_put_str(out, buf_str(&x->parts[part]));
    pthread_mutex_unlock(&s->lock);
    return x != NULL;
}

bool respstore_get_by_item(struct respstore *s, struct str item, uint32_t tenant, struct buf *out)
{
    struct entry *x;

    pthread_mutex_lock(&s->lock);
    if ((x = find_by_item(s, item, tenant)))
        buf_put_str(out, buf_str(&x->parts[RESPSTORE_RESPONSE]));
    pthread_mutex_unlock(&s->lock);
    return x != NULL;
}

bool respstore_delete(struct respstore *s, struct str id, uint32_t tenant)
{
    struct entry *x;

    pthread_mutex_lock(&s->lock);
    if ((x = find_entry(s, id, tenant))) {
        unlink_entry(s, x);
        take_from_tables(s, x);
    }
    pthread_mutex_unlock(&s->lock);
    if (x) free_entry(x);
    return x != NULL;
}

int respstore_count(struct respstore *s)
{
    int n;

    pthread_mutex_lock(&s->lock);
    n = s->n;
    pthread_mutex_unlock(&s->lock);
    return n;
}
