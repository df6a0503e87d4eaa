/* cmd_ps.c - tern ps: the models that a running server has loaded, as users of Ollama know it. */
#include "base/jsonw.h"
#include "cli/cliio.h"
#include "cli/cmd.h"
#include "cli/remote.h"

static const struct verb verb = {
    "ps",
    "tern ps [flags]",
    "Lists the models that a server has loaded: name, memory, device, context and when it is "
    "unloaded.\n"
    "\n"
    "examples:\n"
    "  tern ps\n"
    "  tern ps --json --url http://127.0.0.1:9000",
};

/* Does the model hold memory, or will it soon? */
static bool is_loaded(const json_t *m)
{
    struct str state = str_c(remote_text(m, "state"));

    return !str_is(state, "unloaded") && !str_is(state, "failed") && !str_is(state, "sleeping");
}

/* "in 4 min", "never", "in use", "loading 40 %". */
static void put_until(struct buf *b, const json_t *m)
{
    double ms = remote_num(m, "expires_ms");

    if (!str_is(str_c(remote_text(m, "state")), "ready")) {
        remote_put_text(b, str_c(remote_text(m, "state")), false);
        if (str_is(str_c(remote_text(m, "state")), "loading"))
            buf_printf(b, " %.0f %%", remote_num(m, "progress"));
    } else if (ms < 0) buf_puts(b, "forever");
    else if (remote_num(m, "uses") > 0) buf_puts(b, "in use");
    else if (ms >= 90e3) buf_printf(b, "%.0f min from now", ms / 60e3);
    else buf_printf(b, "%.0f s from now", ms / 1e3);
}

/* "cpu", or of several devices how the layers are shared: "cpu 4, cuda:0 24 layers". */
static void put_devices(struct buf *b, const json_t *m)
{
    const json_t *all = remote_at(m, "devices");
    size_t n = json_array_size(all);

    if (n < 2) remote_put_text(b, str_c(remote_text(m, "device")), false);
    for (size_t i = 0; n > 1 && i < n; i++) {
        const json_t *d = json_array_get(all, i);
        buf_puts(b, i ? ", " : "");
        remote_put_text(b, str_c(remote_text(d, "name")), false);
        buf_printf(b, " %.0f", remote_num(d, "layers"));
    }
    if (n > 1) buf_puts(b, " layers");
    if (b->n == 0) buf_putc(b, '-');
}

static void put_model(struct buf *out, const json_t *m)
{
    struct buf name = { 0 }, size = { 0 }, device = { 0 };
    double bytes = remote_num(m, "memory.total");

    remote_put_text(&name, str_c(remote_text(m, "id")), false);
    remote_put_bytes(&size, bytes > 0 ? bytes : remote_num(m, "planned_bytes"));
    put_devices(&device, m);
    buf_printf(out, "%-32s %-10s %-18s %-8.0f ", buf_cstr(&name), buf_cstr(&size),
               buf_cstr(&device), remote_num(m, "context"));
    put_until(out, m);
    buf_putc(out, '\n');
    buf_release(&name);
    buf_release(&size);
    buf_release(&device);
}

static void put_member(struct jsonw *w, const json_t *m)
{
    struct buf device = { 0 }, until = { 0 };

    put_devices(&device, m);
    put_until(&until, m);
    jsonw_obj(w);
    jsonw_key(w, "name"), jsonw_str(w, str_c(remote_text(m, "id")));
    jsonw_key(w, "state"), jsonw_str(w, str_c(remote_text(m, "state")));
    jsonw_key(w, "size"), jsonw_num(w, remote_num(m, "memory.total"));
    jsonw_key(w, "device"), jsonw_str(w, buf_str(&device));
    jsonw_key(w, "context"), jsonw_num(w, remote_num(m, "context"));
    jsonw_key(w, "until"), jsonw_str(w, buf_str(&until));
    jsonw_key(w, "expires_ms"), jsonw_num(w, remote_num(m, "expires_ms"));
    jsonw_end(w);
    buf_release(&device);
    buf_release(&until);
}

static void put_list(struct buf *out, const json_t *models, bool json)
{
    struct jsonw w = { .out = out };

    if (json) jsonw_obj(&w), jsonw_key(&w, "models"), jsonw_arr(&w);
    else
        buf_printf(out, "%-32s %-10s %-18s %-8s %s\n", "NAME", "SIZE", "DEVICE", "CONTEXT",
                   "UNTIL");
    for (size_t i = 0; i < json_array_size(models); i++) {
        const json_t *m = json_array_get(models, i);
        if (!is_loaded(m)) continue;
        if (json) put_member(&w, m);
        else put_model(out, m);
    }
    if (!json) return;
    jsonw_end(&w);
    jsonw_end(&w);
    buf_putc(out, '\n');
}

static int list_loaded(struct remote *r, bool json, struct err *e)
{
    struct remote_reply p = { 0 };
    struct buf out = { 0 };
    const json_t *models;
    int rc = remote_ask(r, "/status", (struct str){ 0 }, &p, e);

    models = remote_at(p.json, "models");
    if (rc == OK && remote_is_gateway(p.json)) rc = remote_refuse_gateway(r, e);
    if (rc == OK && !json_is_array(models))
        rc = err_set(e, E_FORMAT, "%s: the reply is not the status of a tern server", r->url);
    if (rc == OK) {
        put_list(&out, models, json);
        rc = cli_write(stdout, &out, e);
    }
    buf_release(&out);
    remote_reply_release(&p);
    return rc;
}

int cmd_ps(int argc, char **argv)
{
    struct remote_opt o = { .timeout_s = REMOTE_TIMEOUT_S };
    bool json = false, helped;
    const struct arg table[] = {
        REMOTE_ARGS(&o),
        { "--json", NULL, ARG_FLAG, &json, NULL, "print JSON" },
        { 0 },
    };
    struct remote r = { 0 };
    struct err e = { 0 };
    const char *pos;
    int n_pos, rc = args_parse(&verb, table, argc, argv, &pos, 0, &n_pos, &helped, &e);

    if (rc == OK && helped) return EXIT_OK;
    if (rc == OK) rc = remote_open(&r, &o, &e);
    if (rc == OK) rc = list_loaded(&r, json, &e);
    rc = remote_result(&r, verb.name, rc, &e);
    remote_close(&r);
    return rc;
}
