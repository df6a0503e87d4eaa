#include "api/deadline.h"

/* n digits as a number; -1: they are none. */
static int digits(struct str s, size_t at, size_t n)
{
    int v = 0;

    if (at + n > s.n) return -1;
    for (size_t i = at; i < at + n; i++) {
        if (s.p[i] < '0' || s.p[i] > '9') return -1;
        v = v * 10 + (s.p[i] - '0');
    }
    return v;
}

static bool is_at(struct str s, size_t at, const char *any)
{
    return at < s.n && strchr(any, s.p[at]) != NULL && s.p[at] != 0;
}

/* Days from 1970-01-01, by counting in years that begin in March. */
static int64_t days_of(int y, int m, int d)
{
    int64_t year = m <= 2 ? y - 1 : y, era = (year >= 0 ? year : year - 399) / 400,
            yoe = year - era * 400;
    int64_t doy = (153 * (m + (m > 2 ? -3 : 9)) + 2) / 5 + d - 1;

    return era * 146097 + yoe * 365 + yoe / 4 - yoe / 100 + doy - 719468;
}

/* "Z" or "+hh:mm" at `at`, up to the end. */
static bool parse_zone(struct str s, size_t at, int64_t *minutes)
{
    int h, m;

    *minutes = 0;
    if (is_at(s, at, "Zz")) return at + 1 == s.n;
    if (!is_at(s, at, "+-") || !is_at(s, at + 3, ":") || at + 6 != s.n) return false;
    h = digits(s, at + 1, 2);
    m = digits(s, at + 4, 2);
    if (h < 0 || h > 23 || m < 0 || m > 59) return false;
    *minutes = (s.p[at] == '-' ? -1 : 1) * (int64_t)(h * 60 + m);
    return true;
}

static int days_in(int y, int m)
{
    static const int days[] = { 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31 };
    return days[m - 1] + (m == 2 && (y % 4 == 0 && (y % 100 != 0 || y % 400 == 0)));
}

static bool parse_rfc3339(struct str s, int64_t *epoch_ms)
{
    int y = digits(s, 0, 4), mo = digits(s, 5, 2), d = digits(s, 8, 2);
    int h = digits(s, 11, 2), mi = digits(s, 14, 2), sec = digits(s, 17, 2);
    int64_t ms = 0, zone, scale = 100;
    size_t at = 19;

    if (!is_at(s, 4, "-") || !is_at(s, 7, "-") || !is_at(s, 10, "Tt ") || !is_at(s, 13, ":") ||
        !is_at(s, 16, ":"))
        return false;
    if (y < 0 || mo < 1 || mo > 12 || d < 1 || d > days_in(y, mo)) return false;
    if (h < 0 || h > 23 || mi < 0 || mi > 59 || sec < 0 || sec > 60) return false;
    if (is_at(s, at, ".")) {
        if (digits(s, ++at, 1) < 0) return false;
        for (; digits(s, at, 1) >= 0; at++, scale /= 10) ms += digits(s, at, 1) * scale;
    }
    if (!parse_zone(s, at, &zone)) return false;
    *epoch_ms = ((days_of(y, mo, d) * 24 + h) * 60 + mi - zone) * 60000 + sec * 1000 + ms;
    return true;
}

bool deadline_parse(struct str s, int64_t *epoch_ms)
{
    s = str_trim(s);
    return parse_rfc3339(s, epoch_ms) || str_to_i64(s, epoch_ms);
}
