/* matcher_config.c - stack frames and configurations of a matcher_cache, interned; transitions
 * between configurations, computed when they are first taken.
 *
 * A frame is a state of the automaton, the number of finished rounds if its rule is counted, and
 * the frame below. A frame that is not on top is a place to return to. Configurations contain
 * frames from which a byte can be read, sorted by number, so that equal sets are equal arrays.
 *
 * Each configuration is closed under calls and returns: when a frame can call a rule, a frame for
 * the start of that rule is pushed; when the rule of a frame may be over, its parent is looked at
 * too. A caller that has nothing left to do after a call is not kept on the stack (tail call), so
 * right-recursive grammars need a bounded stack. */
#include "grammar/matcher_impl.h"

#include "base/mem.h"

#include <stdlib.h>

enum { MAX_FOUND = 4 * MATCHER_MAX_STACKS /* frames of one closure */ };

/* ---- the hash index ---- */

uint64_t hash_ints(const int32_t *p, int n)
{
    uint64_t h = 0x9e3779b97f4a7c15u + (uint64_t)n;

    for (int i = 0; i < n; i++) {
        h = (h ^ (uint32_t)p[i]) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
    }
    return h;
}

size_t intern_first(const struct intern_index *t, uint64_t hash) { return (size_t)hash & t->mask; }
size_t intern_next(const struct intern_index *t, size_t at) { return (at + 1) & t->mask; }
bool intern_is_full(const struct intern_index *t) { return !t->slots || 2 * (t->n + 1) > t->mask; }

bool intern_grow(struct intern_index *t)
{
    size_t cap = t->slots ? 2 * (t->mask + 1) : 256;
    int32_t *slots = mem_array(cap, sizeof *slots);

    if (!slots) return false;
    mem_free(t->slots);
    *t = (struct intern_index){ .slots = slots, .mask = cap - 1 };
    return true;
}

void intern_add(struct intern_index *t, uint64_t hash, int32_t id)
{
    size_t at = intern_first(t, hash);

    while (t->slots[at]) at = intern_next(t, at);
    t->slots[at] = id + 1;
    t->n++;
}

void intern_clear(struct intern_index *t)
{
    if (t->slots) memset(t->slots, 0, (t->mask + 1) * sizeof *t->slots);
    t->n = 0;
}

void intern_release(struct intern_index *t)
{
    mem_free(t->slots);
    *t = (struct intern_index){ 0 };
}

/* ---- frames ---- */

/* The content of a frame is its state, its count and its parent. */
static uint64_t frame_hash(int32_t state, int32_t count, int32_t parent)
{
    return hash_ints((int32_t[]){ state, count, parent }, 3);
}

/* The shortest way from a state to the end of its rule, the rounds still required included. */
static int compute_state_min_bytes(const struct pda *a, int32_t state, int32_t count)
{
    const struct pda_rule *r = &a->rules[a->states[state].rule];
    int64_t n = a->states[state].min_bytes, rounds;

    if (r->counted) {
        if (state == r->start) n = 0, rounds = count == 0 && r->min == 0 ? 1 : r->min - count;
        else rounds = r->min - count - 1;
        if (rounds > 0) n += rounds * a->states[r->start].min_bytes;
    }
    return n < PDA_FAR ? (int)n : PDA_FAR;
}

/* `frames` and `seen` have the same capacity. */
static bool grow_frames(struct matcher_cache *c)
{
    int cap_seen = c->cap_frames, cap = c->cap_frames;

    if (!mem_ensure(c->seen, cap_seen, c->n_frames + 1)) return false;
    memset(c->seen + c->cap_frames, 0, (size_t)(cap_seen - c->cap_frames) * sizeof *c->seen);
    if (!mem_ensure(c->frames, cap, c->n_frames + 1)) return false;
    c->cap_frames = cap < cap_seen ? cap : cap_seen;
    return true;
}

/* intern_grow empties the index, so that all frames are added again. */
static bool grow_frame_index(struct matcher_cache *c)
{
    if (!intern_grow(&c->frame_index)) return false;
    for (int i = FRAME_LOCAL + 1; i < c->n_frames; i++) {
        const struct stack_frame *f = &c->frames[i];
        intern_add(&c->frame_index, frame_hash(f->state, f->count, f->parent), i);
    }
    return true;
}

