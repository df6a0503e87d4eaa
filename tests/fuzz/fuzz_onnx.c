/* Fuzz target: an arbitrary ONNX file. It is parsed, planned and executed with a small memory
 * limit and small inputs of any type. */
#include "base/mem.h"
#include "onnx/run.h"

static volatile unsigned long long sink;

/* Cancels an execution after some nodes. */
static bool stop_after(void *arg)
{
    int *left = arg;
    return --*left < 0;
}

static void set_inputs(struct onnx_run *r, const struct onnx *m, void *room)
{
    for (int i = 0; i < m->graph.n_inputs; i++) {
        const struct onnx_io *io = &m->graph.inputs[i];
        int64_t dims[ONNX_DIMS];
        size_t n = 1;
        for (int d = 0; d < io->n_dims; d++) {
            dims[d] = io->dims[d] < 0 ? 3 : io->dims[d] % 5;
            n *= (size_t)dims[d];
        }
        onnx_run_set(r, i, io->n_dims < 0 || n > 512 ? 0 : io->n_dims, dims, room);
    }
}

static void run_output(struct onnx *m, int output)
{
    static int64_t room[1024] = { 1, 0, 2, 1, 1, -1 };
    struct onnx_run_opt opt = { .host = { .vec = &vec_ref },
                                .output = output,
                                .max_bytes = 1 << 20 };
    const struct onnx_tensor *out;
    struct onnx_tensor shape;
    struct onnx_run *r = NULL;
    struct err e = { 0 };
    int left = 200;

    if (onnx_run_open(&r, m, &opt, &e) == OK) {
        set_inputs(r, m, room);
        if (onnx_run_plan(r, &shape, &e) == OK) {
            set_inputs(r, m, room);
            if (onnx_run_execute(r, stop_after, &left, &out, &e) == OK)
                for (size_t i = 0; i < out->n * onnx_size(out->type); i++)
                    sink += ((const uint8_t *)out->data)[i];
        }
    }
    sink += (unsigned char)e.msg[0];
    onnx_run_close(r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char *copy = mem_dup(data, n);
    struct onnx *m = NULL;
    struct err e;

    if (!copy) return 0;
    if (onnx_parse(&m, str_of(copy, n), "fuzz", &e) == OK)
        for (int i = 0; i < m->graph.n_outputs && i < 3; i++) run_output(m, i);
    onnx_close(m);
    mem_free(copy);
    return 0;
}
