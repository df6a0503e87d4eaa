/* spm.h - sentencepiece's two ways from text to pieces.
 *
 * Unigram: of all ways to cut a text into pieces, the one whose scores add up best. Merging: of all
 * neighbours whose text together is a piece, those merge first whose piece has the best score. Both
 * fall back on bytes, or the unknown piece, where there is no piece for a character. */
#ifndef TERN_TOKEN_SPM_H
#define TERN_TOKEN_SPM_H

#include "base/err.h"
#include "token/tokscratch.h"
#include "token/trie.h"
#include "token/vocab.h"

struct spm {
    const struct vocab *vocab;
    const double *scores; /* [vocab->n]; borrowed */
    double unk_score;
    int32_t unk; /* -1: none */
    bool byte_fallback;
    int32_t fallback[256]; /* <0x00> ... <0xFF>, -1: none */
    struct trie trie;      /* of the pieces; unigram only */
};

/* After vocab, scores, unk and byte_fallback are set. */
void spm_finish(struct spm *s, bool unigram);
void spm_release(struct spm *s);

/* Appends the ids of text, which has no piece longer than 2^31 bytes. */
int spm_unigram(const struct spm *s, struct scratch *w, struct str text, struct ids *out,
                struct err *e);
void spm_merge(const struct spm *s, struct scratch *w, struct str text, struct ids *out);
#endif
