/* run.c - choosing, folding, planning and running the nodes of a graph.
 *
 * Opening:  1. choose_nodes walks from the wanted output backwards and looks operators up.
 *           2. fold_constants runs the nodes whose inputs are all constant, and packs matrices.
 *           3. find_last_reads notes for every value the step after which it can be freed.
 * Running:  steps in order; a value's heap block is released after its last reader.
 *
 * Two values may share a block (op_view), so blocks are counted.
 *
 * Values of the run (r->vals) are copies of struct onnx_tensor. Constants point into the file or
 * into memory of the run and are never dropped; inputs point to memory of the caller; all others
 * have a heap block. */
#include "onnx/run.h"

#include "base/mem.h"
#include "onnx/op.h"

#include <limits.h>
#include <stdint.h>

#define DEFAULT_BYTES ((size_t)64 << 30)
#define LEAST_BYTES ((size_t)64 << 20) /* address space that planning still tries to do with */

/* ---- choosing the nodes ---- */

/* Calls fn for every value that a node or a branch of it reads. */
static void for_each_read(const struct onnx_node *n,
                          void (*fn)(struct onnx_run *r, int value, int step), struct onnx_run *r,
                          int step)
{
    for (int i = 0; i < n->n_in; i++)
        if (n->in[i] >= 0) fn(r, n->in[i], step);
    for (int a = 0; a < n->n_attrs; a++) {
        const struct onnx_graph *g = n->attrs[a].g;
        for (int i = 0; g && i < g->n_nodes; i++) for_each_read(&g->nodes[i], fn, r, step);
        for (int i = 0; g && i < g->n_outputs; i++) fn(r, g->outputs[i].value, step);
    }
}

static void note_read(struct onnx_run *r, int value, int step)
{
    if (r->last[value] < step) r->last[value] = step;
}

/* op->attrs is a list of names separated by spaces. */
static bool knows_attr(const struct onnx_op *op, struct str name)
{
    for (const char *p = op->attrs; *p;) {
        size_t n = strcspn(p, " ");
        if (str_eq(name, str_of(p, n))) return true;
        p += n + (p[n] == ' ');
    }
    return false;
}

static int refuse_attr(const struct onnx_run *r, const struct onnx_node *n, struct str attr)
{
    return err_set(r->e, E_UNSUPPORTED,
                   "%s: node '%.*s': the attribute '%.*s' of operator %.*s%s%.*s (opset %d) is not "
                   "supported",
                   r->m->path, STR_ARG(str_take(n->name, 80)), STR_ARG(str_take(attr, 60)),
                   STR_ARG(str_take(n->domain, 40)), n->domain.n ? "." : "",
                   STR_ARG(str_take(n->op, 40)), r->m->opset);
}

/* Looks up the operator of a node and of the nodes in its branches, and checks inputs, outputs and
 * attributes against it. */
static int bind_op(struct onnx_run *r, struct onnx_node *n)
{
    const struct onnx_op *op = op_find(n, r->m->opset);
    int rc = OK;

    if (!op)
        return err_set(r->e, E_UNSUPPORTED,
                       "%s: node '%.*s': the operator %.*s%s%.*s (opset %d) is not supported",
                       r->m->path, STR_ARG(str_take(n->name, 80)), STR_ARG(str_take(n->domain, 40)),
                       n->domain.n ? "." : "", STR_ARG(str_take(n->op, 40)), r->m->opset);
    n->info = op;
    /* A run that was open before may have left its own. */
    n->packed = NULL;
    n->as_float = false;
    if (n->n_in < op->min_in || (op->max_in >= 0 && n->n_in > op->max_in) || n->n_out > op->n_out)
        return op_fail(r, n, "the operator does not take %d inputs and %d outputs", n->n_in,
                       n->n_out);
    for (int i = 0; i < op->min_in; i++)
        if (n->in[i] < 0) return op_fail(r, n, "the required input %d is absent", i);
    for (int i = 0; i < n->n_attrs; i++) {
        if (!knows_attr(op, n->attrs[i].name)) return refuse_attr(r, n, n->attrs[i].name);
        for (int k = 0; n->attrs[i].g && k < n->attrs[i].g->n_nodes && rc == OK; k++)
            rc = bind_op(r, &n->attrs[i].g->nodes[k]);
        if (rc != OK) return rc;
    }
    return OK;
}

