/* gwstatus.c - /status, /metrics and the list of models: the gateway seen from outside.
 *
 * Labels of metrics are URLs of workers, of which there are at most FLEET_MAX, and states. */
#include "base/clock.h"
#include "base/jsonw.h"
#include "base/map.h"
#include "cluster/gateway_impl.h"
#include "cluster/gwjobs.h"
#include "cluster/gwmodels.h"
#include "cluster/gwstore.h"
#include "cluster/script.h"
#include "member/member.h"
#include "server/settings.h"

static void write_worker(struct jsonw *w, const struct worker *o)
{
    struct lane_stats l = { 0 };

    if (o->lane) lane_stats(o->lane, &l);
    jsonw_obj(w);
    jsonw_key(w, "url"), jsonw_str(w, str_c(o->url));
    jsonw_key(w, "state"), jsonw_str(w, str_c(worker_state_name(o->state)));
    jsonw_key(w, "reason"), jsonw_str(w, str_c(o->why));
    jsonw_key(w, "running"), jsonw_int(w, o->running > o->in_flight ? o->running : o->in_flight);
    jsonw_key(w, "waiting"), jsonw_int(w, o->waiting);
    jsonw_key(w, "models"), jsonw_arr(w);
    for (int i = 0; i < o->n_models; i++) jsonw_str(w, str_c(o->models[i].id));
    jsonw_end(w);
    jsonw_key(w, "loaded"), jsonw_arr(w);
    for (int i = 0; i < o->n_models; i++)
        if (o->models[i].loaded) jsonw_str(w, str_c(o->models[i].id));
    jsonw_end(w);
    jsonw_key(w, "free_bytes");
    if (o->free_bytes >= 0) jsonw_num(w, o->free_bytes);
    else jsonw_null(w);
    jsonw_key(w, "free_models");
    if (o->free_models >= 0) jsonw_int(w, o->free_models);
    else jsonw_null(w);
    jsonw_key(w, "devices"), jsonw_str(w, str_c(o->devices));
    jsonw_key(w, "gang"), jsonw_str(w, str_c(o->gang));
    jsonw_key(w, "kv_free"), jsonw_num(w, o->kv_free);
    jsonw_key(w, "weight"), jsonw_num(w, o->weight);
    jsonw_key(w, "in_flight"), jsonw_int(w, o->in_flight);
    jsonw_key(w, "tokens_outstanding"), jsonw_int(w, (int64_t)o->outstanding);
    jsonw_key(w, "breaker"), jsonw_str(w, o->half_open    ? STR("half_open")
                                          : o->open_until ? STR("open")
                                                          : STR("closed"));
    jsonw_key(w, "requests"), jsonw_int(w, (int64_t)o->n.requests);
    jsonw_key(w, "failures"), jsonw_int(w, (int64_t)o->n.failures);
    jsonw_key(w, "replayed"), jsonw_int(w, (int64_t)o->n.replayed);
    jsonw_key(w, "beats"), jsonw_int(w, (int64_t)o->n.beats);
    jsonw_key(w, "suspected"), jsonw_int(w, (int64_t)o->n.suspects);
    jsonw_key(w, "suspected_wrongly"), jsonw_int(w, (int64_t)o->n.wrong);
    jsonw_key(w, "rtt_ms"), jsonw_num(w, o->rtt_ms);
    jsonw_key(w, "detect_ms"), jsonw_num(w, o->n.detect_ms);
    jsonw_key(w, "connections"), jsonw_obj(w);
    jsonw_key(w, "idle"), jsonw_int(w, l.idle);
    jsonw_key(w, "busy"), jsonw_int(w, l.busy);
    jsonw_key(w, "opened"), jsonw_int(w, (int64_t)l.opened);
    jsonw_key(w, "reused"), jsonw_int(w, (int64_t)l.reused);
    jsonw_end(w);
    jsonw_end(w);
}

static void write_settings(struct gateway *g, struct buf *out)
{
    struct settings_facts f = { .gateway = true,
                                .port = http_port(g->http),
                                .max_conns = g->max_conns,
                                .has_keys = !auth_is_open(g->auth) };

    settings_json(g->s, &f, out);
}

