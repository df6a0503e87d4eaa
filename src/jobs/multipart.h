/* multipart.h - an incremental parser of multipart/form-data (RFC 7578). No I/O; the result does not
 * depend on how the bytes are split.
 *
 * The data of a part is passed on as it comes: nothing of a file is kept but the bytes at the end
 * of a piece that may begin a delimiter. Headers of a part are bounded. Strict where readers could
 * disagree: lines end with CR LF, a part has one Content-Disposition with a name, nothing but white
 * space follows the last delimiter. */
#ifndef TERN_JOBS_MULTIPART_H
#define TERN_JOBS_MULTIPART_H

#include "base/err.h"
#include "base/str.h"

#include <stdint.h>

enum {
    MULTIPART_BOUNDARY = 70, /* most bytes, by RFC 2046 */
    MULTIPART_HEADERS = 4096,
    MULTIPART_NAME = 256,
    MULTIPART_PARTS = 64
};

struct multipart_part {
    char name[MULTIPART_NAME];
    char filename[MULTIPART_NAME];
    bool has_filename;
};

struct multipart_out {
    /* OK, or an error that ends the parsing. end: the part is complete. */
    int (*begin)(void *arg, const struct multipart_part *p, struct err *e);
    int (*data)(void *arg, const char *p, size_t n, struct err *e);
    int (*end)(void *arg, struct err *e);
    void *arg;
};

struct multipart {
    struct multipart_out out;
    char delimiter[MULTIPART_BOUNDARY + 5]; /* CR LF "--" boundary */
    size_t n_delimiter, matched;            /* matched: of it, by the last bytes */
    int state, n_parts;
    char head[MULTIPART_HEADERS];
    size_t n_head;
    struct multipart_part part;
    int rc; /* of the first error; OK: none */
};

/* type: the value of the header Content-Type. E_INVALID: it is another type, or has no boundary. */
int multipart_init(struct multipart *m, struct str type, const struct multipart_out *out,
                   struct err *e);
/* E_INVALID: malformed; or the error of a callback. After an error all input is refused. */
int multipart_feed(struct multipart *m, const char *p, size_t n, struct err *e);
/* The body has ended. E_INVALID: before its last delimiter. */
int multipart_end(struct multipart *m, struct err *e);
#endif
