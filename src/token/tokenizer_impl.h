/* parts.h - what a tokenizer is made of: for tokenizer.c, and for those who build one from a file.
 *
 * A text goes through: added tokens in the raw text; normalizer; added tokens in what that gives;
 * pre-tokenizer; the model, piece by piece; and what the post-processor puts at both ends. */
#ifndef TERN_TOKEN_TOKENIZER_IMPL_H
#define TERN_TOKEN_TOKENIZER_IMPL_H

#include "base/arena.h"
#include "format/source.h"
#include "token/normalizer.h"
#include "token/pretok.h"
#include "token/tokdecode.h"
#include "token/tokenizer.h"
#include "token/tokmodel.h"
#include "token/vocab.h"
#include <stdatomic.h>

enum token_model { MODEL_BPE, MODEL_UNIGRAM, MODEL_SPM, MODEL_WORDPIECE, MODEL_WORDLEVEL };

enum { N_SCRATCH = 8, MAX_POST = 16 };

struct tokenizer {
    struct arena arena;
    struct source *source;  /* opened by us; pieces may be borrowed from it */
    struct vocab vocab;     /* the model's own pieces */
    struct str *pieces;     /* [n] with added tokens in place: the vocabulary's, or ... */
    struct str *own_pieces; /* ... these, where tokens were added behind it */
    int n;
    bool *special; /* [n] */

    struct added_token *added;
    int n_added;
    struct added in_raw, in_normal;

    struct normal normal;
    struct split split;
    enum token_model model;
    struct bpe bpe;
    struct spm spm;
    struct wordpiece wordpiece; /* WORDLEVEL uses its unk too */
    double *scores;             /* [vocab.n] or NULL */
    struct decode decode;

    int32_t before[MAX_POST], after[MAX_POST]; /* by the post-processor */
    int n_before, n_after;
    struct pair_form { /* of two texts: front A mid B end */
        bool known;    /* the post-processor has it */
        int32_t front[MAX_POST], mid[MAX_POST], end[MAX_POST];
        int n_front, n_mid, n_end;
        int second; /* tokens of mid that are of the first type; -1: all there is */
    } pair;
    int32_t bos, eos, unk, pad;
    struct str chat_template, tool_template;

    /* for export, made when first asked for */
    const char *pre;           /* GGUF's name of the splitting, NULL: none known */
    struct str *export_pieces; /* [n] */
    struct str *merges;        /* "a b" */
    int n_merges;
    int32_t *types;       /* [n] GGUF's token types */
    float *export_scores; /* [n] or NULL */
    bool space_prefix;    /* a space is put before text */

    _Atomic(struct scratch *) idle[N_SCRATCH];
};

/* Added tokens to where they are looked for, after all are known; fills pieces and special. */
int tokenizer_finish(struct tokenizer *t, struct err *e);

/* The two builders; t is zeroed but for -1 in its ids. */
int tokjson_build(struct tokenizer *t, struct str json, struct str config, const char *name,
                  struct err *e);
int tokgguf_build(struct tokenizer *t, const struct source *src, struct err *e);
#endif
