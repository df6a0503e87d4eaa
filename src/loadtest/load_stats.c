#include "loadtest/load_stats.h"

#include "base/mem.h"
#include "base/str.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define MAX_SECONDS (7 * 86400) /* rows; a longer run adds to the last one */

void load_series_add(struct load_series *s, double v)
{
    if (s->n == s->cap && !mem_ensure(s->v, s->cap, s->n + 256)) {
        s->failed = true;
        return;
    }
    s->v[s->n++] = v;
    s->sorted = false;
}

double load_series_mean(const struct load_series *s)
{
    double sum = 0;

    for (size_t i = 0; i < s->n; i++) sum += s->v[i];
    return s->n ? sum / (double)s->n : 0;
}

static int compare_values(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double load_series_at(struct load_series *s, double q)
{
    double at = q * (double)(s->n - 1), part;
    size_t i;

    if (!s->n) return 0;
    if (!s->sorted) qsort(s->v, s->n, sizeof *s->v, compare_values);
    s->sorted = true;
    if (at <= 0) return s->v[0];
    i = (size_t)at;
    if (i + 1 >= s->n) return s->v[s->n - 1];
    part = at - (double)i;
    return s->v[i] * (1 - part) + s->v[i + 1] * part;
}

void load_series_release(struct load_series *s)
{
    mem_free(s->v);
    *s = (struct load_series){ 0 };
}

/* Time per output token without the first one; 0: fewer than two tokens. */
static double tpot(const struct load_rec *r)
{
    return r->n_out > 1 && r->ttft_ms > 0 ? (r->e2e_ms - r->ttft_ms) / (r->n_out - 1) : 0;
}

static bool within(double limit, double v) { return limit <= 0 || v <= limit; }

static bool meets_goals(const struct load_goals *g, const struct load_rec *r)
{
    double itl = r->n_events > 1 ? r->gap_sum_ms / (r->n_events - 1) : 0;

    return within(g->ttft_ms, r->ttft_ms) && within(g->tpot_ms, tpot(r)) &&
           within(g->itl_ms, itl) && within(g->gap_ms, r->gap_max_ms) &&
           within(g->e2e_ms, r->e2e_ms);
}

/* Latencies of requests that did not complete count only up to the point they reached: no e2e, no
 * tpot, no input tokens. */
void load_stats_add(struct load_stats *s, const struct load_rec *r)
{
    s->n[r->outcome]++;
    s->n_late += (size_t)r->n_late;
    s->tokens_out += r->n_out;
    if (r->connect_ms > 0) load_series_add(&s->connect, r->connect_ms);
    if (r->ttft_ms > 0) load_series_add(&s->ttft, r->ttft_ms);
    if (r->n_events > 1) load_series_add(&s->gap, r->gap_max_ms);
    if (r->cancel_ms > 0) load_series_add(&s->cancel, r->cancel_ms);
    if (r->outcome != LOAD_OK) return;
    s->tokens_in += r->n_in;
    load_series_add(&s->e2e, r->e2e_ms);
    if (tpot(r) > 0) load_series_add(&s->tpot, tpot(r));
    s->n_good += meets_goals(&s->goals, r);
}

/* A run against a broken server may have thousands of kinds: those beyond the table are "other". */
void load_stats_add_kind(struct load_stats *s, const char *name)
{
    int max = (int)(sizeof s->kinds / sizeof *s->kinds);

    for (int i = 0; i < s->n_kinds; i++) {
        if (strcmp(s->kinds[i].name, name) != 0) continue;
        s->kinds[i].n++;
        return;
    }
    if (s->n_kinds == max - 1) name = "other";
    if (s->n_kinds == max) {
        s->kinds[max - 1].n++;
        return;
    }
    snprintf(s->kinds[s->n_kinds].name, sizeof s->kinds[0].name, "%s", name);
    s->kinds[s->n_kinds++].n = 1;
}

struct load_second *load_stats_second(struct load_stats *s, double at_s)
{
    static struct load_second unreported;
    size_t i = at_s > 0 ? (size_t)at_s : 0;

    if (i >= MAX_SECONDS) i = MAX_SECONDS - 1;
    if (i >= s->cap_seconds && !mem_ensure(s->seconds, s->cap_seconds, i + 64)) {
        s->failed = true;
        return &unreported;
    }
    if (i >= s->n_seconds) { /* mem_ensure does not zero */
        memset(s->seconds + s->n_seconds, 0, (i + 1 - s->n_seconds) * sizeof *s->seconds);
        s->n_seconds = i + 1;
    }
    return &s->seconds[i];
}

double load_stats_error_rate(const struct load_stats *s)
{
    size_t all = s->n[LOAD_OK] + s->n[LOAD_FAILED];
    return all ? (double)s->n[LOAD_FAILED] / (double)all : 0;
}

static bool set_goal(struct load_goals *g, struct str name, double ms)
{
    double *to = str_is(name, "ttft")                          ? &g->ttft_ms
                 : str_is(name, "tpot")                        ? &g->tpot_ms
                 : str_is(name, "itl")                         ? &g->itl_ms
                 : str_is(name, "gap")                         ? &g->gap_ms
                 : str_is(name, "e2e") || str_is(name, "e2el") ? &g->e2e_ms
                                                               : NULL;
    if (!to || ms <= 0) return false;
    *to = ms;
    return true;
}

bool load_goals_parse(struct load_goals *g, const char *text)
{
    struct str s = str_c(text);

    while (s.n) {
        ptrdiff_t comma = str_find(s, STR(",")), colon;
        struct str one = comma < 0 ? s : str_take(s, (size_t)comma);
        double ms;
        colon = str_find(one, STR(":"));
        if (colon < 0 || !str_to_f64(str_skip(one, (size_t)colon + 1), &ms)) return false;
        if (!set_goal(g, str_take(one, (size_t)colon), ms)) return false;
        s = str_skip(s, comma < 0 ? s.n : (size_t)comma + 1);
    }
    return true;
}

bool load_stats_complete(const struct load_stats *s)
{
    return !s->failed && !s->ttft.failed && !s->tpot.failed && !s->itl.failed && !s->e2e.failed &&
           !s->gap.failed && !s->cancel.failed && !s->connect.failed;
}

void load_stats_release(struct load_stats *s)
{
    struct load_series *all[] = { &s->ttft, &s->tpot,   &s->itl,    &s->e2e,
                                  &s->gap,  &s->cancel, &s->connect };

    for (size_t i = 0; i < sizeof all / sizeof *all; i++) load_series_release(all[i]);
    mem_free(s->seconds);
    *s = (struct load_stats){ 0 };
}
