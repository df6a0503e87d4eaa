/* normalizer.h - text to text, before the text is split.
 *
 * A normalizer is a list of steps, applied in order: Unicode normal forms, lower case,
 * replacements, a prefix, SentencePiece's charsmap, BERT's cleaning. Texts are valid UTF-8 and stay
 * so. The steps are added while the tokenizer is opened; afterwards any number of threads may apply
 * them. */
#ifndef TERN_TOKEN_NORMALIZER_H
#define TERN_TOKEN_NORMALIZER_H

#include "base/buf.h"
#include "base/err.h"
#include "token/regex.h"

enum normal_kind {
    NORMAL_NFC,
    NORMAL_NFD,
    NORMAL_NFKC,
    NORMAL_NFKD,
    NORMAL_LOWER,
    NORMAL_STRIP,         /* removes white space at the ends */
    NORMAL_STRIP_ACCENTS, /* removes combining marks */
    NORMAL_PREPEND,       /* a text before a text that is not empty */
    NORMAL_REPLACE,
    NORMAL_BERT,
    NORMAL_NMT,      /* SentencePiece's nmt rules: controls go, unusual spaces become spaces */
    NORMAL_BYTES,    /* every byte to its character of the byte-level alphabet */
    NORMAL_CHARSMAP, /* SentencePiece's precompiled map of replacements */
    NORMAL_SQUEEZE,  /* SentencePiece: removes spaces at the ends, runs of spaces become one */
    NORMAL_WORDPIECE /* BERT as GGUF files mean it: spaces around punctuation and ideographs */
};

/* Texts and the pattern belong to the step. */
struct normalizer_step {
    enum normal_kind kind;
    bool left, right; /* STRIP: at which ends */
    bool clean, cjk;  /* BERT: remove controls, put spaces around ideographs */
    bool accents;     /* BERT, WORDPIECE: remove combining marks */
    bool lower;       /* BERT, WORDPIECE: lower case */
    bool longest;     /* CHARSMAP: matches as charsmap_apply says */
    char *text;       /* PREPEND: the prefix; REPLACE: the replacement; CHARSMAP: the map */
    size_t n_text;
    char *find; /* REPLACE: the text to replace, where there is no regex */
    size_t n_find;
    struct regex *regex; /* REPLACE: the pattern to replace, or NULL */
};

struct normalizer {
    struct normalizer_step *steps;
    int n_steps;
};

/* Appends a step and takes over what it points to; on E_NOMEM that is released. */
int normalizer_add_step(struct normalizer *n, struct normalizer_step s, struct err *e);
void normalizer_release(struct normalizer *n); /* a zeroed normalizer is allowed */
void normalizer_step_release(struct normalizer_step *s);

/* Applies all steps. *out is `text` itself if no step changed it; otherwise it is in one of the
 * bufs and 64 more bytes can be read after its end. */
int normalizer_apply(const struct normalizer *n, struct matcher *m, struct str text,
                     struct buf bufs[2], struct str *out, struct err *e);

/* Appends text with every match of a REPLACE step replaced; decoders use it, too. m may be NULL
 * where the step has no regex. */
int normalizer_replace(const struct normalizer_step *s, struct matcher *m, struct str text,
                       struct buf *out, struct err *e);

/* ---- Unicode normal forms (normalizer_forms.c) ---- */

enum { FORM_COMPOSE = 1, FORM_COMPAT = 2 }; /* NFD: 0, NFC: COMPOSE, NFKD: COMPAT, NFKC: both */

/* Appends the normal form of text, in time linear in its length. */
int form_put(struct str text, unsigned flags, struct buf *out, struct err *e);

/* ---- SentencePiece's charsmap (normalizer_charsmap.c) ---- */

/* Checks a map from a model file. charsmap_apply must only see a map that passed. */
int charsmap_check(struct str map, struct err *e);
/* Appends text with its keys replaced. longest: the longest key at each position, as SentencePiece
 * does. Otherwise whole graphemes, then single characters, each by its shortest key, as Hugging
 * Face does; the results differ for some texts. */
void charsmap_apply(struct str map, bool longest, struct str text, struct buf *out);
#endif
