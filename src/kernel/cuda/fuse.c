/* fuse.c - which operations of a record one kernel does together.
 *
 * What is left out must not be missed: a result is only left out when the next operation that
 * touches its memory writes over all of it, or when nothing does until the step ends. */
#include "kernel/cuda/record.h"

struct range {
    const char *at, *end;
}; /* empty: at == end */

static struct range bytes_at(const void *p, size_t n)
{
    return (struct range){ (const char *)p, (const char *)p + n };
}

static struct range range_of(const struct tensor *t)
{
    size_t n = t->data && t->rows > 0
                   ? ((size_t)(t->rows - 1) * t->stride + (size_t)t->cols) * sizeof(float)
                   : 0;
    return bytes_at(t->data, n);
}

static bool overlaps(struct range a, struct range b) { return a.at < b.end && b.at < a.end; }
static bool covers(struct range a, struct range b) { return a.at <= b.at && b.end <= a.end; }

/* Rows without gaps: writing them writes the whole range. */
static bool is_whole(const struct tensor *t)
{
    return t->rows <= 1 || t->stride == (size_t)t->cols;
}

static bool same_tensor(const struct tensor *a, const struct tensor *b)
{
    return a->data == b->data && a->rows == b->rows && a->cols == b->cols && a->stride == b->stride;
}

/* ---- who touches what ---- */

enum touch { TOUCH_NONE, TOUCH_READ, TOUCH_OVERWRITE };

static enum touch reads(const struct tensor *t, struct range m)
{
    return overlaps(range_of(t), m) ? TOUCH_READ : TOUCH_NONE;
}

/* Part of it written is not all of it: the rest is still to be looked for. */
static enum touch writes(const struct tensor *t, struct range m)
{
    return is_whole(t) && covers(range_of(t), m) ? TOUCH_OVERWRITE : TOUCH_NONE;
}

static enum touch first_of(enum touch a, enum touch b, enum touch c, enum touch d)
{
    return a ? a : b ? b : c ? c : d;
}

static enum touch linear_touches(const struct record *r, const struct op *o, struct range m)
{
    const struct linear *j = r->jobs + o->u.linear.job;
    enum touch t = reads(&o->u.linear.x, m);

    for (int i = 0; i < o->u.linear.n_jobs && !t; i++)
        if (j[i].add) t = reads(&j[i].out, m);
    for (int i = 0; i < o->u.linear.n_jobs && !t; i++) t = writes(&j[i].out, m);
    return t;
}

/* Rows that it makes for itself are nobody else's: they are written before they are read. */
static enum touch experts_touch(const struct op *o, struct range m)
{
    size_t n = (size_t)o->u.experts.x.rows * (size_t)o->u.experts.opt.n_used;
    enum touch t = reads(&o->u.experts.x, m);

    if (!t && o->u.experts.opt.add) t = reads(&o->u.experts.out, m);
    if (!t && overlaps(bytes_at(o->u.experts.ids, n * sizeof(int32_t)), m)) t = TOUCH_READ;
    if (!t && overlaps(bytes_at(o->u.experts.weights, n * sizeof(float)), m)) t = TOUCH_READ;
    return t ? t : writes(&o->u.experts.out, m);
}

/* Between its heads' results there may be gaps, which are not written. */
static enum touch heads_touch(const struct op *o, struct range m)
{
    const struct linear_heads_opt *h = &o->u.heads.opt;
    enum touch t = reads(&o->u.heads.x, m);

    return t || h->out_step != h->w->rows + h->tail ? t : writes(&o->u.heads.out, m);
}

/* State is nobody else's memory. */
static enum touch scan_touches(const struct op *o, struct range m)
{
    const struct scan_in *in = &o->u.scan.in;
    enum touch t =
        first_of(reads(&in->x, m), reads(&in->dt, m), reads(&in->b, m), reads(&in->c, m));

    return t ? t : writes(&o->u.scan.out, m);
}

static enum touch delta_touches(const struct op *o, struct range m)
{
    const struct delta_in *in = &o->u.delta.in;
    enum touch t =
        first_of(reads(&in->q, m), reads(&in->k, m), reads(&in->v, m), reads(&in->alpha, m));

    return first_of(t, reads(&in->beta, m), writes(&o->u.delta.out, m), TOUCH_NONE);
}

