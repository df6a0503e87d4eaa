/* tohf.h - a GGUF file written as a Hugging Face folder.
 *
 * Tensors get their names and the order of their rows back; plain numbers stay as they are,
 * quantized ones become plain. What `tern convert` kept of the folder a file was made of
 * (config.json, number formats, tokenizer) comes back as it was; for other files it is told anew
 * from what they say. Files appear whole or not at all, and are read back at the end. */
#ifndef TERN_CONVERT_TOHF_H
#define TERN_CONVERT_TOHF_H

#include "base/arena.h"
#include "base/buf.h"
#include "base/dtype.h"
#include "base/err.h"
#include "format/source.h"
#include "model/hparams.h"

struct tohf_opt {
    const char *src, *dst;
    enum dtype type; /* of the matrices; DT_NONE: as they are, quantized ones F16 */
    uint64_t shard_bytes;
    int n_threads;
    bool resume; /* keep whole shards of an earlier run */
    void (*progress)(void *arg, uint64_t done, uint64_t total, const char *name);
    void *arg;
};

struct tohf_result {
    int n_tensors;
    uint64_t bytes;
    size_t n_files;
    bool no_tokenizer; /* it has one that tokenizer.json cannot tell */
    double seconds;
};

int tohf_run(const struct tohf_opt *opt, struct tohf_result *out, struct err *e);

/* tohf_config.c: the text of config.json. type: of the matrices. */
int tohf_config(const struct source *src, const struct hparams *hp, enum dtype type,
                struct buf *out, struct err *e);
/* tohf_files.c: tokenizer.json, tokenizer_config.json, generation_config.json. */
int tohf_files(const struct source *src, const struct hparams *hp, const char *dir,
               bool *no_tokenizer, struct err *e);

/* Keys in which a GGUF file keeps what its folder said. */
#define TOHF_CONFIG "tern.hf.config.json"
#define TOHF_GENERATION "tern.hf.generation_config.json"
#define TOHF_TOKENIZER_CONFIG "tern.hf.tokenizer_config.json"
#define TOHF_TOKENIZER "tokenizer.huggingface.json"
#define TOHF_NAMES "tern.hf.tensor_names"
#define TOHF_TYPES "tern.hf.tensor_types"
#define TOHF_EXACT "tern.hf.exact." /* and a name: its F32 numbers */
#endif
