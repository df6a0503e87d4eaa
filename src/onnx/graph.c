#include "onnx/graph.h"

#include "base/mem.h"
#include "onnx/graph_impl.h"

enum {
    MAX_NODES = 1 << 17,
    MAX_VALUES = 1 << 19,
    MAX_PER_NODE = 4096, /* inputs, outputs, attributes, numbers of a list of an attribute */
    MAX_DEPTH = 4        /* of branches in branches */
};

#define HIDDEN UINT64_MAX

struct reader {
    struct onnx *m;
    struct onnx_impl *p;
    int cap_values, n_nodes, depth;
    struct err *e;
};

static int cut_short(const struct reader *r, const char *what)
{
    return err_set(r->e, E_FORMAT,
                   "%s: the file is no ONNX model: %s is cut short or of another kind", r->m->path,
                   what);
}

/* ---- values ---- */

static int value_add(struct reader *r, struct str name, int *out)
{
    struct onnx *m = r->m;
    uint64_t at;

    if (map_get(&r->p->names, name, &at) && at != HIDDEN)
        return err_set(r->e, E_FORMAT, "%s: the value '%.*s' is made twice", m->path,
                       STR_ARG(str_take(name, 120)));
    if (m->n_values == MAX_VALUES)
        return err_set(r->e, E_UNSUPPORTED, "%s: more than %d values", m->path, MAX_VALUES);
    if (m->n_values == r->cap_values) {
        r->cap_values = r->cap_values ? 2 * r->cap_values : 256;
        m->values = mem_grow(m->values, (size_t)r->cap_values * sizeof *m->values);
    }
    *out = m->n_values;
    m->values[m->n_values++] = (struct onnx_value){ .name = name, .made = true };
    map_put(&r->p->names, name, (uint64_t)*out);
    return OK;
}

static bool value_find(const struct reader *r, struct str name, int *out)
{
    uint64_t at;

    if (!map_get(&r->p->names, name, &at) || at == HIDDEN) return false;
    *out = (int)at;
    return true;
}

/* ---- inputs and outputs ---- */

static void read_shape(struct onnx_io *io, struct str bytes)
{
    io->n_dims = 0;
    for (struct pb s = pb_of(bytes); pb_next(&s);) {
        int64_t v = -1;
        if (s.field != 1 || s.wire != PB_BYTES) continue;
        for (struct pb d = pb_of(s.bytes); pb_next(&d);)
            if (d.field == 1 && d.wire == PB_VARINT) v = d.v <= INT32_MAX ? (int64_t)d.v : -1;
        if (io->n_dims < ONNX_DIMS) io->dims[io->n_dims] = v;
        io->n_dims++;
    }
    if (io->n_dims > ONNX_DIMS) io->n_dims = -1;
}

static void read_type(struct onnx_io *io, struct str bytes)
{
    for (struct pb t = pb_of(bytes); pb_next(&t);) {
        if (t.field != 1 || t.wire != PB_BYTES) continue; /* tensors only */
        for (struct pb x = pb_of(t.bytes); pb_next(&x);) {
            if (x.field == 1 && x.wire == PB_VARINT) io->type = onnx_type_of((int64_t)x.v);
            if (x.field == 2 && x.wire == PB_BYTES) read_shape(io, x.bytes);
        }
    }
}

static int read_io(struct reader *r, struct str bytes, struct onnx_io *io, struct str *name)
{
    struct pb m;

    *io = (struct onnx_io){ .value = -1, .n_dims = -1 };
    *name = str_of("", 0);
    for (m = pb_of(bytes); pb_next(&m);) {
        if (m.field == 1 && m.wire == PB_BYTES) *name = m.bytes;
        if (m.field == 2 && m.wire == PB_BYTES) read_type(io, m.bytes);
    }
    return m.at.bad ? cut_short(r, "an input or output") : OK;
}

static int add_input(struct reader *r, struct onnx_graph *g, struct str bytes)
{
    struct onnx_io io;
    struct str name;
    int rc = read_io(r, bytes, &io, &name);

    if (rc != OK || value_find(r, name, &io.value))
        return rc; /* older files list their tensors here too */
    if ((rc = value_add(r, name, &io.value)) != OK) return rc;
    g->inputs[g->n_inputs++] = io;
    return OK;
}

static int add_output(struct reader *r, struct onnx_graph *g, struct str bytes)
{
    struct onnx_io io;
    struct str name;
    int rc = read_io(r, bytes, &io, &name);

    if (rc != OK) return rc;
    if (!value_find(r, name, &io.value))
        return err_set(r->e, E_FORMAT, "%s: the output '%.*s' is made by no node", r->m->path,
                       STR_ARG(str_take(name, 120)));
    g->outputs[g->n_outputs++] = io;
    return OK;
}

