/* transfer.h - the files of a pull on their way: ranges over several connections at once.
 *
 * One loop runs all connections (curl_multi), hashes what has arrived in order, and finishes files. A
 * connection takes the next range that nobody has; a range that fails is taken again later, from the
 * byte where it stopped. Nothing here knows of refs and snapshots. One thread. */
#ifndef TERN_PULL_TRANSFER_H
#define TERN_PULL_TRANSFER_H

#include "pull/request.h"
#include "pull/store.h"

/* Downloads all chosen files of the list whose blobs are not there; each has a size, a checksum and
 * the URL base + its name. *downloaded: bytes that came over the network. */
int transfer_run(struct session *s, const struct store *store, const struct hub_files *files,
                 const char *base, uint64_t *downloaded, struct err *e);
/* Appends the name with every byte that is special in a path of a URL as %XX. slashes: also those. */
void transfer_escape(struct buf *out, struct str name, bool slashes);
#endif
