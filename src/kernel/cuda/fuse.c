/* fuse.c - which operations of a record one kernel does together.
 *
 * A pass over the record looks at neighbours and replaces them by one operation:
 *
 *     norm, linear of its result                       linear that normalizes its input
 *     norm, linear of its result, route by that        route that does both first
 *     linear of gate (and up), act                     linear that writes act(gate) * up
 *     headnorms, ropes, kv_put                         rope_kv
 *     rope_kv, attend of one token                     attend that does the rope_kv first
 *
 * The intermediate result of the first is then never written. That is allowed only if nobody misses
 * it: the next operation that uses its memory overwrites all of it without reading, or no operation
 * uses it until the step ends. What an operation reads and writes comes from its descriptor. */
#include "kernel/cuda/record.h"

struct range {
    const char *at, *end; /* empty: at == end */
};

static struct range range_at(const void *p, size_t n)
{
    return (struct range){ (const char *)p, (const char *)p + n };
}

static struct range range_of(const struct op_tensor *t)
{
    size_t n = t->data && t->rows > 0
                   ? ((size_t)(t->rows - 1) * t->stride + (size_t)t->cols) * sizeof(float)
                   : 0;
    return range_at(t->data, n);
}

static bool overlaps(struct range a, struct range b) { return a.at < b.end && b.at < a.end; }
static bool covers(struct range a, struct range b) { return a.at <= b.at && b.end <= a.end; }

/* Rows without gaps: writing them writes the whole range. */
static bool is_dense(const struct op_tensor *t)
{
    return t->rows <= 1 || t->stride == (size_t)t->cols;
}

static bool overwrites(const struct op_tensor *t, struct range m)
{
    return is_dense(t) && covers(range_of(t), m);
}

static bool same_tensor(const struct op_tensor *a, const struct op_tensor *b)
{
    return a->data == b->data && a->rows == b->rows && a->cols == b->cols && a->stride == b->stride;
}

/* ---- what an operation reads and writes ---- */

static const void *field_at(const void *op, size_t at) { return (const char *)op + at; }

static int int_at(const void *op, size_t at) { return *(const int *)field_at(op, at); }

static struct range bytes_of(const void *op, const struct op_field *f)
{
    return range_at(*(void *const *)field_at(op, f->at), *(const size_t *)field_at(op, f->aux));
}

/* One field of an operation. write: does it overwrite m completely; else: does it read any of m. */
static bool field_uses(const void *op, const struct op_field *f, bool write, struct range m)
{
    const struct op_tensor *t = field_at(op, f->at);

    switch (f->role) {
    case ROLE_READ:
    case ROLE_UPDATED: return !write && overlaps(range_of(t), m);
    case ROLE_WRITTEN: return write && overwrites(t, m);
    case ROLE_WRITTEN_DENSE: return write && int_at(op, f->aux) && overwrites(t, m);
    case ROLE_ADDED:
        return write ? overwrites(t, m) : int_at(op, f->aux) && overlaps(range_of(t), m);
    case ROLE_READ_BYTES: return !write && overlaps(bytes_of(op, f), m);
    case ROLE_WRITTEN_BYTES: return write && covers(bytes_of(op, f), m);
    default: return false;
    }
}

static bool fields_use(const struct record *r, const struct op_desc *d, const void *op, bool write,
                       struct range m)
{
    for (const struct op_field *f = d->fields, *end = f + d->n_fields; f < end; f++) {
        if (f->role >= ROLE_ADDRESS) continue;
        if (f->role != ROLE_JOBS) {
            if (field_uses(op, f, write, m)) return true;
            continue;
        }
        const struct op_job *j = r->jobs + int_at(op, f->at);
        for (int n = int_at(op, f->aux); n > 0; n--, j++)
            if (fields_use(r, &op_desc_job, j, write, m)) return true;
    }
    return false;
}

/* An operation reads its inputs before it writes its results. Memory that it writes in part is not
 * overwritten: the rest may still be read. */
static enum op_use use_of(const struct record *r, const struct op *o, struct range m)
{
    const struct op_desc *d = &op_descs[o->kind];

    if (fields_use(r, d, o->u.any, false, m)) return USE_READ;
    return fields_use(r, d, o->u.any, true, m) ? USE_OVERWRITE : USE_NONE;
}

enum op_use record_use(const struct record *r, const struct op *o, const void *p, size_t n)
{
    return use_of(r, o, range_at(p, n));
}

/* Nobody reads t from operation `from` on. */
static bool is_dead(const struct record *r, int from, const struct op_tensor *t, bool last)
{
    struct range m = range_of(t);

    for (int i = from; i < r->n; i++) {
        enum op_use use = r->ops[i].absorbed ? USE_NONE : use_of(r, &r->ops[i], m);
        if (use) return use == USE_OVERWRITE;
    }
    return last;
}

/* ---- which neighbours become one ---- */

