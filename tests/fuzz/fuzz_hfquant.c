/* Fuzz target: the tensors of a quantized folder. The input is config.json, a zero byte, and a
 * safetensors file. Every layer that is accepted can be packed and decoded whole. */
#include "base/mem.h"
#include "format/hfquant.h"
#include "kernel/quant.h"

#include <stdlib.h>

static volatile float sink;

static void read_layer(const struct source_tensor *t)
{
    struct grouped g;
    struct err e;
    char text[40];
    size_t n = hfquant_order_len(t->quant);

    hfquant_describe(t->quant, text, sizeof text);
    if (hfquant_check(t->quant, "fuzz", &e) != OK) return;
    int64_t rows = t->dims[0] * (t->n_dims == 3 ? t->dims[1] : 1), cols = t->dims[t->n_dims - 1];
    int32_t *order = mem_array(n + 1, sizeof *order);
    char *row = mem_alloc(hfquant_layout(t->quant)->row_bytes);
    uint8_t *tmp = mem_alloc(2 * (size_t)cols);
    float *out = mem_array((size_t)cols, sizeof *out);
    if (hfquant_prepare(t->quant, 0, &g, order, "fuzz", &e) == OK)
        for (int64_t r = 0; r<rows; r += rows> 64 && r < rows - 1 ? rows - 1 : 1) {
            hfquant_pack(t->quant, &g, r, 1, row, g.row_bytes, tmp);
            grouped_decode(&g, row, 0, g.cols, out);
            sink = out[cols - 1];
        }
    mem_free(order);
    mem_free(row);
    mem_free(tmp);
    mem_free(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const uint8_t *zero = memchr(data, 0, n);
    size_t head = zero ? (size_t)(zero - data) : n, rest = zero ? n - head - 1 : 0;
    struct str text[HFCONFIG_N_FILES] = { 0 };
    struct safetensors *s = NULL;
    struct hfconfig *c = NULL;
    struct hfquant *q = NULL;
    struct err e;
    void *copy = mem_dup(zero ? zero + 1 : data, rest);

    text[HFCONFIG_MODEL] = str_of((const char *)data, head);
    if (hfconfig_parse(&c, text, &e) == OK && safetensors_parse(&s, copy, rest, "fuzz", &e) == OK &&
        hfquant_open(&q, c, s, &e) == OK)
        for (size_t i = 0; i < hfquant_n_tensors(q); i++) {
            if (hfquant_find(q, hfquant_tensor(q, i)->name) == NULL) abort();
            read_layer(hfquant_tensor(q, i));
        }
    hfquant_close(q);
    safetensors_close(s);
    hfconfig_close(c);
    mem_free(copy);
    return 0;
}