void gateway_write_status(struct gateway *g, struct buf *out)
{
    struct jsonw w = { .out = out };

    jsonw_obj(&w);
    jsonw_key(&w, "role"), jsonw_str(&w, STR("gateway"));
    jsonw_key(&w, "version"), jsonw_str(&w, STR(TERN_VERSION));
    jsonw_key(&w, "uptime_s"), jsonw_num(&w, clock_ms_since(g->start_ns) / 1e3);
    jsonw_key(&w, "policy"), jsonw_str(&w, str_c(g->s->policy));
    jsonw_key(&w, "in_flight"), jsonw_int(&w, g->n_relays);
    jsonw_key(&w, "imbalance"), jsonw_num(&w, fleet_imbalance(g->fleet));
    jsonw_key(&w, "retries"), jsonw_int(&w, (int64_t)counter_get(&g->n.retries));
    jsonw_key(&w, "replays"), jsonw_int(&w, (int64_t)counter_get(&g->n.replays));
    jsonw_key(&w, "bodies"), jsonw_obj(&w);
    jsonw_key(&w, "pieces"), jsonw_int(&w, (int64_t)counter_get(&g->n.looks));
    jsonw_key(&w, "bytes"), jsonw_int(&w, (int64_t)counter_get(&g->n.looked_bytes));
    jsonw_key(&w, "most_bytes"), jsonw_int(&w, (int64_t)g->n.look_most);
    jsonw_end(&w);
    jsonw_key(&w, "placed"), jsonw_int(&w, (int64_t)counter_get(&g->n.placed));
    jsonw_key(&w, "placed_by_prefix"), jsonw_int(&w, (int64_t)counter_get(&g->n.by_prefix));
    if (g->script) {
        jsonw_key(&w, "policy_script"), jsonw_obj(&w);
        jsonw_key(&w, "chosen"), jsonw_int(&w, (int64_t)script_n_chosen(g->script));
        jsonw_key(&w, "failed"), jsonw_int(&w, (int64_t)script_n_failed(g->script));
        jsonw_end(&w);
    }
    if (g->roster) {
        jsonw_key(&w, "nats"), jsonw_obj(&w);
        jsonw_key(&w, "url"), jsonw_str(&w, str_c(g->s->nats));
        jsonw_key(&w, "connected"), jsonw_bool(&w, roster_is_connected(g->roster));
        jsonw_end(&w);
    }
    if (g->jobs) jsonw_key(&w, "durable"), gwjobs_write_status(g->jobs, &w);
    if (g->store) jsonw_key(&w, "store"), gwstore_write_status(g->store, &w);
    jsonw_key(&w, "models"), gwmodels_write_status(g->models, &w);
    jsonw_key(&w, "workers"), jsonw_arr(&w);
    for (int i = 0; i < fleet_n(g->fleet); i++)
        if (fleet_at(g->fleet, i)) write_worker(&w, fleet_at(g->fleet, i));
    jsonw_end(&w);
    buf_puts(out, ",\"settings\":"); /* writes itself */
    write_settings(g, out);
    jsonw_end(&w);
}

/* ---- metrics ---- */

typedef double worker_number(const struct worker *w);

static double is_up(const struct worker *w) { return w->state == WORKER_READY; }
static double get_running(const struct worker *w) { return w->running; }
static double get_waiting(const struct worker *w) { return w->waiting; }
static double get_in_flight(const struct worker *w) { return w->in_flight; }
static double get_outstanding(const struct worker *w) { return w->outstanding; }
static double get_requests(const struct worker *w) { return (double)w->n.requests; }
static double get_failures(const struct worker *w) { return (double)w->n.failures; }
static double get_replayed(const struct worker *w) { return (double)w->n.replayed; }
static double get_beats(const struct worker *w) { return (double)w->n.beats; }
static double get_suspects(const struct worker *w) { return (double)w->n.suspects; }
static double get_wrong(const struct worker *w) { return (double)w->n.wrong; }
static double get_opened(const struct worker *w) { return (double)w->n.opened; }

