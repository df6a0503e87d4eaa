/* load_html.c - a load run as one HTML page: key figures, a timeline, distributions as inline SVG. */
#include "loadtest/load_report.h"

#include <math.h>
#include <stdio.h>

/* A chart and its margins, in SVG units. */
#define W 640
#define H 240
#define LEFT 52
#define RIGHT 44
#define TOP 14
#define BOTTOM 30

static const char head[] =
    "<!doctype html><html lang=en><meta charset=utf-8>"
    "<meta name=viewport content='width=device-width'><title>tern load</title><style>"
    ":root{--ink:#1d232b;--dim:#66707d;--line:#d9dee5;--bg:#fff;--a:#2166ac;--b:#c2541b;--c:#"
    "2f8f4e;"
    "--bad:#b3261e}@media(prefers-color-scheme:dark){:root{--ink:#e7ebf0;--dim:#98a3b0;"
    "--line:#333c47;--bg:#12161b;--a:#6fb0ef;--b:#f0955f;--c:#6ccf8a;--bad:#ff8a80}}"
    "body{font:15px/1.5 "
    "system-ui,sans-serif;color:var(--ink);background:var(--bg);max-width:1360px;"
    "margin:2rem auto;padding:0 1rem}h1{font-size:1.4rem;margin:0}h2{font-size:1rem;"
    "margin:1.2rem 0 .3rem}p{color:var(--dim);margin:.2rem 0}.tiles{display:flex;flex-wrap:wrap;"
    "gap:.6rem;margin:1rem 0}.tiles div{border:1px solid var(--line);border-radius:8px;"
    "padding:.5rem .9rem;min-width:7.5rem}.tiles b{display:block;font-size:1.35rem}"
    ".tiles span{color:var(--dim);font-size:.85rem}.charts{display:grid;"
    "grid-template-columns:repeat(auto-fit,minmax(320px,1fr));gap:1rem}svg{width:100%;height:auto}"
    "text{fill:var(--dim);font-size:11px}table{border-collapse:collapse}td,th{padding:.2rem .8rem;"
    "text-align:right;border-bottom:1px solid var(--line)}td:first-child,"
    "th:first-child{text-align:left}.a{stroke:var(--a);fill:none}.b{stroke:var(--b);fill:none}"
    ".c{stroke:var(--c);fill:none}.grid{stroke:var(--line)}.bar{fill:var(--a)}.bad{fill:var(--bad)}"
    "path{stroke-width:2;stroke-linejoin:round}</style>";

/* For text content; attribute values here are all our own. */
static void add_escaped(struct buf *out, const char *s)
{
    for (; *s; s++) {
        if (*s == '<') buf_puts(out, "&lt;");
        else if (*s == '&') buf_puts(out, "&amp;");
        else buf_putc(out, *s);
    }
}

/* A key figure: the number large, its name below. */
static void add_tile(struct buf *out, const char *what, const char *fmt, double v)
{
    char text[40];

    snprintf(text, sizeof text, fmt, v);
    buf_printf(out, "<div><b>%s</b><span>%s</span></div>", text, what);
}

/* ---- axes ---- */

struct axis {
    double low, high;
    bool log;
};

static double scale_value(const struct axis *a, double v, double from, double to)
{
    double lo = a->low, hi = a->high;

    if (a->log) lo = log(lo), hi = log(hi), v = log(v > a->low ? v : a->low);
    return hi > lo ? from + (to - from) * (v - lo) / (hi - lo) : from;
}

/* Axis value to SVG coordinate. */
static double px(const struct axis *a, double v) { return scale_value(a, v, LEFT, W - RIGHT); }
static double py(const struct axis *a, double v) { return scale_value(a, v, H - BOTTOM, TOP); }

static void format_short(char out[24], double v)
{
    if (v >= 10000) snprintf(out, 24, "%.0fk", v / 1000);
    else if (v >= 10 || v == floor(v)) snprintf(out, 24, "%.0f", v);
    else snprintf(out, 24, "%.2g", v);
}

static void open_svg(struct buf *out, const char *title)
{
    buf_printf(out, "<div><h2>%s</h2><svg viewBox='0 0 %d %d' role=img aria-label='%s'>", title, W,
               H, title);
}

static void add_x_tick(struct buf *out, const struct axis *a, double v, const char *unit)
{
    char text[24];

    format_short(text, v);
    buf_printf(out,
               "<line class=grid x1='%.1f' y1='%d' x2='%.1f' y2='%d'/><text x='%.1f' y='%d' "
               "text-anchor=middle>%s%s</text>",
               px(a, v), TOP, px(a, v), H - BOTTOM, px(a, v), H - 12, text, unit);
}

