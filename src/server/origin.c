/* origin.c - parsing of Host and Origin, and the list of allowed hosts.
 *
 * Everything that is not understood is refused: a text that two readers may read differently is no
 * host name here. Addresses are compared in binary form, as dotted quads and as IPv6; other forms
 * of an address (127.1, 0x7f000001) never come from a browser, which writes them out. */
#include "server/origin.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { NAME_MAX_BYTES = 253 }; /* of a name in DNS */

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static bool is_name_char(char c)
{
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
           c == '_' || c == '.';
}

static bool is_equal(struct str a, struct str b)
{
    return a.n == b.n && strncasecmp(a.p, b.p, a.n) == 0;
}

/* name is below the domain: "a.localhost" is below "localhost". */
static bool is_below(struct str name, struct str domain)
{
    return name.n > domain.n + 1 && name.p[name.n - domain.n - 1] == '.' &&
           is_equal(str_skip(name, name.n - domain.n), domain);
}

/* ":8080", or nothing. */
static bool parse_port(struct str s, int *port)
{
    *port = -1;
    if (s.n == 0) return true;
    if (s.p[0] != ':' || s.n < 2 || s.n > 6) return false;
    *port = 0;
    for (size_t i = 1; i < s.n; i++) {
        if (!is_digit(s.p[i])) return false;
        *port = *port * 10 + (s.p[i] - '0');
    }
    return *port <= 65535;
}

/* false: not an address. IPv4 addresses become IPv6 ones (::ffff:a.b.c.d), so that each address has
 * one form. */
static bool parse_address(struct str s, struct in6_addr *out)
{
    struct in_addr v4;
    char text[64];

    if (s.n == 0 || s.n >= sizeof text) return false;
    memcpy(text, s.p, s.n);
    text[s.n] = 0;
    if (inet_pton(AF_INET6, text, out) == 1) return true;
    if (inet_pton(AF_INET, text, &v4) != 1) return false;
    memset(out, 0, sizeof *out);
    out->s6_addr[10] = out->s6_addr[11] = 0xff;
    memcpy(&out->s6_addr[12], &v4, sizeof v4);
    return true;
}

bool origin_split(struct str text, struct str *name, int *port)
{
    struct in6_addr address;
    size_t end = 0;

    if (text.n && text.p[0] == '[') {
        ptrdiff_t close = str_find(text, STR("]"));
        if (close < 0) return false;
        *name = str_of(text.p + 1, (size_t)close - 1);
        return str_find(*name, STR(":")) >= 0 && parse_address(*name, &address) &&
               parse_port(str_skip(text, (size_t)close + 1), port);
    }
    while (end < text.n && is_name_char(text.p[end])) end++;
    *name = str_take(text, end);
    if (name->n > 1 && name->p[name->n - 1] == '.') name->n--;
    return name->n > 0 && name->n <= NAME_MAX_BYTES && name->p[0] != '.' &&
           name->p[name->n - 1] != '.' && parse_port(str_skip(text, end), port);
}

/* 127.0.0.0/8, ::1, and the former written as IPv6. */
static bool is_loopback(const struct in6_addr *a)
{
    return IN6_IS_ADDR_LOOPBACK(a) || (IN6_IS_ADDR_V4MAPPED(a) && a->s6_addr[12] == 127);
}

/* 0.0.0.0 and ::, which listen on every address of the machine. */
static bool is_any_address(const struct in6_addr *a)
{
    static const unsigned char zero[4];
    return IN6_IS_ADDR_UNSPECIFIED(a) ||
           (IN6_IS_ADDR_V4MAPPED(a) && memcmp(&a->s6_addr[12], zero, 4) == 0);
}

/* name is the --host of the server. Where that is every address, it is any address: a page that has
 * an address in its URL was loaded from there, and not from a rebound name. */
static bool is_own(struct str name, const char *own)
{
    struct in6_addr a, b;
    struct str mine = str_c(own);

    if (mine.n > 2 && mine.p[0] == '[') mine = str_of(mine.p + 1, mine.n - 2);
    if (!parse_address(mine, &b)) return mine.n && is_equal(name, mine);
    return parse_address(name, &a) && (is_any_address(&b) || memcmp(&a, &b, sizeof a) == 0);
}

