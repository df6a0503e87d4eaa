#include "grammar/guide_impl.h"

#include "base/mem.h"

#include <stdlib.h>

enum {
    STACKS = 2000,        /* of one text at once */
    MOST_BYTES = 96 << 20 /* before what no text stands on is forgotten */
};

/* ---- numbers of things ---- */

uint64_t hash_ints(const int32_t *p, int n)
{
    uint64_t h = 0x9e3779b97f4a7c15u + (uint64_t)n;

    for (int i = 0; i < n; i++) {
        h = (h ^ (uint32_t)p[i]) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
    }
    return h;
}

size_t table_first(const struct ids_table *t, uint64_t hash) { return (size_t)hash & t->mask; }
size_t table_next(const struct ids_table *t, size_t at) { return (at + 1) & t->mask; }
bool table_is_tight(const struct ids_table *t) { return !t->p || 2 * (t->n + 1) > t->mask; }

void table_grow(struct ids_table *t)
{
    size_t cap = t->p ? 2 * (t->mask + 1) : 256;

    mem_free(t->p);
    *t = (struct ids_table){ .p = mem_array(cap, sizeof *t->p), .mask = cap - 1 };
}

void table_put(struct ids_table *t, uint64_t hash, int32_t id)
{
    size_t at = table_first(t, hash);

    while (t->p[at]) at = table_next(t, at);
    t->p[at] = id + 1;
    t->n++;
}

void table_release(struct ids_table *t)
{
    mem_free(t->p);
    *t = (struct ids_table){ 0 };
}

/* ---- frames ---- */

static uint64_t frame_hash(int32_t state, int32_t count, int32_t parent)
{
    return hash_ints((int32_t[]){ state, count, parent }, 3);
}

/* Bytes until the rule of this frame is over. */
static int own_least(const struct gauto *a, int32_t state, int32_t count)
{
    const struct gauto_rule *r = &a->rules[a->states[state].rule];
    int64_t unit, rounds, n = a->states[state].least;

    if (r->counted) {
        unit = a->states[r->start].least;
        if (state == r->start) n = 0, rounds = count == 0 && r->min == 0 ? 1 : r->min - count;
        else rounds = r->min - count - 1;
        if (rounds > 0) n += rounds * unit;
    }
    return n < GAUTO_FAR ? (int)n : GAUTO_FAR;
}

static void grow_frames(struct guide *m)
{
    int cap = m->cap_frames ? 2 * m->cap_frames : 256;

    m->frames = mem_grow(m->frames, (size_t)cap * sizeof *m->frames);
    m->seen = mem_grow(m->seen, (size_t)cap * sizeof *m->seen);
    memset(m->seen + m->cap_frames, 0, (size_t)(cap - m->cap_frames) * sizeof *m->seen);
    m->cap_frames = cap;
}

int32_t frame_id(struct guide *m, int32_t state, int32_t count, int32_t parent)
{
    uint64_t h = frame_hash(state, count, parent);
    int64_t least;

    if (m->frame_ids.p)
        for (size_t at = table_first(&m->frame_ids, h); m->frame_ids.p[at];
             at = table_next(&m->frame_ids, at)) {
            const struct frame *f = &m->frames[m->frame_ids.p[at] - 1];
            if (f->state == state && f->count == count && f->parent == parent)
                return m->frame_ids.p[at] - 1;
        }
    if (m->n_frames == m->cap_frames) grow_frames(m);
    if (table_is_tight(&m->frame_ids)) {
        table_grow(&m->frame_ids);
        for (int i = 2; i < m->n_frames; i++)
            table_put(&m->frame_ids,
                      frame_hash(m->frames[i].state, m->frames[i].count, m->frames[i].parent), i);
    }
    least = (int64_t)own_least(m->a, state, count) + m->frames[parent].least;
    m->frames[m->n_frames] =
        (struct frame){ state, count, parent, least < GAUTO_FAR ? (int)least : GAUTO_FAR, UNKNOWN };
    table_put(&m->frame_ids, h, m->n_frames);
    return m->n_frames++;
}

/* ---- sets ---- */

static uint64_t conf_hash(const int32_t *items, int n, bool ends, bool pops)
{
    return hash_ints(items, n) ^ ((uint64_t)ends << 1 | (uint64_t)pops) * 0xc4ceb9fe1a85ec53u;
}

static int conf_least(const struct guide *m, const int32_t *items, int n, bool ends)
{
    int least = ends ? 0 : GAUTO_FAR;

    for (int i = 0; i < n; i++)
        if (m->frames[items[i]].least < least) least = m->frames[items[i]].least;
    return least;
}

