/* fail.h - errors as HTTP replies: struct err → status, and the JSON envelope of OpenAI's API.
 *
 *     {"error":{"message":…,"type":…,"param":…,"code":…,"correlation_id":…}}
 *
 * or the one of Anthropic's or Ollama's API, by the path of the request. `code` is stable
 * across versions; docs/serving.md lists all. Where OpenAI has another word, `code` is that word and
 * `tern_code` ours. Every function that sends a reply
 * returns the status that was sent: it is 503 where memory ran out even for the error. */
#ifndef TERN_API_FAIL_H
#define TERN_API_FAIL_H

#include "base/err.h"
#include "base/str.h"

struct buf;
struct http_req;

struct fail {
    int status;
    const char *type; /* as OpenAI names it */
    const char *code; /* of tern; OpenAI's word for it may be another one */
};

/* The envelope of the protocol that a path belongs to. */
enum fail_form { FAIL_OPENAI, FAIL_ANTHROPIC, FAIL_OLLAMA };
enum fail_form fail_form_of(struct str path);

/* The body of the 503 that is sent without allocating (http_opt.nomem_body). */
#define FAIL_NOMEM_BODY                                                                        \
    "{\"error\":{\"message\":\"out of memory: the server has no memory for this request now; " \
    "try again later\",\"type\":\"server_error\",\"param\":null,\"code\":\"memory_admission\"}}"

struct fail fail_lookup(int err_code); /* 500 "internal" for a code that has no row */

/* Ends q with the error: its status, Retry-After where it makes sense, and the envelope. param: the
 * field at fault, or NULL. */
int fail_send(struct http_req *q, const struct err *e, const char *param, const char *correlation);
/* The same for errors that are not a struct err: 403, 404 of a path, 405. */
int fail_send_status(struct http_req *q, int status, const char *code, const char *msg,
                     const char *correlation);
/* Appends the envelope alone. */
void fail_write_body(struct buf *out, enum fail_form form, const struct fail *f, const char *msg,
                     const char *param, const char *correlation);
#endif
