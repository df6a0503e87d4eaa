#include "pull/request.h"

#include "base/clock.h"
#include "base/mem.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>

enum {
    BODY_MOST = 64 << 20, /* bytes of a small reply */
    DELAY_MOST_MS = 60000,
    CONNECT_S = 30
};

/* ---- the session ---- */

/* "scheme://host:port"; NULL: it is no URL, or no memory. Freed with mem_free. */
static char *origin_of(const char *url)
{
    CURLU *u = curl_url();
    char *scheme = NULL, *host = NULL, *port = NULL;
    struct buf b = { 0 };

    if (u && curl_url_set(u, CURLUPART_URL, url, 0) == CURLUE_OK &&
        curl_url_get(u, CURLUPART_SCHEME, &scheme, 0) == CURLUE_OK &&
        curl_url_get(u, CURLUPART_HOST, &host, 0) == CURLUE_OK &&
        curl_url_get(u, CURLUPART_PORT, &port, CURLU_DEFAULT_PORT) == CURLUE_OK) {
        buf_printf(&b, "%s://%s:%s", scheme, host, port);
        buf_cstr(&b);
    }
    curl_free(scheme);
    curl_free(host);
    curl_free(port);
    curl_url_cleanup(u);
    if (!b.failed) return b.p;
    buf_release(&b);
    return NULL;
}

static int check_endpoint(struct session *s, const char *endpoint, struct err *e)
{
    struct str url = str_c(endpoint);
    bool plain = url.n > 0 && url.n < 500;

    for (size_t i = 0; i < url.n; i++)
        plain &= (unsigned char)url.p[i] > 0x20 && (unsigned char)url.p[i] < 0x7f;
    s->is_http = str_starts(url, STR("http://"));
    if (!plain || (!s->is_http && !str_starts(url, STR("https://"))) || memchr(url.p, '@', url.n) ||
        !(s->origin = origin_of(endpoint)))
        return err_set(e, E_INVALID,
                       "HF_ENDPOINT '%.200s': must be a URL such as https://huggingface.co",
                       endpoint);
    return OK;
}

static bool add_header(struct curl_slist **list, const char *line)
{
    struct curl_slist *grown = curl_slist_append(*list, line);

    if (grown) *list = grown;
    return grown != NULL;
}

/* A token is one word; a line end in it would be another header. */
static int check_token(const char *token, struct err *e)
{
    size_t n = strlen(token);

    for (size_t i = 0; i < n; i++)
        if ((unsigned char)token[i] <= 0x20 || (unsigned char)token[i] >= 0x7f)
            return err_set(e, E_INVALID, "HF_TOKEN: has a space or a character that is not ASCII");
    return n < 2000 ? OK : err_set(e, E_INVALID, "HF_TOKEN: has %zu characters", n);
}

int session_open(struct session *s, const struct pull_opt *opt, struct err *e)
{
    struct buf line = { 0 };
    bool has_token = opt->token && *opt->token, added;
    int rc;

    *s = (struct session){ .opt = opt };
    if ((rc = check_endpoint(s, opt->endpoint, e)) != OK) return rc;
    if (has_token && (rc = check_token(opt->token, e)) != OK) return rc;
    added = add_header(&s->headers, "Accept-Encoding: identity") &&
            add_header(&s->with_token, "Accept-Encoding: identity");
    if (has_token) {
        buf_printf(&line, "Authorization: Bearer %s", opt->token);
        added = added && add_header(&s->with_token, buf_cstr(&line)) && !line.failed;
    }
    buf_release(&line);
    return added ? OK : err_nomem(e, "the headers of a request");
}

void session_release(struct session *s)
{
    curl_slist_free_all(s->headers);
    curl_slist_free_all(s->with_token);
    mem_free(s->origin);
    *s = (struct session){ 0 };
}

bool session_is_stopped(const struct session *s) { return s->opt->stop && *s->opt->stop; }

void session_note(const struct session *s, const char *text)
{
    if (s->opt->tell) s->opt->tell(s->opt->arg, &(struct pull_event){ PULL_NOTE, .text = text });
}

bool session_sleep(const struct session *s, int ms)
{
    uint64_t start = clock_ns();

    while (!session_is_stopped(s)) {
        double left = ms - clock_ms_since(start);
        if (left <= 0) return true;
        poll(NULL, 0, left < 100 ? (int)left + 1 : 100);
    }
    return false;
}

/* ---- URLs ---- */

bool session_is_endpoint(const struct session *s, const char *url)
{
    char *origin = origin_of(url);
    bool same = origin && strcmp(origin, s->origin) == 0;

    mem_free(origin);
    return same;
}

