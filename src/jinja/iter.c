/* iter.c - iterators over each type, generators, and the variable "loop".
 *
 * An iterator is a function `next` and the state it needs. Over a sequence that is the value and a
 * position. A generator (filters_seq.c, and the test of a loop in eval.c) reads its input through
 * jiter_source and keeps what else it needs in `src`, `at` and `extra`. Nothing is ever restarted:
 * iterating twice over a generator continues where the first iteration stopped, as in Python. */
#include "jinja/iter.h"

#include "base/utf8.h"
#include "jinja/render.h"

/* An undefined value iterates over nothing. */
static bool next_none(struct render *r, struct jiter *it, struct jval *out)
{
    (void)r, (void)it, (void)out;
    return false;
}

static bool next_list(struct render *r, struct jiter *it, struct jval *out)
{
    (void)r;
    if (it->at >= it->src.l->n) return false;
    *out = it->src.l->v[it->at++];
    return true;
}

/* The characters of a str share its bytes. */
static bool next_char(struct render *r, struct jiter *it, struct jval *out)
{
    struct str rest = str_skip(it->src.s, it->at);
    int32_t cp;
    int n;

    (void)r;
    if (rest.n == 0) return false;
    n = utf8_next(rest, &cp);
    *out = jv_str(str_take(rest, (size_t)n));
    out->flags = it->src.flags & JV_MARKUP;
    it->at += (size_t)n;
    return true;
}

static bool next_range(struct render *r, struct jiter *it, struct jval *out)
{
    const struct jrange *g = it->src.range;

    (void)r;
    if (it->at >= g->n) return false;
    *out = jv_int(g->start + (int64_t)it->at++ * g->step);
    return true;
}

/* The i-th key, value or pair of a dict. */
static bool view_at(struct render *r, enum jview_kind kind, const struct jdict *d, size_t i,
                    struct jval *out)
{
    if (i >= d->n) return false;
    if (kind == VIEW_KEYS) *out = d->e[i].key;
    else if (kind == VIEW_VALUES) *out = d->e[i].value;
    else *out = jv_tuple2(r, d->e[i].key, d->e[i].value);
    return true;
}

/* Iterating over a dict yields its keys. */
static bool next_dict(struct render *r, struct jiter *it, struct jval *out)
{
    return view_at(r, VIEW_KEYS, it->src.d, it->at++, out);
}

static bool next_view(struct render *r, struct jiter *it, struct jval *out)
{
    return view_at(r, it->src.view->kind, it->src.view->d, it->at++, out);
}

/* An iterator over a generator: all iterations share its position. */
static bool next_shared(struct render *r, struct jiter *it, struct jval *out)
{
    return jiter_next(r, it->inner, out);
}

/* Iterating over the variable "loop" yields pairs of the item and loop, as jinja2's LoopContext. */
static bool next_loop(struct render *r, struct jiter *it, struct jval *out)
{
    if (!jloop_next(r, it->src.loop, out)) return false;
    *out = jv_tuple2(r, *out, it->src);
    return true;
}

/* Generators have no reverse: the caller has checked the type. */
static bool next_reversed(struct render *r, struct jiter *it, struct jval *out)
{
    const struct jrange *g;
    size_t n, i;

    if (!jv_len(r, it->src, &n) || it->at >= n) return false;
    i = n - 1 - it->at++;
    switch (it->src.kind) {
    case J_LIST:
    case J_TUPLE: *out = it->src.l->v[i]; return true;
    case J_DICT: return view_at(r, VIEW_KEYS, it->src.d, i, out);
    case J_VIEW: return view_at(r, it->src.view->kind, it->src.view->d, i, out);
    default: g = it->src.range, *out = jv_int(g->start + (int64_t)i * g->step); return true;
    }
}

/* The types that jiter_begin accepts. */
bool jv_iterable(struct jval v)
{
    switch (v.kind) {
    case J_UNDEF:
    case J_STR:
    case J_LIST:
    case J_TUPLE:
    case J_DICT:
    case J_RANGE:
    case J_VIEW:
    case J_LOOP:
    case J_ITER: return true;
    default: return false;
    }
}

