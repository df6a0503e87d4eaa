/* runanswer.h - the answer of `tern run --json`: text, token ids and statistics as one JSON object. */
#ifndef TERN_CLI_RUNANSWER_H
#define TERN_CLI_RUNANSWER_H

#include "base/buf.h"
#include "base/ids.h"
#include "cli/gen.h"

struct runanswer {
    struct buf text;
    struct ids ids;
};

void runanswer_add(struct runanswer *a, const tern_event *ev);
/* Writes the object to stdout; false as gen_write. */
bool runanswer_write(const struct runanswer *a, const struct gen *g, const tern_stats *s,
                     tern_finish finish);
void runanswer_release(struct runanswer *a); /* a zeroed one is fine */
#endif