/* entry: one of --allowed-hosts, trimmed. */
static bool matches_entry(struct str name, int port, struct str entry)
{
    struct in6_addr a, b;
    struct str want;
    int want_port;
    bool below = str_starts(entry, STR("*."));

    if (str_is(entry, "*")) return true;
    if (!origin_split(below ? str_skip(entry, 2) : entry, &want, &want_port)) return false;
    if (want_port >= 0 && want_port != port) return false;
    if (below) return is_below(name, want);
    if (parse_address(want, &b)) return parse_address(name, &a) && memcmp(&a, &b, sizeof a) == 0;
    return is_equal(name, want);
}

/* Takes the next entry off the list; false: the list is empty. */
static bool next_entry(struct str *list, struct str *entry)
{
    ptrdiff_t comma = str_find(*list, STR(","));

    if (list->n == 0) return false;
    *entry = comma < 0 ? *list : str_take(*list, (size_t)comma);
    *list = str_skip(*list, entry->n + (comma >= 0));
    *entry = str_trim(*entry);
    return true;
}

bool origin_host_allowed(struct str host, const char *own, const char *allowed)
{
    struct str name, entry, list = str_c(allowed);
    struct in6_addr address;
    int port;

    if (!origin_split(host, &name, &port)) return false;
    if (is_equal(name, STR("localhost")) || is_below(name, STR("localhost"))) return true;
    if (parse_address(name, &address) && is_loopback(&address)) return true;
    if (is_own(name, own)) return true;
    while (next_entry(&list, &entry))
        if (matches_entry(name, port, entry)) return true;
    return false;
}

int origin_check_setting(const char *allowed, struct err *e)
{
    struct str list = str_c(allowed), entry, name;
    int port;

    while (next_entry(&list, &entry)) {
        struct str host = str_starts(entry, STR("*.")) ? str_skip(entry, 2) : entry;
        if (str_is(entry, "*") || origin_split(host, &name, &port)) continue;
        return err_set(e, E_INVALID,
                       "allowed-hosts has '%.*s': an entry is a host name or an address, with or "
                       "without a port ([::1]:8080), *.name, or *",
                       STR_ARG(str_take(entry, 100)));
    }
    return OK;
}

/* ---- --cors-origins ---- */

/* "scheme://host[:port]" as a browser writes it: no path, and no characters that an URL escapes. Hosts of
 * extensions are no names of DNS. "null" is the origin of every sandboxed frame and local file. */
static bool is_origin(struct str s)
{
    ptrdiff_t at = str_find(s, STR("://"));

    if (at < 1 || s.n <= (size_t)at + 3 || s.n >= ORIGIN_BYTES) return false;
    for (size_t i = 0; i < s.n; i++)
        if (!is_name_char(s.p[i]) && !strchr("[]:+", s.p[i]) &&
            !(i > (size_t)at && i < (size_t)at + 3))
            return false;
    return true;
}

bool origin_is_listed(struct str origin, const char *allowed)
{
    struct str list = str_c(allowed), entry;

    while (next_entry(&list, &entry))
        if (str_is(entry, "*") || (is_origin(entry) && is_equal(entry, origin))) return true;
    return false;
}

int origin_check_list(const char *allowed, struct err *e)
{
    struct str list = str_c(allowed), entry;

    while (next_entry(&list, &entry))
        if (!str_is(entry, "*") && !is_origin(entry))
            return err_set(e, E_INVALID,
                           "cors-origins has '%.*s': an entry is an origin such as "
                           "https://app.example or http://localhost:3000, or *",
                           STR_ARG(str_take(entry, 100)));
    return OK;
}

/* ---- pages ---- */

/* "http://host:port" against the Host header. "null" (a local file, a sandboxed frame) has no host. */
static bool is_same_origin(struct str host, struct str origin)
{
    ptrdiff_t at = str_find(origin, STR("://"));

    return at > 0 && is_equal(str_skip(origin, (size_t)at + 3), host);
}

/* Sec-Fetch-Site is "none" where a user typed the URL or opened a bookmark. "same-site" is another
 * port, or another name of the domain. */
bool origin_is_foreign(struct str host, struct str origin, struct str site)
{
    if (origin.p && !is_same_origin(host, origin)) return true;
    return site.p && !is_equal(site, STR("same-origin")) && !is_equal(site, STR("none"));
}
