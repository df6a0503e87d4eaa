/* remote.h - the HTTP client of the operator's commands: requests to a running server, one at a time.
 *
 * The server is named by --url or --socket, else by $TERN_URL, else it is http://127.0.0.1:8080. The
 * API key comes from --api-key-file, --api-key or $TERN_API_KEY. Replies are bytes of a stranger:
 * their size is bounded (loadtest/load_http.c), JSON is parsed with a bound on its values, and texts
 * are shown without control characters. One thread. */
#ifndef TERN_CLI_REMOTE_H
#define TERN_CLI_REMOTE_H

#include "base/buf.h"
#include "cli/args.h"
#include "loadtest/load_client.h"

#include <jansson.h>

struct remote_opt {
    const char *url, *socket, *api_key, *api_key_file, *ca_file;
    bool insecure;
    int timeout_s; /* of a request; 0: no limit */
};

/* Rows of a flag table (args.h). */
/* clang-format off */
#define REMOTE_ARGS(o)                                                                             \
    { "--url", "-u", ARG_STR, &(o)->url, "URL",                                                    \
      "the server: http://host:port, https://host, unix:/path ($TERN_URL, or "                     \
      "http://127.0.0.1:8080)" },                                                                  \
    { "--socket", NULL, ARG_STR, &(o)->socket, "PATH", "the server's Unix socket" },               \
    { "--api-key-file", NULL, ARG_STR, &(o)->api_key_file, "FILE",                                 \
      "file whose first line begins with the API key ($TERN_API_KEY)" },                           \
    { "--api-key", NULL, ARG_STR, &(o)->api_key, "KEY",                                            \
      "the API key; others can see it in the list of processes" },                                 \
    { "--ca-file", NULL, ARG_STR, &(o)->ca_file, "FILE",                                           \
      "PEM file with the certificates to trust (the system's)" },                                  \
    { "--insecure", NULL, ARG_FLAG, &(o)->insecure, NULL, "accept any TLS certificate" },          \
    { "--timeout", NULL, ARG_INT, &(o)->timeout_s, "S",                                            \
      "seconds to wait for an answer; 0: no limit (30; to load models and infer: 0)" }
/* clang-format on */

#define REMOTE_TIMEOUT_S 30

struct remote {
    struct load_target target;
    char url[300]; /* for messages */
    char key[600];
    double timeout_ms;
    bool lost; /* the last request found no server: exit code 3 */
};

/* E_INVALID: wrong flags, or a key file that cannot be used. */
int remote_open(struct remote *r, const struct remote_opt *o, struct err *e);
void remote_close(struct remote *r);

struct remote_reply {
    int status;
    struct buf body;
    json_t *json; /* the body; NULL: it is not JSON */
};

/* body.p NULL: a GET. OK for every status; the reply is the caller's, also after an error. */
int remote_send(struct remote *r, const char *path, struct str body, struct remote_reply *out,
                struct err *e);
void remote_reply_release(struct remote_reply *p);
/* Asks for a reply of 2xx with JSON; any other is an error with the server's message. */
int remote_ask(struct remote *r, const char *path, struct str body, struct remote_reply *out,
               struct err *e);
/* Is this the /status of tern gateway? It has workers and no models. */
bool remote_is_gateway(const json_t *status);
/* E_UNSUPPORTED: the message names the command for gateways. */
int remote_refuse_gateway(const struct remote *r, struct err *e);
/* Sends a request whose reply is a stream; event is called for the data of each event. An error
 * reply is an error with the server's message. */
int remote_stream(struct remote *r, const char *path, struct str body,
                  void (*event)(void *arg, struct str data), void *arg, struct err *e);

/* Prints the error; the exit code: EXIT_USAGE for E_INVALID, EXIT_NO_CONNECTION if no server was
 * reached, else EXIT_FAILED. EXIT_OK for rc OK, without printing. */
int remote_result(const struct remote *r, const char *verb, int rc, const struct err *e);

/* Members of a reply: "" or 0 where there is none of that type. path: "queue.waiting". */
const char *remote_text(const json_t *v, const char *path);
double remote_num(const json_t *v, const char *path);
const json_t *remote_at(const json_t *v, const char *path); /* NULL: none */

/* Appends a text of the server: control characters become '?', so that it cannot steer the
 * terminal. Line ends are kept with `lines`. */
void remote_put_text(struct buf *out, struct str text, bool lines);
/* err_set with a message of the server, shown as remote_put_text does; returns code. */
int remote_set_error(struct err *e, int code, const char *said);
/* Appends s as one part of a path or a value of a query, percent-encoded. */
void remote_put_url(struct buf *out, const char *s);
/* "1.5 GiB", "812 MiB" */
void remote_put_bytes(struct buf *out, double bytes);
#endif
