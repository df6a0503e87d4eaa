/* cmd_infer.c - tern infer: text from a model of a running server, streamed to stdout.
 *
 * Like tern run, but the server computes: the request waits in its queue like any other. */
#include "base/jsonr.h"
#include "cli/cliio.h"
#include "cli/cmd.h"
#include "cli/remote.h"

#include <limits.h>
#include <math.h>
#include <unistd.h>

enum { MAX_PROMPT_BYTES = 1 << 26 };

static const struct verb verb = {
    "infer",
    "tern infer [-m NAME] -p TEXT [flags]",
    "Sends a prompt to a running server and streams the answer to stdout. The prompt is a user "
    "message\n"
    "of a chat; with --raw the model continues the text. It comes from -p, an argument, a file or "
    "a\n"
    "pipe. Ctrl-C ends the request.\n\n"
    "examples:\n"
    "  tern infer -p \"Tell me a story about a frog.\" -n 100\n"
    "  tern infer -m chat --url https://llm.example.org --api-key-file key.txt < question.txt",
};

struct infer {
    struct remote_opt remote;
    struct remote r;
    const char *model, *prompt, *file, *system;
    struct arg_list stops;
    int tokens;        /* INT_MIN: not given */
    float temp, top_p; /* NAN: not given */
    uint64_t seed;     /* UINT64_MAX: not given */
    bool raw, json, quiet;
    struct buf text;           /* the prompt */
    char last;                 /* the last byte that was written; 0: none */
    double n_prompt, n_tokens; /* usage, from the last event */
    struct err failed;         /* an error event, or stdout is closed */
};

/* ---- the request ---- */

static int read_prompt(struct infer *o, struct err *e)
{
    int rc;

    if (o->prompt) {
        buf_puts(&o->text, o->prompt);
    } else {
        if (!o->file && isatty(STDIN_FILENO))
            return err_set(e, E_INVALID, "no prompt: give one with -p, --file or a pipe");
        if ((rc = cli_read(&o->text, o->file, MAX_PROMPT_BYTES, e)) != OK) return rc;
        if (!o->raw && o->text.n > 0 && o->text.p[o->text.n - 1] == '\n') o->text.n--;
    }
    cli_text(&o->text);
    if (o->text.n == 0) return err_set(e, E_INVALID, "the prompt is empty");
    return OK;
}

static bool set_new(json_t *to, const char *key, json_t *v)
{
    return json_object_set_new(to, key, v) == 0;
}

static json_t *make_messages(const struct infer *o)
{
    json_t *list = json_array();

    if (o->system)
        json_array_append_new(list, json_pack("{s:s,s:s}", "role", "system", "content", o->system));
    json_array_append_new(list,
                          json_pack("{s:s,s:s%}", "role", "user", "content", o->text.p, o->text.n));
    return list;
}

static bool add_stops(json_t *body, const struct infer *o)
{
    json_t *list = json_array();

    for (int i = 0; i < o->stops.n; i++)
        if (json_array_append_new(list, json_string(o->stops.at[i])) != 0) {
            json_decref(list);
            return false;
        }
    return o->stops.n ? set_new(body, "stop", list) : (json_decref(list), true);
}

/* NULL: a text is not UTF-8. */
static json_t *make_body(const struct infer *o)
{
    json_t *body = json_object();
    bool good = body != NULL;

    if (o->raw) good = good && set_new(body, "prompt", json_stringn(o->text.p, o->text.n));
    else good = good && set_new(body, "messages", make_messages(o));
    if (o->model) good = good && set_new(body, "model", json_string(o->model));
    if (o->tokens != INT_MIN) good = good && set_new(body, "max_tokens", json_integer(o->tokens));
    if (!isnan(o->temp)) good = good && set_new(body, "temperature", json_real((double)o->temp));
    if (!isnan(o->top_p)) good = good && set_new(body, "top_p", json_real((double)o->top_p));
    if (o->seed != UINT64_MAX)
        good = good && set_new(body, "seed", json_integer((json_int_t)o->seed));
    good = good && add_stops(body, o);
    if (!o->json) {
        good = good && set_new(body, "stream", json_true());
        good = good && set_new(body, "stream_options", json_pack("{s:b}", "include_usage", 1));
    }
    if (!good ||
        (!o->raw && json_array_size(json_object_get(body, "messages")) != (o->system ? 2u : 1u))) {
        json_decref(body);
        return NULL;
    }
    return body;
}

/* ---- the answer ---- */

static void write_piece(struct infer *o, const char *text)
{
    struct buf out = { 0 };

    if (isatty(STDOUT_FILENO)) remote_put_text(&out, str_c(text), true);
    else buf_puts(&out, text);
    if (out.n) o->last = out.p[out.n - 1];
    cli_write(stdout, &out, &o->failed);
    buf_release(&out);
}