/* Equal stacks have equal numbers: a stack is one number, and so is a set of stacks. */
int32_t frame_intern(struct matcher_cache *c, int32_t state, int32_t count, int32_t parent)
{
    const struct intern_index *t = &c->frame_index;
    uint64_t h = frame_hash(state, count, parent);
    int64_t min_bytes;

    if (t->slots)
        for (size_t at = intern_first(t, h); t->slots[at]; at = intern_next(t, at)) {
            const struct stack_frame *f = &c->frames[t->slots[at] - 1];
            if (f->state == state && f->count == count && f->parent == parent)
                return t->slots[at] - 1;
        }
    if ((c->n_frames == c->cap_frames && !grow_frames(c)) ||
        (intern_is_full(t) && !grow_frame_index(c))) {
        c->failed = true;
        return FRAME_END;
    }
    min_bytes =
        (int64_t)compute_state_min_bytes(c->pda, state, count) + c->frames[parent].min_bytes;
    c->frames[c->n_frames] =
        (struct stack_frame){ state, count, parent, min_bytes < PDA_FAR ? (int)min_bytes : PDA_FAR,
                              CONFIG_UNKNOWN };
    intern_add(&c->frame_index, h, c->n_frames);
    return c->n_frames++;
}

/* ---- configurations ---- */

static uint64_t config_hash(const int32_t *items, int n, bool ends, bool pops)
{
    return hash_ints(items, n) ^ ((uint64_t)ends << 1 | (uint64_t)pops) * 0xc4ceb9fe1a85ec53u;
}

static int compute_config_min_bytes(const struct matcher_cache *c, const int32_t *items, int n,
                                    bool ends)
{
    int least = ends ? 0 : PDA_FAR;

    for (int i = 0; i < n; i++)
        if (c->frames[items[i]].min_bytes < least) least = c->frames[items[i]].min_bytes;
    return least;
}

/* Room for one more configuration with n frames. */
static bool grow_configs(struct matcher_cache *c, int n)
{
    size_t row = (size_t)c->pda->n_classes * sizeof *c->next;
    int cap = c->cap_configs;

    if (!mem_ensure(c->items, c->cap_items, c->n_items + n)) return false;
    if (c->n_configs < c->cap_configs) return true;
    if (!mem_ensure(c->configs, cap, c->n_configs + 1)) return false;
    int32_t *next = mem_grow(c->next, (size_t)cap * row);
    if (!next) return false;
    c->next = next;
    c->cap_configs = cap;
    return true;
}

/* There is room for it. */
static int32_t add_config(struct matcher_cache *c, const int32_t *items, int n, bool ends,
                          bool pops)
{
    int32_t id = c->n_configs++;
    int n_classes = c->pda->n_classes;

    if (n) memcpy(c->items + c->n_items, items, (size_t)n * sizeof *items);
    c->configs[id] = (struct config){ .item = (uint32_t)c->n_items,
                                      .n = n,
                                      .ends = ends,
                                      .pops = pops,
                                      .slot = -1,
                                      .min_bytes = compute_config_min_bytes(c, items, n, ends) };
    c->n_items += n;
    for (int i = 0; i < n_classes; i++)
        c->next[(size_t)id * (size_t)n_classes + (size_t)i] =
            config_is_stuck(id) ? id : CONFIG_UNKNOWN;
    return id;
}

static bool grow_config_index(struct matcher_cache *c)
{
    if (!intern_grow(&c->config_index)) return false;
    for (int i = CONFIG_FULL + 1; i < c->n_configs; i++) {
        const struct config *k = &c->configs[i];
        intern_add(&c->config_index, config_hash(c->items + k->item, k->n, k->ends, k->pops), i);
    }
    return true;
}

