/* cmd_status.c - tern status: the state of a running server as text, or as the JSON of /status. One
 * function for each line; members that a server does not have are shown as 0. */
#include "base/jsonr.h"
#include "cli/cliio.h"
#include "cli/cmd.h"
#include "cli/remote.h"

#include <math.h>
#include <time.h>
#include <unistd.h>

static const struct verb verb = {
    "status",
    "tern status [--watch] [--json] [flags]",
    "Shows the state of a running server: models, queue, scheduler, latencies, memory, limits and "
    "the\n"
    "requests in flight. With --watch it is shown again and again, until Ctrl-C.\n\n"
    "examples:\n"
    "  tern status --url http://127.0.0.1:8080 --json\n"
    "  tern status --watch\n"
    "  tern status --json --socket /run/tern/tern.sock | jq .queue",
};

struct status {
    struct remote_opt remote;
    struct remote r;
    bool watch, json;
    float interval_s;
    int count; /* 0: until Ctrl-C */
};

static double num(const json_t *v, const char *path) { return remote_num(v, path); }

static void put_uptime(struct buf *b, double s)
{
    long t = s > 0 && s < 1e12 ? (long)s : 0;

    if (t >= 86400) buf_printf(b, "%ld d ", t / 86400);
    buf_printf(b, "%ld:%02ld:%02ld", t / 3600 % 24, t / 60 % 60, t % 60);
}

static void put_head(struct buf *b, const struct status *o, const json_t *s)
{
    buf_puts(b, "tern ");
    remote_put_text(b, str_c(remote_text(s, "version")), false);
    buf_printf(b, " at %s: ", o->r.url);
    remote_put_text(b, str_c(remote_text(s, "state")), false);
    buf_puts(b, ", up ");
    put_uptime(b, num(s, "uptime_s"));
    buf_printf(b, ", process %.0f\n", num(s, "pid"));
    if (!*remote_text(s, "reason")) return;
    buf_puts(b, "  ");
    remote_put_text(b, str_c(remote_text(s, "reason")), false);
    buf_putc(b, '\n');
}

static void put_queue(struct buf *b, const json_t *s)
{
    buf_printf(
        b, "queue        %.0f running, %.0f waiting (peak %.0f); wait p50 %.4g ms, p99 %.4g ms\n",
        num(s, "queue.running"), num(s, "queue.waiting"), num(s, "queue.peak"),
        num(s, "queue.wait_ms.p50"), num(s, "queue.wait_ms.p99"));
    buf_printf(b,
               "rates        %.4g tokens/s generated, %.4g tokens/s of prompts, %.4g requests/s\n",
               num(s, "scheduler.rates.generated_per_s"), num(s, "scheduler.rates.prompt_per_s"),
               num(s, "scheduler.rates.requests_per_s"));
    buf_printf(b,
               "scheduler    %.0f steps, %.3g tokens per step, %.0f preemptions, prefix cache hits "
               "%.0f %%\n",
               num(s, "scheduler.steps"), num(s, "scheduler.tokens_per_step"),
               num(s, "scheduler.preemptions"), 100 * num(s, "scheduler.prefix_hit_rate"));
}

static void put_latency(struct buf *b, const json_t *s, const char *name, const char *label)
{
    char path[64];
    double q[3];
    static const char *const keys[] = { "p50", "p95", "p99" };

    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "latencies.%s.%s", name, keys[i]);
        q[i] = num(s, path);
    }
    buf_printf(b, "%s%.4g / %.4g / %.4g ms", label, q[0], q[1], q[2]);
}

/* The sum of the numbers of an object; those above 0 are listed. */
static void put_counts(struct buf *b, const json_t *counts)
{
    const char *key, *comma = "";
    json_t *v;

    json_object_foreach ((json_t *)counts, key, v) {
        if (!(json_number_value(v) > 0)) continue;
        buf_puts(b, comma);
        remote_put_text(b, str_c(key), false);
        buf_printf(b, " %.0f", json_number_value(v));
        comma = ", ";
    }
    if (!*comma) buf_puts(b, "none");
}