static enum touch touches(const struct record *r, const struct op *o, struct range m)
{
    switch (o->kind) {
    case OP_PUT:
        return covers(bytes_at(o->u.copy.dst, o->u.copy.bytes), m) ? TOUCH_OVERWRITE : TOUCH_NONE;
    case OP_GET:
        return overlaps(bytes_at(o->u.copy.src, o->u.copy.bytes), m) ? TOUCH_READ : TOUCH_NONE;
    case OP_COPY:
        if (overlaps(bytes_at(o->u.copy.src, o->u.copy.bytes), m)) return TOUCH_READ;
        return covers(bytes_at(o->u.copy.dst, o->u.copy.bytes), m) ? TOUCH_OVERWRITE : TOUCH_NONE;
    case OP_EMBED: return writes(&o->u.embed.out, m);
    case OP_GATHER:
        return first_of(reads(&o->u.gather.x, m), writes(&o->u.gather.out, m), TOUCH_NONE,
                        TOUCH_NONE);
    case OP_NORM:
        return first_of(reads(&o->u.norm.x, m), writes(&o->u.norm.out, m), TOUCH_NONE, TOUCH_NONE);
    case OP_HEADNORM:
    case OP_HEADNORM_LAYER: return reads(&o->u.headnorm.x, m);
    case OP_LINEAR: return linear_touches(r, o, m);
    case OP_ROPE_TABLE: return writes(&o->u.rope_table.table, m);
    case OP_ROPE:
        return first_of(reads(&o->u.rope.x, m), reads(&o->u.rope.table, m), TOUCH_NONE, TOUCH_NONE);
    case OP_KV_PUT:
        return first_of(reads(&o->u.kv_put.k, m), reads(&o->u.kv_put.v, m), TOUCH_NONE, TOUCH_NONE);
    case OP_ATTEND:
        return first_of(reads(&o->u.attend.q, m), writes(&o->u.attend.out, m), TOUCH_NONE,
                        TOUCH_NONE);
    case OP_ACT:
        return first_of(reads(&o->u.act.gate, m), reads(&o->u.act.up, m), writes(&o->u.act.out, m),
                        TOUCH_NONE);
    case OP_ADD:
    case OP_SCALE:
    case OP_SOFTCAP:
    case OP_CLAMP:
    case OP_GATE_ROWS:
        return first_of(reads(&o->u.add.x, m), reads(&o->u.add.y, m), TOUCH_NONE, TOUCH_NONE);
    case OP_ROUTE: return reads(&o->u.route.logits, m);
    case OP_EXPERTS: return experts_touch(o, m);
    case OP_SAMPLE: return reads(&o->u.sample.logits, m);
    case OP_HEADS: return heads_touch(o, m);
    case OP_CONV:
        return first_of(reads(&o->u.conv.x, m), writes(&o->u.conv.out, m), TOUCH_NONE, TOUCH_NONE);
    case OP_SCAN: return scan_touches(o, m);
    case OP_DELTA: return delta_touches(o, m);
    case OP_ROPE_KV:
        return first_of(reads(&o->u.rope_kv.q, m), reads(&o->u.rope_kv.k, m),
                        reads(&o->u.rope_kv.v, m), TOUCH_NONE);
    }
    return TOUCH_READ;
}

/* Nobody reads t from operation `from` on. */
static bool is_dead(const struct record *r, int from, const struct tensor *t, bool last)
{
    struct range m = range_of(t);

    for (int i = from; i < r->n; i++) {
        enum touch how = r->ops[i].gone ? TOUCH_NONE : touches(r, &r->ops[i], m);
        if (how) return how == TOUCH_OVERWRITE;
    }
    return last;
}

/* ---- what goes together ---- */

/* norm, linear of its result. The product reads the norm's input, which it must not write
 * meanwhile. */