/* qsort order. */
static int by_number(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* Sorts the items. */
static int32_t config_intern(struct matcher_cache *c, int32_t *items, int n, bool ends, bool pops)
{
    const struct intern_index *t = &c->config_index;
    uint64_t h;
    int32_t id;

    if (n == 0 && !ends && !pops) return CONFIG_DEAD;
    if (n > 1) qsort(items, (size_t)n, sizeof *items, by_number);
    h = config_hash(items, n, ends, pops);
    if (t->slots)
        for (size_t at = intern_first(t, h); t->slots[at]; at = intern_next(t, at)) {
            const struct config *k = &c->configs[t->slots[at] - 1];
            if (k->n == n && k->ends == ends && k->pops == pops &&
                (n == 0 || !memcmp(c->items + k->item, items, (size_t)n * sizeof *items)))
                return t->slots[at] - 1;
        }
    if (!grow_configs(c, n) || (intern_is_full(t) && !grow_config_index(c))) {
        c->failed = true;
        return CONFIG_DEAD;
    }
    id = add_config(c, items, n, ends, pops);
    intern_add(&c->config_index, h, id);
    return id;
}

int32_t config_of_frame(struct matcher_cache *c, int32_t frame)
{
    return config_intern(c, &frame, 1, false, false);
}

/* ---- closure under calls and returns ---- */

/* `seen` marks the frames of the closure in progress, by its number, so that a frame is followed
 * once and nothing needs to be cleared. */

/* A frame whose calls and returns are to be followed. */
static void push_pending(struct matcher_cache *c, int32_t frame)
{
    if (!mem_ensure(c->pending, c->cap_pending, c->n_pending + 1)) c->failed = true;
    else c->pending[c->n_pending++] = frame;
}

/* The rule of a frame if it has a maximum number of rounds, else NULL. */
static const struct pda_rule *bounded_rule(const struct matcher_cache *c, int32_t frame)
{
    const struct pda_rule *r = &c->pda->rules[c->pda->states[c->frames[frame].state].rule];

    return r->counted && r->max != RULES_UNBOUNDED ? r : NULL;
}

/* A frame from which a byte can be read. */
static void add_found(struct matcher_cache *c, int32_t frame)
{
    if (c->n_found >= MAX_FOUND) c->overflow = true;
    else if (!mem_ensure(c->found, c->cap_found, c->n_found + 1)) c->failed = true;
    else {
        c->found[c->n_found++] = frame;
        c->n_bounded += bounded_rule(c, frame) != NULL;
    }
}

/* The count at state `to`, reached from another state of the rule: arriving at the start ends a
 * round. Above the minimum a rule without a maximum needs no exact count. */
static int32_t count_at(const struct pda_rule *r, int32_t to, int32_t count)
{
    int32_t most = r->min > 1 ? r->min : 1;

    if (!r->counted || to != r->start) return count;
    return r->max == RULES_UNBOUNDED && count >= most ? most : count + 1;
}

/* Can another round begin? Inside a round, always. */
static bool may_continue(const struct pda_rule *r, int32_t state, int32_t count)
{
    return !(r->counted && state == r->start && r->max != RULES_UNBOUNDED && count >= r->max);
}

/* Can the rule be over here? A counted rule needs its minimum, and one round at least. */
static bool may_return(const struct pda *a, const struct pda_rule *r, int32_t state, int32_t count)
{
    return r->counted && state == r->start ? count > 0 && count >= r->min : a->states[state].final;
}

/* The frame at which a callee returns: the caller's own parent if the caller has nothing left to
 * do (tail call). */
static int32_t return_frame(struct matcher_cache *c, const struct pda_rule *r, int32_t to,
                            int32_t count, int32_t parent)
{
    const struct pda_state *s = &c->pda->states[to];
    bool more = may_continue(r, to, count) && (s->n_edges || s->n_calls);

    if (!more && may_return(c->pda, r, to, count)) return parent;
    return frame_intern(c, to, count, parent);
}

/* Follows the calls of a frame, and its return. */
static void close_frame(struct matcher_cache *c, int32_t id)
{
    const struct stack_frame f = c->frames[id]; /* a copy: the array moves when it grows */
    const struct pda_state *s = &c->pda->states[f.state];
    const struct pda_rule *r = &c->pda->rules[s->rule];

    if (may_continue(r, f.state, f.count)) {
        if (s->n_edges) add_found(c, id);
        for (int i = 0; i < s->n_calls; i++) {
            const struct dfa_call *call = &c->pda->calls[s->call + i];
            int32_t back = return_frame(c, r, call->to, count_at(r, call->to, f.count), f.parent);
            push_pending(c, frame_intern(c, c->pda->rules[call->rule].start, 0, back));
        }
    }
    if (may_return(c->pda, r, f.state, f.count)) push_pending(c, f.parent);
}

/* A configuration is made by closure_begin, any number of closure_add, and closure_end. */
static void closure_begin(struct matcher_cache *c)
{
    c->stamp++;
    c->n_found = c->n_pending = c->n_bounded = 0;
    c->ends = c->pops = c->overflow = false;
}

static void closure_add(struct matcher_cache *c, int32_t frame)
{
    push_pending(c, frame);
    while (c->n_pending > 0 && !c->overflow && !c->failed) {
        int32_t id = c->pending[--c->n_pending];
        if (id == FRAME_END) c->ends = true;
        else if (id == FRAME_LOCAL) c->pops = true;
        else if (c->seen[id] != c->stamp) {
            c->seen[id] = c->stamp;
            close_frame(c, id);
        }
    }
}

/* qsort order: frames that differ in their counts alone come together, the least count first. */
static int compare_by_count(const void *a, const void *b)
{
    const struct by_count *x = a, *y = b;

    if (x->state != y->state) return x->state < y->state ? -1 : 1;
    if (x->parent != y->parent) return x->parent < y->parent ? -1 : 1;
    return (x->count > y->count) - (x->count < y->count);
}

/* May x take all that y may, where they differ in their counts alone? The round that is read ends
 * with the minimum reached, and x has more rounds left. */
static bool covers(const struct matcher_cache *c, const struct by_count *x,
                   const struct by_count *y)
{
    const struct pda_rule *r = bounded_rule(c, x->frame);

    return r && x->state == y->state && x->parent == y->parent && x->count + 1 >= r->min;
}

/* Leaves out the found frames that others cover. `.{0,1000}.{0,1000}` has as many stacks as bytes
 * were read without it, and two with it. */
static void drop_covered(struct matcher_cache *c)
{
    struct by_count *x;
    int n = 0;

    if (!mem_ensure(c->by_count, c->cap_by_count, c->n_found)) {
        c->failed = true;
        return;
    }
    x = c->by_count;
    for (int i = 0; i < c->n_found; i++) {
        const struct stack_frame *f = &c->frames[c->found[i]];
        x[i] = (struct by_count){ f->state, f->parent, f->count, c->found[i] };
    }
    qsort(x, (size_t)c->n_found, sizeof *x, compare_by_count);
    for (int i = 0; i < c->n_found; i++) {
        if (n && covers(c, &x[n - 1], &x[i])) continue;
        x[n] = x[i];
        c->found[n++] = x[i].frame;
    }
    c->n_found = n;
}

static int32_t closure_end(struct matcher_cache *c)
{
    if (c->n_bounded > 1 && !c->overflow && !c->failed) drop_covered(c);
    if (c->failed) return CONFIG_DEAD;
    if (c->overflow || c->n_found > MATCHER_MAX_STACKS) return CONFIG_FULL;
    return config_intern(c, c->found, c->n_found, c->ends, c->pops);
}

int32_t config_of_start(struct matcher_cache *c)
{
    const struct pda_rule *root = &c->pda->rules[c->pda->root];

    closure_begin(c);
    if (root->min_bytes < PDA_FAR) closure_add(c, frame_intern(c, root->start, 0, FRAME_END));
    c->ends |= root->nullable;
    return closure_end(c);
}

int32_t config_popped(struct matcher_cache *c, int32_t frame)
{
    int32_t id;

    if (frame == FRAME_END) return CONFIG_DEAD;
    if (c->frames[frame].popped != CONFIG_UNKNOWN) return c->frames[frame].popped;
    closure_begin(c);
    closure_add(c, frame);
    id = closure_end(c);
    if (!c->failed) c->frames[frame].popped = id;
    return id;
}

/* Each frame has at most one edge for a byte: its rule is a DFA. */
int32_t config_step(struct matcher_cache *c, int32_t config, int byte_class)
{
    const struct config k = c->configs[config];
    uint8_t byte = c->byte_of[byte_class];
    int32_t to;

    closure_begin(c);
    for (int i = 0; i < k.n; i++) {
        const struct stack_frame f = c->frames[c->items[k.item + (uint32_t)i]];
        const struct pda_state *s = &c->pda->states[f.state];
        const struct pda_rule *r = &c->pda->rules[s->rule];
        for (int e = 0; e < s->n_edges; e++) {
            const struct dfa_edge *x = &c->pda->edges[s->edge + e];
            if (byte < x->lo || byte > x->hi) continue;
            closure_add(c, frame_intern(c, x->to, count_at(r, x->to, f.count), f.parent));
            break;
        }
    }
    to = closure_end(c);
    if (!c->failed) c->next[(size_t)config * (size_t)c->pda->n_classes + (size_t)byte_class] = to;
    return to;
}

/* ---- eviction ---- */

/* A text that only gets deeper, or a grammar with very many positions, would fill memory. When the
 * cache is above its limit, only the frames below the matchers stay. The rest is computed again
 * when needed. */

/* The indexes and tables keep their memory. false: out of memory, which happens the first time
 * only. */
bool config_reset(struct matcher_cache *c)
{
    if (c->n_frames == 0) { /* the first time: room for the two bottoms */
        c->n_frames = FRAME_LOCAL;
        if (!grow_frames(c)) return false;
        for (int i = 0; i <= FRAME_LOCAL; i++)
            c->frames[i] =
                (struct stack_frame){ .state = -1, .parent = -1, .popped = CONFIG_UNKNOWN };
    }
    c->n_frames = FRAME_LOCAL + 1;
    c->n_configs = c->n_items = 0;
    intern_clear(&c->frame_index);
    intern_clear(&c->config_index);
    memset(c->seen, 0, (size_t)c->cap_frames * sizeof *c->seen);
    c->stamp = 0;
    for (int i = 0; i <= CONFIG_FULL; i++) {
        if (!grow_configs(c, 0)) return false;
        add_config(c, NULL, 0, false, false);
    }
    return true;
}

/* The frames of all stacks on which a matcher stands. */
static void mark_live(const struct matcher_cache *c, bool *live)
{
    for (const struct matcher *x = c->matchers; x; x = x->next) {
        const struct config *k = &c->configs[x->config];
        for (int i = 0; i < k->n; i++)
            for (int32_t f = c->items[k->item + (uint32_t)i]; f > FRAME_LOCAL && !live[f];
                 f = c->frames[f].parent)
                live[f] = true;
    }
}

/* Copies of the tables as they are before an eviction, and the new numbers of the live frames. */
struct eviction {
    bool *live;
    int32_t *moved;
    struct stack_frame *frames;
    struct config *configs;
    int32_t *items;
};

static bool eviction_init(struct eviction *v, const struct matcher_cache *c)
{
    size_t n = (size_t)c->n_frames;

    v->live = mem_array(n, sizeof *v->live);
    v->moved = mem_array(n, sizeof *v->moved);
    v->frames = mem_dup(c->frames, n * sizeof *v->frames);
    v->configs = mem_dup(c->configs, (size_t)c->n_configs * sizeof *v->configs);
    v->items = mem_dup(c->items, (size_t)c->n_items * sizeof *v->items);
    return v->live && v->moved && v->frames && v->configs && v->items;
}

static void eviction_release(struct eviction *v)
{
    mem_free(v->live);
    mem_free(v->moved);
    mem_free(v->frames);
    mem_free(v->configs);
    mem_free(v->items);
}

/* Gives a matcher its configuration in the new numbers. */
static void move_matcher(struct matcher_cache *c, struct matcher *x, const struct eviction *v)
{
    const struct config *old = &v->configs[x->config];

    c->n_found = 0;
    for (int i = 0; i < old->n; i++) add_found(c, v->moved[v->items[old->item + (uint32_t)i]]);
    x->config = config_intern(c, c->found, c->n_found, old->ends, old->pops);
}

/* The tables and indexes keep their memory, and no more goes in than was there before: after the
 * copies are made nothing allocates, so an eviction happens as a whole or not at all. Parents have
 * smaller numbers, so one pass renumbers the frames. */
void config_evict(struct matcher_cache *c)
{
    struct eviction v = { 0 };
    int n = c->n_frames;

    if (eviction_init(&v, c)) {
        mark_live(c, v.live);
        masks_evict(c);
        config_reset(c);
        v.moved[FRAME_LOCAL] = FRAME_LOCAL;
        for (int i = FRAME_LOCAL + 1; i < n; i++)
            if (v.live[i])
                v.moved[i] = frame_intern(c, v.frames[i].state, v.frames[i].count,
                                          v.moved[v.frames[i].parent]);
        for (struct matcher *x = c->matchers; x; x = x->next) move_matcher(c, x, &v);
    }
    eviction_release(&v);
}

size_t config_bytes(const struct matcher_cache *c)
{
    return (size_t)c->n_configs *
               (sizeof *c->configs + (size_t)c->pda->n_classes * sizeof *c->next) +
           (size_t)c->n_items * sizeof *c->items + (size_t)c->n_frames * sizeof *c->frames;
}

void config_release(struct matcher_cache *c)
{
    intern_release(&c->frame_index);
    intern_release(&c->config_index);
    mem_free(c->frames);
    mem_free(c->seen);
    mem_free(c->configs);
    mem_free(c->next);
    mem_free(c->items);
    mem_free(c->pending);
    mem_free(c->found);
    mem_free(c->by_count);
}
