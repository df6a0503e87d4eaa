/* cmd_health.c - tern health, live and ready: is a server there, and can it serve?
 *
 * `live` (also `health`) asks /health, which says only that the process answers. `ready` asks
 * /ready, and with --wait asks again until it is: a server that is not there yet counts as not
 * ready. */
#include "base/clock.h"
#include "cli/cliio.h"
#include "cli/cmd.h"
#include "cli/remote.h"

#include <time.h>

#define POLL_MS 100

static const struct verb health = {
    "health",
    "tern health [flags]",
    "Asks a server whether it is alive, and prints its answer. The exit code is 0 if it is, 3 if "
    "no\n"
    "server answers.\n\n"
    "examples:\n"
    "  tern health\n"
    "  tern health --url https://llm.example.org --ca-file ca.pem",
};
static const struct verb live = {
    "live",
    "tern live [flags]",
    "The same as tern health: the process answers, nothing else is claimed.\n\n"
    "examples:\n"
    "  tern live --url http://127.0.0.1:8080",
};
static const struct verb ready = {
    "ready",
    "tern ready [--model NAME] [--wait S] [flags]",
    "Asks a server whether it can serve. The exit code is 0 if it can, 1 if it is loading, "
    "draining,\n"
    "stalled or failed, 3 if no server answers.\n\n"
    "examples:\n"
    "  tern ready\n"
    "  tern ready --model chat\n"
    "  tern serve & tern ready --wait 60 && tern infer -p \"Hi\"",
};

struct probe {
    struct remote_opt remote;
    const char *path, *model;
    float wait_s;
    bool json, quiet;
};

/* The words of the answer, or the whole of it. */
static int print_answer(const struct probe *b, const struct remote_reply *p, struct err *e)
{
    struct buf out = { 0 };
    int rc;

    if (b->json) buf_put_str(&out, buf_str(&p->body));
    else remote_put_text(&out, str_c(remote_text(p->json, "status")), false);
    if (!b->json && *remote_text(p->json, "message")) {
        buf_puts(&out, ": ");
        remote_put_text(&out, str_c(remote_text(p->json, "message")), false);
    }
    buf_putc(&out, '\n');
    rc = b->quiet ? OK : cli_write(stdout, &out, e);
    buf_release(&out);
    return rc;
}

/* *yes: the server said 200. A 503 is an answer, too; any other status is an error. */
static int ask_once(struct remote *r, const struct probe *b, struct remote_reply *p, bool *yes,
                    struct err *e)
{
    struct buf path = { 0 };
    int rc;

    buf_puts(&path, b->path);
    if (b->model) buf_puts(&path, "?model="), remote_put_url(&path, b->model);
    cli_text(&path);
    rc = remote_send(r, path.p, (struct str){ 0 }, p, e);
    *yes = rc == OK && p->status == 200;
    if (rc == OK && *remote_text(p->json, "error.message"))
        rc = remote_set_error(e, E_NOTFOUND, remote_text(p->json, "error.message"));
    else if (rc == OK &&
             ((p->status != 200 && p->status != 503) || !*remote_text(p->json, "status")))
        rc = err_set(e, E_FORMAT, "%s: status %d is not the answer of a tern server", r->url,
                     p->status);
    buf_release(&path);
    return rc;
}

/* Asks until the answer is yes, or the time is over. */
static int ask_and_print(struct remote *r, const struct probe *b, bool *yes, struct err *e)
{
    uint64_t start = clock_ns();
    struct remote_reply p = { 0 };
    struct timespec pause = { 0, POLL_MS * 1000000L };
    int rc = ask_once(r, b, &p, yes, e);

    while (!*yes && clock_ms_since(start) < (double)b->wait_s * 1e3 &&
           (rc == OK || r->lost || rc == E_IO)) {
        nanosleep(&pause, NULL);
        remote_reply_release(&p);
        rc = ask_once(r, b, &p, yes, e);
    }
    if (rc == OK) rc = print_answer(b, &p, e);
    remote_reply_release(&p);
    return rc;
}

static int run_probe(const struct verb *v, struct probe *b, int argc, char **argv)
{
    const struct arg table[] = {
        REMOTE_ARGS(&b->remote),
        { "--wait", "-w", ARG_FLOAT, &b->wait_s, "S", "ask again for up to S seconds (0)" },
        { "--json", NULL, ARG_FLAG, &b->json, NULL, "print the server's reply" },
        { "--quiet", "-q", ARG_FLAG, &b->quiet, NULL, "print nothing; the exit code says it" },
        { v == &ready ? "--model" : NULL, "-m", ARG_STR, &b->model, "NAME",
          "ask for this model alone" },
        { 0 },
    };
    struct remote r = { 0 };
    struct err e = { 0 };
    const char *pos;
    bool helped, yes = false;
    int n_pos, rc = args_parse(v, table, argc, argv, &pos, 0, &n_pos, &helped, &e);

    if (rc == OK && helped) return EXIT_OK;
    if (rc == OK) rc = remote_open(&r, &b->remote, &e);
    if (rc == OK) rc = ask_and_print(&r, b, &yes, &e);
    rc = remote_result(&r, v->name, rc, &e);
    remote_close(&r);
    return rc == EXIT_OK && !yes ? EXIT_FAILED : rc;
}

int cmd_health(int argc, char **argv)
{
    struct probe b = { .path = "/health", .remote.timeout_s = REMOTE_TIMEOUT_S };
    return run_probe(&health, &b, argc, argv);
}

int cmd_live(int argc, char **argv)
{
    struct probe b = { .path = "/health", .remote.timeout_s = REMOTE_TIMEOUT_S };
    return run_probe(&live, &b, argc, argv);
}

int cmd_ready(int argc, char **argv)
{
    struct probe b = { .path = "/ready", .remote.timeout_s = REMOTE_TIMEOUT_S };
    return run_probe(&ready, &b, argc, argv);
}
