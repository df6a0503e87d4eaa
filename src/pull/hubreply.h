/* hubreply.h - what the hub answers: the list of a repository's files, and headers of replies.
 *
 * Foreign bytes: sizes and texts are checked, and names that are not safe as paths are left out.
 * Functions without state: any thread. */
#ifndef TERN_PULL_HUBREPLY_H
#define TERN_PULL_HUBREPLY_H

#include "format/hubfiles.h"

/* Reads {"sha": ..., "siblings": [{"rfilename": ..., "size": ..., "blobId": ..., "lfs": {...}}, ...]}.
 * Files without a size or checksum are listed with neither. commit: 40 digits. E_FORMAT, E_NOMEM. */
int hubreply_files(struct hub_files *out, char commit[41], struct str json, struct err *e);

/* Headers of a reply, and of the redirects before it. */
struct hub_head {
    int status;
    int64_t length;           /* Content-Length; -1: none */
    int64_t first, last, all; /* Content-Range: bytes first-last/all; -1: none */
    char etag[65];            /* a checksum: SHA-256 or git's SHA-1; "" where the ETag is none */
    char location[8192];      /* "": none */
    /* of the hub, kept over redirects */
    char linked_etag[65];
    int64_t linked_size; /* -1: none */
    char commit[41];
    char error[200]; /* X-Error-Message, printable; "": none */
};

void hub_head_init(struct hub_head *h);
/* One line as it arrives. A status line begins the headers of the next reply. */
void hub_head_line(struct hub_head *h, struct str line);
/* 40 or 64 digits, in lower case? */
bool hub_is_sum(const char *s);
#endif