/* Nothing is read before the first jiter_next. */
bool jiter_begin(struct render *r, struct jiter *it, struct jval over)
{
    *it = (struct jiter){ .src = over };
    switch (over.kind) {
    case J_UNDEF: it->next = next_none; return true;
    case J_STR: it->next = next_char; return true;
    case J_LIST:
    case J_TUPLE: it->next = next_list; return true;
    case J_DICT: it->next = next_dict; return true;
    case J_RANGE: it->next = next_range; return true;
    case J_VIEW: it->next = next_view; return true;
    case J_LOOP: it->next = next_loop; return true;
    case J_ITER: it->next = next_shared, it->inner = over.iter; return true;
    default:
        it->next = next_none;
        jv_fail(r, "'%s' object is not iterable", jv_type(over));
        return false;
    }
}

/* Charges a step and a level of recursion: generators may be nested deeply. */
bool jiter_next(struct render *r, struct jiter *it, struct jval *out)
{
    if (it->done || !jv_step(r, 1) || !jv_enter(r)) return false;
    if (!it->next(r, it, out) || jv_failed(r)) it->done = true;
    jv_leave(r);
    return !it->done;
}

/* The arguments of a filter may be on the caller's stack, and a generator outlives the call. NULL
 * after a failed allocation. */
static const struct jargs *copy_args(struct render *r, const struct jargs *a)
{
    struct jargs *c = jv_alloc(r, sizeof *c);
    struct jval *v = jv_array(r, a->n, sizeof *v);
    struct jpair *kw = jv_array(r, a->n_kw, sizeof *kw);

    if (!c || !v || !kw) return NULL;
    if (a->n) memcpy(v, a->v, a->n * sizeof *v);
    if (a->n_kw) memcpy(kw, a->kw, a->n_kw * sizeof *kw);
    *c = (struct jargs){ v, a->n, kw, a->n_kw };
    return c;
}

/* `src` starts as the input; generators that keep other state there overwrite it. */
struct jval jiter_new(struct render *r,
                      bool (*next)(struct render *, struct jiter *, struct jval *),
                      struct jval over, const struct jargs *args)
{
    struct jiter *it = jv_alloc(r, sizeof *it);

    if (!it) return jv_none();
    it->next = next;
    it->src = it->src0 = over;
    if (args && !(it->args = copy_args(r, args))) return jv_none();
    it->shows = "generator object";
    return (struct jval){ .kind = J_ITER, .iter = it };
}

/* The iteration over the input begins with the first item, so errors of the input occur then. */
bool jiter_source(struct render *r, struct jiter *it, struct jval *out)
{
    if (!it->inner) {
        if (!(it->inner = jv_alloc(r, sizeof *it->inner))) return false;
        if (!jiter_begin(r, it->inner, it->src0)) return false;
    }
    return jiter_next(r, it->inner, out);
}

struct jval jv_to_list(struct render *r, struct jval over)
{
    struct jval list = jv_list(r, 0), v;
    struct jiter it;

    if (!jiter_begin(r, &it, over)) return list;
    while (jiter_next(r, &it, &v)) jlist_push(r, list.l, v);
    return list;
}

/* Lazy, as reversed() in Python. */
struct jval jv_reversed(struct render *r, struct jval v, bool *can)
{
    *can = v.kind == J_LIST || v.kind == J_TUPLE || v.kind == J_DICT || v.kind == J_RANGE ||
           v.kind == J_VIEW;
    if (!*can) return v;
    v = jiter_new(r, next_reversed, v, NULL);
    if (v.kind == J_ITER) v.iter->shows = "list_reverseiterator object";
    return v;
}

/* ---- loop ---- */

/* index0 becomes 0 with the first item. */
void jloop_init(struct render *r, struct jloop *l, struct jval over)
{
    l->over = over;
    l->index0 = l->length = -1;
    l->before = l->current = l->after = l->changed = jv_missing();
    jiter_begin(r, &l->it, over);
}

