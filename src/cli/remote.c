/* remote.c - see remote.h. The connection is that of the load tester (loadtest/load_client.h). */
#include "cli/remote.h"

#include "base/file.h"
#include "base/jsonr.h"
#include "cli/cmd.h"

#include <stdlib.h>

enum {
    MAX_PARTS = 4 << 20,      /* values of a JSON reply */
    MAX_KEY_FILE = 1 << 20,   /* bytes */
    MAX_TIMEOUT_S = 24 * 3600 /* what a timer takes in ms */
};

/* ---- opening ---- */

/* The first word of the first line that is no comment: the form of the server's key file. */
static int read_key_file(struct remote *r, const char *path, struct err *e)
{
    struct buf text = { 0 };
    struct str rest, line = { 0 };
    size_t n = 0;
    int rc = file_read(&text, path, MAX_KEY_FILE, e);

    if (rc != OK) {
        buf_release(&text);
        return err_set(e, E_INVALID, "--api-key-file: %s", e->msg);
    }
    for (rest = buf_str(&text); rest.n && (!line.n || line.p[0] == '#');) {
        ptrdiff_t lf = str_find(rest, STR("\n"));
        line = str_trim(lf < 0 ? rest : str_take(rest, (size_t)lf));
        rest = str_skip(rest, lf < 0 ? rest.n : (size_t)lf + 1);
    }
    while (n < line.n && line.p[n] != ' ' && line.p[n] != '\t') n++;
    if (n == 0 || line.p[0] == '#' || n >= sizeof r->key)
        rc = err_set(e, E_INVALID, "--api-key-file: %s has no key", path);
    else snprintf(r->key, sizeof r->key, "%.*s", (int)n, line.p);
    buf_release(&text);
    return rc;
}

/* Several keys of $TERN_API_KEY are separated by commas: the first is ours. */
static int find_key(struct remote *r, const struct remote_opt *o, struct err *e)
{
    const char *key = o->api_key ? o->api_key : getenv("TERN_API_KEY");

    if (o->api_key_file) return read_key_file(r, o->api_key_file, e);
    if (!key) return OK;
    if (strlen(key) >= sizeof r->key) return err_set(e, E_INVALID, "the API key is too long");
    snprintf(r->key, sizeof r->key, "%s", key);
    if (!o->api_key) r->key[strcspn(r->key, ",")] = 0;
    return OK;
}

static int find_url(struct remote *r, const struct remote_opt *o, struct err *e)
{
    const char *env = getenv("TERN_URL");
    const char *url = o->url ? o->url : env && *env ? env : "http://127.0.0.1:8080";
    int n;

    if (o->url && o->socket)
        return err_set(e, E_INVALID, "--url and --socket name the server twice; give one");
    n = o->socket ? snprintf(r->url, sizeof r->url, "unix:%s", o->socket)
                  : snprintf(r->url, sizeof r->url, "%s", url);
    if (n >= (int)sizeof r->url) return err_set(e, E_INVALID, "the URL is too long");
    return OK;
}

int remote_open(struct remote *r, const struct remote_opt *o, struct err *e)
{
    struct load_target_opt t = { .ca_file = o->ca_file, .insecure = o->insecure };
    int rc;

    *r = (struct remote){ .timeout_ms = o->timeout_s * 1e3 };
    if (o->timeout_s < 0 || o->timeout_s > MAX_TIMEOUT_S)
        return err_set(e, E_INVALID, "--timeout %d: must be 0 to %d", o->timeout_s, MAX_TIMEOUT_S);
    if ((rc = find_url(r, o, e)) != OK || (rc = find_key(r, o, e)) != OK) return rc;
    t.url = r->url;
    t.key = r->key;
    rc = load_target_open(&r->target, &t, e);
    r->lost = rc == E_IO;
    return rc;
}

void remote_close(struct remote *r) { load_target_release(&r->target); }

/* ---- requests ---- */

/* How a request ended, as an error; OK for a complete reply. */
static int check_end(struct remote *r, const struct load_reply *p, struct err *e)
{
    r->lost = !p->connected;
    switch (p->end) {
    case LOAD_END_REPLY: return OK;
    case LOAD_END_BAD: return err_set(e, E_FORMAT, "%s: %s", r->url, p->why ? p->why : "not HTTP");
    case LOAD_END_TIMEOUT:
        return err_set(e, E_DEADLINE, "%s: no answer within %.0f s (--timeout)", r->url,
                       r->timeout_ms / 1e3);
    case LOAD_END_TRUNCATED:
        return err_set(
            e, E_IO, "%s: the server closed the connection before the reply was complete", r->url);
    default:
        return err_set(e, E_IO, "%s: no server answers there%s", r->url,
                       r->target.tls ? ", or its certificate is not trusted (--ca-file, --insecure)"
                                     : "");
    }
}

int remote_send(struct remote *r, const char *path, struct str body, struct remote_reply *out,
                struct err *e)
{
    struct load_ask a = { .path = path, .body = body, .timeout_ms = r->timeout_ms };
    struct load_reply p;
    int rc = load_ask(&r->target, &a, &p, e);

