/* togguf.h - write a Hugging Face folder as one GGUF file.
 *
 * Tensors are renamed, their rows reordered and rounded to the wanted type, one tensor after the
 * other, so memory holds one piece of a tensor at a time. The tokenizer, the chat template and the
 * recommended sampling settings become GGUF keys. The file appears under its name when it is
 * complete; then it is opened again and its tensor directory is compared with the plan.
 *
 * Nothing here prints: progress goes to a callback, failures to a struct err. One thread calls;
 * rows are encoded on worker threads that the call starts and ends. */
#ifndef TERN_CONVERT_TOGGUF_H
#define TERN_CONVERT_TOGGUF_H

#include "base/dtype.h"
#include "base/err.h"

struct togguf_opt {
    const char *src, *dst; /* the folder; the file to write */
    enum dtype type;       /* of the matrices: F32, F16, BF16 or Q8_0 */
    bool keep;     /* quantized layers get a type that holds them exactly, where there is one */
    int n_threads; /* 0: one for each physical core */
    bool bare;     /* without the keys of hfkeys.h, which only tern reads */
    /* Called before each tensor, from the calling thread; NULL: no progress. Bytes of output. */
    void (*progress)(void *arg, uint64_t done_bytes, uint64_t bytes, const char *name);
    void *progress_arg;
};

struct togguf_result {
    int n_tensors;
    uint64_t bytes; /* of tensor data */
    double seconds;
};

int togguf_run(const struct togguf_opt *opt, struct togguf_result *out, struct err *e);
#endif
