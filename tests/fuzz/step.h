/* step.h - for fuzz targets of model files: load the weights and run one step of two tokens, with
 * the plain kernels and little memory. */
#ifndef TERN_TESTS_FUZZ_STEP_H
#define TERN_TESTS_FUZZ_STEP_H

#include "model/loadplan.h"
#include "model/runner.h"

/* Errors are fine; memory errors and aborts are not. */
static inline void load_and_step(const char *path)
{
    static const int32_t ids[] = { 0, 1 }, pos[] = { 0, 1 }, seq[] = { 0, 0 }, table[] = { 0 };
    struct load_opt opt = { .backend = { .n_threads = 1, .reference = true },
                            .n_ctx = 16,
                            .kv_tokens = 16,
                            .max_batch = 4,
                            .max_seqs = 1,
                            .kv_type = DT_NONE };
    struct loadplan *p = NULL;
    struct runner *r = NULL;
    const float *logits = NULL;
    struct err e;

    if (loadplan_read(&p, path, &e) == OK && loadplan_make(p, &opt, &e) == OK &&
        runner_open(&r, p, &e) == OK) {
        struct batch b = { .n_tokens = 2,
                           .ids = ids,
                           .pos = pos,
                           .seq = seq,
                           .n_seqs = 1,
                           .table = table,
                           .table_stride = 1,
                           .n_out = r->lim.bidirectional ? 0 : 1,
                           .out_rows = &pos[1] };
        runner_run(r, &b, &logits, &e);
    }
    runner_close(r);
    loadplan_close(p);
}
#endif
