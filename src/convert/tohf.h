/* tohf.h - write a GGUF file as a Hugging Face folder.
 *
 * Tensors get their Hugging Face names and row order back. Unquantized values are copied,
 * quantized ones are dequantized. If `tern convert` made the GGUF file, the folder's config.json,
 * number formats and tokenizer are restored from the keys of hfkeys.h; for other files they are
 * derived from the GGUF keys. Every file appears under its name when it is complete, and the
 * tensors are read back and compared at the end.
 *
 * Nothing here prints: progress goes to a callback, failures to a struct err. One thread calls;
 * rows are encoded on worker threads that the call starts and ends. */
#ifndef TERN_CONVERT_TOHF_H
#define TERN_CONVERT_TOHF_H

#include "base/arena.h"
#include "base/buf.h"
#include "base/dtype.h"
#include "base/err.h"
#include "format/source.h"
#include "model/hparams.h"

struct tohf_opt {
    const char *src, *dst; /* the file; the folder to write */
    enum dtype type;       /* of the matrices; DT_NONE: unchanged, quantized ones become F16 */
    uint64_t shard_bytes;  /* of tensors in one .safetensors file at most */
    int n_threads;         /* 0: one for each physical core */
    bool resume;           /* keep complete shards of an earlier run */
    /* Called before each tensor, from the calling thread; NULL: no progress. Bytes of output. */
    void (*progress)(void *arg, uint64_t done_bytes, uint64_t bytes, const char *name);
    void *progress_arg;
};

struct tohf_result {
    int n_tensors;
    uint64_t bytes;    /* of tensor data */
    size_t n_files;    /* .safetensors files */
    bool no_tokenizer; /* the tokenizer's kind has no tokenizer.json form; none was written */
    double seconds;
};

int tohf_run(const struct tohf_opt *opt, struct tohf_result *out, struct err *e);

/* tohf_config.c: appends the text of config.json. type: of the matrices. */
int tohf_config(const struct source *src, const struct hparams *hp, enum dtype type,
                struct buf *out, struct err *e);
/* tohf_files.c: writes tokenizer.json, tokenizer_config.json and generation_config.json. */
int tohf_files(const struct source *src, const struct hparams *hp, const char *dir,
               bool *no_tokenizer, struct err *e);
#endif
