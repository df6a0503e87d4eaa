/* request.h - requests to the hub and to the hosts it redirects to, by libcurl.
 *
 * Redirects are followed here and not by libcurl, because three things depend on where they lead: the
 * token goes to the endpoint only, never to another host or port; the hub's headers about a file are
 * those before the redirect; and a download from https never goes on over http. One thread. */
#ifndef TERN_PULL_REQUEST_H
#define TERN_PULL_REQUEST_H

#include "base/buf.h"
#include "pull/hubreply.h"
#include "pull/pull.h"

#include <curl/curl.h>

enum { REDIRECTS_MOST = 6 };

/* State that all requests of one pull share. */
struct session {
    const struct pull_opt *opt;
    struct curl_slist *headers;    /* of every request */
    struct curl_slist *with_token; /* the same with the token */
    char *origin;                  /* of the endpoint: "https://host:443" */
    bool is_http;                  /* the endpoint has no TLS */
    bool no_connection;            /* the last failure */
};

int session_open(struct session *s, const struct pull_opt *opt, struct err *e);
void session_release(struct session *s); /* a zeroed session is allowed */
bool session_is_stopped(const struct session *s);

/* Sets everything but the callbacks and the range. */
int session_prepare(const struct session *s, CURL *c, const char *url, struct err *e);
/* The absolute URL of a redirect, freed with curl_free. E_DENIED: it leads from https to http, or to
 * another protocol. */
int session_redirect(const struct session *s, const char *from, const char *to, char **out,
                     struct err *e);
bool session_is_endpoint(const struct session *s, const char *url);

/* May the same request succeed later? */
bool session_is_transient(CURLcode c, int status);
/* The error of a reply that is no success, with what the user can do. */
int session_fail(const struct session *s, const struct hub_head *h, const char *what,
                 struct err *e);
int session_fail_curl(struct session *s, CURLcode c, const char *text, const char *what,
                      struct err *e);
/* Milliseconds until the next try: what the server asks for, else twice as long each time. */
int session_delay(const struct session *s, CURL *c, int n_fails);
void session_note(const struct session *s, const char *text);
/* Waits, or returns false as soon as it is stopped. */
bool session_sleep(const struct session *s, int ms);

/* A request whose reply is small, with retries. body NULL: HEAD, which stops at a redirect to another
 * host. h: of the last reply. OK also for replies such as 404. */
int session_ask(struct session *s, const char *url, const char *what, struct hub_head *h,
                struct buf *body, struct err *e);
#endif
