/* refused.h - why requests are refused: the one list of reasons, each with a counter.
 *
 * A refusal is counted where it is answered, by the status and the code that the client gets, so a
 * counter and an answer cannot disagree. Requests that ran and failed are not refusals; they are
 * counted by their outcome (tern_requests_total). One thread counts, any may read. */
#ifndef TERN_SERVER_REFUSED_H
#define TERN_SERVER_REFUSED_H

#include "base/stat.h"

#define REFUSED_MAX 48

struct refused {
    struct counter n[REFUSED_MAX]; /* by reason, in the order of the list */
};

/* Counts an error reply under its reason. Statuses below 400, errors of requests that ran (499, 500),
 * and replies that are no errors (/ready with 503; code "") are ignored. A code that has no reason of
 * its own is counted as "other". */
void refused_count(struct refused *r, int status, const char *code);
const char *refused_name(int i); /* the label of the i-th reason; NULL: there are no more */
#endif
