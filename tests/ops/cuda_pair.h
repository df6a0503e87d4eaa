/* cuda_pair.h - a weight matrix with the same random bytes on the GPU and on the reference
 * backend. */
#ifndef TERN_TESTS_OPS_CUDA_PAIR_H
#define TERN_TESTS_OPS_CUDA_PAIR_H

#include "cuda_both.h"
#include "random_blocks.h"

/* One weight on the reference backend (c) and on the GPU (g). bytes: its encoded rows in host
 * memory, which the pair owns. */
struct pair {
    struct weight c, g;
    char *bytes;
};

/* Encoded rows of the type halves[which].type: random blocks for quantized types, rounded normal
 * values for float types. The caller frees them. */
static inline char *pair_bytes(int which, int rows, int cols)
{
    enum dtype t = halves[which].type;
    uint64_t row = 0;
    char *bytes;

    assert_true(dtype_row_bytes(t, (uint64_t)cols, &row));
    bytes = mem_alloc((size_t)rows * row);
    if (dtype_info((int)t)->quantized) {
        fill_random_blocks(which, bytes, (size_t)rows * row, &rng);
    } else {
        float *x = mem_array((size_t)rows * (size_t)cols, sizeof(float));
        for (int i = 0; i < rows * cols; i++) x[i] = rng_normal(&rng) * 0.1f;
        quant_encode(t, x, bytes, (int64_t)rows * cols);
        mem_free(x);
    }
    return bytes;
}

/* Uploads one weight to both backends. c and g must not move: a backend keeps the address of a
 * weight until weights_finish. Returns the encoded bytes, which the caller frees. */
static inline char *upload_pair(struct weight *c, struct weight *g, int which, int rows, int cols)
{
    char *bytes = pair_bytes(which, rows, cols);
    struct err e = { 0 };

    *c = (struct weight){
        .type = halves[which].type, .rows = rows, .cols = cols, .n = 1, .data = bytes
    };
    *g = *c;
    assert_int_equal(ref->weight_put(ref, c, &e), OK);
    if (gpu->weight_put(gpu, g, &e) != OK || ref->weights_finish(ref, &e) != OK)
        fail_msg("%s", e.msg);
    return bytes;
}

static inline void pair_init(struct pair *p, int which, int rows, int cols)
{
    p->bytes = upload_pair(&p->c, &p->g, which, rows, cols);
}

static inline void pair_free(struct pair *p)
{
    gpu->weight_drop(gpu, &p->g);
    ref->weight_drop(ref, &p->c);
    mem_free(p->bytes);
}

/* Call it once after all pairs of a test are uploaded. */
static inline void finish_weights(void)
{
    struct err e = { 0 };
    if (gpu->weights_finish(gpu, &e) != OK) fail_msg("%s", e.msg);
}

static inline bool is_unsupported(int which)
{
    if (gpu->weight_supported(gpu, halves[which].type)) return false;
    print_message("%s: the GPU has no kernels for this type\n",
                  dtype_name((int)halves[which].type));
    return true;
}

static inline const char *type_name(int which) { return dtype_name((int)halves[which].type); }
#endif
