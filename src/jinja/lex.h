/* lex.h - the source of a template as tokens. Inside jinja/ only. */
#ifndef TERN_JINJA_LEX_H
#define TERN_JINJA_LEX_H

#include "base/arena.h"
#include "base/err.h"
#include "jinja/value.h"

enum token_type {
    TOK_EOF,
    TOK_DATA, /* text: between the tags */
    TOK_VAR_BEGIN,
    TOK_VAR_END,
    TOK_BLOCK_BEGIN,
    TOK_BLOCK_END,
    TOK_NAME,   /* text */
    TOK_STRING, /* value */
    TOK_INT,    /* value */
    TOK_FLOAT,  /* value */
    TOK_OP      /* text */
};

struct token {
    enum token_type type;
    uint32_t at;
    struct str text;
    struct jval value;
};

struct tokens {
    struct token *v; /* the last is TOK_EOF */
    size_t n;
};

/* The source as the language reads it: newlines "\n", one at the end off. */
struct str lex_source(struct arena *a, struct str raw);
/* Tokens and their texts live in the arena or are parts of the source. */
int lex(struct arena *a, struct str source, const char *name, struct tokens *out, struct err *e);

/* "NAME:LINE:COLUMN: sentence", for errors at a place of the source. */
int lex_error(struct str source, const char *name, uint32_t at, struct err *e, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
#endif
