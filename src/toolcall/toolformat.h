/* toolformat.h - how model families write tool calls, for generating them: the table behind forced
 * calls. The table for reading calls back is toolfamily.h; a test generates and reads each format. */
#ifndef TERN_TOOLCALL_TOOLFORMAT_H
#define TERN_TOOLCALL_TOOLFORMAT_H

#include "toolcall/toolfamily.h"

/* An answer with calls is: open CALL sep CALL ... close, with CALL = before NAME between ARGUMENTS
 * after. In these texts the name of a special token stands for the token, {i} for the number of the
 * call, and {r} for ten random letters or digits. NULL is "". */
struct toolformat {
    const char *open, *before, *between, *after, *sep, *close;
    int max; /* calls; 0: any number */
    /* ARGUMENTS as a list of members: key NAME is VALUE end, with `and` between two of them. {k} in
     * end is NAME again. key NULL: ARGUMENTS is one JSON object. Arguments that cannot be such a
     * list are an object too. */
    const char *key, *is, *end, *and;
    /* Strings are written raw between two `quote` and cannot contain `until`. until NULL: strings
     * are written as JSON. */
    const char *quote, *until;
    const char
        *is_json; /* in place of `is`, before values other than raw strings; NULL: the same */
    bool trim;   /* a raw string neither begins nor ends with a newline: these belong to the tags */
    bool python; /* True, False and None */
    /* Lazy grammars: any text is allowed, and only after this text a call must follow. open and
     * before begin with it. NULL: the family's calls cannot be distinguished from text. */
    const char *trigger;
};

/* Never NULL: a family without a format of its own writes JSON. */
const struct toolformat *toolformat_find(const struct toolfamily *family, struct str template,
                                         bool lazy);
#endif
