/* gangspeed.c - a matvec and a matrix product, timed. */
#include "model/gangspeed.h"

#include "base/clock.h"
#include "base/mem.h"

#include <stdio.h>
#include <string.h>

enum {
    COLS = 4096,
    ROWS = 8192,         /* F16: 64 MiB, more than the caches of most machines */
    PRODUCT_ROWS = 1024, /* of the matrix in the product */
    TOKENS = 32,         /* of the product */
    PASSES = 3           /* the best one counts: other programs only make it slower */
};

struct trial {
    struct backend *be;
    uint16_t *w;
    float *x, *y;
};

static size_t matrix_bytes(void) { return (size_t)ROWS * COLS * sizeof(uint16_t); }
static size_t input_bytes(void) { return (size_t)TOKENS * COLS * sizeof(float); }
static size_t output_bytes(void)
{
    return sizeof(float) * (size_t)(ROWS > TOKENS * PRODUCT_ROWS ? ROWS : TOKENS * PRODUCT_ROWS);
}

/* Any numbers will do, except those that are slow: all bytes of the matrix are 0x2c, about 0.07. */
static int fill_trial(struct trial *t, struct err *e)
{
    struct backend *be = t->be;
    size_t part = (size_t)1 << 20;
    char *bytes;
    int rc = be->alloc(be, (void **)&t->w, matrix_bytes(), MEM_WEIGHTS, e);

    if (rc == OK) rc = be->alloc(be, (void **)&t->x, input_bytes(), MEM_SCRATCH, e);
    if (rc == OK) rc = be->alloc(be, (void **)&t->y, output_bytes(), MEM_SCRATCH, e);
    if (rc != OK) return rc;
    if (!(bytes = mem_alloc(part))) return err_nomem(e, "a measurement");
    memset(bytes, 0x2c, part);
    for (size_t at = 0; at < matrix_bytes(); at += part)
        be->put(be, (char *)t->w + at, bytes, part);
    for (size_t at = 0; at < input_bytes(); at += part)
        be->put(be, (char *)t->x + at, bytes,
                input_bytes() - at < part ? input_bytes() - at : part);
    rc = be->sync(be, e);
    mem_free(bytes);
    return rc;
}

/* Seconds of the product of so many rows with the matrix's first rows. */
static int time_product(struct trial *t, int tokens, int rows, double *best, struct err *e)
{
    struct weight w = { .type = DT_F16, .rows = rows, .cols = COLS, .n = 1, .data = t->w };
    struct tensor x = tensor_f32(t->x, tokens, COLS);
    struct linear job = { .out = tensor_f32(t->y, tokens, rows), .w = &w };
    int rc = OK;

    *best = 1e9;
    for (int i = 0; i < PASSES && rc == OK; i++) {
        uint64_t start = clock_ns();
        double s;
        t->be->linear(t->be, &x, &job, 1);
        rc = t->be->sync(t->be, e);
        s = (double)(clock_ns() - start + 1) / 1e9;
        if (s < *best) *best = s;
    }
    return rc;
}

static int run_trial(struct gangspeed *out, struct trial *t, struct err *e)
{
    double s;
    int rc;

    if (t->be->drive) t->be->drive(t->be);
    if (t->be->available_bytes) out->free_bytes = t->be->available_bytes(t->be);
    if ((rc = fill_trial(t, e)) != OK) return rc;
    if ((rc = time_product(t, 1, ROWS, &s, e)) != OK) return rc;
    out->read_gb_s = (double)matrix_bytes() / s / 1e9;
    if ((rc = time_product(t, TOKENS, PRODUCT_ROWS, &s, e)) != OK) return rc;
    out->product_gflops = 2.0 * TOKENS * PRODUCT_ROWS * COLS / s / 1e9;
    return OK;
}

int gangspeed_measure(struct gangspeed *out, const struct backend_opt *opt, struct err *e)
{
    static char known[64];
    static struct gangspeed last;
    struct trial t = { 0 };
    char key[64];
    int rc;

    snprintf(key, sizeof key, "%.15s %d %.15s %d", opt->device ? opt->device : "cpu",
             opt->n_threads, opt->isa ? opt->isa : "", opt->reference);
    if (strcmp(key, known) == 0) {
        *out = last;
        return OK;
    }
    *out = (struct gangspeed){ 0 };
    if ((rc = backend_open(&t.be, opt, e)) != OK) return rc;
    rc = run_trial(out, &t, e);
    t.be->free(t.be, t.y, output_bytes(), MEM_SCRATCH);
    t.be->free(t.be, t.x, input_bytes(), MEM_SCRATCH);
    t.be->free(t.be, t.w, matrix_bytes(), MEM_WEIGHTS);
    backend_close(t.be);
    if (rc != OK) return rc;
    memcpy(known, key, sizeof known);
    last = *out;
    return OK;
}

void gangspeed_compare(double *speeds, const struct gangspeed *of, int n)
{
    double read = 0, product = 0;

    for (int i = 0; i < n; i++) {
        if (of[i].read_gb_s > read) read = of[i].read_gb_s;
        if (of[i].product_gflops > product) product = of[i].product_gflops;
    }
    for (int i = 0; i < n; i++) {
        bool known = of[i].read_gb_s > 0 && of[i].product_gflops > 0;
        speeds[i] = known ? 2 / (read / of[i].read_gb_s + product / of[i].product_gflops) : 1;
    }
}