static void put_requests(struct buf *b, const json_t *s)
{
    put_latency(b, s, "ttft_ms", "latency      first token ");
    put_latency(b, s, "itl_ms", ", between tokens ");
    put_latency(b, s, "e2e_ms", ", whole ");
    buf_puts(b, " (p50 / p95 / p99)\n");
    buf_printf(b, "requests     %.0f submitted; ended: ", num(s, "requests.submitted"));
    put_counts(b, remote_at(s, "requests.finished"));
    buf_puts(b, "; refused: ");
    put_counts(b, remote_at(s, "requests.rejected"));
    buf_printf(b, "\ntokens       %.0f of prompts (%.0f cached), %.0f generated\n",
               num(s, "tokens.prompt"), num(s, "tokens.cached"), num(s, "tokens.generated"));
}

static void put_size(struct buf *b, const char *label, double bytes)
{
    buf_puts(b, label);
    remote_put_bytes(b, bytes);
}

static void put_resources(struct buf *b, const json_t *s)
{
    put_size(b, "memory       ", num(s, "memory.rss"));
    put_size(b, " resident; weights ", num(s, "memory.weights"));
    put_size(b, ", KV cache ", num(s, "memory.kv"));
    put_size(b, ", scratch ", num(s, "memory.scratch"));
    if (num(s, "memory.limit") > 0) put_size(b, "; limit ", num(s, "memory.limit"));
    buf_printf(b, "\nconnections  %.0f of %.0f; %.0f accepted, %.0f refused\n",
               num(s, "connections.open"), num(s, "connections.max"),
               num(s, "connections.accepted"), num(s, "connections.refused"));
    buf_printf(
        b,
        "limits       %.0f sequences, %.0f requests, %.0f tokens per step, %.0f queued tokens, "
        "context %.0f, KV cache of %.0f tokens\n",
        num(s, "limits.max_seqs"), num(s, "limits.max_requests"), num(s, "limits.max_batch"),
        num(s, "limits.max_queue_tokens"), num(s, "limits.context"), num(s, "limits.kv_tokens"));
}

/* A text of the server in a column. */
static void put_column(struct buf *b, const json_t *v, const char *path, int width)
{
    struct buf t = { 0 };

    remote_put_text(&t, str_c(remote_text(v, path)), false);
    buf_printf(b, "%-*s ", width, t.n ? buf_cstr(&t) : "-");
    buf_release(&t);
}

static void put_models(struct buf *b, const json_t *s)
{
    const json_t *models = remote_at(s, "models");

    buf_printf(b, "\n%-32s %-10s %-10s %-8s %8s %8s %15s\n", "MODEL", "STATE", "MEMORY", "DEVICE",
               "RUNNING", "WAITING", "KV BLOCKS USED");
    for (size_t i = 0; i < json_array_size(models); i++) {
        const json_t *m = json_array_get(models, i);
        struct buf size = { 0 };
        remote_put_bytes(&size, num(m, "memory.total"));
        put_column(b, m, "id", 32);
        put_column(b, m, "state", 10);
        buf_printf(b, "%-10s ", num(m, "memory.total") > 0 ? buf_cstr(&size) : "-");
        put_column(b, m, "device", 8);
        buf_printf(b, "%8.0f %8.0f %6.0f of %5.0f\n", num(m, "running"), num(m, "waiting"),
                   num(m, "kv.used"), num(m, "kv.total"));
        buf_release(&size);
        if (!*remote_text(m, "error")) continue;
        buf_puts(b, "  ");
        remote_put_text(b, str_c(remote_text(m, "error")), false);
        buf_putc(b, '\n');
    }
}

