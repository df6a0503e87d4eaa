/* batchline.h - a line of a batch: checked when the batch is validated, and its request when it runs; and
 * the line of a result. */
#ifndef TERN_JOBS_BATCHLINE_H
#define TERN_JOBS_BATCHLINE_H

#include "base/buf.h"
#include "base/err.h"

enum { BATCHLINE_ID = 512 /* bytes of a custom_id, with its NUL */ };

struct batchline {
    char custom_id[BATCHLINE_ID];
    char url[64];
    /* of an error: */
    const char *code; /* "invalid_json_line"; a literal */
    const char *param;
};

/* {"custom_id": "1", "method": "POST", "url": ENDPOINT, "body": {...}}. endpoint "": any url of
 * line_is_endpoint. body: its "body" as JSON text is appended; NULL: not wanted. E_INVALID:
 * out->code and param say what is wrong; E_NOMEM. */
int batchline_read(struct batchline *out, struct str text, const char *endpoint, struct buf *body,
                   struct err *e);
bool batchline_is_endpoint(struct str path); /* that a batch can have */
#define BATCHLINE_ENDPOINTS                                                \
    "\"/v1/chat/completions\", \"/v1/completions\", \"/v1/responses\" or " \
    "\"/v1/embeddings\""

struct batchline_result {
    const char *id, *custom_id;
    int status; /* of HTTP; 0: it was not run, and error says why */
    struct str request_id, body;
    const char *error, *message;
};
/* Appends {"id":..,"custom_id":..,"response":{..},"error":..} and a line end. A body that is no
 * JSON is written as a string. */
void batchline_write(struct buf *out, const struct batchline_result *r);
#endif