static int add_tensor(struct reader *r, struct str bytes)
{
    struct onnx_tensor t;
    struct str name;
    int at, rc = onnx_tensor_read(r->m, bytes, &t, &name, r->e);

    if (rc != OK || (rc = value_add(r, name, &at)) != OK) return rc;
    r->m->values[at].is_const = true;
    r->m->values[at].t = t;
    return OK;
}

/* ---- nodes ---- */

static int read_graph(struct reader *r, struct str bytes, struct onnx_graph *g);

/* Numbers of a list: packed, or one a field. */
static int count_numbers(struct str bytes, uint32_t field, size_t *n)
{
    for (struct pb m = pb_of(bytes); pb_next(&m);) {
        if (m.field != field) continue;
        if (m.wire != PB_BYTES) {
            ++*n;
            continue;
        }
        if (field == 7) *n += m.bytes.n / sizeof(float);
        for (struct cursor c = pb_cursor(m.bytes); field == 8 && cursor_left(&c) && !c.bad; ++*n)
            pb_varint(&c);
    }
    return *n <= MAX_PER_NODE ? OK : E_UNSUPPORTED;
}

static void take_ints(struct onnx_attr *a, const struct pb *m)
{
    if (m->wire == PB_VARINT) a->ints[a->n++] = (int64_t)m->v;
    for (struct cursor c = pb_cursor(m->bytes); cursor_left(&c) && !c.bad;)
        a->ints[a->n++] = (int64_t)pb_varint(&c);
}

static void take_floats(struct onnx_attr *a, const struct pb *m)
{
    if (m->wire == PB_I32) a->floats[a->n++] = pb_f32(m->v);
    for (struct cursor c = pb_cursor(m->bytes); cursor_left(&c) >= sizeof(float);)
        a->floats[a->n++] = pb_f32(cursor_u32(&c));
}

static int read_subgraph(struct reader *r, struct onnx_attr *a, struct str bytes)
{
    int first = r->m->n_values, rc;

    if (r->depth == MAX_DEPTH)
        return err_set(r->e, E_UNSUPPORTED, "%s: branches nested deeper than %d", r->m->path,
                       MAX_DEPTH);
    a->g = arena_new(&r->p->arena, struct onnx_graph);
    r->depth++;
    rc = read_graph(r, bytes, a->g);
    r->depth--;
    for (int i = first; i < r->m->n_values; i++)
        map_put(&r->p->names, r->m->values[i].name, HIDDEN);
    return rc;
}

static int read_attr(struct reader *r, struct str bytes, struct onnx_attr *a)
{
    size_t n_ints = 0, n_floats = 0;
    int64_t kind = 0;
    struct str name;
    struct pb m;
    int rc = OK;

    if (count_numbers(bytes, 8, &n_ints) != OK || count_numbers(bytes, 7, &n_floats) != OK)
        return err_set(r->e, E_UNSUPPORTED, "%s: an attribute with more than %d numbers",
                       r->m->path, MAX_PER_NODE);
    if (n_ints) a->ints = arena_array(&r->p->arena, n_ints, sizeof *a->ints);
    if (n_floats && !n_ints) a->floats = arena_array(&r->p->arena, n_floats, sizeof *a->floats);
    for (m = pb_of(bytes); rc == OK && pb_next(&m);) {
        bool is_bytes = m.wire == PB_BYTES;
        switch (m.field) {
        case 1: a->name = m.bytes; break;
        case 2: a->f = pb_f32(m.v), kind = kind ? kind : 1; break;
        case 3: a->i = (int64_t)m.v, kind = kind ? kind : 2; break;
        case 4: a->s = m.bytes, kind = kind ? kind : 3; break;
        case 5:
            if (is_bytes) rc = onnx_tensor_read(r->m, m.bytes, &a->t, &name, r->e), kind = 4;
            break;
        case 6:
            if (is_bytes) rc = a->g ? E_FORMAT : read_subgraph(r, a, m.bytes), kind = 5;
            break;
        case 7:
            if (a->floats) take_floats(a, &m), kind = 6;
            break;
        case 8:
            if (a->ints) take_ints(a, &m), kind = 7;
            break;
        case 20: a->kind = (int)(m.v <= 16 ? m.v : 99); break;
        }
    }
    if (m.at.bad || (rc == E_FORMAT && a->g && r->e->code == OK))
        return cut_short(r, "an attribute");
    if (!a->kind) a->kind = (int)kind;
    if (rc == OK && a->t.type) rc = onnx_tensor_align(r->m, &a->t, r->e);
    if (rc == OK && ((a->kind == 4 && !a->t.type) || (a->kind == 5 && !a->g)))
        return cut_short(r, "an attribute's tensor or graph");
    return rc;
}

