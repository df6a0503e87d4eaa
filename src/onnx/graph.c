/* graph.c - reading ModelProto, GraphProto and NodeProto (onnx.proto) into struct onnx.
 *
 * Each message is read in passes: one that counts its repeated fields, so that arrays can be
 * allocated, then one per kind of field. A graph defines its tensors first, then inputs, then nodes
 * in order, so a node can only refer to values that exist: order and absence of cycles are checked
 * by looking names up. Names of a branch are hidden when the branch ends.
 *
 * Field numbers of onnx.proto that are read here:
 *     ModelProto          2 producer_name  7 graph  8 opset_import
 *     OperatorSetIdProto  1 domain  2 version
 *     GraphProto          1 node  5 initializer  11 input  12 output  15 sparse_initializer
 *     NodeProto           1 input  2 output  3 name  4 op_type  5 attribute  7 domain
 *     AttributeProto      1 name  2 f  3 i  4 s  5 t  6 g  7 floats  8 ints  20 type
 *     ValueInfoProto      1 name  2 type
 *     TypeProto           1 tensor_type: 1 elem_type  2 shape
 *     TensorShapeProto    1 dim: 1 dim_value  2 dim_param */
#include "onnx/graph.h"

#include "base/mem.h"
#include "onnx/graph_impl.h"

enum {
    MAX_NODES = 1 << 17,
    MAX_VALUES = 1 << 19,
    MAX_PER_NODE = 4096, /* inputs, outputs, attributes, elements of an attribute */
    MAX_DEPTH = 4        /* nesting of branches */
};

#define HIDDEN UINT64_MAX /* value of a name whose branch has ended */

/* State while a file is read. */
struct reader {
    struct onnx *m;
    struct onnx_impl *p;
    int cap_values; /* of m->values */
    int n_nodes;    /* of all graphs so far */
    int depth;      /* of branches */
    struct err *e;  /* never NULL */
};

/* `what` is the part of the file that cannot be read. */
static int fail_malformed(const struct reader *r, const char *what)
{
    return err_set(r->e, E_FORMAT, "%s: not a valid ONNX model: %s is truncated or malformed",
                   r->m->path, what);
}

static int fail_nomem(const struct reader *r) { return err_nomem(r->e, "the graph of a model"); }

/* ---- values ---- */

/* Adds a value; a name that is visible already is an error. */
static int add_value(struct reader *r, struct str name, int *out)
{
    struct onnx *m = r->m;
    uint64_t at;

    if (map_get(&r->p->names, name, &at) && at != HIDDEN)
        return err_set(r->e, E_FORMAT, "%s: the value '%.*s' is defined twice", m->path,
                       STR_ARG(str_take(name, 120)));
    if (m->n_values == MAX_VALUES)
        return err_set(r->e, E_UNSUPPORTED, "%s: the graph has more than %d values", m->path,
                       MAX_VALUES);
    if (!mem_ensure(m->values, r->cap_values, m->n_values + 1)) return fail_nomem(r);
    if (map_put(&r->p->names, name, (uint64_t)m->n_values) < 0) return fail_nomem(r);
    *out = m->n_values;
    m->values[m->n_values++] = (struct onnx_value){ .name = name };
    return OK;
}

/* The index of a visible value; false: there is none of that name. */
static bool find_value(const struct reader *r, struct str name, int *out)
{
    uint64_t at;

    if (!map_get(&r->p->names, name, &at) || at == HIDDEN) return false;
    *out = (int)at;
    return true;
}

/* ---- inputs and outputs ---- */

/* A TensorShapeProto. A dimension with a name, or without a value, is of any size. */
static void read_shape(struct onnx_io *io, struct str bytes)
{
    io->n_dims = 0;
    for (struct pb s = pb_of(bytes); pb_next(&s);) {
        int64_t v = -1;
        if (s.field != 1 || s.wire != PB_BYTES) continue;
        for (struct pb d = pb_of(s.bytes); pb_next(&d);)
            if (d.field == 1 && d.wire == PB_VARINT) v = d.v <= INT32_MAX ? (int64_t)d.v : -1;
        /* Counted beyond the limit, and refused as unknown below. */
        if (io->n_dims < ONNX_DIMS) io->dims[io->n_dims] = v;
        io->n_dims++;
    }
    if (io->n_dims > ONNX_DIMS) io->n_dims = -1;
}

