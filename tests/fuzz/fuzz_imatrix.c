/* Fuzz target: an arbitrary importance matrix in either format. It is parsed, then the weights
 * of every entry are read. */
#include "quant/imatrix.h"

static volatile double sink;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct imatrix m = { 0 };
    struct arena a = { 0 };
    struct err e;

    if (imatrix_parse(&m, str_of((const char *)data, n), "fuzz", &e) == OK)
        for (int i = 0; i < m.n; i++) {
            const struct imatrix_entry *en = &m.entries[i];
            const float *w;
            if (imatrix_weights(&m, &a, en->name, en->cols, en->n_mats, &w, &e) != OK || !w)
                __builtin_trap();
            for (int64_t k = 0; k < en->cols * en->n_mats; k++) {
                if (!(w[k] > 0)) __builtin_trap();
                sink += (double)w[k];
            }
        }
    imatrix_release(&m);
    arena_release(&a);
    return 0;
}
