/* deadline.h - parses the point in time of an X-Deadline header. */
#ifndef TERN_API_DEADLINE_H
#define TERN_API_DEADLINE_H

#include "base/str.h"

/* RFC 3339 ("2026-03-01T12:00:00.5+01:00") or milliseconds since 1970; false: neither. */
bool deadline_parse(struct str s, int64_t *epoch_ms);
#endif