/* The request for /status itself is among the calls of no model: those are left out. */
static void put_calls(struct buf *b, const json_t *s)
{
    const json_t *calls = remote_at(s, "calls");

    if (json_array_size(calls) == 0) return;
    buf_printf(b, "\n%-36s %-20s %-10s %10s %8s %8s\n", "REQUEST", "MODEL", "STATE", "AGE",
               "PROMPT", "OUTPUT");
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const json_t *c = json_array_get(calls, i);
        put_column(b, c, "id", 36);
        put_column(b, c, "model", 20);
        put_column(b, c, "state", 10);
        buf_printf(b, "%8.1f s %8.0f %8.0f\n", num(c, "age_ms") / 1e3, num(c, "prompt_tokens"),
                   num(c, "output_tokens"));
    }
}

static int print_status(const struct status *o, const struct remote_reply *p, struct err *e)
{
    struct buf out = { 0 };
    int rc;

    if (remote_is_gateway(p->json) && !o->json) return remote_refuse_gateway(&o->r, e);
    if (!remote_is_gateway(p->json) && !json_is_array(remote_at(p->json, "models")))
        return err_set(e, E_FORMAT, "%s: the reply is not the status of a tern server", o->r.url);
    if (o->json) {
        jsonr_dump(&out, p->json, o->watch ? JSON_COMPACT : JSON_INDENT(2));
        buf_putc(&out, '\n');
    } else {
        if (o->watch && isatty(STDOUT_FILENO)) buf_puts(&out, "\033[H\033[J");
        put_head(&out, o, p->json);
        put_queue(&out, p->json);
        put_requests(&out, p->json);
        put_resources(&out, p->json);
        put_models(&out, p->json);
        put_calls(&out, p->json);
        if (o->watch && !isatty(STDOUT_FILENO)) buf_putc(&out, '\n');
    }
    rc = cli_write(stdout, &out, e);
    buf_release(&out);
    return rc;
}

/* Once, or with --watch until Ctrl-C or the end of the server. */
static int show_status(struct status *o, struct err *e)
{
    double whole = floor((double)o->interval_s);
    struct timespec pause = { (time_t)whole, (long)(((double)o->interval_s - whole) * 1e9) };
    int rc;

    for (int i = 0;; i++) {
        struct remote_reply p = { 0 };
        rc = remote_ask(&o->r, "/status", (struct str){ 0 }, &p, e);
        if (rc == OK) rc = print_status(o, &p, e);
        remote_reply_release(&p);
        if (rc != OK || !o->watch || (o->count && i + 1 == o->count)) return rc;
        nanosleep(&pause, NULL);
    }
}

int cmd_status(int argc, char **argv)
{
    struct status o = { .remote.timeout_s = REMOTE_TIMEOUT_S, .interval_s = 1 };
    const struct arg table[] = {
        REMOTE_ARGS(&o.remote),
        { "--json", NULL, ARG_FLAG, &o.json, NULL,
          "print /status; with --watch one line each time" },
        { "--watch", "-w", ARG_FLAG, &o.watch, NULL, "show it again and again" },
        { "--interval", "-i", ARG_FLOAT, &o.interval_s, "S", "seconds between (1)" },
        { "--count", NULL, ARG_INT, &o.count, "N", "--watch: end after N times (Ctrl-C)" },
        { 0 },
    };
    struct err e = { 0 };
    const char *pos;
    bool helped;
    int n_pos, rc = args_parse(&verb, table, argc, argv, &pos, 0, &n_pos, &helped, &e);

    if (rc == OK && helped) return EXIT_OK;
    if (rc == OK && !(o.interval_s >= 0.01f && o.interval_s <= 86400))
        rc = err_set(&e, E_INVALID, "--interval %g: must be 0.01 to 86400", (double)o.interval_s);
    if (rc == OK && o.count < 0)
        rc = err_set(&e, E_INVALID, "--count %d: must be 0 or more", o.count);
    if (rc == OK) rc = remote_open(&o.r, &o.remote, &e);
    if (rc == OK) rc = show_status(&o, &e);
    rc = remote_result(&o.r, verb.name, rc, &e);
    remote_close(&o.r);
    return rc;
}
