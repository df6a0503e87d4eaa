/* load_target.c - the server under test: its URL parsed and its name resolved, once. */
#include "loadtest/load_client.h"

#include <netdb.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <sys/un.h>
#include <unistd.h>

/* Trusts the certificates of the file, else those of the system. */
static int load_trusted(SSL_CTX *ctx, const struct load_target_opt *o, struct err *e)
{
    if (o->ca_file && SSL_CTX_load_verify_locations(ctx, o->ca_file, NULL) != 1)
        return err_set(e, E_INVALID, "%s: no PEM certificates can be read from it", o->ca_file);
    if (!o->ca_file && !SSL_CTX_set_default_verify_paths(ctx) && !o->insecure)
        return err_set(e, E_IO, "cannot load the system's TLS certificates; --insecure skips them");
    return OK;
}

static int open_tls(struct load_target *t, const struct load_target_opt *o, struct err *e)
{
    SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
    int rc;

    if (!ctx)
        return err_set(e, E_IO, "cannot set up TLS: %s", ERR_error_string(ERR_get_error(), NULL));
    if ((rc = load_trusted(ctx, o, e)) != OK) {
        SSL_CTX_free(ctx);
        return rc;
    }
    SSL_CTX_set_verify(ctx, o->insecure ? SSL_VERIFY_NONE : SSL_VERIFY_PEER, NULL);
    t->tls = ctx;
    return OK;
}

static int set_unix_addr(struct load_target *t, struct str path, struct err *e)
{
    struct sockaddr_un *un = (struct sockaddr_un *)&t->addr;

    if (!path.n || path.n >= sizeof un->sun_path)
        return err_set(e, E_INVALID, "unix:%.*s: the path of the socket must have 1 to %zu bytes",
                       STR_ARG(path), sizeof un->sun_path - 1);
    un->sun_family = AF_UNIX;
    memcpy(un->sun_path, path.p, path.n);
    t->addr_len = (int)sizeof *un;
    snprintf(t->host, sizeof t->host, "localhost");
    return OK;
}

/* A name may have several addresses while the server listens on one: "localhost" is both ::1 and
 * 127.0.0.1. Returns the first that accepts a connection, else the first. */
static const struct addrinfo *find_listening(const struct addrinfo *all)
{
    for (const struct addrinfo *a = all; all->ai_next && a; a = a->ai_next) {
        int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        bool up = fd >= 0 && connect(fd, a->ai_addr, a->ai_addrlen) == 0;
        if (fd >= 0) close(fd);
        if (up) return a;
    }
    return all;
}

static int resolve_name(struct load_target *t, const char *port, struct err *e)
{
    struct addrinfo want = { .ai_socktype = SOCK_STREAM }, *found = NULL;
    const struct addrinfo *use;
    int rc = getaddrinfo(t->name, port, &want, &found);

    if (rc != 0) return err_set(e, E_IO, "cannot resolve %s: %s", t->name, gai_strerror(rc));
    use = find_listening(found);
    memcpy(&t->addr, use->ai_addr, use->ai_addrlen);
    t->addr_len = (int)use->ai_addrlen;
    freeaddrinfo(found);
    return OK;
}

static bool is_port(const char *digits)
{
    size_t n = strspn(digits, "0123456789");
    long port = n < 6 ? strtol(digits, NULL, 10) : 0;

    return digits[n] == 0 && port >= 1 && port <= 65535;
}

/* s: "host:port/prefix/v1", the URL without its scheme. */
static int set_tcp_addr(struct load_target *t, struct str s, const char *port, struct err *e)
{
    ptrdiff_t slash = str_find(s, STR("/")), colon;
    struct str host = slash < 0 ? s : str_take(s, (size_t)slash);
    struct str path = slash < 0 ? STR("") : str_skip(s, (size_t)slash);
    size_t skip = host.n && *host.p == '[' ? (size_t)str_find(host, STR("]")) : 0;
    char digits[8];

    for (size_t i = 0; i < s.n; i++)
        if ((unsigned char)s.p[i] <= ' ' || s.p[i] == 127)
            return err_set(e, E_INVALID, "the URL has a blank or a control character");
    if (host.n >= sizeof t->host || path.n >= sizeof t->prefix)
        return err_set(e, E_INVALID, "the URL is too long");
    while (str_ends(path, STR("/"))) path.n--;
    if (str_ends(path, STR("/v1"))) path.n -= 3;
    snprintf(t->host, sizeof t->host, "%.*s", STR_ARG(host));
    snprintf(t->prefix, sizeof t->prefix, "%.*s", STR_ARG(path));
    colon = skip >= host.n ? -1 : str_find(str_skip(host, skip), STR(":"));
    if (colon >= 0) {
        snprintf(digits, sizeof digits, "%.*s", STR_ARG(str_skip(host, skip + (size_t)colon + 1)));
        port = digits;
        if (!is_port(digits))
            return err_set(e, E_INVALID, "'%s' is not a port: write one from 1 to 65535", digits);
        host = str_take(host, skip + (size_t)colon);
    }
    if (skip) host = str_of(host.p + 1, host.n >= 2 ? host.n - 2 : 0); /* [::1] */
    if (!host.n || host.n >= sizeof t->name)
        return err_set(e, E_INVALID, "the URL has no host name");
    snprintf(t->name, sizeof t->name, "%.*s", STR_ARG(host));
    return resolve_name(t, port, e);
}

static int set_key(struct load_target *t, const char *key, struct err *e)
{
    if (!key || !*key) return OK;
    if (strlen(key) > 512 || strpbrk(key, "\r\n"))
        return err_set(e, E_INVALID, "the API key must have at most 512 bytes, without line ends");
    snprintf(t->auth, sizeof t->auth, "Authorization: Bearer %s\r\n", key);
    return OK;
}

int load_target_open(struct load_target *t, const struct load_target_opt *o, struct err *e)
{
    struct str s = str_c(o->url);
    int rc;

    *t = (struct load_target){ 0 };
    if ((rc = set_key(t, o->key, e)) != OK) return rc;
    if (str_starts(s, STR("unix:"))) {
        rc = set_unix_addr(t, str_skip(s, 5), e);
    } else if (str_starts(s, STR("https://"))) {
        if ((rc = open_tls(t, o, e)) == OK) rc = set_tcp_addr(t, str_skip(s, 8), "443", e);
    } else if (str_starts(s, STR("http://"))) {
        rc = set_tcp_addr(t, str_skip(s, 7), "80", e);
    } else {
        rc = err_set(e, E_INVALID,
                     "'%s' is not a URL: write http://host:port, https://host or unix:/path",
                     o->url);
    }
    if (rc != OK) return rc;
    t->base = event_base_new();
    return t->base ? OK : err_set(e, E_IO, "libevent could not make an event base");
}

void load_target_release(struct load_target *t)
{
    if (t->base) event_base_free(t->base);
    if (t->tls) SSL_CTX_free(t->tls);
    *t = (struct load_target){ 0 };
}