static void fuse_norm(struct record *r, int i, bool last)
{
    struct op *n = &r->ops[i], *l = &r->ops[i + 1];

    if (l->kind != OP_LINEAR || l->u.linear.exact || !same_tensor(&n->u.norm.out, &l->u.linear.x))
        return;
    if (n->u.norm.x.rows != l->u.linear.x.rows || n->u.norm.x.cols != l->u.linear.x.cols) return;
    for (int j = 0; j < l->u.linear.n_jobs; j++)
        if (overlaps(range_of(&r->jobs[l->u.linear.job + j].out), range_of(&n->u.norm.x))) return;
    if (!is_dead(r, i + 2, &n->u.norm.out, last)) {
        /* A product of its own may still have overwritten it. */
        bool over = false;
        for (int j = 0; j < l->u.linear.n_jobs; j++)
            over |= writes(&r->jobs[l->u.linear.job + j].out, range_of(&n->u.norm.out)) ==
                    TOUCH_OVERWRITE;
        if (!over) return;
    }
    l->u.linear.x = n->u.norm.x;
    l->u.linear.norm = n->u.norm.kind;
    l->u.linear.norm_w = n->u.norm.w;
    l->u.linear.norm_b = n->u.norm.b;
    l->u.linear.eps = n->u.norm.eps;
    n->gone = true;
}

/* linear of gate and up (or gate alone), act in place of gate. */
static void fuse_act(struct record *r, int i, bool last)
{
    struct op *l = &r->ops[i], *a = &r->ops[i + 1];
    const struct linear *j = r->jobs + l->u.linear.job;
    int want = a->kind == OP_ACT && a->u.act.up.data ? 2 : 1;

    if (a->kind != OP_ACT || l->u.linear.exact || l->u.linear.n_jobs != want) return;
    if (a->u.act.act == ACT_SWIGLU_CLIP) return; /* of up there is more to do than a product */
    if (!same_tensor(&j[0].out, &a->u.act.gate) || !same_tensor(&j[0].out, &a->u.act.out) ||
        j[0].add)
        return;
    if (want == 2) {
        if (!same_tensor(&j[1].out, &a->u.act.up) || j[1].add) return;
        if (j[0].w->rows != j[1].w->rows || !is_dead(r, i + 2, &j[1].out, last)) return;
    }
    l->u.linear.fuse_act = true;
    l->u.linear.act = a->u.act.act;
    a->gone = true;
}

/* What stands before a kv_put: headnorm of q and k, rope of q and k, each pair optional. */
struct rope_run {
    const struct op *q_norm, *k_norm, *q_rope, *k_rope, *put;
    int end; /* index of put */
};

static const struct op *take(const struct record *r, int *i, enum op_kind kind)
{
    return *i < r->n && r->ops[*i].kind == kind ? &r->ops[(*i)++] : NULL;
}

static struct rope_run find_run(const struct record *r, int i)
{
    struct rope_run f = { 0 };

    f.q_norm = take(r, &i, OP_HEADNORM);
    if (f.q_norm) f.k_norm = take(r, &i, OP_HEADNORM);
    f.q_rope = take(r, &i, OP_ROPE);
    if (f.q_rope) f.k_rope = take(r, &i, OP_ROPE);
    f.end = i;
    f.put = take(r, &i, OP_KV_PUT);
    return f;
}

static bool norm_fits(const struct op *n, const struct tensor *x, int n_heads, int head_dim)
{
    return same_tensor(&n->u.headnorm.x, x) && n->u.headnorm.n_heads == n_heads &&
           n->u.headnorm.head_dim == head_dim && n->u.headnorm.w_stride == 0 && n->u.headnorm.w;
}

static bool ropes_fit(const struct rope_run *f, int n_kv_heads, int head_dim)
{
    const struct op *q = f->q_rope, *k = f->k_rope;

    if (!k || !same_tensor(&k->u.rope.x, &f->put->u.kv_put.k)) return false;
    return q->u.rope.head_dim == head_dim && k->u.rope.head_dim == head_dim &&
           k->u.rope.n_heads == n_kv_heads && q->u.rope.n_rot == k->u.rope.n_rot &&
           q->u.rope.style == k->u.rope.style && q->u.rope.x.rows == k->u.rope.x.rows &&
           same_tensor(&q->u.rope.table, &k->u.rope.table) &&
           q->u.rope.table.stride == (size_t)q->u.rope.n_rot;
}

