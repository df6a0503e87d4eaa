/* split.h - pre-tokenizers: a text into the pieces a model looks at one by one.
 *
 * A chain is a list of steps; each splits every piece the one before it left, and sees nothing
 * of its neighbours. Strings and patterns of a step belong to the chain. */
#ifndef TERN_TOKEN_PRETOK_H
#define TERN_TOKEN_PRETOK_H

#include "base/err.h"
#include "token/chars.h"
#include "token/tokmodel.h"

enum split_kind {
    SPLIT_REGEX,
    SPLIT_TEXT,  /* at a fixed text */
    SPLIT_CLASS, /* at characters of a class */
    SPLIT_CHAR,  /* at one character */
    SPLIT_METASPACE,
    SPLIT_BYTES, /* every byte as a character of the byte-level alphabet */
    SPLIT_LENGTH
};

/* What becomes of a match: the delimiter. */
enum split_behavior {
    SPLIT_REMOVED,
    SPLIT_ISOLATED,
    SPLIT_WITH_PREVIOUS,
    SPLIT_WITH_NEXT,
    SPLIT_CONTIGUOUS
};

enum split_prepend { PREPEND_NEVER, PREPEND_FIRST, PREPEND_ALWAYS };

struct split_step {
    enum split_kind kind;
    enum split_behavior behavior;
    bool invert;         /* what does not match is the delimiter */
    struct regex *regex; /* REGEX; BYTES: or NULL */
    char *text;          /* TEXT; METASPACE: what stands for a space */
    size_t n_text;
    char_class *in_class;
    int32_t ch;
    int length;                 /* LENGTH: characters of a piece */
    enum split_prepend prepend; /* METASPACE */
    bool cut;                   /* METASPACE: split, not only replace */
    bool prefix_space;          /* BYTES */
};

struct split {
    struct split_step *steps;
    int n_steps;
};

void split_add(struct split *s, struct split_step step);
void split_release(struct split *s); /* a zeroed chain is fine */

struct split_result {
    struct str text; /* the pieces lie in it */
    struct span *pieces;
    size_t n;
    bool raw; /* byte-level, but still plain bytes: the last step left that to the model */
};

/* at_start: text begins where the whole text began. The result lives in w until the next call. */
int split_run(const struct split *s, struct scratch *w, struct str text, bool at_start,
              struct split_result *out, struct err *e);

/* pretok.h - the names GGUF has for ways of splitting text (tokenizer.ggml.pre), and their
 * patterns. */
/* Adds the steps for a name. One that is not known: a warning, and the default's. *ignore_merges: a
 * word that is in the vocabulary is taken whole. */
int pretok_add(struct split *s, struct str name, bool *ignore_merges, struct err *e);

/* Do models of this name compose text (NFC) before they look at it? */
bool pretok_composes(struct str name);
/* GGUF's name for a byte-level chain, or NULL if it has none. */
const char *pretok_name(const struct split *s, bool ignore_merges);

/* scripts.h - splitting text where its script changes. */
/* Appends a pattern whose matches are the runs of one script; spaces go with what is before them,
 * and kana counts as Han. */
void scripts_pattern(struct buf *out);
#endif
