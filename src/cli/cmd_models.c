/* cmd_models.c - tern models: the models of a running server, listed, loaded, unloaded and checked. */
#include "base/clock.h"
#include "base/jsonr.h"
#include "cli/cliio.h"
#include "cli/cmd.h"
#include "cli/remote.h"

#include <unistd.h>

static const struct verb verb = {
    "models",
    "tern models list|load|unload|reload|verify [NAME] [flags]",
    "The models of a running server.\n\n"
    "  list          every model with its state; --json prints the server's reply\n"
    "  load NAME     loads a model, and returns when it is ready\n"
    "  unload NAME   unloads it: requests that run may end\n"
    "  reload        looks at the folder of models again; reload NAME unloads a model and loads "
    "it\n"
    "  verify NAME   lets the server check the files of a model, as tern verify does\n"
    "\n"
    "examples:\n"
    "  tern models list --url http://127.0.0.1:8080 --json\n"
    "  tern models load chat --keep-alive 1h\n"
    "  tern models unload chat --socket /run/tern/tern.sock",
};

struct models {
    struct remote_opt remote;
    struct remote r;
    const char *keep_alive;
    bool json;
};

/* ---- list ---- */

/* "loaded", "loading 40 %". */
static void put_state(struct buf *out, const json_t *m)
{
    const char *state = remote_text(m, "status.value");

    remote_put_text(out, str_c(state), false);
    if (str_is(str_c(state), "loading"))
        buf_printf(out, " %.0f %%", remote_num(m, "status.progress"));
}

/* Other names of the model, and the error of a failed one. */
static void put_notes(struct buf *out, const json_t *m)
{
    const json_t *aliases = remote_at(m, "aliases");

    for (size_t i = 0; i < json_array_size(aliases); i++) {
        buf_puts(out, i ? ", " : "also ");
        remote_put_text(out, str_c(json_string_value(json_array_get(aliases, i))), false);
    }
    if (!*remote_text(m, "status.error")) return;
    buf_puts(out, out->n ? "; " : "");
    remote_put_text(out, str_c(remote_text(m, "status.error")), false);
}

/* One line; columns are as wide as in print_list. */
static void put_model(struct buf *out, const json_t *m)
{
    struct buf id = { 0 }, state = { 0 }, size = { 0 }, notes = { 0 };
    double bytes = remote_num(m, "meta.bytes"), context = remote_num(m, "meta.context");
    char tokens[32] = "-";

    remote_put_text(&id, str_c(remote_text(m, "id")), false);
    put_state(&state, m);
    put_notes(&notes, m);
    if (bytes > 0) remote_put_bytes(&size, bytes);
    if (context > 0) snprintf(tokens, sizeof tokens, "%.12g", context);
    buf_printf(out, "%-32s %-12s %-10s %-9s %s\n", buf_cstr(&id), buf_cstr(&state),
               size.n ? buf_cstr(&size) : "-", tokens, buf_cstr(&notes));
    buf_release(&id);
    buf_release(&state);
    buf_release(&size);
    buf_release(&notes);
}

static int print_list(struct models *o, const struct remote_reply *p, struct err *e)
{
    const json_t *data = remote_at(p->json, "data");
    struct buf out = { 0 };
    int rc;

    if (!json_is_array(data))
        return err_set(e, E_FORMAT, "%s: the reply has no list of models", o->r.url);
    if (o->json) {
        jsonr_dump(&out, p->json, JSON_INDENT(2));
        buf_putc(&out, '\n');
    } else {
        buf_printf(&out, "%-32s %-12s %-10s %-9s\n", "NAME", "STATE", "WEIGHTS", "CONTEXT");
        for (size_t i = 0; i < json_array_size(data); i++) put_model(&out, json_array_get(data, i));
    }
    rc = cli_write(stdout, &out, e);
    buf_release(&out);
    return rc;
}

/* path: /models, or with ?reload=1 */
static int list_models(struct models *o, const char *path, struct err *e)
{
    struct remote_reply p = { 0 };
    int rc = remote_ask(&o->r, path, (struct str){ 0 }, &p, e);

    if (rc == OK) rc = print_list(o, &p, e);
    remote_reply_release(&p);
    return rc;
}

/* ---- load, unload, reload ---- */

static int post_name(struct models *o, const char *path, const char *name, struct remote_reply *p,
                     struct err *e)
{
    json_t *body = json_pack("{s:s}", "model", name);
    char *text;
    int rc;

    if (!body) return err_set(e, E_INVALID, "the name of the model is not UTF-8");
    if (o->keep_alive && json_object_set_new(body, "keep_alive", json_string(o->keep_alive)) != 0) {
        json_decref(body);
        return err_set(e, E_INVALID, "--keep-alive is not UTF-8");
    }
    text = cli_need(json_dumps(body, 0));
    rc = remote_ask(&o->r, path, str_c(text), p, e);
    free(text);
    json_decref(body);
    return rc;
}

