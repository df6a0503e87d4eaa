/* toolfamily.h - the table of model families: how each writes tool calls and reasoning, and how a
 * family is recognized.
 *
 * A family is recognized by signs in the chat template of the model, so the user configures
 * nothing. This table is for reading calls. How forced calls are written is in toolformat.h. */
#ifndef TERN_TOOLCALL_TOOLFAMILY_H
#define TERN_TOOLCALL_TOOLFAMILY_H

#include "base/str.h"

#include <jansson.h>

/* The content of a call, after `open`. SEP is the family's `sep`. */
enum payload {
    PAYLOAD_JSON,    /* {"name": ..., "arguments": {...}}, or an array of them */
    PAYLOAD_BARE,    /* the same; an answer that begins with '{' or '[' is a call too */
    PAYLOAD_MISTRAL, /* an array of them, or name[ARGS]{...} */
    PAYLOAD_NAMED,   /* name SEP {...}, or type SEP name ```json {...} ``` */
    PAYLOAD_KIMI,    /* functions.name:0 SEP {...} */
    PAYLOAD_SOLAR,   /* id <|tool_call:name|> name SEP {...} */
    PAYLOAD_TAGS,    /* a name, then arguments between tags (struct toolfamily_tags), or {...} */
    PAYLOAD_PYTHON,  /* [name(k="v", ...), ...] */
    PAYLOAD_GEMMA,   /* call:name{key:SEPtextSEP, ...} */
    PAYLOAD_HARMONY  /* the whole answer is a series of messages in channels */
};

/* Arguments between tags: NAME name_end [... name_skip] key K key_end [...] value V end, where the
 * part from `key` on is repeated. */
struct toolfamily_tags {
    const char *name_end;  /* NULL: the name ends at the end of its line, or before '<' or '{' */
    const char *name_skip; /* after name_end everything up to this is skipped; NULL: nothing */
    const char *key, *key_end;
    const char
        *value; /* text before it may declare the type of the value; "": it follows at once */
    const char *end;
    bool trim_lines; /* a newline at either end of a value belongs to the tags */
    bool nested;     /* values are tags again; the closing tag is `end`, the key and key_end */
};

#define TOOLFAMILY_DROP 5

struct toolfamily {
    const char *name;
    const char *signs[2]; /* texts that the template must contain, all of them */
    enum payload payload;
    const char *open, *close; /* close NULL: the payload shows its own end */
    const char *sep;
    const char *drop[TOOLFAMILY_DROP];  /* texts around calls that are removed from the answer */
    const struct toolfamily_tags *tags; /* of PAYLOAD_TAGS */
};

/* Reasoning is text between open and close at the beginning of an answer. */
struct reasoning_format {
    const char *sign; /* a text that the template must contain */
    const char *open, *close;
    const char *after;   /* the model writes it between close and its answer; NULL: nothing */
    const char *drop[2]; /* texts around the answer that are removed from it */
    bool anywhere;       /* it may come after text too: open begins with a special token */
};

/* Does the prompt end with reasoning that is closed? */
bool toolfamily_is_closed(const struct reasoning_format *t, struct str prompt);

/* NULL: the template has the signs of no family. */
const struct toolfamily *toolfamily_find(struct str template);
const struct reasoning_format *toolfamily_find_reasoning(struct str template);

/* Fills out with the texts that the parser of an answer must see although they may be special
 * tokens, and a NULL. Both arguments may be NULL. */
#define TOOLFAMILY_MARKS 20
void toolfamily_list_marks(const struct toolfamily *f, const struct reasoning_format *t,
                           const char *out[TOOLFAMILY_MARKS]);
#endif
