/* answer.h - the answer of `tern run --json`: text, token ids and statistics as one JSON object. */
#ifndef TERN_CLI_ANSWER_H
#define TERN_CLI_ANSWER_H

#include "base/buf.h"
#include "base/ids.h"
#include "cli/gen.h"

struct answer {
    struct buf text;
    struct ids ids;
};

void answer_add(struct answer *a, const tern_event *ev);
/* Writes the object to stdout; false as gen_write. */
bool answer_write(const struct answer *a, const struct gen *g, const tern_stats *s,
                  tern_finish finish);
void answer_release(struct answer *a); /* a zeroed one is fine */
#endif
