/* quantize.h - the work behind `tern quantize`: a model opened, a plan made, carried out, told. */
#ifndef TERN_CLI_QUANTIZE_H
#define TERN_CLI_QUANTIZE_H

#include "base/buf.h"
#include "model/naming.h"
#include "quant/rewrite.h"

struct quantize {
    /* asked for */
    const char *in, *out, *imatrix_path;
    struct plan_opt plan_opt; /* its rules are owned */
    uint64_t split_bytes;
    int n_threads;
    bool measure;
    void (*progress)(void *arg, const struct rewrite_progress *p);
    void *progress_arg;
    const volatile sig_atomic_t *stop;
    /* opened */
    struct arena arena;
    char *path;
    struct source *src;
    /* of a folder: its tensors as GGUF has them */
    struct hparams hp;
    struct gguf_item *items;
    const struct source_tensor **list;
    int n_list;
    size_t read_room; /* numbers that reading a row takes besides it */
    struct imatrix imatrix;
    struct plan plan;
    struct rewrite_result result;
    double ppl_before, ppl_after; /* 0: not asked for */
};

bool quantize_can(enum dtype t);
int quantize_open(struct quantize *q, struct err *e);
int quantize_run(struct quantize *q, struct err *e);
void quantize_release(struct quantize *q); /* a zeroed one is fine */

/* What was done, or would be (dry). */
void quantize_text(const struct quantize *q, bool dry, struct buf *out);
void quantize_json(const struct quantize *q, bool dry, struct buf *out);
#endif