static void add_y_ticks(struct buf *out, const struct axis *a, bool right, const char *unit)
{
    for (int i = 0; i <= 4; i++) {
        double v = a->low + (a->high - a->low) * i / 4;
        char text[24];
        format_short(text, v);
        if (!right)
            buf_printf(out, "<line class=grid x1='%d' y1='%.1f' x2='%d' y2='%.1f'/>", LEFT,
                       py(a, v), W - RIGHT, py(a, v));
        buf_printf(out, "<text x='%d' y='%.1f' text-anchor=%s>%s%s</text>",
                   right ? W - RIGHT + 5 : LEFT - 5, py(a, v) + 4, right ? "start" : "end", text,
                   unit);
    }
}

/* Logarithmic axis: powers of ten, with 2 and 5 between where those are few. Linear axis: five even
 * steps. */
static void add_ms_ticks(struct buf *out, const struct axis *a)
{
    static const double steps[] = { 1, 2, 5 };
    bool few = a->high / a->low < 300;

    for (int i = 0; i <= 4 && !a->log; i++)
        add_x_tick(out, a, a->low + (a->high - a->low) * i / 4, " ms");
    for (int k = -3; k < 7 && a->log; k++)
        for (int i = 0; i < (few ? 3 : 1); i++) {
            double v = steps[i] * pow(10, k);
            if (v >= a->low * 0.999 && v <= a->high * 1.001) add_x_tick(out, a, v, " ms");
        }
}

/* Logarithmic where the values span more than a factor of five. */
static struct axis make_ms_axis(struct load_series *s)
{
    double low = fmax(load_series_at(s, 0), 0.01) / 1.05;
    double high = fmax(load_series_at(s, 1) * 1.05, low * 1.2);

    return (struct axis){ low, high, high / low > 5 };
}

/* To 1, 2, 4, 5 or 8 times a power of ten. */
static double round_up(double v)
{
    static const double steps[] = { 1, 2, 4, 5, 8, 10 };
    double unit = v > 0 ? pow(10, floor(log10(v))) : 1;

    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
        if (v <= steps[i] * unit) return steps[i] * unit;
    return 10 * unit;
}

/* ---- charts ---- */

/* Cumulative distribution, with dots at p50, p95 and p99. */
static void add_cdf(struct buf *out, const char *title, struct load_series *s)
{
    struct axis x, y = { 0, 100, false };

    if (s->n < 2) return;
    x = make_ms_axis(s);
    open_svg(out, title);
    add_ms_ticks(out, &x);
    add_y_ticks(out, &y, false, "%");
    buf_printf(out, "<path class=a d='M%.1f %.1f", px(&x, load_series_at(s, 0)), py(&y, 0));
    for (int i = 1; i <= 400; i++)
        buf_printf(out, "L%.1f %.1f", px(&x, load_series_at(s, i / 400.0)), py(&y, i / 4.0));
    buf_puts(out, "'/>");
    for (int i = 0; i < 3; i++) {
        static const double qs[] = { 0.5, 0.95, 0.99 };
        double v = load_series_at(s, qs[i]);
        buf_printf(
            out,
            "<circle cx='%.1f' cy='%.1f' r=3.5 class=bar><title>p%.0f: %.2f ms</title></circle>",
            px(&x, v), py(&y, 100 * qs[i]), 100 * qs[i], v);
    }
    buf_puts(out, "</svg></div>");
}

#define BINS 40

static void add_histogram(struct buf *out, const char *title, struct load_series *s)
{
    struct axis x, y = { 0, 0, false };
    int bins[BINS] = { 0 };
    double most = 0;

    if (s->n < 2) return;
    x = make_ms_axis(s);
    for (size_t i = 0; i < s->n; i++) {
        int b = (int)scale_value(&x, s->v[i], 0, BINS);
        b = b < 0 ? 0 : b >= BINS ? BINS - 1 : b;
        most = fmax(most, ++bins[b]);
    }
    y.high = round_up(most);
    open_svg(out, title);
    add_ms_ticks(out, &x);
    add_y_ticks(out, &y, false, "");
    for (int i = 0; i < BINS; i++) {
        double w = (double)(W - LEFT - RIGHT) / BINS, top = py(&y, bins[i]);
        if (bins[i])
            buf_printf(out, "<rect class=bar x='%.1f' y='%.1f' width='%.1f' height='%.1f'/>",
                       LEFT + w * i + 0.5, top, w - 1, H - BOTTOM - top);
    }
    buf_puts(out, "</svg></div>");
}

/* Tokens per second and running requests over time; long runs are drawn in steps of several
 * seconds. */