/* A TypeProto: element type and shape of a tensor. */
static void read_type(struct onnx_io *io, struct str bytes)
{
    for (struct pb t = pb_of(bytes); pb_next(&t);) {
        if (t.field != 1 || t.wire != PB_BYTES)
            continue; /* types other than tensors stay ONNX_NONE */
        for (struct pb x = pb_of(t.bytes); pb_next(&x);) {
            if (x.field == 1 && x.wire == PB_VARINT) io->type = onnx_type_of((int64_t)x.v);
            if (x.field == 2 && x.wire == PB_BYTES) read_shape(io, x.bytes);
        }
    }
}

/* A ValueInfoProto. */
static int read_io(struct reader *r, struct str bytes, struct onnx_io *io, struct str *name)
{
    struct pb m;

    *io = (struct onnx_io){ .value = -1, .n_dims = -1 };
    *name = str_of("", 0);
    for (m = pb_of(bytes); pb_next(&m);) {
        if (m.field == 1 && m.wire == PB_BYTES) *name = m.bytes;
        if (m.field == 2 && m.wire == PB_BYTES) read_type(io, m.bytes);
    }
    return m.at.bad ? fail_malformed(r, "an input or output") : OK;
}

/* An input of the graph becomes a value. */
static int add_input(struct reader *r, struct onnx_graph *g, struct str bytes)
{
    struct onnx_io io;
    struct str name;
    int rc = read_io(r, bytes, &io, &name);

    /* Files before IR version 4 list their tensors as inputs too. */
    if (rc != OK || find_value(r, name, &io.value)) return rc;
    if ((rc = add_value(r, name, &io.value)) != OK) return rc;
    g->inputs[g->n_inputs++] = io;
    return OK;
}

/* An output must be a value that exists by now. */
static int add_output(struct reader *r, struct onnx_graph *g, struct str bytes)
{
    struct onnx_io io;
    struct str name;
    int rc = read_io(r, bytes, &io, &name);

    if (rc != OK) return rc;
    if (!find_value(r, name, &io.value))
        return err_set(r->e, E_FORMAT, "%s: the output '%.*s' is not produced by any node",
                       r->m->path, STR_ARG(str_take(name, 120)));
    g->outputs[g->n_outputs++] = io;
    return OK;
}

/* A tensor of the file (initializer) becomes a constant value. */
static int add_tensor(struct reader *r, struct str bytes)
{
    struct onnx_tensor t;
    struct str name;
    int at, rc = onnx_tensor_read(r->m, bytes, &t, &name, r->e);

    if (rc != OK || (rc = add_value(r, name, &at)) != OK) return rc;
    r->m->values[at].is_const = true;
    r->m->values[at].t = t;
    return OK;
}

/* ---- nodes ---- */

static int read_graph(struct reader *r, struct str bytes, struct onnx_graph *g);

/* The elements of field 7 (floats) or 8 (ints), packed or one per field. E_UNSUPPORTED: too many. */
static int count_elements(struct str bytes, uint32_t field, size_t *n)
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

/* Room was allocated for all elements: alloc_lists counted them in the same way. */
static void append_ints(struct onnx_attr *a, const struct pb *m)
{
    if (m->wire == PB_VARINT) a->ints[a->n++] = (int64_t)m->v;
    for (struct cursor c = pb_cursor(m->bytes); cursor_left(&c) && !c.bad;)
        a->ints[a->n++] = (int64_t)pb_varint(&c);
}

static void append_floats(struct onnx_attr *a, const struct pb *m)
{
    if (m->wire == PB_I32) a->floats[a->n++] = pb_f32(m->v);
    for (struct cursor c = pb_cursor(m->bytes); cursor_left(&c) >= sizeof(float);)
        a->floats[a->n++] = pb_f32(cursor_u32(&c));
}

