#include "base/utf8.h"

/* Rejects everything that RFC 3629 excludes. */
int utf8_next(struct str s, int32_t *cp)
{
    const unsigned char *p = (const unsigned char *)s.p;
    /* Length by the first byte; 0: not a first byte (0xc0 and 0xc1 would be overlong). */
    int n = p[0] < 0x80   ? 1
            : p[0] < 0xc2 ? 0
            : p[0] < 0xe0 ? 2
            : p[0] < 0xf0 ? 3
            : p[0] < 0xf5 ? 4
                          : 0;
    int32_t c;

    *cp = -1;
    if (n == 1) *cp = p[0];
    if (n < 2 || (size_t)n > s.n) return 1;
    c = p[0] & (0x7f >> n);
    for (int i = 1; i < n; i++) {
        if ((p[i] & 0xc0) != 0x80) return 1;
        c = c << 6 | (p[i] & 0x3f);
    }
    if ((n == 3 && (c < 0x800 || (c >= 0xd800 && c < 0xe000))) ||
        (n == 4 && (c < 0x10000 || c > 0x10ffff)))
        return 1;
    *cp = c;
    return n;
}

int utf8_put(char out[4], int32_t cp)
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xc0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3f));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xe0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3f));
        out[2] = (char)(0x80 | (cp & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3f));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3f));
    out[3] = (char)(0x80 | (cp & 0x3f));
    return 4;
}

ptrdiff_t utf8_bad(struct str s)
{
    size_t i = 0;

    while (i < s.n) {
        int32_t cp;
        int n = utf8_next(str_skip(s, i), &cp);
        if (cp < 0) return (ptrdiff_t)i;
        i += (size_t)n;
    }
    return -1;
}

/* Looks at most three bytes back for a first byte whose sequence is longer than what follows it. */
int utf8_partial(struct str s)
{
    for (int back = 1; back <= 3 && (size_t)back <= s.n; back++) {
        unsigned char c = (unsigned char)s.p[s.n - (size_t)back];
        int need = c >= 0xf0 && c < 0xf5 ? 4 : c >= 0xe0 ? 3 : c >= 0xc2 ? 2 : 1;
        if ((c & 0xc0) == 0x80) continue;
        if (c >= 0xf5 || need <= back) return 0;
        if (back >
            1) { /* the second byte already rules out overlong forms, surrogates and > U+10FFFF */
            unsigned char d = (unsigned char)s.p[s.n - (size_t)back + 1];
            if ((c == 0xe0 && d < 0xa0) || (c == 0xed && d > 0x9f) || (c == 0xf0 && d < 0x90) ||
                (c == 0xf4 && d > 0x8f))
                return 0;
        }
        return back;
    }
    return 0;
}