/* what: "loaded" */
static int change_model(struct models *o, const char *path, const char *name, const char *what,
                        struct err *e)
{
    uint64_t start = clock_ns();
    struct remote_reply p = { 0 };
    struct buf out = { 0 };
    int rc = post_name(o, path, name, &p, e);

    if (rc == OK && o->json) buf_put_str(&out, buf_str(&p.body)), buf_putc(&out, '\n');
    else if (rc == OK)
        buf_printf(&out, "%s: %s in %.1f s\n", name, what, clock_ms_since(start) / 1e3);
    if (rc == OK) rc = cli_write(stdout, &out, e);
    buf_release(&out);
    remote_reply_release(&p);
    return rc;
}

static int reload_models(struct models *o, const char *name, struct err *e)
{
    struct remote_reply p = { 0 };
    int rc;

    if (!name) return list_models(o, "/models?reload=1", e);
    rc = post_name(o, "/models/unload", name, &p, e);
    remote_reply_release(&p);
    return rc == OK ? change_model(o, "/models/load", name, "loaded again", e) : rc;
}

/* ---- verify ---- */

/* A model that is not sound is an error, as in tern verify. */
static int verify_model(struct models *o, const char *name, struct err *e)
{
    uint64_t start = clock_ns();
    struct remote_reply p = { 0 };
    struct buf out = { 0 };
    int rc = post_name(o, "/models/verify", name, &p, e);
    bool sound = rc == OK && json_is_true(remote_at(p.json, "sound"));
    const json_t *found = remote_at(p.json, "not_finite");

    if (rc == OK && o->json) buf_put_str(&out, buf_str(&p.body)), buf_putc(&out, '\n');
    for (size_t i = 0; rc == OK && !o->json && i < json_array_size(found); i++) {
        remote_put_text(&out, str_c(json_string_value(json_array_get(found, i))), false);
        buf_putc(&out, '\n');
    }
    if (sound && !o->json) {
        remote_put_text(&out, str_c(remote_text(p.json, "path")), false);
        buf_printf(&out, ": sound: %.0f tensors, %.1f MiB, all numbers are finite (%.1f s)\n",
                   remote_num(p.json, "tensors"), remote_num(p.json, "bytes") / (1 << 20),
                   clock_ms_since(start) / 1e3);
    }
    if (rc == OK) rc = cli_write(stdout, &out, e);
    if (rc == OK && !sound) rc = err_set(e, E_DAMAGED, "%s", remote_text(p.json, "error"));
    buf_release(&out);
    remote_reply_release(&p);
    return rc;
}

/* ---- the command ---- */

static int run_word(struct models *o, const char *word, const char *name, struct err *e)
{
    struct str w = str_c(word);
    bool needs_name = str_is(w, "load") || str_is(w, "unload") || str_is(w, "verify");

    if (str_is(w, "list") && name) return err_set(e, E_INVALID, "list takes no name");
    if (needs_name && !name) return err_set(e, E_INVALID, "%s needs the name of a model", word);
    if (str_is(w, "list")) return list_models(o, "/models", e);
    if (str_is(w, "load")) return change_model(o, "/models/load", name, "loaded", e);
    if (str_is(w, "unload")) return change_model(o, "/models/unload", name, "unloaded", e);
    if (str_is(w, "reload")) return reload_models(o, name, e);
    if (str_is(w, "verify")) return verify_model(o, name, e);
    return cmd_unknown_word(word, MODELS_WORDS, e);
}

/* Loading may take minutes: no time limit unless one is given. */
static bool is_slow(const char *word)
{
    return str_is(str_c(word), "load") || str_is(str_c(word), "reload") ||
           str_is(str_c(word), "unload") || str_is(str_c(word), "verify");
}

int cmd_models(int argc, char **argv)
{
    struct models o = { .remote.timeout_s = -1 };
    const struct arg table[] = {
        REMOTE_ARGS(&o.remote),
        { "--keep-alive", NULL, ARG_STR, &o.keep_alive, "TIME",
          "load: idle time until it is unloaded, 10m; -1: never (the server's)" },
        { "--json", NULL, ARG_FLAG, &o.json, NULL, "print the server's reply" },
        { 0 },
    };
    const char *pos[2] = { "list", NULL };
    struct err e = { 0 };
    bool helped;
    int n_pos, rc = args_parse(&verb, table, argc, argv, pos, 2, &n_pos, &helped, &e);

    if (rc == OK && helped) return EXIT_OK;
    if (o.remote.timeout_s == -1) o.remote.timeout_s = is_slow(pos[0]) ? 0 : REMOTE_TIMEOUT_S;
    if (rc == OK) rc = remote_open(&o.r, &o.remote, &e);
    if (rc == OK) rc = run_word(&o, pos[0], pos[1], &e);
    rc = remote_result(&o.r, verb.name, rc, &e);
    remote_close(&o.r);
    return rc;
}
