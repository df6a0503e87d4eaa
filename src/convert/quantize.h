/* quantize.h - the work behind `tern quantize`: open a model, plan the types, write the GGUF file.
 *
 * The model is a GGUF file or a Hugging Face folder; a folder is converted and quantized in one
 * pass, row by row. The writing itself is quant/rewrite. Nothing here prints: progress goes to a
 * callback, failures to a struct err. */
#ifndef TERN_CONVERT_QUANTIZE_H
#define TERN_CONVERT_QUANTIZE_H

#include "model/naming.h"
#include "quant/rewrite.h"

struct quantize {
    /* Set by the caller before quantize_open; borrowed, except the rules. */
    const char *in, *out;     /* a path; the file to write */
    const char *imatrix_path; /* NULL: none */
    struct plan_opt plan_opt; /* its rules are freed by quantize_release */
    uint64_t split_bytes;     /* of tensors in one file at most; 0: one file */
    int n_threads;            /* 0: one for each physical core */
    bool measure;             /* fill result.loss */
    void (*progress)(void *arg, const struct rewrite_progress *p); /* NULL: none */
    void *progress_arg;
    const volatile sig_atomic_t *stop; /* the run ends with E_CANCELLED when it is not 0 */

    /* Filled by quantize_open. */
    struct arena arena;
    struct source *src;
    struct imatrix imatrix;
    struct plan plan;
    /* Of a folder: its tensors as GGUF has them; list is NULL for a GGUF file. */
    struct hparams hp;
    struct gguf_item *items;
    struct gguf_rest rest;
    const struct source_tensor **list;
    int n_list;
    size_t read_room; /* floats that reading a row needs besides the row */

    struct rewrite_result result; /* filled by quantize_run; its loss is freed by release */
};

/* Opens the model and makes the plan; writes nothing. */
int quantize_open(struct quantize *q, struct err *e);
/* Writes the file. */
int quantize_run(struct quantize *q, struct err *e);
void quantize_release(struct quantize *q); /* a zeroed one is fine */
#endif