static const struct op_job *jobs_of(const struct record *r, const struct op_linear *l)
{
    return r->jobs + l->job;
}

/* The matrix products themselves overwrite t, after they have read it. */
static bool jobs_overwrite(const struct record *r, const struct op_linear *l,
                           const struct op_tensor *t)
{
    for (int j = 0; j < l->n_jobs; j++)
        if (overwrites(&jobs_of(r, l)[j].out, range_of(t))) return true;
    return false;
}

/* norm, linear of its result. The products then read the norm's input while they write their
 * outputs, so these must not overlap. */
static void fuse_norm(struct record *r, int i, bool last)
{
    const struct op_norm *n = r->ops[i].u.norm;
    struct op_linear *l = r->ops[i + 1].u.linear;

    if (r->ops[i + 1].kind != OP_LINEAR || l->exact || !same_tensor(&n->out, &l->x)) return;
    if (n->x.rows != l->x.rows || n->x.cols != l->x.cols) return;
    for (int j = 0; j < l->n_jobs; j++)
        if (overlaps(range_of(&jobs_of(r, l)[j].out), range_of(&n->x))) return;
    if (!is_dead(r, i + 2, &n->out, last) && !jobs_overwrite(r, l, &n->out)) return;
    l->x = n->x;
    l->norm = n->kind;
    l->norm_w = n->w;
    l->norm_b = n->b;
    l->eps = n->eps;
    r->ops[i].absorbed = true;
}

/* norm, the linear of its result that makes logits, route by them. All three results are written. */
static void fuse_router(struct record *r, int i)
{
    const struct op_norm *n = r->ops[i].u.norm;
    const struct op_linear *l = r->ops[i + 1].u.linear;

    if (i + 2 >= r->n || r->ops[i + 1].kind != OP_LINEAR || r->ops[i + 2].kind != OP_ROUTE) return;
    if (!l->exact || l->n_jobs != 1 || !same_tensor(&n->out, &l->x) || n->x.rows != l->x.rows ||
        n->x.cols != l->x.cols || n->x.rows > ROUTER_TOKENS)
        return;
    if (!same_tensor(&jobs_of(r, l)->out, &r->ops[i + 2].u.route->logits) || jobs_of(r, l)->add)
        return;
    if (overlaps(range_of(&n->x), range_of(&n->out)) ||
        overlaps(range_of(&n->x), range_of(&jobs_of(r, l)->out)))
        return;
    r->ops[i + 2].u.route->first = i;
    r->ops[i].absorbed = r->ops[i + 1].absorbed = true;
}

/* linear of gate and up (or of gate alone), act whose result takes the place of gate. */
static void fuse_act(struct record *r, int i, bool last)
{
    struct op_linear *l = r->ops[i].u.linear;
    const struct op_act *a = r->ops[i + 1].u.act;
    const struct op_job *j = jobs_of(r, l);

    if (r->ops[i + 1].kind != OP_ACT) return;
    if (l->exact || l->n_jobs != (a->up.data ? 2 : 1)) return;
    if (a->act == ACT_SWIGLU_CLIP) return; /* changes up too: the fused kernels only multiply it */
    if (!same_tensor(&j[0].out, &a->gate) || !same_tensor(&j[0].out, &a->out) || j[0].add) return;
    if (a->up.data) {
        if (!same_tensor(&j[1].out, &a->up) || j[1].add) return;
        if (j[0].w.rows != j[1].w.rows || !is_dead(r, i + 2, &j[1].out, last)) return;
    }
    l->fuse_act = true;
    l->act = a->act;
    r->ops[i + 1].absorbed = true;
}

/* The operations that end in a kv_put: headnorms of q and k, ropes of q and k, each pair optional.
 * NULL: there is none. */
struct rope_run {
    const struct op_headnorm *q_norm, *k_norm;
    const struct op_rope *q_rope, *k_rope;
    const struct op_kv_put *put;
    int end; /* index of put */
};

/* The fields of operation *i, and *i is the next one, if its kind is `kind`. */
static const void *next_if(const struct record *r, int *i, enum op_kind kind)
{
    return *i < r->n && r->ops[*i].kind == kind ? r->ops[(*i)++].u.any : NULL;
}

static struct rope_run find_rope_run(const struct record *r, int i)
{
    struct rope_run f = { 0 };

    f.q_norm = next_if(r, &i, OP_HEADNORM);
    if (f.q_norm) f.k_norm = next_if(r, &i, OP_HEADNORM);
    f.q_rope = next_if(r, &i, OP_ROPE);
    if (f.q_rope) f.k_rope = next_if(r, &i, OP_ROPE);
    f.end = i;
    f.put = next_if(r, &i, OP_KV_PUT);
    return f;
}

static bool norm_fits(const struct op_headnorm *n, const struct op_tensor *x, int n_heads,
                      int head_dim)
{
    return same_tensor(&n->x, x) && n->n_heads == n_heads && n->head_dim == head_dim &&
           n->w_stride == 0 && n->w;
}

