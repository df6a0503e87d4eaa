/* answer.h - the parts of an answer so far, in the order in which the model wrote them: text, reasoning
 * and tool calls.
 *
 * Every protocol writes its answer from these parts. Buffers are kept for the next answer unless they
 * are large. A failed allocation is remembered: answer_failed. */
#ifndef TERN_API_ANSWER_H
#define TERN_API_ANSWER_H

#include "base/buf.h"

enum part_kind { PART_TEXT, PART_REASONING, PART_CALL };

struct part {
    enum part_kind kind;
    struct buf text;     /* the text, or the arguments of the call as JSON */
    struct buf id, name; /* of a call */
};

struct answer {
    struct part *parts; /* [cap], of which n are used */
    int n, cap;
    bool failed; /* a part found no memory */
};

/* A new part after the others; NULL: no memory. */
struct part *answer_open_part(struct answer *a, enum part_kind kind, struct str id,
                              struct str name);
struct part *answer_last(struct answer *a); /* NULL: there is none */
bool answer_failed(const struct answer *a);
/* All parts of a kind, joined; a single one is borrowed, several are copied to `joined`. */
struct str answer_join(const struct answer *a, enum part_kind kind, struct buf *joined);
int answer_count(const struct answer *a, enum part_kind kind);
void answer_clear(struct answer *a);   /* for the next answer */
void answer_release(struct answer *a); /* a zeroed one is allowed */
#endif