/* The most inputs or outputs of any node. */
static int find_max_arity(const struct onnx_graph *g)
{
    int most = OP_IN;

    for (int i = 0; i < g->n_nodes; i++) {
        const struct onnx_node *n = &g->nodes[i];
        int inner;
        if (n->n_in > most) most = n->n_in;
        if (n->n_out > most) most = n->n_out;
        for (int a = 0; a < n->n_attrs; a++)
            if (n->attrs[a].g && (inner = find_max_arity(n->attrs[a].g)) > most) most = inner;
    }
    return most;
}

/* Walks backwards from the output. `last` marks values here: 0 needed, -1 not needed. */
static int choose_nodes(struct onnx_run *r)
{
    struct onnx_graph *g = &r->m->graph;
    int rc = OK;

    for (int i = 0; i < r->m->n_values; i++) r->last[i] = -1;
    r->last[g->outputs[r->output].value] = 0;
    for (int i = g->n_nodes - 1; i >= 0; i--) {
        bool needed = false;
        for (int o = 0; o < g->nodes[i].n_out; o++)
            needed |= g->nodes[i].out[o] >= 0 && r->last[g->nodes[i].out[o]] >= 0;
        if (!needed) continue;
        for_each_read(&g->nodes[i], note_read, r, 0);
        r->steps[r->n_steps++] = &g->nodes[i];
        if ((rc = bind_op(r, &g->nodes[i])) != OK) return rc;
    }
    for (int a = 0, b = r->n_steps - 1; a < b; a++, b--) { /* into the order of the file */
        const struct onnx_node *n = r->steps[a];
        r->steps[a] = r->steps[b];
        r->steps[b] = n;
    }
    return OK;
}

/* ---- running a node ---- */

/* Releases the memory of a value that is not constant. */
static void drop_value(struct onnx_run *r, int value)
{
    if (value < 0 || r->fixed[value]) return;
    heap_unref(&r->heap, r->vals[value].block);
    r->vals[value] = (struct onnx_tensor){ .block = -1 };
}

/* Collects inputs and outputs and calls the operator. Outputs that the file leaves out go to
 * temporary tensors. */
static int run_node(struct onnx_run *r, const struct onnx_node *n, const struct onnx_tensor **ins,
                    struct onnx_tensor **outs)
{
    enum { MAX_UNREAD = 4 };
    struct onnx_tensor unread[MAX_UNREAD] = { 0 };
    int n_unread = 0, rc;

    for (int i = 0; i < n->n_in || i < OP_IN; i++)
        ins[i] = i < n->n_in && n->in[i] >= 0 ? &r->vals[n->in[i]] : NULL;
    for (int i = 0; i < n->n_in; i++)
        if (ins[i] && ins[i]->type == ONNX_NONE) return op_fail(r, n, "input %d has no value", i);
    for (int i = 0; i < n->n_out || i < OP_OUT; i++) {
        if (i < n->n_out && n->out[i] >= 0) {
            outs[i] = &r->vals[n->out[i]];
            continue;
        }
        if (n_unread == MAX_UNREAD)
            return op_fail(r, n, "more than %d outputs are unused", MAX_UNREAD);
        unread[n_unread].block = -1;
        outs[i] = &unread[n_unread++];
    }
    rc = n->info->fn(r, n, ins, outs);
    for (int i = 0; i < n_unread; i++) heap_unref(&r->heap, unread[i].block);
    return rc;
}

/* Runs the nodes of a branch of the If node n. Its outputs become those of n; everything else that
 * it produced is dropped. */
