#include "base/str.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

/* Every value but the first follows one of these characters; inside strings they count too,
 * which only makes the bound larger. */
size_t str_json_parts(struct str json)
{
    size_t n = 0;

    for (size_t i = 0; i < json.n; i++) {
        char c = json.p[i];
        n += c == ',' || c == ':' || c == '[' || c == '{';
    }
    return n;
}

/* memmem is linear in both lengths (two-way algorithm). */
ptrdiff_t str_find(struct str in, struct str what)
{
    const char *at;

    if (what.n == 0) return 0;
    at = in.n ? memmem(in.p, in.n, what.p, what.n) : NULL;
    return at ? at - in.p : -1;
}

static bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

struct str str_trim(struct str s)
{
    while (s.n && is_blank(s.p[0])) s = str_skip(s, 1);
    while (s.n && is_blank(s.p[s.n - 1])) s.n--;
    return s;
}

/* strtoll and strtod need a NUL and skip leading blanks; this adds the one and refuses the other. */
static bool copy_number(struct str s, char buf[64])
{
    if (s.n == 0 || s.n >= 64 || is_blank(s.p[0])) return false;
    memcpy(buf, s.p, s.n);
    buf[s.n] = 0;
    return true;
}

bool str_to_i64(struct str s, int64_t *out)
{
    char buf[64], *end;
    long long v;

    if (!copy_number(s, buf)) return false;
    errno = 0;
    v = strtoll(buf, &end, 10);
    if (errno || end != buf + s.n || end == buf) return false;
    *out = v;
    return true;
}

bool str_to_f64(struct str s, double *out)
{
    char buf[64], *end;
    double v;

    if (!copy_number(s, buf)) return false;
    v = strtod(buf, &end);
    if (end != buf + s.n || end == buf || !isfinite(v)) return false;
    *out = v;
    return true;
}

/* Three rows of the table of distances: before, above, current. */
int str_distance(struct str a, struct str b)
{
    int rows[3][41];

    if (a.n > 40 || b.n > 40) return 99;
    for (size_t j = 0; j <= b.n; j++) rows[0][j] = (int)j;
    for (size_t i = 1; i <= a.n; i++) {
        int *row = rows[i % 3], *above = rows[(i + 2) % 3], *before = rows[(i + 1) % 3];
        row[0] = (int)i;
        for (size_t j = 1; j <= b.n; j++) {
            int best = above[j - 1] + (a.p[i - 1] != b.p[j - 1]);
            if (above[j] + 1 < best) best = above[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            if (i > 1 && j > 1 && a.p[i - 1] == b.p[j - 2] && a.p[i - 2] == b.p[j - 1] &&
                before[j - 2] + 1 < best)
                best = before[j - 2] + 1;
            row[j] = best;
        }
    }
    return rows[a.n % 3][b.n];
}

bool str_is_nearer(struct str word, struct str name, int *least)
{
    int d = str_distance(word, name);

    if (d >= *least || d * 2 >= (int)word.n) return false;
    *least = d;
    return true;
}