/* Takes the item that was looked ahead, if there is one. */
bool jloop_next(struct render *r, struct jloop *l, struct jval *out)
{
    struct jval v = l->after;

    if (v.kind == J_MISSING && !jiter_next(r, &l->it, &v)) return false;
    /* The look-ahead item is used up. */
    l->after.kind = J_MISSING;
    l->index0++;
    l->before = l->current;
    *out = l->current = v;
    return true;
}

/* A generator has no length: its remaining items move into a list, which the loop then continues
 * with. */
size_t jloop_length(struct render *r, struct jloop *l)
{
    struct jval rest;
    size_t n;

    if (l->length >= 0) return (size_t)l->length;
    if (jv_has_len(l->over)) {
        jv_len(r, l->over, &n);
        l->length = (int64_t)n;
    } else {
        rest = jv_list(r, 0);
        for (struct jval v; jiter_next(r, &l->it, &v);) jlist_push(r, rest.l, v);
        jiter_begin(r, &l->it, rest);
        l->length = (int64_t)rest.l->n + l->index0 + 1 + (l->after.kind != J_MISSING);
    }
    return (size_t)l->length;
}

/* Reads the next item ahead; false: there is none. */
static bool peek_item(struct render *r, struct jloop *l)
{
    if (l->after.kind == J_MISSING && !jiter_next(r, &l->it, &l->after)) l->after.kind = J_MISSING;
    return l->after.kind != J_MISSING;
}

/* loop.cycle(a, b, ...): the argument of the current iteration. */
static struct jval loop_cycle(struct render *r, struct jval self, const struct jargs *a)
{
    if (a->n == 0) return jv_fail(r, "no items for cycling given");
    return a->v[(size_t)self.loop->index0 % a->n];
}

/* loop.changed(values...): whether they differ from the last call. */
static struct jval loop_changed(struct render *r, struct jval self, const struct jargs *a)
{
    struct jval now = jv_tuple(r, a->n);
    bool changed;

    for (size_t i = 0; i < a->n; i++) jlist_push(r, now.l, a->v[i]);
    changed = !jv_equal(r, self.loop->changed, now);
    self.loop->changed = now;
    return jv_bool(changed);
}

/* last and nextitem read one item ahead, length and revindex may read all. */
bool jloop_attr(struct render *r, struct jloop *l, struct str name, struct jval *out)
{
    static const struct jmethod_def cycle = { "cycle", loop_cycle },
                                    changed = { "changed", loop_changed };
    struct jval self = { .kind = J_LOOP, .loop = l };

    if (str_is(name, "index")) *out = jv_int(l->index0 + 1);
    else if (str_is(name, "index0")) *out = jv_int(l->index0);
    else if (str_is(name, "first")) *out = jv_bool(l->index0 == 0);
    else if (str_is(name, "last")) *out = jv_bool(!peek_item(r, l));
    else if (str_is(name, "length")) *out = jv_int((int64_t)jloop_length(r, l));
    else if (str_is(name, "revindex")) *out = jv_int((int64_t)jloop_length(r, l) - l->index0);
    else if (str_is(name, "revindex0")) *out = jv_int((int64_t)jloop_length(r, l) - l->index0 - 1);
    else if (str_is(name, "depth")) *out = jv_int(l->depth0 + 1);
    else if (str_is(name, "depth0")) *out = jv_int(l->depth0);
    else if (str_is(name, "previtem"))
        *out = l->index0 == 0 ? jv_undef(r, "there is no previous item") : l->before;
    else if (str_is(name, "nextitem"))
        *out = peek_item(r, l) ? l->after : jv_undef(r, "there is no next item");
    else if (str_is(name, "cycle")) *out = jv_method(r, self, &cycle);
    else if (str_is(name, "changed")) *out = jv_method(r, self, &changed);
    else return false;
    return true;
}