static int run_branch(struct onnx_run *r, const struct onnx_node *n, const struct onnx_graph *g)
{
    int rc = OK;

    /* Outputs of a branch are those of the node, in order. */
    if (g->n_outputs != n->n_out)
        return op_fail(r, n, "a branch has %d outputs, but the node has %d", g->n_outputs,
                       n->n_out);
    for (int i = 0; i < g->n_nodes && rc == OK; i++)
        rc = run_node(r, &g->nodes[i], r->ins, r->outs);
    for (int i = 0; i < g->n_outputs && rc == OK; i++) {
        const struct onnx_tensor *t = &r->vals[g->outputs[i].value];
        if (t->type == ONNX_NONE) return op_fail(r, n, "an output of a branch has no value");
        if (n->out[i] >= 0) rc = op_view(r, &r->vals[n->out[i]], t, t->n_dims, t->dims);
    }
    for (int i = 0; i < g->n_nodes; i++)
        for (int o = 0; o < g->nodes[i].n_out; o++) drop_value(r, g->nodes[i].out[o]);
    return rc;
}

int op_if(struct onnx_run *r, const struct onnx_node *n, const struct onnx_tensor **in,
          struct onnx_tensor **out)
{
    const struct onnx_attr *yes = onnx_attr(n, "then_branch"), *no = onnx_attr(n, "else_branch");
    int rc = op_check_type(r, n, in[0], ONNX_BOOL);

    (void)out;
    if (rc != OK) return rc;
    if (in[0]->n != 1 || !yes || !yes->g || !no || !no->g)
        return op_fail(r, n, "it needs one condition and two branches");
    return run_branch(r, n, op_u8(in[0])[0] ? yes->g : no->g);
}

/* ---- constants ---- */

/* Nodes with branches are not folded: what they read is not in n->in. */
static bool is_const_node(const struct onnx_run *r, const struct onnx_node *n)
{
    for (int i = 0; i < n->n_in; i++)
        if (n->in[i] >= 0 && !r->fixed[n->in[i]]) return false;
    for (int a = 0; a < n->n_attrs; a++)
        if (n->attrs[a].g) return false;
    return true;
}

/* Operators need aligned elements; those of a file may not be. */
static int align_tensor(struct onnx_run *r, struct onnx_tensor *t)
{
    size_t size = onnx_size(t->type), bytes = t->n * size;
    void *p;

    if (!t->is_file || (uintptr_t)t->data % size == 0) return OK;
    if (!(p = op_alloc(r, bytes))) return err_nomem(r->e, "the tensors of a model");
    if (bytes) memcpy(p, t->data, bytes);
    t->data = p;
    t->is_file = false;
    return OK;
}

/* Gather copies rows with memcpy, and a matrix is packed once: these large tensors need no aligned
 * copy. */
static bool reads_unaligned(const struct onnx_node *n, int input, const struct onnx_tensor *t)
{
    if (str_is(n->op, "Gather")) return input == 0;
    return input == 1 && t->n_dims == 2 && t->type == ONNX_F32 &&
           (str_is(n->op, "MatMul") || str_is(n->op, "Gemm"));
}

/* Aligns the constant inputs of a node. strict: also those that its operator reads unaligned. */
static int align_inputs(struct onnx_run *r, const struct onnx_node *n, bool strict)
{
    int rc = OK;

    for (int i = 0; i < n->n_in && rc == OK; i++) {
        struct onnx_tensor *t = n->in[i] >= 0 && r->fixed[n->in[i]] ? &r->vals[n->in[i]] : NULL;
        if (t && (strict || !reads_unaligned(n, i, t))) rc = align_tensor(r, t);
    }
    for (int a = 0; a < n->n_attrs && rc == OK; a++) {
        struct onnx_graph *g = n->attrs[a].g;
        for (int i = 0; g && i < g->n_nodes && rc == OK; i++)
            rc = align_inputs(r, &g->nodes[i], true);
        for (int i = 0; g && i < g->n_outputs && rc == OK; i++)
            if (r->fixed[g->outputs[i].value]) rc = align_tensor(r, &r->vals[g->outputs[i].value]);
    }
    return rc;
}

