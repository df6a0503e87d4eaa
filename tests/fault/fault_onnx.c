/* ONNX graphs under faults: opening files (also with external data and branches), opening a run,
 * planning, executing, and reading the card of a model. */
#include "fault.h"

#include "base/mem.h"
#include "onnx/card.h"
#include "onnx_world.h"

#include <stdio.h>

#define GOLDEN "tests/golden/onnx/"

static bool never_stop(void *arg)
{
    (void)arg;
    return false;
}

/* Plans for the largest input and executes it. All inputs are [1][4] integers. */
static int plan_and_execute(struct onnx_run *r, int n_inputs, struct err *e)
{
    static const int64_t dims[2] = { 1, 4 }, ids[4] = { 2, 6, 8, 3 }, ones[4] = { 1, 1, 1, 1 },
                         zeros[4] = { 0 };
    const int64_t *data[3] = { ids, ones, zeros };
    const struct onnx_tensor *out = NULL;
    struct onnx_tensor shape;
    int rc;

    for (int i = 0; i < n_inputs; i++) onnx_run_set(r, i, 2, dims, data[i]);
    if ((rc = onnx_run_plan(r, &shape, e)) != OK) return rc;
    for (int i = 0; i < n_inputs; i++) onnx_run_set(r, i, 2, dims, data[i]);
    return onnx_run_execute(r, never_stop, NULL, &out, e);
}

static int open_and_run(void *arg, struct err *e)
{
    struct onnx_run_opt opt = { .host = { .vec = vec_best() } };
    struct onnx *m = NULL;
    struct onnx_run *r = NULL;
    int rc = onnx_open(&m, arg, e);

    if (rc == OK) rc = onnx_run_check(m, 0, e);
    if (rc == OK) rc = onnx_run_open(&r, m, &opt, e);
    if (rc == OK) rc = plan_and_execute(r, m->graph.n_inputs, e);
    onnx_run_close(r);
    onnx_close(m);
    return rc;
}

static void golden_models_open_and_run(void **state)
{
    static const char *const files[] = { "embed/onnx/model.onnx", "quant/onnx/model.onnx",
                                         "classify/model.onnx" };

    (void)state;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[128], name[160];
        snprintf(path, sizeof path, GOLDEN "%s", files[i]);
        snprintf(name, sizeof name, "onnx %s: open and run", files[i]);
        fault_run(name, open_and_run, (void *)repo(path));
    }
}

/* ---- a file with what the golden models lack ---- */

static void add_branch(struct buf *node, const char *name, const char *op)
{
    struct buf g = { 0 }, a = { 0 };

    add_const(&g, "w", "h 2: 1 2.5"); /* converted: memory of the model */
    add_node(&g, op, "x w", "inner", "");
    add_io(&g, 12, "inner", 1, NULL);
    pbw_bytes(&a, 1, str_c(name));
    pbw_buf(&a, 6, &g);
    pbw_int(&a, 20, 5);
    pbw_buf(node, 5, &a);
}

static void add_external(struct buf *graph, const char *location)
{
    struct buf t = { 0 }, entry = { 0 };

    pbw_int(&t, 1, 2);
    pbw_int(&t, 2, 1);
    pbw_bytes(&t, 8, STR("far"));
    pbw_bytes(&entry, 1, STR("location"));
    pbw_bytes(&entry, 2, str_c(location));
    pbw_buf(&t, 13, &entry);
    pbw_int(&t, 14, 1);
    pbw_buf(graph, 5, &t);
}

/* z = (c ? x + w : x * w) + 2 far, where x is a constant that is folded. */
static const char *write_branches(void)
{
    struct buf g = { 0 }, n = { 0 }, bytes = { 0 };
    float far[2] = { 1, -2 };
    const char *path;

    temp_file("far.data", far, sizeof far);
    add_const(&g, "c", "b : 1");
    add_const(&g, "shape", "i 1: 2");
    add_external(&g, "far.data");
    add_node(&g, "ConstantOfShape", "shape", "x", "value={f 1: 3}");
    name_list(&n, 1, "c");
    name_list(&n, 2, "y");
    pbw_bytes(&n, 4, STR("If"));
    add_branch(&n, "then_branch", "Add");
    add_branch(&n, "else_branch", "Mul");
    pbw_buf(&g, 1, &n);
    add_node(&g, "Sum", "y far far", "z", "");
    add_io(&g, 12, "z", 1, NULL);
    model_bytes(&bytes, &g, 16);
    path = temp_file("branches.onnx", bytes.p, bytes.n);
    buf_release(&bytes);
    return path;
}

static void branches_and_external_data(void **state)
{
    (void)state;
    fault_run("onnx branches: open and run", open_and_run, (void *)write_branches());
}

/* ---- cards ---- */

struct model {
    struct source *src;
    struct onnx *m;
};

static int read_card(void *arg, struct err *e)
{
    const struct model *w = arg;
    struct arena a = { 0 };
    struct card c;
    int rc = card_read(&c, &a, w->src, w->m, e);

    arena_release(&a);
    return rc;
}

static void cards_of_golden_models(void **state)
{
    static const char *const names[] = { "embed", "classify" };

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[128], name[160];
        struct model w = { 0 };
        struct err e = { 0 };
        snprintf(path, sizeof path, GOLDEN "%s", names[i]);
        snprintf(name, sizeof name, "onnx %s: card", names[i]);
        if (source_open(&w.src, repo(path), &e) != OK) fail_msg("%s", e.msg);
        if (onnx_open(&w.m, source_onnx(w.src), &e) != OK) fail_msg("%s", e.msg);
        fault_run(name, read_card, &w);
        onnx_close(w.m);
        source_close(w.src);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_models_open_and_run),
        cmocka_unit_test(branches_and_external_data),
        cmocka_unit_test(cards_of_golden_models),
    };
    fault_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