static bool ropes_fit(const struct rope_run *f, int n_kv_heads, int head_dim)
{
    const struct op_rope *q = f->q_rope, *k = f->k_rope;

    if (!k || !same_tensor(&k->x, &f->put->k)) return false;
    return q->head_dim == head_dim && k->head_dim == head_dim && k->n_heads == n_kv_heads &&
           q->n_rot == k->n_rot && q->style == k->style && q->x.rows == k->x.rows &&
           same_tensor(&q->table, &k->table) && q->table.stride == (size_t)q->n_rot;
}

/* The rope_kv kernel can do the run. A headnorm without a second one is that of k if it normalizes
 * what kv_put writes. */
static bool run_fits(struct rope_run *f, int n_kv_heads, int head_dim)
{
    const struct op_tensor *k = &f->put->k;
    const struct op_headnorm *n;

    if (!f->q_rope && !(f->q_norm && f->k_norm)) return false;
    if (f->q_rope && !ropes_fit(f, n_kv_heads, head_dim)) return false;
    if (f->q_norm && !f->k_norm && same_tensor(&f->q_norm->x, k)) {
        f->k_norm = f->q_norm;
        f->q_norm = NULL;
    }
    if (f->k_norm && !norm_fits(f->k_norm, k, n_kv_heads, head_dim)) return false;
    if (!(n = f->q_norm)) return true;
    if (f->q_rope) {
        if (!norm_fits(n, &f->q_rope->x, f->q_rope->n_heads, head_dim)) return false;
    } else if (!norm_fits(n, &n->x, n->n_heads, head_dim)) {
        return false;
    }
    return !f->k_norm || n->eps == f->k_norm->eps;
}

static struct op_rope_kv make_rope_kv(const struct rope_run *f)
{
    struct op_rope_kv o = { .k = f->put->k, .v = f->put->v, .kv = f->put->kv };

    o.q = f->q_rope ? f->q_rope->x : f->q_norm->x;
    o.n_heads = f->q_rope ? f->q_rope->n_heads : f->q_norm->n_heads;
    if (f->q_rope) {
        o.table = (const float *)f->q_rope->table.data;
        o.n_rot = f->q_rope->n_rot;
        o.style = f->q_rope->style;
    }
    if (f->q_norm) o.q_norm = f->q_norm->w, o.eps = f->q_norm->eps;
    if (f->k_norm) o.k_norm = f->k_norm->w, o.eps = f->k_norm->eps;
    return o;
}

static void fuse_rope_kv(struct record *r, int i, bool last)
{
    struct rope_run f = find_rope_run(r, i);
    struct op o = { .kind = OP_ROPE_KV };

    if (!f.put || f.put->kv.v_in_k || !run_fits(&f, f.put->kv.n_kv_heads, f.put->kv.head_dim))
        return;
    if (!is_dead(r, f.end + 1, &f.put->k, last)) return;
    o.u.rope_kv = record_new_fields(r, OP_ROPE_KV);
    *o.u.rope_kv = make_rope_kv(&f);
    for (int j = i; j < f.end; j++) r->ops[j].absorbed = true;
    r->ops[f.end] = o;
}

/* rope_kv, attend of its q over its keys, for one token. With more tokens the attention of one
 * would read keys that another block of the same launch writes. */
static void fuse_attend(struct record *r, int i, bool last)
{
    const struct op_rope_kv *k = r->ops[i].u.rope_kv;
    struct op_attend *a = r->ops[i + 1].u.attend;
    struct range out;

    if (r->ops[i + 1].kind != OP_ATTEND || r->ops[i + 1].absorbed) return;
    if (a->kv.view != k->kv.view || a->kv.layer != k->kv.layer) return;
    if (r->views[a->kv.view].n_tokens != 1 || !same_tensor(&a->q, &k->q)) return;
    out = range_of(&a->out);
    if (overlaps(out, range_of(&k->q)) || overlaps(out, range_of(&k->k)) ||
        overlaps(out, range_of(&k->v)) || !is_dead(r, i + 2, &a->q, last))
        return;
    a->rope = i;
    r->ops[i].absorbed = true;
}

void record_fuse(struct record *r, bool last)
{
    if (r->fused) return;
    r->fused = true;
    for (int i = 0; i + 1 < r->n; i++) {
        if (r->ops[i].absorbed) continue;
        if (r->ops[i].kind == OP_HEADNORM || r->ops[i].kind == OP_ROPE) fuse_rope_kv(r, i, last);
        else if (r->ops[i].kind == OP_NORM) fuse_norm(r, i, last), fuse_router(r, i);
        else if (r->ops[i].kind == OP_LINEAR) fuse_act(r, i, last);
        else if (r->ops[i].kind == OP_ROPE_KV) fuse_attend(r, i, last);
    }
}