static int fail_pack(struct onnx_run *r) { return err_nomem(r->e, "the matrices of a model"); }

/* Packs the constant 8-bit matrix of a MatMulInteger as floats, less its zero points: four times
 * the memory, for the speed of a float product. */
static int pack_int_matrix(struct onnx_run *r, struct onnx_node *n)
{
    const struct onnx_tensor *b = &r->vals[n->in[1]],
                             *zero = n->n_in > 3 && n->in[3] >= 0 ? &r->vals[n->in[3]] : NULL;
    bool is_signed = b->type == ONNX_I8;
    float *wide;

    if (b->n_dims != 2 || b->n == 0 || (b->type != ONNX_I8 && b->type != ONNX_U8)) return OK;
    if (zero && (!r->fixed[n->in[3]] || zero->type != b->type ||
                 (zero->n != 1 && (int64_t)zero->n != b->dims[1])))
        return OK;
    if (!(wide = mem_array(b->n, sizeof *wide))) return fail_pack(r);
    for (size_t i = 0; i < b->n; i++) {
        const uint8_t *z = zero ? op_u8(zero) + (zero->n > 1 ? i % zero->n : 0) : NULL;
        wide[i] = is_signed ? (float)(((const int8_t *)b->data)[i] - (z ? *(const int8_t *)z : 0))
                            : (float)(op_u8(b)[i] - (z ? *z : 0));
    }
    n->packed = op_pack(r, wide, b->dims[0], b->dims[1], b->dims[1], 1);
    mem_free(wide);
    return n->packed ? OK : fail_pack(r);
}

/* Packs the constant matrix of a product, if the node is one. */
static int pack_matrix(struct onnx_run *r, struct onnx_node *n)
{
    bool gemm = str_is(n->op, "Gemm"), transposed;
    const struct onnx_tensor *b;

    if (str_is(n->op, "MatMulInteger") && r->fixed[n->in[1]]) return pack_int_matrix(r, n);
    if ((!gemm && !str_is(n->op, "MatMul")) || !r->fixed[n->in[1]]) return OK;
    b = &r->vals[n->in[1]];
    if (b->n_dims != 2 || b->type != ONNX_F32 || b->n == 0) return OK;
    transposed = gemm && onnx_int(n, "transB", 0);
    n->packed = transposed ? op_pack(r, b->data, b->dims[1], b->dims[0], 1, b->dims[1])
                           : op_pack(r, b->data, b->dims[0], b->dims[1], b->dims[1], 1);
    return n->packed ? OK : fail_pack(r);
}

/* Runs the nodes whose inputs are all constant; their outputs are constants from then on. The other
 * nodes stay in steps. */
static int fold_constants(struct onnx_run *r)
{
    int n = 0, rc;

    r->folding = true;
    for (int i = 0; i < r->n_steps; i++) {
        const struct onnx_node *node = r->steps[i];
        if ((rc = align_inputs(r, node, is_const_node(r, node))) != OK) return rc;
        if (!is_const_node(r, node)) {
            r->steps[n++] = node;
            continue;
        }
        if ((rc = run_node(r, node, r->ins, r->outs)) != OK) return rc;
        for (int o = 0; o < node->n_out; o++)
            if (node->out[o] >= 0) r->fixed[node->out[o]] = true;
    }
    r->n_steps = n;
    for (int i = 0; i < n; i++)
        if ((rc = pack_matrix(r, (struct onnx_node *)r->steps[i])) != OK) return rc;
    /* From here on outputs come from the heap. */
    r->folding = false;
    return OK;
}

