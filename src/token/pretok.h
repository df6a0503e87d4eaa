/* pretok.h - the pre-tokenizer: splits a normalized text into the words the model encodes one by
 * one.
 *
 * A pre-tokenizer is a list of steps. Each step splits every span that the step before it left,
 * without seeing the neighbours of the span. Most steps only cut; METASPACE and BYTES also rewrite
 * the text. The steps come from tokenizer.json, or from the name of a known style in a GGUF file
 * (pretok_styles.c). They are added while the tokenizer is opened; afterwards any number of threads
 * may apply them, each with a scratch of its own. */
#ifndef TERN_TOKEN_PRETOK_H
#define TERN_TOKEN_PRETOK_H

#include "base/buf.h"
#include "base/err.h"
#include "token/chars.h"
#include "token/regex.h"

enum pretok_kind {
    PRETOK_REGEX,     /* at matches of a pattern */
    PRETOK_TEXT,      /* at a fixed text */
    PRETOK_CLASS,     /* at characters of a class */
    PRETOK_CHAR,      /* at one character */
    PRETOK_METASPACE, /* replaces spaces by a mark, mostly U+2581, and cuts before each mark */
    PRETOK_BYTES,     /* byte-level: cuts by GPT-2's pattern, then maps bytes to their characters */
    PRETOK_LENGTH     /* into parts of so many characters */
};

/* What becomes of the delimiter, that is, of a match. Named as in tokenizer.json. */
enum split_behavior {
    SPLIT_REMOVED,
    SPLIT_ISOLATED,      /* a span of its own */
    SPLIT_WITH_PREVIOUS, /* joins the span before it */
    SPLIT_WITH_NEXT,     /* joins the span after it */
    SPLIT_CONTIGUOUS     /* adjacent delimiters form one span */
};

enum metaspace_prepend { PREPEND_NEVER, PREPEND_FIRST, PREPEND_ALWAYS };

/* Text and pattern belong to the step. */
struct pretok_step {
    enum pretok_kind kind;
    enum split_behavior behavior;
    bool invert;         /* the text between matches is the delimiter */
    struct regex *regex; /* REGEX; BYTES: the pattern, or NULL */
    char *text;          /* TEXT: the delimiter; METASPACE: the mark */
    size_t n_text;
    char_class *in_class;           /* CLASS */
    int32_t ch;                     /* CHAR */
    int length;                     /* LENGTH: characters */
    enum metaspace_prepend prepend; /* METASPACE: where a mark is put before a span */
    bool cut;                       /* METASPACE: cut at marks, not only replace */
    bool prefix_space;              /* BYTES: put a space before a span without one */
};

struct pretok {
    struct pretok_step *steps;
    int n_steps;
};

/* Appends a step and takes over what it points to; on E_NOMEM that is released. */
int pretok_add_step(struct pretok *p, struct pretok_step step, struct err *e);
void pretok_step_release(struct pretok_step *s);
void pretok_release(struct pretok *p); /* a zeroed pre-tokenizer is allowed */

/* A part of the current text, in bytes. */
struct span {
    uint32_t at, n;
};

/* Remembers its first failed allocation: then additions do nothing. */
struct span_list {
    struct span *p;
    size_t n, cap;
    bool failed;
};

void span_list_grow(struct span_list *v); /* room for one more, or v->failed */
static inline void span_list_add(struct span_list *v, size_t at, size_t n)
{
    if (v->n == v->cap) {
        span_list_grow(v);
        if (v->failed) return;
    }
    v->p[v->n++] = (struct span){ (uint32_t)at, (uint32_t)n };
}

/* Memory that one thread splits in, kept from text to text. Zeroed but for the matcher, which the
 * owner opens and closes. */
struct pretok_scratch {
    struct matcher *matcher;
    struct buf text[2];        /* rewritten texts */
    struct span_list spans[2]; /* before and after a step */
};
void pretok_scratch_release(struct pretok_scratch *w); /* all but the matcher */

struct pretok_result {
    struct str text;          /* the spans are in it; 64 bytes after its end can be read */
    const struct span *spans; /* [n] */
    size_t n;
    bool raw_bytes; /* the last step is BYTES and left the mapping to characters to the model */
};

/* Splits text, which has at most 2^31 bytes. at_start: text begins where the whole input began. The
 * result is in w, or is text itself, until the next call with w. */
int pretok_apply(const struct pretok *p, struct pretok_scratch *w, struct str text, bool at_start,
                 struct pretok_result *out, struct err *e);

/* ---- known styles (pretok_styles.c) ---- */

/* Adds the steps that tokenizer.ggml.pre = name means. An unknown name logs a warning and gets the
 * steps of "default". *ignore_merges: a word in the vocabulary is one token, without merging. */
int pretok_add_style(struct pretok *p, struct str name, bool *ignore_merges, struct err *e);
bool pretok_style_composes(struct str name); /* do models of this style apply NFC first? */
/* The name GGUF files have for this byte-level pre-tokenizer; NULL: none. */
const char *pretok_find_style(const struct pretok *p, bool ignore_merges);

/* ---- scripts (pretok_scripts.c) ---- */

/* Appends a pattern that matches the runs of one script: the UnicodeScripts pre-tokenizer. A space
 * belongs to the run before it; kana counts as Han. */
void pretok_put_script_pattern(struct buf *out);
#endif
