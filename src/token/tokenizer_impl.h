/* tokenizer_impl.h - struct tokenizer: what src/token/tokenizer*.c, the decoder and the readers and
 * writers of files share. */
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

enum {
    N_SCRATCH = 8, /* scratch memories that wait for the next text */
    MAX_POST = 16  /* tokens that the post-processor adds on one side */
};

struct encode_scratch; /* tokenizer_encode.c */

struct tokenizer {
    struct arena arena; /* texts of pieces, templates and options, where they are not borrowed */
    struct source
        *source;        /* where tokenizer_open opened a GGUF file; pieces are borrowed from it */
    struct vocab vocab; /* the pieces of the model */
    struct str *pieces; /* [n] with added tokens: vocab.pieces, or ... */
    struct str *own_pieces; /* ... this array, where tokens were added after the last piece */
    int n;
    bool *special; /* [n] */

    struct added_token *added; /* [n_added] */
    int n_added;
    struct added in_raw, in_normal; /* the same tokens, by the text they are searched in */

    struct normalizer normalizer;
    struct pretok pretok;
    enum token_model model;
    struct bpe bpe;             /* SPM uses its cuts, too */
    struct spm spm;             /* SPM and UNIGRAM */
    struct wordpiece wordpiece; /* WORDLEVEL uses its unk, too */
    double *scores;             /* [vocab.n] or NULL */
    struct decoder decoder;

    int32_t before[MAX_POST], after[MAX_POST]; /* what the post-processor adds to one text */
    int n_before, n_after;
    struct pair_form { /* a pair of texts: front A mid B end */
        bool known;    /* the post-processor has such a form */
        int32_t front[MAX_POST], mid[MAX_POST], end[MAX_POST];
        int n_front, n_mid, n_end;
        int second; /* how many tokens of mid have token type 0; -1: all tokens have */
    } pair;
    int32_t bos, eos, unk, pad; /* -1: none */
    struct str chat_template, tool_template, rank_template;

    /* for export: made by the first tokenizer_export */
    const char *pre;           /* GGUF's name of the pre-tokenizer style, NULL: none */
    struct str *export_pieces; /* [n] */
    struct str *merges;        /* [n_merges] "left right" */
    int n_merges;
    int32_t *types;       /* [n] GGUF's token types; set while a GGUF file is read */
    float *export_scores; /* [n] or NULL */
    bool space_prefix;    /* a space is put before every text */

    _Atomic(struct encode_scratch *) idle[N_SCRATCH]; /* lent to a thread while it encodes */
};

/* Completes a tokenizer after its vocabulary, steps and added tokens are known: fills n, pieces and
 * special, and sorts the added tokens into in_raw and in_normal. */
int tokenizer_finish(struct tokenizer *t, struct err *e);

/* tokenizer_encode.c: takes the waiting scratch memories, when the tokenizer is closed. */
void tokenizer_release_scratch(struct tokenizer *t);
/* Adds one added token to in_raw, or in its normalized form to in_normal. */
int tokenizer_index_added(struct tokenizer *t, int i, struct err *e);
#endif