/* MatMulInteger whose only reader casts to float: the product can be computed as float at once. */
static void mark_float_products(struct onnx_run *r)
{
    for (int i = 0; i < r->n_steps; i++) {
        struct onnx_node *n = (struct onnx_node *)r->steps[i];
        int last = str_is(n->op, "MatMulInteger") && n->out[0] >= 0 ? r->last[n->out[0]] : -1,
            reads = 0;
        for (int k = i + 1; k <= last && last < r->n_steps; k++)
            for (int in = 0; in < r->steps[k]->n_in; in++)
                reads += r->steps[k]->in[in] == n->out[0];
        /* The Cast then gets floats and shares their memory. */
        n->as_float = reads == 1 && str_is(r->steps[last]->op, "Cast") &&
                      onnx_int(r->steps[last], "to", 0) == 1;
    }
}

/* The output of the graph stays until the next execution. */
static void find_last_reads(struct onnx_run *r)
{
    for (int i = 0; i < r->m->n_values; i++) r->last[i] = -1;
    for (int i = 0; i < r->n_steps; i++) for_each_read(r->steps[i], note_read, r, i);
    r->last[r->m->graph.outputs[r->output].value] = INT_MAX;
}

/* ---- opening ---- */

static bool alloc_arrays(struct onnx_run *r)
{
    size_t values = (size_t)r->m->n_values + 1, arity = (size_t)find_max_arity(&r->m->graph) + 1;

    r->vals = mem_array(values, sizeof *r->vals);
    r->last = mem_array(values, sizeof *r->last);
    r->fixed = mem_array(values, sizeof *r->fixed);
    r->ins = mem_array(arity, sizeof *r->ins);
    r->outs = mem_array(arity, sizeof *r->outs);
    r->steps = mem_array((size_t)r->m->graph.n_nodes + 1, sizeof *r->steps);
    return r->vals && r->last && r->fixed && r->ins && r->outs && r->steps;
}

/* A run whose nodes are chosen. On an error *out is to be closed all the same. */
static int make_run(struct onnx_run **out, struct onnx *m, const struct onnx_run_opt *opt,
                    struct err *e)
{
    struct onnx_run *r = *out = mem_new(struct onnx_run);

    if (!r) return err_nomem(e, "the run of a graph");
    r->m = m;
    r->host = opt->host;
    r->output = opt->output;
    r->max_bytes = opt->max_bytes ? opt->max_bytes : DEFAULT_BYTES;
    r->e = e;
    if (!alloc_arrays(r)) return err_nomem(e, "the run of a graph");
    for (int i = 0; i < m->n_values; i++) {
        r->fixed[i] = m->values[i].is_const;
        r->vals[i] = r->fixed[i] ? m->values[i].t : (struct onnx_tensor){ .block = -1 };
    }
    if (opt->output < 0 || opt->output >= m->graph.n_outputs)
        return err_set(e, E_FORMAT, "%s: the graph has %d outputs; there is no number %d", m->path,
                       m->graph.n_outputs, opt->output);
    return choose_nodes(r);
}

/* Choosing the nodes looks up every operator. */
int onnx_run_check(struct onnx *m, int output, struct err *e)
{
    struct onnx_run *r;
    int rc = make_run(&r, m, &(struct onnx_run_opt){ .output = output }, e);

    onnx_run_close(r);
    return rc;
}

int onnx_run_open(struct onnx_run **out, struct onnx *m, const struct onnx_run_opt *opt,
                  struct err *e)
{
    struct onnx_run *r;
    int rc;

    if ((rc = make_run(&r, m, opt, e)) != OK) goto out;
    if ((rc = fold_constants(r)) != OK) goto out;
    find_last_reads(r);
    mark_float_products(r);
    *out = r;
    r = NULL;
out:
    onnx_run_close(r);
    return rc;
}

void onnx_run_close(struct onnx_run *r)
{
    if (!r) return;
    heap_release(&r->heap);
    heap_release_owned(&r->owned);
    mem_free(r->vals);
    mem_free(r->last);
    mem_free(r->fixed);
    mem_free(r->ins);
    mem_free(r->outs);
    mem_free(r->steps);
    mem_free(r);
}

/* ---- running ---- */

