/* batchbody.h - the body of POST /v1/batches. {"input_file_id": ID, "endpoint": PATH,
 * "completion_window": "24h", "metadata": {...}}. */
#ifndef TERN_JOBS_BATCHBODY_H
#define TERN_JOBS_BATCHBODY_H

#include "jobs/jobstore.h"

enum { BATCHBODY_BYTES = 256 << 10 }; /* a larger body is refused before it is parsed */

/* Fills endpoint, input, window, window_s and metadata (a part of *text) of b. E_INVALID; E_NOMEM. */
int batchbody_read(struct jobstore_batch *b, struct buf *text, struct str body, struct err *e);
#endif