/* A branch of If. Its values are not visible behind it. */
static int read_subgraph(struct reader *r, struct onnx_attr *a, struct str bytes)
{
    int first = r->m->n_values, rc;

    if (r->depth == MAX_DEPTH)
        return err_set(r->e, E_UNSUPPORTED, "%s: branches are nested deeper than %d", r->m->path,
                       MAX_DEPTH);
    if (a->g) return fail_malformed(r, "an attribute");
    if (!(a->g = arena_new(&r->p->arena, struct onnx_graph))) return fail_nomem(r);
    r->depth++;
    rc = read_graph(r, bytes, a->g);
    r->depth--;
    for (int i = first; i < r->m->n_values && rc == OK; i++)
        if (map_put(&r->p->names, r->m->values[i].name, HIDDEN) < 0) rc = fail_nomem(r);
    return rc;
}

/* Room for the lists of an attribute; a has either ints or floats. */
static int alloc_lists(struct reader *r, struct str bytes, struct onnx_attr *a)
{
    size_t n_ints = 0, n_floats = 0;

    if (count_elements(bytes, 8, &n_ints) != OK || count_elements(bytes, 7, &n_floats) != OK)
        return err_set(r->e, E_UNSUPPORTED, "%s: an attribute has more than %d elements",
                       r->m->path, MAX_PER_NODE);
    if (n_ints) a->ints = arena_array(&r->p->arena, n_ints, sizeof *a->ints);
    else if (n_floats) a->floats = arena_array(&r->p->arena, n_floats, sizeof *a->floats);
    return (n_ints && !a->ints) || (!n_ints && n_floats && !a->floats) ? fail_nomem(r) : OK;
}

/* An AttributeProto. Old files leave out its type: then the field that is set tells the kind. */
static int read_attr(struct reader *r, struct str bytes, struct onnx_attr *a)
{
    int kind = 0, rc = alloc_lists(r, bytes, a);
    struct str name;
    struct pb m = pb_of(bytes);

    for (m = pb_of(bytes); rc == OK && pb_next(&m);) {
        bool is_bytes = m.wire == PB_BYTES;
        switch (m.field) {
        case 1: a->name = m.bytes; break;
        case 2: a->f = pb_f32(m.v), kind = kind ? kind : ONNX_ATTR_FLOAT; break;
        case 3: a->i = (int64_t)m.v, kind = kind ? kind : ONNX_ATTR_INT; break;
        case 4: a->s = m.bytes, kind = kind ? kind : ONNX_ATTR_STRING; break;
        case 5:
            if (!is_bytes) break;
            rc = onnx_tensor_read(r->m, m.bytes, &a->t, &name, r->e);
            kind = ONNX_ATTR_TENSOR;
            break;
        case 6:
            if (is_bytes) rc = read_subgraph(r, a, m.bytes), kind = ONNX_ATTR_GRAPH;
            break;
        case 7:
            if (a->floats) append_floats(a, &m), kind = ONNX_ATTR_FLOATS;
            break;
        case 8:
            if (a->ints) append_ints(a, &m), kind = ONNX_ATTR_INTS;
            break;
        case 20: a->kind = (int)(m.v <= 16 ? m.v : 99); break;
        }
    }
    if (rc != OK) return rc;
    if (m.at.bad) return fail_malformed(r, "an attribute");
    if (!a->kind) a->kind = kind;
    if (a->t.type && (rc = onnx_tensor_align(r->m, &a->t, r->e)) != OK) return rc;
    if ((a->kind == ONNX_ATTR_TENSOR && !a->t.type) || (a->kind == ONNX_ATTR_GRAPH && !a->g))
        return fail_malformed(r, "an attribute's tensor or graph");
    return OK;
}

static int fail_input(const struct reader *r, const struct onnx_node *n, struct str name)
{
    return err_set(r->e, E_FORMAT,
                   "%s: the input '%.*s' of node '%.*s' (%.*s) is not produced by an earlier node: "
                   "it is missing, or the graph has a cycle",
                   r->m->path, STR_ARG(str_take(name, 100)), STR_ARG(str_take(n->name, 100)),
                   STR_ARG(str_take(n->op, 40)));
}