/* The caller has checked i, the type and the dimensions. */
void onnx_run_set(struct onnx_run *r, int i, int n_dims, const int64_t *dims, const void *data)
{
    const struct onnx_io *io = &r->m->graph.inputs[i];
    struct onnx_tensor *t = &r->vals[io->value];

    *t = (struct onnx_tensor){
        .type = io->type, .n_dims = n_dims, .n = 1, .data = (void *)data, .block = -1
    };
    for (int d = 0; d < n_dims; d++) t->n *= (size_t)(t->dims[d] = dims[d]);
}

/* Drops the values of an execution, also of one that failed. Inputs have no block: they stay. */
static void drop_values(struct onnx_run *r)
{
    for (int i = 0; i < r->m->n_values; i++)
        if (!r->fixed[i] && r->vals[i].block >= 0) r->vals[i] = (struct onnx_tensor){ .block = -1 };
    heap_clear(&r->heap);
}

/* Runs the nodes in order and drops values after their last use. */
static int run_steps(struct onnx_run *r)
{
    int rc;

    drop_values(r);
    for (int i = 0; i < r->n_steps; i++) {
        const struct onnx_node *n = r->steps[i];
        if (r->stop && r->stop(r->stop_arg))
            return err_set(r->e, E_CANCELLED, "the computation was cancelled");
        if ((rc = run_node(r, n, r->ins, r->outs)) != OK) return rc;
        for (int k = 0; k < n->n_in; k++)
            if (n->in[k] >= 0 && r->last[n->in[k]] == i) drop_value(r, n->in[k]);
        for (int k = 0; k < n->n_out; k++)
            if (n->out[k] >= 0 && r->last[n->out[k]] < 0) drop_value(r, n->out[k]);
    }
    return OK;
}

/* *out is set also after an error; its elements are not valid then. */
static int run_graph(struct onnx_run *r, const struct onnx_tensor **out, struct err *e)
{
    int rc;

    r->e = e;
    rc = run_steps(r);
    *out = &r->vals[r->m->graph.outputs[r->output].value];
    if (rc == OK && (*out)->type == ONNX_NONE)
        rc = err_set(e, E_FORMAT, "%s: the output has no value", r->m->path);
    return rc;
}

/* A dry run in as much address space as the limit allows finds the peak; the final heap is
 * smaller. */
int onnx_run_plan(struct onnx_run *r, struct onnx_tensor *shape, struct err *e)
{
    const struct onnx_tensor *t;
    int max_blocks = r->m->n_values + 64, rc;
    size_t peak, room = r->max_bytes;

    heap_release(&r->heap);
    do rc = heap_open(&r->heap, room, max_blocks, e); /* address space may be limited */
    while (rc != OK && (room /= 4) > LEAST_BYTES);
    if (rc != OK) return rc;
    r->dry = true;
    r->stop = NULL;
    rc = run_graph(r, &t, e);
    r->dry = false;
    *shape = *t;
    shape->data = NULL;
    peak = r->heap.peak;
    drop_values(r);
    heap_release(&r->heap);
    if (rc != OK) return rc;
    /* Twice the peak: smaller shapes may leave other gaps. Pages that are not written cost nothing. */
    rc = heap_open(&r->heap, 2 * peak < r->max_bytes ? 2 * peak + 65536 : r->max_bytes, max_blocks,
                   e);
    r->heap.peak = peak;
    return rc;
}

int onnx_run_execute(struct onnx_run *r, bool (*stop)(void *arg), void *arg,
                     const struct onnx_tensor **out, struct err *e)
{
    r->stop = stop;
    r->stop_arg = arg;
    return run_graph(r, out, e);
}

size_t onnx_run_bytes(const struct onnx_run *r) { return r->heap.peak; }
size_t onnx_run_const_bytes(const struct onnx_run *r) { return r->owned_bytes; }
int onnx_run_n_nodes(const struct onnx_run *r) { return r->n_steps; }

bool onnx_run_uses(const struct onnx_run *r, const char *op)
{
    for (int i = 0; i < r->n_steps; i++)
        if (str_is(r->steps[i]->op, op)) return true;
    return false;
}