static void add_timeline(struct buf *out, const struct load_stats *s)
{
    size_t step = s->n_seconds / 300 + 1, n = (s->n_seconds + step - 1) / step;
    struct axis x = { 0, (double)s->n_seconds, false }, tokens = { 0, 0, false },
                running = { 0, 0, false };
    struct buf a = { 0 }, b = { 0 };

    if (s->n_seconds < 2) return;
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < n; i++) {
            double sum = 0, most = 0, at = ((double)i + 0.5) * (double)step, width = 0;
            for (size_t k = i * step; k < s->n_seconds && k < (i + 1) * step; k++, width++) {
                sum += s->seconds[k].tokens;
                most = fmax(most, s->seconds[k].running_max);
            }
            sum /= width;
            if (pass == 0) {
                tokens.high = fmax(tokens.high, round_up(sum));
                running.high = fmax(running.high, round_up(most));
            } else {
                buf_printf(&a, "%c%.1f %.1f", i ? 'L' : 'M', px(&x, at), py(&tokens, sum));
                buf_printf(&b, "%c%.1f %.1f", i ? 'L' : 'M', px(&x, at), py(&running, most));
            }
        }
    open_svg(out, "Tokens per second (left), running requests (right)");
    for (int i = 0; i <= 4; i++) add_x_tick(out, &x, x.high * i / 4, " s");
    add_y_ticks(out, &tokens, false, "");
    add_y_ticks(out, &running, true, "");
    buf_printf(out, "<path class=b d='%s'/><path class=a d='%s'/></svg></div>", buf_cstr(&b),
               buf_cstr(&a));
    out->failed |= a.failed || b.failed;
    buf_release(&a);
    buf_release(&b);
}

/* ---- the page ---- */

static void add_row(struct buf *out, const char *what, struct load_series *s)
{
    static const double qs[] = { 0.5, 0.9, 0.95, 0.99, 1 };

    if (!s->n) return;
    buf_printf(out, "<tr><td>%s<td>%zu<td>%.2f", what, s->n, load_series_mean(s));
    for (size_t i = 0; i < sizeof qs / sizeof *qs; i++)
        buf_printf(out, "<td>%.2f", load_series_at(s, qs[i]));
}

static void add_tiles(struct buf *out, struct load_stats *s)
{
    double t = s->duration_s > 0 ? s->duration_s : 1;

    buf_puts(out, "<div class=tiles>");
    add_tile(out, "requests completed", "%.0f", (double)s->n[LOAD_OK]);
    add_tile(out, "failed", "%.0f", (double)s->n[LOAD_FAILED]);
    add_tile(out, "seconds", "%.1f", s->duration_s);
    add_tile(out, "requests/s", "%.2f", (double)s->n[LOAD_OK] / t);
    add_tile(out, "output tokens/s", "%.1f", (double)s->tokens_out / t);
    if (s->ttft.n)
        add_tile(out, "time to first token, p95 ms", "%.1f", load_series_at(&s->ttft, 0.95));
    if (s->itl.n)
        add_tile(out, "inter-token latency, p95 ms", "%.1f", load_series_at(&s->itl, 0.95));
    if (s->e2e.n)
        add_tile(out, "end-to-end latency, p95 ms", "%.1f", load_series_at(&s->e2e, 0.95));
    buf_puts(out, "</div>");
}

void load_report_html(struct buf *out, const struct load_plan *p, struct load_stats *s)
{
    buf_puts(out, head);
    buf_puts(out, "<h1>tern load</h1><p>");
    add_escaped(out, p->url);
    buf_puts(out, " · ");
    add_escaped(out, *p->model ? p->model : "default model");
    if (p->rate > 0) buf_printf(out, " · %g requests/s", p->rate);
    else buf_printf(out, " · %d clients", p->n_clients);
    buf_puts(out, "</p>");
    add_tiles(out, s);
    buf_puts(out, "<div class=charts>");
    add_timeline(out, s);
    add_cdf(out, "Time to first token, cumulative share of requests", &s->ttft);
    add_cdf(out, "Inter-token latency, cumulative share of gaps", &s->itl);
    add_cdf(out, "End-to-end latency, cumulative share of requests", &s->e2e);
    add_histogram(out, "Time to first token, requests", &s->ttft);
    add_histogram(out, "Inter-token latency, gaps", &s->itl);
    buf_puts(out, "</div><h2>Milliseconds</h2><table>"
                  "<tr><th><th>n<th>mean<th>p50<th>p90<th>p95<th>p99<th>max");
    add_row(out, "time to first token", &s->ttft);
    add_row(out, "time per output token", &s->tpot);
    add_row(out, "inter-token latency", &s->itl);
    add_row(out, "longest gap in a stream", &s->gap);
    add_row(out, "end-to-end latency", &s->e2e);
    add_row(out, "cancel sent to stream ended", &s->cancel);
    buf_puts(out, "</table>");
    if (s->n_kinds) buf_puts(out, "<h2>Errors by kind</h2><table>");
    for (int i = 0; i < s->n_kinds; i++) {
        buf_puts(out, "<tr><td>");
        add_escaped(out, s->kinds[i].name);
        buf_printf(out, "<td>%zu", s->kinds[i].n);
    }
    if (s->n_kinds) buf_puts(out, "</table>");
    buf_printf(out, "<p>tern %s</p></html>\n", TERN_VERSION);
}
