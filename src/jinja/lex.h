/* lex.h - the source of a template to tokens. Inside jinja/ only. */
#ifndef TERN_JINJA_LEX_H
#define TERN_JINJA_LEX_H

#include "base/arena.h"
#include "base/err.h"
#include "jinja/value.h"

enum token_type {
    TOK_EOF,
    TOK_DATA, /* text outside of tags, after white space control */
    TOK_VAR_BEGIN,
    TOK_VAR_END,
    TOK_BLOCK_BEGIN,
    TOK_BLOCK_END,
    TOK_NAME,   /* text */
    TOK_STRING, /* value: unescaped */
    TOK_INT,    /* value */
    TOK_FLOAT,  /* value */
    TOK_OP      /* text */
};

struct token {
    enum token_type type;
    uint32_t at;     /* byte offset in the source */
    struct str text; /* part of the source */
    struct jval value;
};

struct tokens {      /* from mem_grow; release with mem_free(v) */
    struct token *v; /* the last one is TOK_EOF */
    size_t n, cap;
};

/* The source as the language defines it: newlines are "\n", a newline at the end is dropped.
 * p is NULL after a failed allocation. */
struct str lex_source(struct arena *a, struct str raw);
/* Strings with escapes live in the arena; everything else points into the source. On an error *out
 * is still the caller's to release. */
int lex_tokens(struct arena *a, struct str source, const char *name, struct tokens *out,
               struct err *e);

/* Line and column, from 1, of a byte offset in the source. Columns count code points. */
void lex_place(struct str source, uint32_t at, int *line, int *column);
/* E_FORMAT with the message "NAME: line LINE, column COLUMN: ...". */
int lex_error(struct str source, const char *name, uint32_t at, struct err *e, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
#endif