int session_redirect(const struct session *s, const char *from, const char *to, char **out,
                     struct err *e)
{
    CURLU *u = curl_url();
    char *scheme = NULL;
    int rc = u ? OK : err_nomem(e, "a URL");

    *out = NULL;
    if (rc == OK && (curl_url_set(u, CURLUPART_URL, from, 0) != CURLUE_OK ||
                     curl_url_set(u, CURLUPART_URL, to, 0) != CURLUE_OK ||
                     curl_url_get(u, CURLUPART_SCHEME, &scheme, 0) != CURLUE_OK))
        rc = err_set(e, E_FORMAT, "the hub redirects to '%.200s', which is no URL", to);
    if (rc == OK && strcmp(scheme, "https") != 0 && !(s->is_http && strcmp(scheme, "http") == 0))
        rc = err_set(e, E_DENIED, "the hub redirects to '%.200s': only https is followed", to);
    if (rc == OK && curl_url_get(u, CURLUPART_URL, out, 0) != CURLUE_OK) rc = err_nomem(e, "a URL");
    curl_free(scheme);
    curl_url_cleanup(u);
    return rc;
}

int session_prepare(const struct session *s, CURL *c, const char *url, struct err *e)
{
    const struct pull_opt *o = s->opt;
    CURLcode rc = curl_easy_setopt(c, CURLOPT_URL, url);

    if (rc == CURLE_OK) rc = curl_easy_setopt(c, CURLOPT_USERAGENT, "tern/" TERN_VERSION);
    if (rc == CURLE_OK) rc = curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
    if (rc == CURLE_OK && o->ca_file && *o->ca_file)
        rc = curl_easy_setopt(c, CURLOPT_CAINFO, o->ca_file);
    curl_easy_setopt(c, CURLOPT_HTTPHEADER,
                     session_is_endpoint(s, url) ? s->with_token : s->headers);
    curl_easy_setopt(c, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_S);
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_TIME, (long)(o->stall_s > 0 ? o->stall_s : 60));
    return rc == CURLE_OK ? OK : err_set(e, E_IO, "%.200s: %s", url, curl_easy_strerror(rc));
}

/* ---- failures ---- */

bool session_is_transient(CURLcode c, int status)
{
    switch (c) {
    case CURLE_OK:
        return status == 408 || status == 429 || status == 500 || status == 502 || status == 503 ||
               status == 504;
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_CONNECT:
    case CURLE_PARTIAL_FILE:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_WEIRD_SERVER_REPLY: return true;
    default: return false;
    }
}

int session_fail(const struct session *s, const struct hub_head *h, const char *what, struct err *e)
{
    const char *said = h->error[0] ? h->error : "";
    bool has_token = s->opt->token && *s->opt->token;

    if (h->status == 401)
        return err_set(e, E_DENIED, "%s: the hub answers 401%s%s: %s", what, *said ? ": " : "",
                       said,
                       has_token ? "HF_TOKEN is not valid, or the name is wrong"
                                 : "the name is wrong, or the model is private or gated: set "
                                   "HF_TOKEN to a token of your account");
    if (h->status == 403)
        return err_set(e, E_DENIED,
                       "%s: the hub answers 403%s%s: this account has no access; a gated model "
                       "needs its license accepted on its page",
                       what, *said ? ": " : "", said);
    if (h->status == 404)
        return err_set(e, E_NOTFOUND, "%s: the hub has no such model, revision or file%s%s", what,
                       *said ? ": " : "", said);
    if (h->status == 429)
        return err_set(e, E_RATE, "%s: the hub answers 429: too many requests; try again later",
                       what);
    return err_set(e, E_IO, "%s: the hub answers %d%s%s", what, h->status, *said ? ": " : "", said);
}

int session_fail_curl(struct session *s, CURLcode c, const char *text, const char *what,
                      struct err *e)
{
    s->no_connection = c == CURLE_COULDNT_RESOLVE_HOST || c == CURLE_COULDNT_RESOLVE_PROXY ||
                       c == CURLE_COULDNT_CONNECT || c == CURLE_OPERATION_TIMEDOUT ||
                       c == CURLE_GOT_NOTHING || c == CURLE_RECV_ERROR || c == CURLE_SEND_ERROR ||
                       c == CURLE_PARTIAL_FILE;
    return err_set(e, E_IO, "%s: %s", what, text && *text ? text : curl_easy_strerror(c));
}

