/* cmd_cluster.c - tern cluster: the workers of a running gateway. */
#include "cli/cliio.h"
#include "cli/cmd.h"
#include "cli/remote.h"

#include <stdlib.h>

static const struct verb verb = {
    "cluster",
    "tern cluster [status|drain|undrain|weights] [WORKER [WEIGHT]] [flags]",
    "Shows and steers the workers of a gateway: status lists them, of a server with tp or pp\n"
    "the members of its models; drain gives a worker no new\n"
    "requests, undrain takes it back, weights sets how much work it gets. WORKER is its URL.\n"
    "\n"
    "examples:\n"
    "  tern cluster status --url http://127.0.0.1:9000\n"
    "  tern cluster drain http://10.0.0.1:8080 --url http://127.0.0.1:9000\n"
    "  tern cluster weights http://10.0.0.1:8080 2.5",
};

static void put_worker(struct buf *out, const json_t *w)
{
    struct buf url = { 0 }, state = { 0 };
    const json_t *models = remote_at(w, "models");

    remote_put_text(&url, str_c(remote_text(w, "url")), false);
    remote_put_text(&state, str_c(remote_text(w, "state")), false);
    buf_printf(out, "%-32s %-9s %6g %8.0f %8.0f %9.0f %9.0f  ", buf_cstr(&url), buf_cstr(&state),
               remote_num(w, "weight"), remote_num(w, "running"), remote_num(w, "waiting"),
               remote_num(w, "requests"), remote_num(w, "failures"));
    for (size_t i = 0; i < json_array_size(models); i++) {
        buf_puts(out, i ? ", " : "");
        remote_put_text(out, str_c(json_string_value(json_array_get(models, i))), false);
    }
    buf_putc(out, '\n');
    if (*remote_text(w, "gang")) {
        buf_puts(out, "  gang ");
        remote_put_text(out, str_c(remote_text(w, "gang")), false);
        buf_putc(out, '\n');
    }
    buf_release(&url);
    buf_release(&state);
}

static void put_member(struct buf *out, const json_t *m)
{
    const json_t *layers = remote_at(m, "layers");
    double bytes =
        remote_num(m, "weight_bytes") + remote_num(m, "kv_bytes") + remote_num(m, "scratch_bytes");
    struct buf host = { 0 };

    remote_put_text(&host, str_c(remote_text(m, "host")), false);
    buf_printf(out, "%6.0f %-16s %9.0f  %5lld-%-5lld %5.1f %% %9.1f  ", remote_num(m, "rank"),
               buf_cstr(&host), remote_num(m, "pid"),
               (long long)json_integer_value(json_array_get(layers, 0)),
               (long long)json_integer_value(json_array_get(layers, 1)) - 1,
               100 * remote_num(m, "share"), bytes / 1048576);
    remote_put_text(out, str_c(remote_text(m, "device")), false);
    buf_putc(out, '\n');
    buf_release(&host);
}

/* A server: the members of its models that have several. false: there are none. */
static bool put_gangs(struct buf *out, const json_t *models)
{
    bool any = false;

    for (size_t i = 0; i < json_array_size(models); i++) {
        const json_t *model = json_array_get(models, i), *gang = remote_at(model, "gang"),
                     *members = remote_at(gang, "members");
        if (!json_is_array(members)) continue;
        any = true;
        remote_put_text(out, str_c(remote_text(model, "id")), false);
        buf_printf(out, ": %zu members, tp %.0f, pp %.0f, by %s, communication %.1f %%\n",
                   json_array_size(members), remote_num(gang, "tp"), remote_num(gang, "pp"),
                   remote_text(gang, "transport"), 100 * remote_num(gang, "comm_share"));
        buf_printf(out, "%6s %-16s %9s  %-11s %7s %9s  %s\n", "MEMBER", "HOST", "PID", "LAYERS",
                   "SHARE", "MIB", "DEVICE");
        for (size_t k = 0; k < json_array_size(members); k++)
            put_member(out, json_array_get(members, k));
    }
    return any;
}

