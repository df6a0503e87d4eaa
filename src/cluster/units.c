#include "cluster/units.h"

/* A number at s.p[*i]; false: there is none, or it is no int32. */
static bool read_number(struct str s, size_t *i, int32_t *out)
{
    size_t from = *i;
    int64_t v = 0;

    for (; *i < s.n && s.p[*i] >= '0' && s.p[*i] <= '9' && v <= INT32_MAX; (*i)++)
        v = v * 10 + (s.p[*i] - '0');
    *out = (int32_t)v;
    return *i > from && v <= INT32_MAX;
}

/* Reads the list behind ": ids"; anything that is not of the form ends the list. */
static void read_comment(struct units *u, struct str text)
{
    size_t i = 0;
    int32_t v;

    u->begun = true;
    while (i < text.n) {
        while (i < text.n && text.p[i] == ' ') i++;
        if (i < text.n && text.p[i] == '@') {
            i++;
            if (read_number(text, &i, &v)) u->n_events = v;
            return;
        }
        if (!read_number(text, &i, &v)) return;
        ids_push(&u->ids, v);
    }
}

/* Where the next comment with ids begins, at the begin of a line; -1: there is none. */
static ptrdiff_t find_comment(struct str s)
{
    ptrdiff_t at;

    if (str_starts(s, STR(": ids"))) return 0;
    at = str_find(s, STR("\n: ids"));
    return at < 0 ? -1 : at + 1;
}

/* Passes on the whole units of s; returns the bytes that were used. */
static size_t pass_units(struct units *u, struct str s, units_fn *pass, void *arg)
{
    size_t used = 0;

    for (;;) {
        struct str rest = str_skip(s, used), comment;
        ptrdiff_t at = find_comment(rest), end;
        bool ping;

        if (at < 0) break;
        comment = str_skip(rest, (size_t)at);
        if ((end = str_find(comment, STR("\n\n"))) < 0) break;
        comment = str_skip(str_take(comment, (size_t)end), 5);
        ping = str_is(comment, " -");
        pass(arg, str_take(rest, (size_t)at), ping);
        if (!ping) read_comment(u, comment);
        used += (size_t)(at + end + 2);
    }
    if (str_is(str_skip(s, used), ": ping\n\n")) {
        pass(arg, str_skip(s, used), true);
        used = s.n;
    }
    return used;
}

void units_push(struct units *u, struct str bytes, units_fn *pass, void *arg)
{
    size_t used;

    if (u->rest.n == 0) { /* the usual case: one read has whole units, and nothing is copied */
        used = pass_units(u, bytes, pass, arg);
        buf_put_str(&u->rest, str_skip(bytes, used));
        return;
    }
    buf_put_str(&u->rest, bytes);
    if (u->rest.failed) return;
    used = pass_units(u, buf_str(&u->rest), pass, arg);
    memmove(u->rest.p, u->rest.p + used, u->rest.n - used);
    u->rest.n -= used;
}

bool units_failed(const struct units *u) { return u->rest.failed || u->ids.failed; }

void units_release(struct units *u)
{
    buf_release(&u->rest);
    ids_release(&u->ids);
}