static int bad_input(const struct reader *r, const struct onnx_node *n, struct str name)
{
    return err_set(r->e, E_FORMAT,
                   "%s: the input '%.*s' of node '%.*s' (%.*s) is made by no node before it: it is "
                   "missing, or the "
                   "graph has a cycle",
                   r->m->path, STR_ARG(str_take(name, 100)), STR_ARG(str_take(n->name, 100)),
                   STR_ARG(str_take(n->op, 40)));
}

static int count_parts(struct reader *r, struct str bytes, struct onnx_node *n)
{
    struct pb m;

    for (m = pb_of(bytes); pb_next(&m);) {
        if (m.wire != PB_BYTES) continue;
        switch (m.field) {
        case 1: n->n_in++; break;
        case 2: n->n_out++; break;
        case 3: n->name = m.bytes; break;
        case 4: n->op = m.bytes; break;
        case 5: n->n_attrs++; break;
        case 7: n->domain = m.bytes; break;
        }
    }
    if (m.at.bad || n->op.n == 0) return cut_short(r, "a node");
    if (n->n_in > MAX_PER_NODE || n->n_out > MAX_PER_NODE || n->n_attrs > MAX_PER_NODE)
        return err_set(r->e, E_UNSUPPORTED,
                       "%s: node '%.*s' has more than %d inputs, outputs or attributes", r->m->path,
                       STR_ARG(str_take(n->name, 100)), MAX_PER_NODE);
    return OK;
}

static int read_node(struct reader *r, struct str bytes, struct onnx_node *n)
{
    int ins = 0, outs = 0, attrs = 0, rc = count_parts(r, bytes, n);
    struct pb m;

    if (rc != OK) return rc;
    n->in = arena_array(&r->p->arena, (size_t)n->n_in + 1, sizeof *n->in);
    n->out = arena_array(&r->p->arena, (size_t)n->n_out + 1, sizeof *n->out);
    n->attrs = arena_array(&r->p->arena, (size_t)n->n_attrs + 1, sizeof *n->attrs);
    for (m = pb_of(bytes); rc == OK && pb_next(&m);) {
        if (m.wire != PB_BYTES) continue;
        if (m.field == 1) {
            n->in[ins] = -1;
            if (m.bytes.n && !value_find(r, m.bytes, &n->in[ins])) return bad_input(r, n, m.bytes);
            ins++;
        }
        if (m.field == 5) rc = read_attr(r, m.bytes, &n->attrs[attrs++]);
    }
    for (m = pb_of(bytes);
         rc == OK && pb_next(&m);) { /* a node does not see what it makes itself */
        if (m.wire != PB_BYTES || m.field != 2) continue;
        n->out[outs] = -1;
        if (m.bytes.n) rc = value_add(r, m.bytes, &n->out[outs]);
        outs++;
    }
    return rc;
}

/* ---- graphs ---- */

static int read_graph(struct reader *r, struct str bytes, struct onnx_graph *g)
{
    size_t n[16] = { 0 };
    struct pb m;
    int rc = OK;

    for (m = pb_of(bytes); pb_next(&m);)
        if (m.field < 16 && m.wire == PB_BYTES) n[m.field]++;
    if (m.at.bad) return cut_short(r, "the graph");
    if (n[15]) return err_set(r->e, E_UNSUPPORTED, "%s: sparse tensors are not read", r->m->path);
    if (n[1] > MAX_NODES || (r->n_nodes += (int)n[1]) > MAX_NODES || n[11] > MAX_PER_NODE ||
        n[12] > MAX_PER_NODE)
        return err_set(r->e, E_UNSUPPORTED, "%s: more than %d nodes, or %d inputs or outputs",
                       r->m->path, MAX_NODES, MAX_PER_NODE);
    g->nodes = arena_array(&r->p->arena, n[1] + 1, sizeof *g->nodes);
    g->inputs = arena_array(&r->p->arena, n[11] + 1, sizeof *g->inputs);
    g->outputs = arena_array(&r->p->arena, n[12] + 1, sizeof *g->outputs);
    for (m = pb_of(bytes); rc == OK && pb_next(&m);)
        if (m.field == 5 && m.wire == PB_BYTES) rc = add_tensor(r, m.bytes);
    for (m = pb_of(bytes); rc == OK && pb_next(&m);)
        if (m.field == 11 && m.wire == PB_BYTES) rc = add_input(r, g, m.bytes);
    for (m = pb_of(bytes); rc == OK && pb_next(&m);)
        if (m.field == 1 && m.wire == PB_BYTES) rc = read_node(r, m.bytes, &g->nodes[g->n_nodes++]);
    for (m = pb_of(bytes); rc == OK && pb_next(&m);)
        if (m.field == 12 && m.wire == PB_BYTES) rc = add_output(r, g, m.bytes);
    return rc;
}

