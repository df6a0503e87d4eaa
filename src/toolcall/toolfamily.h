/* tools.h - how models write tool calls and reasoning, and which way a model does it.
 *
 * A family is known by marks in the chat template; nothing has to be said on the command line. */
#ifndef TERN_TOOLCALL_TOOLS_H
#define TERN_TOOLCALL_TOOLS_H

#include "base/str.h"

#include <jansson.h>

enum payload {                  /* what stands behind `open` */
               PAYLOAD_JSON,    /* {"name": ..., "arguments": {...}}, or a list of them */
               PAYLOAD_BARE,    /* the same, and an answer that begins with '{' or '[' is one */
               PAYLOAD_MISTRAL, /* a list of them, or name[ARGS]{...} */
               PAYLOAD_NAMED,   /* name SEP {...}, or type SEP name ```json {...} ``` */
               PAYLOAD_KIMI,    /* functions.name:0 SEP {...} */
               PAYLOAD_SOLAR,   /* id MARK name SEP {...} */
               PAYLOAD_TAGS,    /* a name, then arguments between tags (struct toolfamily_tags), or
                                   {...} */
               PAYLOAD_PYTHON,  /* [name(k="v", ...), ...] */
               PAYLOAD_GEMMA,   /* call:name{key:SEPtextSEP, ...} */
               PAYLOAD_HARMONY  /* channels: the whole answer is made of them */
};

/* NAME name_end  key K key_end … value V end  key K … */
struct toolfamily_tags {
    const char *name_end;  /* NULL: the name ends with its line, or where an argument begins */
    const char *name_skip; /* behind that, up to where the arguments begin; NULL: nothing */
    const char *key, *key_end;
    const char *value; /* what stands before it may say which type it is; "": it is right there */
    const char *end;
    bool lines; /* a newline at either end of a value is not its own */
};

#define TOOLFAMILY_DROP 5

struct toolfamily {
    const char *name;
    const char *signs[2]; /* in the template: all of them */
    enum payload payload;
    const char *open, *close; /* close NULL: the payload ends itself */
    const char *sep;
    const char *drop[TOOLFAMILY_DROP]; /* around calls, and no text */
    const struct toolfamily_tags *tags;
};

struct reasoning_format {
    const char *sign; /* in the template */
    const char *open, *close;
};

/* NULL: the template has no way that is known. */
const struct toolfamily *toolfamily_find(struct str template);
const struct reasoning_format *toolfamily_find_reasoning(struct str template);

/* Texts that must be seen although they may be special tokens of the vocabulary: ends with NULL. */
#define TOOLFAMILY_MARKS 16
void toolfamily_marks(const struct toolfamily *f, const struct reasoning_format *t,
                      const char *out[TOOLFAMILY_MARKS]);
#endif