static void grow_confs(struct guide *m)
{
    size_t row = (size_t)m->a->n_classes * sizeof *m->next;

    m->cap_confs = m->cap_confs ? 2 * m->cap_confs : 64;
    m->confs = mem_grow(m->confs, (size_t)m->cap_confs * sizeof *m->confs);
    m->next = mem_grow(m->next, (size_t)m->cap_confs * row);
}

static int32_t conf_new(struct guide *m, const int32_t *items, int n, bool ends, bool pops)
{
    int32_t id = m->n_confs;
    int nc = m->a->n_classes;

    if (m->n_confs == m->cap_confs) grow_confs(m);
    while (m->n_items + n > m->cap_items) {
        m->cap_items = m->cap_items ? 2 * m->cap_items : 256;
        m->items = mem_grow(m->items, (size_t)m->cap_items * sizeof *m->items);
    }
    if (n) memcpy(m->items + m->n_items, items, (size_t)n * sizeof *items);
    m->confs[id] = (struct conf){ .item = (uint32_t)m->n_items,
                                  .n = n,
                                  .ends = ends,
                                  .pops = pops,
                                  .slot = -1,
                                  .least = conf_least(m, items, n, ends) };
    m->n_items += n;
    for (int i = 0; i < nc; i++)
        m->next[(size_t)id * (size_t)nc + (size_t)i] = id == CONF_DEAD ? CONF_DEAD : UNKNOWN;
    m->n_confs++;
    return id;
}