/* The first pass over a NodeProto: names and counts. */
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
    if (m.at.bad || n->op.n == 0) return fail_malformed(r, "a node");
    if (n->n_in > MAX_PER_NODE || n->n_out > MAX_PER_NODE || n->n_attrs > MAX_PER_NODE)
        return err_set(r->e, E_UNSUPPORTED,
                       "%s: node '%.*s' has more than %d inputs, outputs or attributes", r->m->path,
                       STR_ARG(str_take(n->name, 100)), MAX_PER_NODE);
    return OK;
}

/* A NodeProto. Inputs are looked up before outputs are added. */
static int read_node(struct reader *r, struct str bytes, struct onnx_node *n)
{
    int ins = 0, outs = 0, attrs = 0, rc = count_parts(r, bytes, n);
    struct pb m;

    if (rc != OK) return rc;
    n->in = arena_array(&r->p->arena, (size_t)n->n_in + 1, sizeof *n->in);
    n->out = arena_array(&r->p->arena, (size_t)n->n_out + 1, sizeof *n->out);
    n->attrs = arena_array(&r->p->arena, (size_t)n->n_attrs + 1, sizeof *n->attrs);
    if (!n->in || !n->out || !n->attrs) return fail_nomem(r);
    for (m = pb_of(bytes); rc == OK && pb_next(&m);) {
        if (m.wire != PB_BYTES) continue;
        if (m.field == 1) {
            n->in[ins] = -1;
            if (m.bytes.n && !find_value(r, m.bytes, &n->in[ins])) return fail_input(r, n, m.bytes);
            ins++;
        }
        if (m.field == 5) rc = read_attr(r, m.bytes, &n->attrs[attrs++]);
    }
    /* Outputs last: a node cannot read what it produces. */
    for (m = pb_of(bytes); rc == OK && pb_next(&m);) {
        if (m.wire != PB_BYTES || m.field != 2) continue;
        n->out[outs] = -1;
        if (m.bytes.n) rc = add_value(r, m.bytes, &n->out[outs]);
        outs++;
    }
    return rc;
}

/* ---- graphs ---- */

/* A GraphProto: tensors, inputs, nodes, outputs, in the order in which they refer to each other. */
static int read_graph(struct reader *r, struct str bytes, struct onnx_graph *g)
{
    size_t n[16] = { 0 }; /* occurrences of each field */
    struct pb m;
    int rc = OK;

    for (m = pb_of(bytes); pb_next(&m);)
        if (m.field < 16 && m.wire == PB_BYTES) n[m.field]++;
    if (m.at.bad) return fail_malformed(r, "the graph");
    if (n[15])
        return err_set(r->e, E_UNSUPPORTED, "%s: sparse tensors are not supported", r->m->path);
    /* Nodes of all branches count together. */
    if (n[1] > MAX_NODES || (r->n_nodes += (int)n[1]) > MAX_NODES || n[11] > MAX_PER_NODE ||
        n[12] > MAX_PER_NODE)
        return err_set(r->e, E_UNSUPPORTED,
                       "%s: the graph has more than %d nodes, or %d inputs or outputs", r->m->path,
                       MAX_NODES, MAX_PER_NODE);
    g->nodes = arena_array(&r->p->arena, n[1] + 1, sizeof *g->nodes);
    g->inputs = arena_array(&r->p->arena, n[11] + 1, sizeof *g->inputs);
    g->outputs = arena_array(&r->p->arena, n[12] + 1, sizeof *g->outputs);
    if (!g->nodes || !g->inputs || !g->outputs) return fail_nomem(r);
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

/* An OperatorSetIdProto: the version of a domain. */
static int read_opset(struct reader *r, struct str bytes)
{
    struct str domain = { 0 };
    int64_t version = 0;

    for (struct pb m = pb_of(bytes); pb_next(&m);) {
        if (m.field == 1 && m.wire == PB_BYTES) domain = m.bytes;
        if (m.field == 2 && m.wire == PB_VARINT) version = (int64_t)m.v;
    }
    if (domain.n && !str_is(domain, "ai.onnx"))
        return OK; /* nodes of other domains are refused when they are to run */
    if (version < 1 || version > 1 << 20)
        return err_set(r->e, E_FORMAT, "%s: opset version %lld is not valid", r->m->path,
                       (long long)version);
    r->m->opset = (int)version;
    return OK;
}

/* A ModelProto. The opset may come behind the graph in the file, so the graph is read last. */
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
    if (m.at.bad) return fail_malformed(r, "the model");
    if (!graph.p)
        return err_set(r->e, E_FORMAT, "%s: not a valid ONNX model: it has no graph", r->m->path);
    if (!r->m->opset)
        return err_set(r->e, E_FORMAT, "%s: the file does not state its opset version", r->m->path);
    return read_graph(r, graph, &r->m->graph);
}

