/* convert.h - a Hugging Face folder written as one GGUF file.
 *
 * Tensors are renamed, reordered and rounded to the wanted type one after the other; the
 * tokenizer, the chat template and the makers' sampling settings go along. The result is read
 * back and compared with what was meant before it gets its name. */
#ifndef TERN_CONVERT_CONVERT_H
#define TERN_CONVERT_CONVERT_H

#include "base/dtype.h"
#include "base/err.h"

struct convert_opt {
    const char *src, *dst;
    enum dtype type; /* of the matrices: F32, F16, BF16 or Q8_0 */
    int n_threads;
    bool progress; /* a line on stderr that moves */
    bool bare;     /* without the folder's own words, which only tern reads */
};

struct convert_result {
    int n_tensors;
    uint64_t bytes;
    double seconds;
};

int convert_to_gguf(const struct convert_opt *opt, struct convert_result *out, struct err *e);
#endif