static int by_number(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static int32_t conf_id(struct guide *m, int32_t *items, int n, bool ends, bool pops)
{
    struct ids_table *t = &m->conf_ids;
    uint64_t h;
    int32_t id;

    if (n == 0 && !ends && !pops) return CONF_DEAD;
    if (n > 1) qsort(items, (size_t)n, sizeof *items, by_number);
    h = conf_hash(items, n, ends, pops);
    if (t->p)
        for (size_t at = table_first(t, h); t->p[at]; at = table_next(t, at)) {
            const struct conf *c = &m->confs[t->p[at] - 1];
            if (c->n == n && c->ends == ends && c->pops == pops &&
                (n == 0 || !memcmp(m->items + c->item, items, (size_t)n * sizeof *items)))
                return t->p[at] - 1;
        }
    id = conf_new(m, items, n, ends, pops);
    if (table_is_tight(t)) {
        table_grow(t);
        for (int i = 1; i < id; i++) {
            const struct conf *c = &m->confs[i];
            table_put(t, conf_hash(m->items + c->item, c->n, c->ends, c->pops), i);
        }
    }
    table_put(t, h, id);
    return id;
}

int32_t conf_alone(struct guide *m, int32_t frame) { return conf_id(m, &frame, 1, false, false); }

/* ---- what follows for nothing: calls and returns ---- */

static void push(struct guide *m, int32_t frame)
{
    if (m->n_stack == m->cap_stack) {
        m->cap_stack = m->cap_stack ? 2 * m->cap_stack : 64;
        m->stack = mem_grow(m->stack, (size_t)m->cap_stack * sizeof *m->stack);
    }
    m->stack[m->n_stack++] = frame;
}

static void find(struct guide *m, int32_t frame)
{
    if (m->n_found >= STACKS) {
        m->lost = true;
        return;
    }
    if (m->n_found == m->cap_found) {
        m->cap_found = m->cap_found ? 2 * m->cap_found : 64;
        m->found = mem_grow(m->found, (size_t)m->cap_found * sizeof *m->found);
    }
    m->found[m->n_found++] = frame;
}

/* The count at `to`, coming from another state of the rule: a round may be over with it. */
static int32_t count_at(const struct gauto_rule *r, int32_t to, int32_t count)
{
    int32_t most = r->min > 1 ? r->min : 1;

    if (!r->counted || to != r->start) return count;
    return r->max == GNODE_MANY && count >= most ? most : count + 1;
}

static bool is_open(const struct gauto_rule *r, int32_t state, int32_t count)
{
    return !(r->counted && state == r->start && r->max != GNODE_MANY && count >= r->max);
}

static bool is_final(const struct gauto *a, const struct gauto_rule *r, int32_t state,
                     int32_t count)
{
    return r->counted && state == r->start ? count > 0 && count >= r->min : a->states[state].final;
}

/* Where a callee goes on: nothing is kept of a caller that has nothing more to do. */
static int32_t return_frame(struct guide *m, const struct gauto_rule *r, int32_t to, int32_t count,
                            int32_t parent)
{
    const struct gauto_state *s = &m->a->states[to];
    bool more = is_open(r, to, count) && (s->n_edges || s->n_calls);

    if (!more && is_final(m->a, r, to, count)) return parent;
    return frame_id(m, to, count, parent);
}

static void close_one(struct guide *m, int32_t id)
{
    const struct frame f = m->frames[id]; /* frames move when new ones come */
    const struct gauto_state *s = &m->a->states[f.state];
    const struct gauto_rule *r = &m->a->rules[s->rule];

    if (is_open(r, f.state, f.count)) {
        if (s->n_edges) find(m, id);
        for (int i = 0; i < s->n_calls; i++) {
            const struct fsm_call *c = &m->a->calls[s->call + i];
            int32_t back = return_frame(m, r, c->to, count_at(r, c->to, f.count), f.parent);
            push(m, frame_id(m, m->a->rules[c->rule].start, 0, back));
        }
    }
    if (is_final(m->a, r, f.state, f.count)) push(m, f.parent);
}

static void close_begin(struct guide *m)
{
    m->stamp++;
    m->n_found = m->n_stack = 0;
    m->ends = m->pops = m->lost = false;
}

static void close_add(struct guide *m, int32_t frame)
{
    push(m, frame);
    while (m->n_stack > 0 && !m->lost) {
        int32_t id = m->stack[--m->n_stack];
        if (id == FRAME_END) m->ends = true;
        else if (id == FRAME_LOCAL) m->pops = true;
        else if (m->seen[id] != m->stamp) {
            m->seen[id] = m->stamp;
            close_one(m, id);
        }
    }
}

static int32_t close_end(struct guide *m)
{
    return m->lost ? CONF_DEAD : conf_id(m, m->found, m->n_found, m->ends, m->pops);
}

int32_t conf_popped(struct guide *m, int32_t frame)
{
    int32_t id;

    if (frame == FRAME_END || m->frames[frame].popped != UNKNOWN)
        return frame == FRAME_END ? CONF_DEAD : m->frames[frame].popped;
    close_begin(m);
    close_add(m, frame);
    id = close_end(m);
    return m->frames[frame].popped = id;
}

int32_t conf_step(struct guide *m, int32_t conf, int cls)
{
    const struct conf c = m->confs[conf];
    uint8_t byte = m->byte_of[cls];
    int32_t to;

    close_begin(m);
    for (int i = 0; i < c.n; i++) {
        const struct frame f = m->frames[m->items[c.item + (uint32_t)i]];
        const struct gauto_state *s = &m->a->states[f.state];
        const struct gauto_rule *r = &m->a->rules[s->rule];
        for (int k = 0; k < s->n_edges; k++) {
            const struct fsm_edge *x = &m->a->edges[s->edge + k];
            if (byte < x->lo || byte > x->hi) continue;
            close_add(m, frame_id(m, x->to, count_at(r, x->to, f.count), f.parent));
            break;
        }
    }
    to = close_end(m);
    m->next[(size_t)conf * (size_t)m->a->n_classes + (size_t)cls] = to;
    return to;
}

/* ---- forgetting ---- */

static void mark_live(const struct guide *m, bool *live)
{
    for (const struct match *x = m->matches; x; x = x->next) {
        const struct conf *c = &m->confs[x->at];
        for (int i = 0; i < c->n; i++)
            for (int32_t f = m->items[c->item + (uint32_t)i]; f > FRAME_LOCAL && !live[f];
                 f = m->frames[f].parent)
                live[f] = true;
    }
}

/* Of every text: the items it stands on, as they will be numbered. */
static void move_match(struct guide *m, struct match *x, const struct conf *old,
                       const int32_t *items, const int32_t *moved)
{
    m->n_found = 0;
    for (int i = 0; i < old[x->at].n; i++) find(m, moved[items[old[x->at].item + (uint32_t)i]]);
    x->at = conf_id(m, m->found, m->n_found, old[x->at].ends, old[x->at].pops);
}

static void clear(struct guide *m)
{
    m->n_frames = 2;
    m->n_confs = m->n_items = 0;
    table_release(&m->frame_ids);
    table_release(&m->conf_ids);
    if (m->seen) memset(m->seen, 0, (size_t)m->cap_frames * sizeof *m->seen);
    m->stamp = 0;
    conf_new(m, NULL, 0, false, false);
}

/* Only what texts stand on is kept: parents have smaller numbers than those above them. */
static void forget(struct guide *m)
{
    int n = m->n_frames;
    bool *live = mem_array((size_t)n, sizeof *live);
    int32_t *moved = mem_array((size_t)n, sizeof *moved);
    struct frame *frames = mem_dup(m->frames, (size_t)n * sizeof *frames);
    struct conf *confs = mem_dup(m->confs, (size_t)m->n_confs * sizeof *confs);
    int32_t *items = mem_array((size_t)m->n_items + 1, sizeof *items);

    if (m->n_items) memcpy(items, m->items, (size_t)m->n_items * sizeof *items);
    mark_live(m, live);
    masks_forget(m);
    clear(m);
    moved[FRAME_LOCAL] = FRAME_LOCAL;
    for (int i = 2; i < n; i++)
        if (live[i])
            moved[i] = frame_id(m, frames[i].state, frames[i].count, moved[frames[i].parent]);
    for (struct match *x = m->matches; x; x = x->next) move_match(m, x, confs, items, moved);
    mem_free(live);
    mem_free(moved);
    mem_free(frames);
    mem_free(confs);
    mem_free(items);
}

static size_t conf_bytes(const struct guide *m)
{
    return (size_t)m->n_confs * (sizeof *m->confs + (size_t)m->a->n_classes * sizeof *m->next) +
           (size_t)m->n_items * sizeof *m->items;
}

size_t guide_bytes(const struct guide *m)
{
    return conf_bytes(m) + (size_t)m->n_frames * sizeof *m->frames + masks_bytes(m);
}

static void tidy(struct guide *m)
{
    if (guide_bytes(m) > m->most_bytes) forget(m);
}

void guide_bound(struct guide *m, size_t bytes) { m->most_bytes = bytes; }

/* ---- open, begin, go on ---- */

struct guide *guide_open(const struct gauto *a, const struct lexicon *lex)
{
    struct guide *m = mem_new(struct guide);

    m->a = a;
    m->lex = lex;
    m->most_bytes = MOST_BYTES;
    m->n_words = (lex->n_ids + 63) / 64;
    for (int b = 255; b >= 0; b--) m->byte_of[a->class_of[b]] = (uint8_t)b;
    grow_frames(m);
    for (int i = 0; i < 2; i++)
        m->frames[i] = (struct frame){ .state = -1, .parent = -1, .popped = UNKNOWN };
    clear(m);
    return m;
}

void guide_close(struct guide *m)
{
    if (!m) return;
    masks_forget(m);
    table_release(&m->frame_ids);
    table_release(&m->conf_ids);
    mem_free(m->frames);
    mem_free(m->seen);
    mem_free(m->confs);
    mem_free(m->next);
    mem_free(m->items);
    mem_free(m->stack);
    mem_free(m->found);
    mem_free(m);
}

void match_begin(struct match *x, struct guide *m, bool at_start)
{
    const struct gauto_rule *root = &m->a->rules[m->a->root];

    tidy(m);
    *x = (struct match){ .m = m, .next = m->matches, .first = at_start && m->lex->strips };
    if (m->matches) m->matches->prev = x;
    m->matches = x;
    close_begin(m);
    if (root->least < GAUTO_FAR) close_add(m, frame_id(m, root->start, 0, FRAME_END));
    m->ends |= root->nullable;
    x->at = close_end(m);
}

void match_end(struct match *x)
{
    if (!x->m) return;
    if (x->prev) x->prev->next = x->next;
    else x->m->matches = x->next;
    if (x->next) x->next->prev = x->prev;
    *x = (struct match){ 0 };
}

bool match_may_end(const struct match *x) { return x->m->confs[x->at].ends; }

bool match_is_over(const struct match *x)
{
    const struct conf *c = &x->m->confs[x->at];
    return c->ends && c->n == 0;
}

int match_least(const struct match *x) { return x->m->confs[x->at].least; }

static int32_t after(struct match *x, struct str bytes)
{
    int32_t at = x->at;

    for (size_t i = 0; i < bytes.n && at != CONF_DEAD; i++)
        at = conf_next(x->m, at, (uint8_t)bytes.p[i]);
    return at;
}

static struct str word_here(const struct match *x, int32_t id)
{
    struct str s = lexicon_word(x->m->lex, id);
    return x->first && s.n && s.p[0] == ' ' ? str_skip(s, 1) : s;
}

bool match_write(struct match *x, struct str bytes)
{
    int32_t to = after(x, bytes);

    if (to == CONF_DEAD || bytes.n == 0) return false;
    x->at = to;
    x->first = false;
    tidy(x->m);
    return true;
}

bool match_accept(struct match *x, int32_t id)
{
    return id >= 0 && id < x->m->lex->n_ids && match_write(x, word_here(x, id));
}

int match_least_after(struct match *x, int32_t id)
{
    struct str word = id >= 0 && id < x->m->lex->n_ids ? word_here(x, id) : STR("");
    int32_t to = word.n ? after(x, word) : CONF_DEAD;

    return to == CONF_DEAD ? GAUTO_FAR : x->m->confs[to].least;
}