static double get_connections(const struct worker *w)
{
    struct lane_stats l = { 0 };
    if (w->lane) lane_stats(w->lane, &l);
    return l.idle + l.busy;
}
static double get_reused(const struct worker *w)
{
    struct lane_stats l = { 0 };
    if (w->lane) lane_stats(w->lane, &l);
    return (double)l.reused;
}
static double get_new(const struct worker *w)
{
    struct lane_stats l = { 0 };
    if (w->lane) lane_stats(w->lane, &l);
    return (double)l.opened;
}

static void write_per_worker(struct gateway *g, struct buf *out)
{
    static const struct {
        const char *name, *help;
        bool counter;
        worker_number *of;
    } rows[] = {
        { "tern_gateway_worker_up", "1: the worker is ready", false, is_up },
        { "tern_gateway_worker_running", "requests that run there, of all clients", false,
          get_running },
        { "tern_gateway_worker_waiting", "requests that wait there", false, get_waiting },
        { "tern_gateway_worker_in_flight", "requests of this gateway", false, get_in_flight },
        { "tern_gateway_worker_tokens_outstanding", "estimated tokens of those", false,
          get_outstanding },
        { "tern_gateway_worker_connections", "connections to the worker", false, get_connections },
        { "tern_gateway_worker_requests_total", "requests sent", true, get_requests },
        { "tern_gateway_worker_failures_total", "requests that the worker failed", true,
          get_failures },
        { "tern_gateway_worker_replays_total", "streams that continued on the worker", true,
          get_replayed },
        { "tern_gateway_worker_heartbeats_total", "signs of life", true, get_beats },
        { "tern_gateway_worker_suspected_total", "times it was silent too long", true,
          get_suspects },
        { "tern_gateway_worker_suspected_wrongly_total", "of those, times it answered after all",
          true, get_wrong },
        { "tern_gateway_worker_breaker_opened_total", "times the breaker opened", true,
          get_opened },
        { "tern_gateway_worker_connections_reused_total", "requests on a kept connection", true,
          get_reused },
        { "tern_gateway_worker_connections_opened_total", "connections made", true, get_new },
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *help = rows[i].help;
        for (int k = 0; k < fleet_n(g->fleet); k++) {
            struct worker *w = fleet_at(g->fleet, k);
            struct buf label = { 0 };
            if (!w) continue;
            stat_label(&label, "worker", str_c(w->url));
            if (rows[i].counter)
                stat_counter(out, rows[i].name, buf_cstr(&label), help, (uint64_t)rows[i].of(w));
            else stat_gauge(out, rows[i].name, buf_cstr(&label), help, rows[i].of(w));
            buf_release(&label);
            help = NULL;
        }
    }
}

void gateway_write_metrics(struct gateway *g, struct buf *out)
{
    static const char *const classes[] = { "", "1xx", "2xx", "3xx", "4xx", "5xx" };
    const char *help = "replies by class of status";

    for (int i = 1; i < GW_STATUS_CLASSES; i++) {
        struct buf label = { 0 };
        stat_label(&label, "status", str_c(classes[i]));
        stat_counter(out, "tern_gateway_replies_total", buf_cstr(&label), help,
                     counter_get(&g->n.replies[i]));
        buf_release(&label);
        help = NULL;
    }
    stat_gauge(out, "tern_gateway_in_flight", "", "requests in flight", g->n_relays);
    stat_gauge(out, "tern_gateway_imbalance", "", "work of the most loaded worker above the mean",
               fleet_imbalance(g->fleet));
    stat_counter(out, "tern_gateway_placed_total", "", "placements", counter_get(&g->n.placed));
    stat_counter(out, "tern_gateway_placed_by_prefix_total", "",
                 "placements on a worker that has computed the prefix",
                 counter_get(&g->n.by_prefix));
    stat_counter(out, "tern_gateway_retries_total", "", "further attempts",
                 counter_get(&g->n.retries));
    stat_counter(out, "tern_gateway_replays_total", "", "streams sent to another worker",
                 counter_get(&g->n.replays));
    stat_counter(out, "tern_gateway_replay_failed_total", "", "streams that could not continue",
                 counter_get(&g->n.replay_failed));
    stat_counter(out, "tern_gateway_no_worker_total", "", "requests that found no worker",
                 counter_get(&g->n.no_worker));
    stat_counter(out, "tern_gateway_client_gone_total", "", "clients that left before the end",
                 counter_get(&g->n.gone));
    if (g->script) {
        stat_counter(out, "tern_gateway_script_chosen_total", "", "placements by the script",
                     script_n_chosen(g->script));
        stat_counter(out, "tern_gateway_script_failed_total", "",
                     "calls of the script that failed: the built-in policy chose",
                     script_n_failed(g->script));
    }
    if (g->roster)
        stat_gauge(out, "tern_gateway_nats_connected", "", "1: NATS answers",
                   roster_is_connected(g->roster));
    gwmodels_write_metrics(g->models, out);
    if (g->jobs) gwjobs_write_metrics(g->jobs, out);
    if (g->store) gwstore_write_metrics(g->store, out);
    stat_hist(out, "tern_gateway_place_us", "", "request read to worker chosen", &g->n.place_us);
    stat_hist(out, "tern_gateway_first_byte_ms", "", "request read to the head of the reply",
              &g->n.first_ms);
    stat_hist(out, "tern_gateway_replay_pause_ms", "", "pause of streams that moved",
              &g->n.pause_ms);
    write_per_worker(g, out);
}

