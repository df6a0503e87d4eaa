/* normal.h - normalizers: text to text, before it is split.
 *
 * A chain is a list of steps in the order they run. Strings and patterns of a step belong to the
 * chain. Texts are UTF-8 and stay so. */
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
    NORMAL_STRIP,
    NORMAL_STRIP_ACCENTS,
    NORMAL_PREPEND,
    NORMAL_REPLACE,
    NORMAL_BERT,
    NORMAL_NMT,
    NORMAL_BYTES,
    NORMAL_CHARSMAP,
    NORMAL_SQUEEZE,  /* sentencepiece: spaces at the ends go, runs become one */
    NORMAL_WORDPIECE /* GGUF's BERT: words and punctuation with spaces between */
};

struct normal_step {
    enum normal_kind kind;
    bool left, right;                /* STRIP */
    bool clean, cjk, accents, lower; /* BERT */
    bool longest;                    /* CHARSMAP: the longest match, not Hugging Face's graphemes */
    char *text;                      /* PREPEND, REPLACE: what is put in; CHARSMAP: the map */
    size_t n_text;
    char *find; /* REPLACE: this text, or the pattern */
    size_t n_find;
    struct regex *regex;
};

struct normal {
    struct normal_step *steps;
    int n_steps;
};

/* Appends a step; what it points to is handed over. */
void normal_add(struct normal *n, struct normal_step s);
void normal_release(struct normal *n); /* a zeroed chain is fine */

/* sentencepiece's map: checked once, here. */
int normal_check_charsmap(struct str map, struct err *e);

/* Runs text through the chain. *out is text itself if nothing changed, or lies in one of the bufs.
 */
int normal_run(const struct normal *n, struct matcher *m, struct str text, struct buf bufs[2],
               struct str *out, struct err *e);

/* One replacement of all that matches, for decoders too. */
int normal_replace(const struct normal_step *s, struct matcher *m, struct str text, struct buf *out,
                   struct err *e);

/* forms.h - Unicode's normal forms of any text, in time linear in it. */
enum { FORM_COMPOSE = 1, FORM_COMPAT = 2 }; /* NFD is 0, NFKC both */

int form_put(struct str text, unsigned flags, struct buf *out, struct err *e); /* appends */

/* charsmap.h - sentencepiece's precompiled map of replacements: a double-array trie and its texts.
 */
int charsmap_check(struct str map, struct err *e);
/* longest: the longest key at each place is replaced, as sentencepiece does; otherwise grapheme by
 * grapheme, then character by character, each by its shortest key, as Hugging Face does. */
void charsmap_put(struct str map, bool longest, struct str text, struct buf *out);
#endif
