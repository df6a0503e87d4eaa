/* query.c - reads the query of a URL where it lies: nothing is copied or allocated. */
#include "net/query.h"

#include <string.h>

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Takes one character off v. */
static char take_char(struct str *v)
{
    int c = v->p[0] == '+' ? ' ' : v->p[0];

    if (c == '%' && v->n >= 3 && hex_digit(v->p[1]) >= 0 && hex_digit(v->p[2]) >= 0) {
        c = hex_digit(v->p[1]) << 4 | hex_digit(v->p[2]);
        *v = str_skip(*v, 2);
    }
    *v = str_skip(*v, 1);
    return (char)c;
}

bool query_decode(struct str v, char *out, size_t cap)
{
    size_t n = 0;
    bool whole = true;

    while (v.n && whole && n + 1 < cap) {
        out[n] = take_char(&v);
        whole = out[n++] != 0;
    }
    out[n] = 0;
    return whole && v.n == 0;
}

bool query_is(struct str v, const char *text)
{
    while (v.n && *text)
        if (take_char(&v) != *text++) return false;
    return v.n == 0 && *text == 0;
}

bool query_next(struct str *query, const char *name, struct str *out)
{
    size_t n = strlen(name);

    while (query->n) {
        ptrdiff_t end = str_find(*query, STR("&"));
        struct str one = end < 0 ? *query : str_take(*query, (size_t)end);
        *query = str_skip(*query, one.n + 1);
        if (one.n > n && one.p[n] == '=' && str_starts(one, str_c(name))) {
            *out = str_skip(one, n + 1);
            return true;
        }
    }
    return false;
}

bool query_find(struct str query, const char *name, struct str *out)
{
    return query_next(&query, name, out);
}