    *out = (struct remote_reply){ .status = p.status, .body = p.body };
    if (rc == OK) rc = check_end(r, &p, e);
    if (rc == OK && str_json_parts(buf_str(&out->body)) <= MAX_PARTS)
        out->json = jsonr_load(buf_str(&out->body), 0, NULL);
    return rc;
}

void remote_reply_release(struct remote_reply *p)
{
    json_decref(p->json);
    buf_release(&p->body);
    *p = (struct remote_reply){ 0 };
}

/* OpenAI's envelope {"error":{"message"}}, or the message of /ready. */
static int refuse_status(const struct remote *r, const struct remote_reply *p, struct err *e)
{
    const char *said = remote_text(p->json, "error.message");
    int code = p->status == 404                       ? E_NOTFOUND
               : p->status == 401 || p->status == 403 ? E_DENIED
                                                      : E_IO;

    if (!*said) said = remote_text(p->json, "message");
    if (!*said)
        return err_set(e, code, "%s: the server answered with status %d", r->url, p->status);
    return remote_set_error(e, code, said);
}

static int check_reply(const struct remote *r, const struct remote_reply *p, struct err *e)
{
    if (p->status < 200 || p->status > 299) return refuse_status(r, p, e);
    if (!p->json)
        return err_set(e, E_FORMAT, "%s: the reply is not JSON: is this a tern server?", r->url);
    return OK;
}

bool remote_is_gateway(const json_t *status)
{
    return str_is(str_c(remote_text(status, "role")), "gateway");
}

int remote_refuse_gateway(const struct remote *r, struct err *e)
{
    return err_set(e, E_UNSUPPORTED,
                   "%s is a gateway: tern cluster status shows its workers, and their URLs show "
                   "their models",
                   r->url);
}

int remote_ask(struct remote *r, const char *path, struct str body, struct remote_reply *out,
               struct err *e)
{
    int rc = remote_send(r, path, body, out, e);

    return rc == OK ? check_reply(r, out, e) : rc;
}

int remote_stream(struct remote *r, const char *path, struct str body,
                  void (*event)(void *arg, struct str data), void *arg, struct err *e)
{
    struct load_ask a = { path, NULL, body, r->timeout_ms, event, arg };
    struct load_reply p;
    struct remote_reply reply;
    int rc = load_ask(&r->target, &a, &p, e);

    reply = (struct remote_reply){ .status = p.status, .body = p.body };
    if (rc == OK) rc = check_end(r, &p, e);
    if (rc == OK && p.status != 200) {
        reply.json = jsonr_load(buf_str(&reply.body), 0, NULL);
        rc = refuse_status(r, &reply, e);
    }
    remote_reply_release(&reply);
    return rc;
}

int remote_result(const struct remote *r, const char *verb, int rc, const struct err *e)
{
    if (rc == OK) return EXIT_OK;
    if (rc == E_INVALID) return cmd_usage(verb, e);
    cmd_fail(e);
    return r->lost ? EXIT_NO_CONNECTION : EXIT_FAILED;
}

/* ---- reading replies ---- */

const json_t *remote_at(const json_t *v, const char *path)
{
    struct str rest = str_c(path);
    char key[64];

    while (v && rest.n) {
        ptrdiff_t dot = str_find(rest, STR("."));
        struct str one = dot < 0 ? rest : str_take(rest, (size_t)dot);
        snprintf(key, sizeof key, "%.*s", STR_ARG(one));
        v = json_object_get(v, key);
        rest = str_skip(rest, one.n + 1);
    }
    return v;
}

const char *remote_text(const json_t *v, const char *path)
{
    const char *s = json_string_value(remote_at(v, path));
    return s ? s : "";
}

double remote_num(const json_t *v, const char *path)
{
    return json_number_value(remote_at(v, path));
}

void remote_put_text(struct buf *out, struct str text, bool lines)
{
    for (size_t i = 0; i < text.n; i++) {
        unsigned char c = (unsigned char)text.p[i];
        bool c1 = c == 0xc2 && i + 1 < text.n && ((unsigned char)text.p[i + 1] & 0xe0) == 0x80;
        if (c1) i++; /* U+0080 to U+009F: controls of eight-bit terminals */
        if (c1 || c == 127 || (c < ' ' && !(lines && (c == '\n' || c == '\t')))) c = '?';
        buf_putc(out, (char)c);
    }
}

int remote_set_error(struct err *e, int code, const char *said)
{
    struct buf b = { 0 };

    remote_put_text(&b, str_c(said), false);
    err_set(e, code, "%s", buf_cstr(&b));
    buf_release(&b);
    return code;
}

void remote_put_url(struct buf *out, const char *s)
{
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                     strchr("-._~", c);
        buf_printf(out, plain ? "%c" : "%%%02X", c);
    }
}

void remote_put_bytes(struct buf *out, double bytes)
{
    static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB" };
    int i = 0;

    while (bytes >= 1024 && i < 4) bytes /= 1024, i++;
    buf_printf(out, i == 0 || bytes >= 100 ? "%.0f %s" : "%.1f %s", bytes, units[i]);
}