/* One chunk of the stream. After a failure the rest is read and ignored. */
static void on_event(void *arg, struct str data)
{
    struct infer *o = arg;
    json_t *v;
    const json_t *choice;
    const char *text;

    if (o->failed.code != OK || str_is(data, "[DONE]")) return;
    if (!(v = jsonr_load(data, 0, NULL))) {
        err_set(&o->failed, E_FORMAT, "an event of the stream is not JSON");
        return;
    }
    choice = json_array_get(remote_at(v, "choices"), 0);
    text = o->raw ? remote_text(choice, "text") : remote_text(choice, "delta.content");
    if (*remote_text(v, "error.message"))
        remote_set_error(&o->failed, E_INTERNAL, remote_text(v, "error.message"));
    else if (*text) write_piece(o, text);
    if (json_is_object(remote_at(v, "usage"))) {
        o->n_prompt = remote_num(v, "usage.prompt_tokens");
        o->n_tokens = remote_num(v, "usage.completion_tokens");
    }
    json_decref(v);
}

static int stream_answer(struct infer *o, const char *path, struct str body, struct err *e)
{
    int rc = remote_stream(&o->r, path, body, on_event, o, e);

    if (rc == OK && o->failed.code != OK) {
        *e = o->failed;
        rc = e->code;
    }
    if (o->last && o->last != '\n') fputc('\n', stdout);
    if (rc == OK && !o->quiet)
        fprintf(stderr, "[prompt %.0f tokens | generated %.0f tokens]\n", o->n_prompt, o->n_tokens);
    return rc;
}

static int print_reply(struct infer *o, const char *path, struct str body, struct err *e)
{
    struct remote_reply p = { 0 };
    int rc = remote_ask(&o->r, path, body, &p, e);

    buf_putc(&p.body, '\n');
    if (rc == OK) rc = cli_write(stdout, &p.body, e);
    remote_reply_release(&p);
    return rc;
}

static int infer_text(struct infer *o, struct err *e)
{
    const char *path = o->raw ? "/v1/completions" : "/v1/chat/completions";
    json_t *body;
    char *text;
    int rc = read_prompt(o, e);

    if (rc != OK) return rc;
    if (!(body = make_body(o))) return err_set(e, E_INVALID, "the prompt or a flag is not UTF-8");
    text = cli_need(json_dumps(body, JSON_COMPACT));
    rc = o->json ? print_reply(o, path, str_c(text), e) : stream_answer(o, path, str_c(text), e);
    free(text);
    json_decref(body);
    return rc;
}

int cmd_infer(int argc, char **argv)
{
    struct infer o = { .tokens = INT_MIN, .temp = NAN, .top_p = NAN, .seed = UINT64_MAX };
    const struct arg table[] = {
        { "--model", "-m", ARG_STR, &o.model, "NAME", "model of the server (its first)" },
        { "--prompt", "-p", ARG_STR, &o.prompt, "TEXT", "the prompt (--file, or stdin)" },
        { "--file", "-f", ARG_STR, &o.file, "PATH", "read the prompt from a file; -: stdin" },
        { "--system", NULL, ARG_STR, &o.system, "TEXT", "system message (none)" },
        { "--raw", NULL, ARG_FLAG, &o.raw, NULL, "continue the prompt: no chat template" },
        { "--tokens", "-n", ARG_INT, &o.tokens, "N", "at most N tokens (the server's)" },
        { "--temp", NULL, ARG_FLOAT, &o.temp, "T", "temperature, 0 to 2 (the server's)" },
        { "--top-p", NULL, ARG_FLOAT, &o.top_p, "P",
          "sample from the most likely tokens with total probability P (the server's)" },
        { "--seed", NULL, ARG_U64, &o.seed, "S", "random seed (random)" },
        { "--stop", NULL, ARG_LIST, &o.stops, "TEXT", "stop before TEXT; repeatable" },
        { "--json", NULL, ARG_FLAG, &o.json, NULL, "print the server's reply, not streamed" },
        { "--quiet", "-q", ARG_FLAG, &o.quiet, NULL, "no line about tokens on stderr" },
        REMOTE_ARGS(&o.remote),
        { 0 },
    };
    const char *pos = NULL;
    struct err e = { 0 };
    bool helped;
    int n_pos, rc = args_parse(&verb, table, argc, argv, &pos, 1, &n_pos, &helped, &e);

    if (rc == OK && helped) return EXIT_OK;
    if (rc == OK && n_pos && o.prompt)
        rc = err_set(&e, E_INVALID, "two prompts: -p and '%s'; give one", pos);
    if (n_pos) o.prompt = pos;
    if (rc == OK) rc = remote_open(&o.r, &o.remote, &e);
    if (rc == OK) rc = infer_text(&o, &e);
    rc = remote_result(&o.r, verb.name, rc, &e);
    buf_release(&o.text);
    remote_close(&o.r);
    return rc;
}
