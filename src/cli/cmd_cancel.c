/* cmd_cancel.c - tern cancel: ends a request of a running server by its id. */
#include "cli/cliio.h"
#include "cli/cmd.h"
#include "cli/remote.h"

static const struct verb verb = {
    "cancel",
    "tern cancel ID [flags]",
    "Cancels a request that a server works on. The id is that of the completion, or the "
    "correlation\n"
    "id (header x-request-id); tern status lists both. A request that has just ended is no error.\n"
    "\n"
    "examples:\n"
    "  tern cancel chatcmpl-5f1e0c\n"
    "  tern cancel 0192-a7 --socket /run/tern/tern.sock",
};

/* {"id": …}: an id may have any characters. */
static int send_cancel(struct remote *r, const char *id, bool json, struct err *e)
{
    json_t *body = json_pack("{s:s}", "id", id);
    char *text = body ? json_dumps(body, 0) : NULL;
    struct remote_reply p = { 0 };
    struct buf out = { 0 };
    int rc = text ? remote_ask(r, "/cancel", str_c(text), &p, e)
                  : err_set(e, E_INVALID, "the id is not UTF-8");

    if (rc == OK && json) buf_put_str(&out, buf_str(&p.body));
    else if (rc == OK && json_is_true(remote_at(p.json, "cancelled")))
        buf_printf(&out, "cancelled");
    else if (rc == OK) buf_printf(&out, "the request has already ended");
    buf_putc(&out, '\n');
    if (rc == OK) rc = cli_write(stdout, &out, e);
    buf_release(&out);
    remote_reply_release(&p);
    free(text);
    json_decref(body);
    return rc;
}

int cmd_cancel(int argc, char **argv)
{
    struct remote_opt o = { .timeout_s = REMOTE_TIMEOUT_S };
    bool json = false, helped;
    const struct arg table[] = {
        REMOTE_ARGS(&o),
        { "--json", NULL, ARG_FLAG, &json, NULL, "print the server's reply" },
        { 0 },
    };
    struct remote r = { 0 };
    struct err e = { 0 };
    const char *id = NULL;
    int n_pos, rc = args_parse(&verb, table, argc, argv, &id, 1, &n_pos, &helped, &e);

    if (rc == OK && helped) return EXIT_OK;
    if (rc == OK && n_pos == 0) rc = err_set(&e, E_INVALID, "one argument is needed: the id");
    if (rc == OK) rc = remote_open(&r, &o, &e);
    if (rc == OK) rc = send_cancel(&r, id, json, &e);
    rc = remote_result(&r, verb.name, rc, &e);
    remote_close(&r);
    return rc;
}