static int print_status(const struct remote_reply *p, bool json, struct err *e)
{
    const json_t *workers = remote_at(p->json, "workers");
    struct buf out = { 0 };
    int rc;

    if (!json_is_array(workers) && (json || !put_gangs(&out, remote_at(p->json, "models")))) {
        buf_release(&out);
        return err_set(e, E_INVALID,
                       "this is no gateway, and has no model of several members: its /status lists "
                       "no workers");
    }
    if (json) {
        buf_put_str(&out, buf_str(&p->body));
        buf_putc(&out, '\n');
    } else if (json_is_array(workers)) {
        buf_printf(&out,
                   "policy %s, %.0f requests in flight, %.0f streams moved, imbalance %.1f %%\n",
                   remote_text(p->json, "policy"), remote_num(p->json, "in_flight"),
                   remote_num(p->json, "replays"), 100 * remote_num(p->json, "imbalance"));
        buf_printf(&out, "%-32s %-9s %6s %8s %8s %9s %9s  %s\n", "WORKER", "STATE", "WEIGHT",
                   "RUNNING", "WAITING", "REQUESTS", "FAILURES", "MODELS");
        for (size_t i = 0; i < json_array_size(workers); i++)
            put_worker(&out, json_array_get(workers, i));
    }
    rc = cli_write(stdout, &out, e);
    buf_release(&out);
    return rc;
}

/* The body of a change; NULL: nothing is changed. */
static int make_body(const char *const *pos, int n, const char **path, json_t **body, struct err *e)
{
    bool drain = str_is(str_c(pos[0]), "drain");
    double weight;

    if (str_is(str_c(pos[0]), "status")) {
        if (n > 1) return err_set(e, E_INVALID, "status takes no argument");
        *path = "/status";
        return OK;
    }
    if (drain || str_is(str_c(pos[0]), "undrain")) {
        if (n != 2) return err_set(e, E_INVALID, "%s needs the URL of a worker", pos[0]);
        *path = "/cluster/drain";
        *body = cli_need(json_pack("{s:s,s:b}", "url", pos[1], "drain", (int)drain));
        return OK;
    }
    if (!str_is(str_c(pos[0]), "weights")) return cmd_unknown_word(pos[0], CLUSTER_WORDS, e);
    if (n != 3 || !str_to_f64(str_c(pos[2]), &weight) || !(weight >= 0 && weight <= 1000))
        return err_set(e, E_INVALID,
                       "weights needs the URL of a worker and a weight from 0 to 1000");
    *path = "/cluster/weights";
    *body = cli_need(json_pack("{s:s,s:f}", "url", pos[1], "weight", weight));
    return OK;
}

int cmd_cluster(int argc, char **argv)
{
    struct remote_opt o = { .timeout_s = REMOTE_TIMEOUT_S };
    bool json = false, helped;
    const struct arg table[] = {
        REMOTE_ARGS(&o),
        { "--json", NULL, ARG_FLAG, &json, NULL, "print the gateway's reply" },
        { 0 },
    };
    const char *pos[3] = { "status", NULL, NULL }, *path = NULL;
    struct remote_reply p = { 0 };
    struct remote r = { 0 };
    struct err e = { 0 };
    json_t *body = NULL;
    char *text = NULL;
    int n_pos, rc = args_parse(&verb, table, argc, argv, pos, 3, &n_pos, &helped, &e);

    if (rc == OK && helped) return EXIT_OK;
    if (rc == OK) rc = make_body(pos, n_pos, &path, &body, &e);
    if (rc == OK) rc = remote_open(&r, &o, &e);
    if (rc == OK && body) text = cli_need(json_dumps(body, 0));
    if (rc == OK) rc = remote_ask(&r, path, str_c(text), &p, &e);
    if (rc == OK) rc = print_status(&p, json, &e);
    rc = remote_result(&r, verb.name, rc, &e);
    remote_reply_release(&p);
    remote_close(&r);
    json_decref(body);
    free(text);
    return rc;
}
