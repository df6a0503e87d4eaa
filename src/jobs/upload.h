/* upload.h - an uploaded file on its way from a connection to the disk: multipart/form-data with a
 * part "file", a part "purpose" and optionally expires_after.
 *
 * The bytes are written to a temporary file as they come. An error is kept, and the rest of the body is
 * read and dropped: the handler reports it when the body has ended. */
#ifndef TERN_JOBS_UPLOAD_H
#define TERN_JOBS_UPLOAD_H

#include "jobs/multipart.h"
#include "jobs/jobstore.h"
#include "net/http.h"

struct upload {
    struct http_sink sink; /* first */
    struct multipart form;
    struct jobstore_file file; /* id, name, purpose, bytes, created and expires */
    char path[3200];           /* of the temporary file */
    int fd;
    bool spools; /* the file has no name; fd is open until upload_close */
    uint64_t max_bytes;
    char field[32]; /* name of the part being read; "": one that is ignored */
    bool in_file, has_file, has_purpose;
    char value[256]; /* of a part that is not the file */
    size_t n_value;
    int64_t expires_after; /* seconds; 0: not given */
    int rc;
    struct err err;
    char param[40]; /* the field at fault; "": none */
};

/* dir: the store's. type: the header Content-Type. NULL: no memory. Any other error is kept. */
struct upload *upload_open(const char *dir, struct str type, uint64_t max_bytes);
/* The same into a file without a name in the folder dir, which exists: fd reads it after upload_end. */
struct upload *upload_open_spool(const char *dir, struct str type, uint64_t max_bytes);
/* The body has ended: is the form complete? OK: path is the file, to be moved or removed. */
int upload_end(struct upload *u, struct err *e);
void upload_close(struct upload *u); /* removes what was not moved; NULL is allowed */
#endif
