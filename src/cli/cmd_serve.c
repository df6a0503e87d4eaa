/* cmd_serve.c - tern serve: reads the settings and runs the server until a signal ends it. Flags
 * and help are server/settings, since the settings also come from the environment and from YAML. */
#include "base/jsonr.h"
#include "cli/cliio.h"
#include "cli/cmd.h"
#include "cli/servecheck.h"
#include "server/facts.h"
#include "server/server.h"

#include <jansson.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* SIGALRM: the server set an alarm for its shutdown, and something still runs. */
static void on_shutdown_timeout(int sig)
{
    static const char line[] = "tern: error: the server did not shut down in time; exiting\n";

    (void)sig;
    if (write(2, line, sizeof line - 1) < 0) _exit(EXIT_FAILED);
    _exit(EXIT_FAILED);
}

/* --print-config: the effective settings with their origin, indented. */
static int print_config(const struct settings *s)
{
    struct settings_facts facts = { 0 };
    struct buf b = { 0 };
    json_t *root;
    char *text;

    facts_read_machine(&facts, s);
    settings_json(s, &facts, &b);
    cli_text(&b);
    root = jsonr_load(buf_str(&b), 0, NULL);
    text = cli_need(root ? json_dumps(root, JSON_INDENT(2)) : NULL);
    printf("%s\n", text);
    free(text);
    json_decref(root);
    buf_release(&b);
    return EXIT_OK;
}

/* Without -m and without a folder of models the server has the model that ships with tern. */
static int add_default_model(struct settings *s, struct err *e)
{
    const char *path = cmd_default_model();

    if (s->n_models > 0 || *s->models_dir) return OK;
    if (!path)
        return err_set(e, E_NOTFOUND,
                       "no model: name one with -m (the model that ships with tern was not found)");
    return settings_add_model(s, path, e);
}

int cmd_serve(int argc, char **argv)
{
    struct settings s;
    struct err e = { 0 };
    bool helped;
    int code = EXIT_OK, rc;

    if (settings_load(&s, argc, argv, &helped, &e) != OK) return cmd_usage("serve", &e);
    if (helped) goto out;
    if (servecheck_role(&s, &e) != OK || servecheck(&s, &e) != OK) {
        code = cmd_usage("serve", &e);
        goto out;
    }
    if (add_default_model(&s, &e) != OK) {
        code = cmd_fail(&e);
    } else if (s.print_config) {
        code = print_config(&s);
    } else {
        signal(SIGALRM, on_shutdown_timeout);
        rc = server_run(&s, &e);
        if (rc != OK) code = rc == E_INVALID ? cmd_usage("serve", &e) : cmd_fail(&e);
        alarm(0);
    }
out:
    settings_release(&s);
    return code;
}
