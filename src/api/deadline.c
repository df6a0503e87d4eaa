/* deadline.c - RFC 3339 timestamps and epoch milliseconds, without the C library's time zones. */
#include "api/deadline.h"

/* The n decimal digits at `at` as a number; -1: not all are digits, or the text ends before. */
static int parse_digits(struct str s, size_t at, size_t n)
{
    int v = 0;

    if (at + n > s.n) return -1;
    for (size_t i = at; i < at + n; i++) {
        if (s.p[i] < '0' || s.p[i] > '9') return -1;
        v = v * 10 + (s.p[i] - '0');
    }
    return v;
}

static bool has_any(struct str s, size_t at, const char *any)
{
    return at < s.n && strchr(any, s.p[at]) != NULL && s.p[at] != 0;
}

/* Days since 1970-01-01 in the Gregorian calendar (Hinnant, days_from_civil): years begin in March,
 * so that the leap day is the last of its year. */
static int64_t days_from_civil(int y, int m, int d)
{
    int64_t year = m <= 2 ? y - 1 : y, era = (year >= 0 ? year : year - 399) / 400,
            yoe = year - era * 400;
    int64_t doy = (153 * (m + (m > 2 ? -3 : 9)) + 2) / 5 + d - 1;

    return era * 146097 + yoe * 365 + yoe / 4 - yoe / 100 + doy - 719468;
}

/* "Z" or "+hh:mm" from `at` to the end of the text. */
static bool parse_zone(struct str s, size_t at, int64_t *minutes)
{
    int h, m;

    *minutes = 0;
    if (has_any(s, at, "Zz")) return at + 1 == s.n;
    if (!has_any(s, at, "+-") || !has_any(s, at + 3, ":") || at + 6 != s.n) return false;
    h = parse_digits(s, at + 1, 2);
    m = parse_digits(s, at + 4, 2);
    if (h < 0 || h > 23 || m < 0 || m > 59) return false;
    *minutes = (s.p[at] == '-' ? -1 : 1) * (int64_t)(h * 60 + m);
    return true;
}

static int days_in_month(int y, int m)
{
    static const int days[] = { 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31 };
    return days[m - 1] + (m == 2 && (y % 4 == 0 && (y % 100 != 0 || y % 400 == 0)));
}

static bool parse_rfc3339(struct str s, int64_t *epoch_ms)
{
    int y = parse_digits(s, 0, 4), mo = parse_digits(s, 5, 2), d = parse_digits(s, 8, 2);
    int h = parse_digits(s, 11, 2), mi = parse_digits(s, 14, 2), sec = parse_digits(s, 17, 2);
    int64_t ms = 0, zone, scale = 100;
    size_t at = 19;

    if (!has_any(s, 4, "-") || !has_any(s, 7, "-") || !has_any(s, 10, "Tt ") ||
        !has_any(s, 13, ":") || !has_any(s, 16, ":"))
        return false;
    if (y < 0 || mo < 1 || mo > 12 || d < 1 || d > days_in_month(y, mo)) return false;
    if (h < 0 || h > 23 || mi < 0 || mi > 59 || sec < 0 || sec > 60) return false;
    if (has_any(s, at, ".")) {
        if (parse_digits(s, ++at, 1) < 0) return false;
        for (; parse_digits(s, at, 1) >= 0; at++, scale /= 10) ms += parse_digits(s, at, 1) * scale;
    }
    if (!parse_zone(s, at, &zone)) return false;
    *epoch_ms = ((days_from_civil(y, mo, d) * 24 + h) * 60 + mi - zone) * 60000 + sec * 1000 + ms;
    return true;
}

bool deadline_parse(struct str s, int64_t *epoch_ms)
{
    s = str_trim(s);
    return parse_rfc3339(s, epoch_ms) || str_to_i64(s, epoch_ms);
}
