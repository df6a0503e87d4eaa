/* query.c - reads the query of a URL where it lies: nothing is copied or allocated. */
#include "net/query.h"

#include <string.h>

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool query_is(struct str v, const char *text)
{
    for (; v.n && *text; v = str_skip(v, 1), text++) {
        int c = v.p[0] == '+' ? ' ' : v.p[0];
        if (c == '%' && v.n >= 3 && hex_digit(v.p[1]) >= 0 && hex_digit(v.p[2]) >= 0) {
            c = hex_digit(v.p[1]) << 4 | hex_digit(v.p[2]);
            v = str_skip(v, 2);
        }
        if ((char)c != *text) return false;
    }
    return v.n == 0 && *text == 0;
}

bool query_find(struct str query, const char *name, struct str *out)
{
    size_t n = strlen(name);

    while (query.n) {
        ptrdiff_t end = str_find(query, STR("&"));
        struct str one = end < 0 ? query : str_take(query, (size_t)end);
        if (one.n > n && one.p[n] == '=' && str_starts(one, str_c(name))) {
            *out = str_skip(one, n + 1);
            return true;
        }
        query = str_skip(query, one.n + 1);
    }
    return false;
}