/* One headnorm alone is k's if it is k that it norms. */
static bool run_fits(struct rope_run *f, int n_kv_heads, int head_dim)
{
    const struct tensor *k = &f->put->u.kv_put.k;
    const struct op *n;

    if (!f->q_rope && !(f->q_norm && f->k_norm)) return false;
    if (f->q_rope && !ropes_fit(f, n_kv_heads, head_dim)) return false;
    if (f->q_norm && !f->k_norm && same_tensor(&f->q_norm->u.headnorm.x, k)) {
        f->k_norm = f->q_norm;
        f->q_norm = NULL;
    }
    if (f->k_norm && !norm_fits(f->k_norm, k, n_kv_heads, head_dim)) return false;
    if (!(n = f->q_norm)) return true;
    if (f->q_rope) {
        if (!norm_fits(n, &f->q_rope->u.rope.x, f->q_rope->u.rope.n_heads, head_dim)) return false;
    } else if (!norm_fits(n, &n->u.headnorm.x, n->u.headnorm.n_heads, head_dim)) {
        return false;
    }
    return !f->k_norm || n->u.headnorm.eps == f->k_norm->u.headnorm.eps;
}

static void fuse_rope_kv(struct record *r, int i, bool last)
{
    struct rope_run f = find_run(r, i);
    struct op o = { .kind = OP_ROPE_KV };

    if (!f.put) return;
    const struct kvlayer *kv = &r->views[f.put->u.kv_put.view].layers[f.put->u.kv_put.layer];
    if (kv->v_in_k || !run_fits(&f, kv->n_kv_heads, kv->head_dim)) return;
    if (!is_dead(r, f.end + 1, &f.put->u.kv_put.k, last)) return;

    o.u.rope_kv.q = f.q_rope ? f.q_rope->u.rope.x : f.q_norm->u.headnorm.x;
    o.u.rope_kv.n_heads = f.q_rope ? f.q_rope->u.rope.n_heads : f.q_norm->u.headnorm.n_heads;
    o.u.rope_kv.k = f.put->u.kv_put.k;
    o.u.rope_kv.v = f.put->u.kv_put.v;
    o.u.rope_kv.view = f.put->u.kv_put.view;
    o.u.rope_kv.layer = f.put->u.kv_put.layer;
    o.u.rope_kv.n_kv_heads = kv->n_kv_heads;
    o.u.rope_kv.head_dim = kv->head_dim;
    if (f.q_rope) {
        o.u.rope_kv.table = (const float *)f.q_rope->u.rope.table.data;
        o.u.rope_kv.n_rot = f.q_rope->u.rope.n_rot;
        o.u.rope_kv.style = f.q_rope->u.rope.style;
    }
    if (f.q_norm)
        o.u.rope_kv.q_norm = f.q_norm->u.headnorm.w, o.u.rope_kv.eps = f.q_norm->u.headnorm.eps;
    if (f.k_norm)
        o.u.rope_kv.k_norm = f.k_norm->u.headnorm.w, o.u.rope_kv.eps = f.k_norm->u.headnorm.eps;
    for (int j = i; j < f.end; j++) r->ops[j].gone = true;
    r->ops[f.end] = o;
}

/* rope_kv, attend of its q over its keys, for one token: nobody else waits for either. */
static void fuse_attend(struct record *r, int i, bool last)
{
    struct op *k = &r->ops[i], *a = &r->ops[i + 1];
    struct range out;

    if (a->kind != OP_ATTEND || a->gone) return;
    if (a->u.attend.view != k->u.rope_kv.view || a->u.attend.layer != k->u.rope_kv.layer) return;
    if (r->views[a->u.attend.view].n_tokens != 1 || !same_tensor(&a->u.attend.q, &k->u.rope_kv.q))
        return;
    out = range_of(&a->u.attend.out);
    if (overlaps(out, range_of(&k->u.rope_kv.q)) || overlaps(out, range_of(&k->u.rope_kv.k)) ||
        overlaps(out, range_of(&k->u.rope_kv.v)) || !is_dead(r, i + 2, &a->u.attend.q, last))
        return;
    a->u.attend.rope = i;
    k->gone = true;
}

void record_fuse(struct record *r, bool last)
{
    if (r->fused) return;
    r->fused = true;
    for (int i = 0; i + 1 < r->n; i++) {
        if (r->ops[i].gone) continue;
        if (r->ops[i].kind == OP_HEADNORM || r->ops[i].kind == OP_ROPE) fuse_rope_kv(r, i, last);
        else if (r->ops[i].kind == OP_NORM) fuse_norm(r, i, last);
        else if (r->ops[i].kind == OP_LINEAR) fuse_act(r, i, last);
        else if (r->ops[i].kind == OP_ROPE_KV) fuse_attend(r, i, last);
    }
}