/* NULL: no memory. */
static struct onnx *make_model(const char *path)
{
    struct onnx *m = mem_new(struct onnx);

    if (!m) return NULL;
    m->impl = mem_new(struct onnx_impl);
    m->path = mem_strdup(path);
    if (m->impl && m->path) return m;
    onnx_close(m);
    return NULL;
}

static int read_bytes(struct onnx *m, struct str bytes, struct err *e)
{
    struct err ignored;
    struct reader r = { .m = m, .p = m->impl, .e = e ? e : &ignored };

    return read_model(&r, bytes);
}

int onnx_parse(struct onnx **out, struct str bytes, const char *name, struct err *e)
{
    struct onnx *m = make_model(name);
    int rc = m ? read_bytes(m, bytes, e) : err_nomem(e, "a model");

    if (rc == OK) *out = m;
    else onnx_close(m);
    return rc;
}

/* The folder of a path, from mem_alloc; NULL: no memory. */
static char *folder_of(const char *path)
{
    size_t n = (size_t)(path_base(path) - path);
    char *dir = n ? mem_dup(path, n + 1) : mem_strdup(".");

    if (dir && n) dir[n] = 0;
    return dir;
}

int onnx_open(struct onnx **out, const char *path, struct err *e)
{
    struct onnx *m = make_model(path);
    struct filemap *map;
    int rc;

    if (!m || !(m->impl->dir = folder_of(path))) {
        onnx_close(m);
        return err_nomem(e, "a model");
    }
    map = &m->impl->map;
    rc = filemap_open(map, path, e);
    if (rc == OK) rc = read_bytes(m, str_of((const char *)map->p, map->n), e);
    if (rc == OK) *out = m;
    else onnx_close(m);
    return rc;
}

static void close_impl(struct onnx_impl *p)
{
    if (!p) return;
    onnx_tensor_release(p);
    map_release(&p->names);
    arena_release(&p->arena);
    filemap_release(&p->map);
    mem_free(p->dir);
    mem_free(p);
}

void onnx_close(struct onnx *m)
{
    if (!m) return;
    close_impl(m->impl);
    mem_free(m->values);
    mem_free(m->path);
    mem_free(m);
}

int onnx_check(const struct onnx *m, bool look, struct err *e)
{
    const struct onnx_impl *p = m->impl;
    int rc = filemap_check(&p->map, look, m->path, e);

    for (int i = 0; i < p->n_files && rc == OK; i++)
        rc = filemap_check(&p->files[i].map, look, p->files[i].path, e);
    return rc;
}

const struct onnx_attr *onnx_attr(const struct onnx_node *n, const char *name)
{
    for (int i = 0; i < n->n_attrs; i++)
        if (str_is(n->attrs[i].name, name)) return &n->attrs[i];
    return NULL;
}

int64_t onnx_int(const struct onnx_node *n, const char *name, int64_t fallback)
{
    const struct onnx_attr *a = onnx_attr(n, name);
    return a ? a->i : fallback;
}

float onnx_float(const struct onnx_node *n, const char *name, float fallback)
{
    const struct onnx_attr *a = onnx_attr(n, name);
    return a ? a->f : fallback;
}