static int read_opset(struct reader *r, struct str bytes)
{
    struct str domain = { 0 };
    int64_t version = 0;

    for (struct pb m = pb_of(bytes); pb_next(&m);) {
        if (m.field == 1 && m.wire == PB_BYTES) domain = m.bytes;
        if (m.field == 2 && m.wire == PB_VARINT) version = (int64_t)m.v;
    }
    if (domain.n && !str_is(domain, "ai.onnx")) return OK; /* its nodes are refused by name */
    if (version < 1 || version > 1 << 20)
        return err_set(r->e, E_FORMAT, "%s: opset %lld is none", r->m->path, (long long)version);
    r->m->opset = (int)version;
    return OK;
}

static int read_model(struct reader *r, struct str bytes)
{
    struct str graph = { 0 };
    struct pb m;
    int rc = OK;

    for (m = pb_of(bytes); rc == OK && pb_next(&m);) {
        if (m.wire != PB_BYTES) continue;
        if (m.field == 2) r->m->producer = m.bytes;
        if (m.field == 7) graph = m.bytes;
        if (m.field == 8) rc = read_opset(r, m.bytes);
    }
    if (rc != OK) return rc;
    if (m.at.bad) return cut_short(r, "the model");
    if (!graph.p)
        return err_set(r->e, E_FORMAT, "%s: the file is no ONNX model: it has no graph",
                       r->m->path);
    if (!r->m->opset)
        return err_set(r->e, E_FORMAT, "%s: the file does not name its opset", r->m->path);
    return read_graph(r, graph, &r->m->graph);
}

static int open_bytes(struct onnx **out, struct onnx *m, struct str bytes, struct err *e)
{
    struct err local;
    struct reader r = { .m = m, .p = m->impl, .e = e ? e : &local };
    int rc;

    r.e->code = OK;
    rc = read_model(&r, bytes);
    if (rc == OK) *out = m;
    else onnx_close(m);
    return rc;
}

int onnx_parse(struct onnx **out, struct str bytes, const char *name, struct err *e)
{
    struct onnx *m = mem_new(struct onnx);

    m->impl = mem_new(struct onnx_impl);
    m->path = mem_strdup(name);
    return open_bytes(out, m, bytes, e);
}

int onnx_open(struct onnx **out, const char *path, struct err *e)
{
    struct onnx *m = mem_new(struct onnx);
    size_t n = (size_t)(path_base(path) - path);
    int rc;

    m->impl = mem_new(struct onnx_impl);
    m->path = mem_strdup(path);
    m->impl->dir = n ? mem_dup(path, n + 1) : mem_strdup(".");
    if (n) m->impl->dir[n] = 0;
    if ((rc = filemap_open(&m->impl->map, path, e)) != OK) {
        onnx_close(m);
        return rc;
    }
    return open_bytes(out, m, str_of((const char *)m->impl->map.p, m->impl->map.n), e);
}

void onnx_close(struct onnx *m)
{
    if (!m) return;
    onnx_tensor_release(m->impl);
    map_release(&m->impl->names);
    arena_release(&m->impl->arena);
    filemap_release(&m->impl->map);
    mem_free(m->impl->dir);
    mem_free(m->impl);
    mem_free(m->values);
    mem_free(m->path);
    mem_free(m);
}

const struct onnx_attr *onnx_attr(const struct onnx_node *n, const char *name)
{
    for (int i = 0; i < n->n_attrs; i++)
        if (str_is(n->attrs[i].name, name)) return &n->attrs[i];
    return NULL;
}

int64_t onnx_int(const struct onnx_node *n, const char *name, int64_t otherwise)
{
    const struct onnx_attr *a = onnx_attr(n, name);
    return a ? a->i : otherwise;
}

float onnx_float(const struct onnx_node *n, const char *name, float otherwise)
{
    const struct onnx_attr *a = onnx_attr(n, name);
    return a ? a->f : otherwise;
}