int session_delay(const struct session *s, CURL *c, int n_fails)
{
    curl_off_t asked = 0;
    int64_t ms = s->opt->retry_ms;

    for (int i = 1; i < n_fails && ms < DELAY_MOST_MS; i++) ms *= 2;
    if (curl_easy_getinfo(c, CURLINFO_RETRY_AFTER, &asked) == CURLE_OK && asked > 0)
        ms = asked < DELAY_MOST_MS / 1000 ? asked * 1000 : DELAY_MOST_MS;
    return (int)(ms < DELAY_MOST_MS ? ms : DELAY_MOST_MS);
}

/* ---- small requests ---- */

struct ask {
    struct session *s;
    struct hub_head *h;
    struct buf *body;
};

static size_t on_header(char *p, size_t size, size_t n, void *arg)
{
    hub_head_line(((struct ask *)arg)->h, str_of(p, size * n));
    return size * n;
}

static size_t on_body(char *p, size_t size, size_t n, void *arg)
{
    struct ask *a = arg;

    if (!a->body) return size * n;
    if (a->body->n + size * n > BODY_MOST) return 0;
    buf_add(a->body, p, size * n);
    return a->body->failed ? 0 : size * n;
}

static int on_progress(void *arg, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    (void)a, (void)b, (void)c, (void)d;
    return session_is_stopped(((struct ask *)arg)->s);
}

static CURLcode perform(struct ask *a, CURL *c, const char *url, char *text, struct err *e)
{
    if (session_prepare(a->s, c, url, e) != OK) return CURLE_OUT_OF_MEMORY;
    if (a->body) buf_clear(a->body);
    text[0] = 0;
    curl_easy_setopt(c, CURLOPT_ERRORBUFFER, text);
    curl_easy_setopt(c, CURLOPT_NOBODY, a->body ? 0L : 1L);
    curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(c, CURLOPT_HEADERDATA, a);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, a);
    curl_easy_setopt(c, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(c, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(c, CURLOPT_XFERINFODATA, a);
    return curl_easy_perform(c);
}

static bool is_redirect(const struct hub_head *h)
{
    return h->status >= 300 && h->status < 400 && h->location[0];
}

/* One try: the request and its redirects. HEAD does not leave the hub. */
static CURLcode follow(struct ask *a, CURL *c, const char *url, char *text, struct err *e)
{
    char *at = NULL, *next;
    CURLcode rc = CURLE_OK;

    for (int i = 0; i <= REDIRECTS_MOST; i++) {
        rc = perform(a, c, at ? at : url, text, e);
        if (rc != CURLE_OK || !is_redirect(a->h)) break;
        if (session_redirect(a->s, at ? at : url, a->h->location, &next, e) != OK) {
            rc = CURLE_URL_MALFORMAT;
            break;
        }
        curl_free(at);
        at = next;
        if (!a->body && !session_is_endpoint(a->s, at)) break;
        if (i == REDIRECTS_MOST) rc = CURLE_TOO_MANY_REDIRECTS;
    }
    curl_free(at);
    return rc;
}

/* A host that is not there is asked fewer times: the user sees a mistyped endpoint soon. */
static bool may_retry(const struct session *s, CURLcode rc, int status, int n_fails)
{
    int most = s->opt->retries;

    if ((rc == CURLE_COULDNT_CONNECT || rc == CURLE_COULDNT_RESOLVE_HOST) && most > 2) most = 2;
    return session_is_transient(rc, status) && n_fails <= most;
}

int session_ask(struct session *s, const char *url, const char *what, struct hub_head *h,
                struct buf *body, struct err *e)
{
    struct ask a = { s, h, body };
    CURL *c = curl_easy_init();
    char text[CURL_ERROR_SIZE] = "", note[300];
    struct err why = { 0 };
    CURLcode rc = CURLE_OUT_OF_MEMORY;

    if (!c) return err_nomem(e, "a request");
    for (int n_fails = 1;; n_fails++) {
        hub_head_init(h);
        rc = follow(&a, c, url, text, &why);
        if (session_is_stopped(s) || !may_retry(s, rc, h->status, n_fails)) break;
        snprintf(note, sizeof note, "%.80s: %.120s; trying again", what,
                 rc == CURLE_OK ? "the hub is busy"
                 : text[0]      ? text
                                : curl_easy_strerror(rc));
        session_note(s, note);
        if (!session_sleep(s, session_delay(s, c, n_fails))) break;
    }
    curl_easy_cleanup(c);
    if (session_is_stopped(s)) return err_set(e, E_CANCELLED, "interrupted");
    if (why.code) return err_set(e, why.code, "%s", why.msg);
    if (rc == CURLE_WRITE_ERROR)
        return body && body->failed
                   ? err_nomem(e, "a reply of the hub")
                   : err_set(e, E_FORMAT, "%s: the hub's reply is too large", what);
    return rc == CURLE_OK ? OK : session_fail_curl(s, rc, text, what, e);
}