/* ---- models ---- */

/* Is there a worker before i that lists the model? Of several the first that has it loaded counts. */
static bool is_listed_before(struct gateway *g, int i, const struct worker_model *m)
{
    for (int k = 0; k < fleet_n(g->fleet); k++) {
        struct worker *w = fleet_at(g->fleet, k);
        if (!w || k == i || w->state == WORKER_GONE) continue;
        for (int j = 0; j < w->n_models; j++) {
            if (strcmp(w->models[j].id, m->id) != 0) continue;
            if (w->models[j].loaded != m->loaded ? w->models[j].loaded : k < i) return true;
        }
    }
    return false;
}

/* The j-th element of a list of JSON objects: the texts are jansson's own, so braces outside of
 * strings nest. */
static struct str element_of(struct str list, int j)
{
    size_t begin = 0;
    int depth = 0, n = 0;
    bool text = false;

    for (size_t i = 0; i < list.n; i++) {
        char c = list.p[i];
        if (text) {
            if (c == '\\') i++;
            else if (c == '"') text = false;
        } else if (c == '"') text = true;
        else if (c == '{' || c == '[') {
            if (depth++ == 0) begin = i;
        } else if ((c == '}' || c == ']') && --depth == 0 && n++ == j)
            return str_of(list.p + begin, i + 1 - begin);
    }
    return STR("null");
}

static void write_entries(struct gateway *g, struct jsonw *w, struct str only)
{
    for (int i = 0; i < fleet_n(g->fleet); i++) {
        struct worker *o = fleet_at(g->fleet, i);
        if (!o || o->state == WORKER_GONE) continue;
        for (int k = 0; k < o->n_models; k++) {
            if (only.p && !str_is(only, o->models[k].id)) continue;
            if (!is_listed_before(g, i, &o->models[k]))
                jsonw_raw(w, element_of(buf_str(&o->list), k));
        }
    }
}

void gateway_write_models(struct gateway *g, struct buf *out)
{
    struct jsonw w = { .out = out };

    jsonw_obj(&w);
    jsonw_key(&w, "object"), jsonw_str(&w, STR("list"));
    jsonw_key(&w, "data"), jsonw_arr(&w);
    write_entries(g, &w, str_of(NULL, 0));
    jsonw_end(&w);
    jsonw_end(&w);
}

/* An alias is looked up first. */
bool gateway_write_model(struct gateway *g, struct str id, struct buf *out)
{
    struct jsonw w = { .out = out };

    for (int i = 0; i < fleet_n(g->fleet) && id.n; i++) {
        struct worker *o = fleet_at(g->fleet, i);
        for (int k = 0; o && k < o->n_models; k++)
            for (int a = 0; a < o->models[k].n_aliases; a++)
                if (str_is(id, o->models[k].aliases[a])) {
                    write_entries(g, &w, str_c(o->models[k].id));
                    return out->n > 0;
                }
    }
    if (id.n) write_entries(g, &w, id);
    return out->n > 0;
}
