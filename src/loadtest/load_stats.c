#include "loadtest/load_stats.h"

#include "base/mem.h"
#include "base/str.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define MAX_SECONDS (7 * 86400)

void load_series_add(struct load_series *s, double v)
{
    if (s->n == s->cap) {
        s->cap = s->cap ? 2 * s->cap : 256;
        s->v = mem_grow(s->v, s->cap * sizeof *s->v);
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

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double load_series_at(struct load_series *s, double q)
{
    double at = q * (double)(s->n - 1), part;
    size_t i;

    if (!s->n) return 0;
    if (!s->sorted) qsort(s->v, s->n, sizeof *s->v, by_value);
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

static double tpot(const struct load_rec *r)
{
    return r->n_out > 1 && r->ttft_ms > 0 ? (r->e2e_ms - r->ttft_ms) / (r->n_out - 1) : 0;
}

static bool keeps(double goal, double v) { return goal <= 0 || v <= goal; }

static bool is_good(const struct load_goals *g, const struct load_rec *r)
{
    double itl = r->n_events > 1 ? r->gap_sum_ms / (r->n_events - 1) : 0;

    return keeps(g->ttft_ms, r->ttft_ms) && keeps(g->tpot_ms, tpot(r)) && keeps(g->itl_ms, itl) &&
           keeps(g->gap_ms, r->gap_max_ms) && keeps(g->e2e_ms, r->e2e_ms);
}

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
    s->n_good += is_good(&s->goals, r);
}

void load_stats_kind(struct load_stats *s, const char *name)
{
    int most = (int)(sizeof s->kinds / sizeof *s->kinds);

    for (int i = 0; i < s->n_kinds; i++) {
        if (strcmp(s->kinds[i].name, name) != 0) continue;
        s->kinds[i].n++;
        return;
    }
    if (s->n_kinds == most - 1) name = "other";
    if (s->n_kinds == most) {
        s->kinds[most - 1].n++;
        return;
    }
    snprintf(s->kinds[s->n_kinds].name, sizeof s->kinds[0].name, "%s", name);
    s->kinds[s->n_kinds++].n = 1;
}

struct load_second *load_stats_second(struct load_stats *s, double at_s)
{
    size_t i = at_s > 0 ? (size_t)at_s : 0;

    if (i >= MAX_SECONDS) i = MAX_SECONDS - 1;
    if (i >= s->cap_seconds) {
        size_t cap = 2 * i + 64;
        s->seconds = mem_grow(s->seconds, cap * sizeof *s->seconds);
        memset(s->seconds + s->cap_seconds, 0, (cap - s->cap_seconds) * sizeof *s->seconds);
        s->cap_seconds = cap;
    }
    if (i >= s->n_seconds) s->n_seconds = i + 1;
    return &s->seconds[i];
}

double load_stats_error_rate(const struct load_stats *s)
{
    size_t all = s->n[LOAD_OK] + s->n[LOAD_FAILED];
    return all ? (double)s->n[LOAD_FAILED] / (double)all : 0;
}

static bool goal_set(struct load_goals *g, struct str name, double ms)
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
        if (!goal_set(g, str_take(one, (size_t)colon), ms)) return false;
        s = str_skip(s, comma < 0 ? s.n : (size_t)comma + 1);
    }
    return true;
}

void load_stats_release(struct load_stats *s)
{
    struct load_series *all[] = { &s->ttft, &s->tpot,   &s->itl,    &s->e2e,
                                  &s->gap,  &s->cancel, &s->connect };

    for (size_t i = 0; i < sizeof all / sizeof *all; i++) load_series_release(all[i]);
    mem_free(s->seconds);
    *s = (struct load_stats){ 0 };
}
