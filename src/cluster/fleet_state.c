/* fleet_state.c - reads what a worker says of itself (GET /cluster/state): bytes of another process, so
 * every member is checked, and a reply that is wrong changes nothing. */
#include "base/jsonr.h"
#include "base/mem.h"
#include "cluster/fleet.h"

#include <stdio.h>

void fleet_free_models(struct worker_model *m, int n)
{
    for (int i = 0; m && i < n; i++) {
        for (int k = 0; k < m[i].n_aliases; k++) mem_free(m[i].aliases[k]);
        mem_free(m[i].aliases);
        mem_free(m[i].id);
    }
    mem_free(m);
}

const struct worker_model *worker_model(const struct worker *w, struct str name)
{
    if (name.n == 0) return w->n_models ? &w->models[0] : NULL;
    for (int i = 0; i < w->n_models; i++) {
        if (str_is(name, w->models[i].id)) return &w->models[i];
        for (int k = 0; k < w->models[i].n_aliases; k++)
            if (str_is(name, w->models[i].aliases[k])) return &w->models[i];
    }
    /* A server with one model answers whatever name a request gives. */
    return w->n_models == 1 ? &w->models[0] : NULL;
}

static int read_model(struct worker_model *m, const json_t *v, struct err *e)
{
    const json_t *model = json_object_get(v, "model"), *aliases;
    const char *id = json_string_value(json_object_get(model, "id")),
               *state =
                   json_string_value(json_object_get(json_object_get(model, "status"), "value"));
    size_t n;

    if (!id || !*id || strlen(id) > 500)
        return err_set(e, E_FORMAT, "/cluster/state: a model has no id of 1 to 500 bytes");
    aliases = json_object_get(model, "aliases");
    n = json_array_size(aliases);
    if (!(m->id = mem_strdup(id)) || (n && !(m->aliases = mem_array(n, sizeof *m->aliases))))
        return err_nomem(e, "the models of a worker");
    for (size_t i = 0; i < n; i++) {
        const char *a = json_string_value(json_array_get(aliases, i));
        if (!a) return err_set(e, E_FORMAT, "/cluster/state: an alias of %s is not a text", id);
        if (!(m->aliases[m->n_aliases] = mem_strdup(a))) return err_nomem(e, "an alias");
        m->n_aliases++;
    }
    m->loaded = state && strcmp(state, "loaded") == 0;
    m->loading = state && strcmp(state, "loading") == 0;
    m->failed = state && strcmp(state, "failed") == 0;
    m->bytes = json_number_value(json_object_get(v, "bytes"));
    if (!(m->bytes >= 0)) m->bytes = 0;
    m->running = (int)json_integer_value(json_object_get(v, "running"));
    m->waiting = (int)json_integer_value(json_object_get(v, "waiting"));
    m->kv_free = json_number_value(json_object_get(v, "kv_free"));
    return OK;
}

static int read_models(const json_t *list, struct worker_model **out, int *n_out, struct buf *text,
                       struct err *e)
{
    size_t n = json_array_size(list);
    int rc = OK;

    if (!json_is_array(list)) return err_set(e, E_FORMAT, "/cluster/state: 'models' is not a list");
    if (n > 4096) return err_set(e, E_FORMAT, "/cluster/state: more than 4096 models");
    if (n && !(*out = mem_array(n, sizeof **out))) return err_nomem(e, "the models of a worker");
    for (size_t i = 0; i < n && rc == OK; i++) {
        const json_t *v = json_array_get(list, i);
        (*n_out)++;
        if ((rc = read_model(&(*out)[i], v, e)) != OK) break;
        if (i) buf_putc(text, ',');
        jsonr_dump(text, json_object_get(v, "model"), JSON_COMPACT);
    }
    return rc == OK ? buf_check(text, e) : rc;
}

static bool is_same_list(const struct worker *w, const struct worker_model *m, int n)
{
    if (n != w->n_models) return false;
    for (int i = 0; i < n; i++)
        if (strcmp(m[i].id, w->models[i].id) != 0 || m[i].loaded != w->models[i].loaded)
            return false;
    return true;
}

/* A model that was in memory before is as large as it was. */
static void keep_bytes(const struct worker *w, struct worker_model *m, int n)
{
    for (int i = 0; i < n; i++)
        for (int k = 0; k < w->n_models && m[i].bytes == 0; k++)
            if (strcmp(m[i].id, w->models[k].id) == 0) m[i].bytes = w->models[k].bytes;
}

/* Workers of an earlier version do not say it: they have room then. */
static void read_room(struct worker *w, const json_t *room)
{
    const json_t *models = json_object_get(room, "models"), *bytes = json_object_get(room, "bytes");

    w->free_models = json_is_integer(models) && json_integer_value(models) >= 0 &&
                             json_integer_value(models) < 1000000
                         ? (int)json_integer_value(models)
                         : -1;
    w->free_bytes =
        json_is_number(bytes) && json_number_value(bytes) >= 0 ? json_number_value(bytes) : -1;
}

/* For people: the first devices, as far as there is room. */
static void read_devices(struct worker *w, const json_t *list)
{
    size_t at = 0;

    w->devices[0] = 0;
    for (size_t i = 0; i < json_array_size(list) && at < sizeof w->devices; i++) {
        const json_t *d = json_array_get(list, i);
        const char *name = json_string_value(json_object_get(d, "name")),
                   *detail = json_string_value(json_object_get(d, "detail"));
        int n;
        if (!name) continue;
        n = snprintf(w->devices + at, sizeof w->devices - at,
                     detail && *detail ? "%s%s (%s)" : "%s%s", at ? ", " : "", name, detail);
        if (n > 0) at += (size_t)n;
    }
}

/* A member of it that is out of range is shown as 0. */
static int small(const json_t *v, const char *key)
{
    int64_t n = json_integer_value(json_object_get(v, key));

    return n > 0 && n <= 4096 ? (int)n : 0;
}

static void put_gang(struct buf *out, const json_t *v)
{
    const char *model = json_string_value(json_object_get(v, "model"));
    const json_t *hosts = json_object_get(v, "hosts");
    double share = json_number_value(json_object_get(v, "comm_share"));

    if (!model) return;
    buf_printf(out, "%s%.60s: %d members (tp %d, pp %d)", out->n ? "; " : "", model,
               small(v, "members"), small(v, "tp"), small(v, "pp"));
    for (size_t i = 0; i < json_array_size(hosts) && i < 8; i++) {
        const char *host = json_string_value(json_array_get(hosts, i));
        buf_printf(out, "%s%.40s", i ? ", " : " on ", host ? host : "?");
    }
    buf_printf(out, ", %.0f %% communication", share > 0 && share <= 1 ? 100 * share : 0);
}

/* For people, too: models of several members. */
static void read_gangs(struct worker *w, const json_t *list)
{
    struct buf text = { 0 };

    for (size_t i = 0; i < json_array_size(list) && i < 8; i++)
        put_gang(&text, json_array_get(list, i));
    snprintf(w->gang, sizeof w->gang, "%s", buf_cstr(&text));
    buf_release(&text);
}

static int take_state(struct worker *w, const json_t *root, struct err *e)
{
    const char *instance = json_string_value(json_object_get(root, "instance"));
    struct worker_model *models = NULL;
    struct buf text = { 0 };
    int n = 0, rc;
    bool same;

    if (json_integer_value(json_object_get(root, "v")) != 1)
        return err_set(e, E_FORMAT, "/cluster/state: 'v' is not 1: another version of tern?");
    if (!instance || !*instance || strlen(instance) >= sizeof w->instance)
        return err_set(e, E_FORMAT, "/cluster/state: no 'instance' of 1 to %zu bytes",
                       sizeof w->instance - 1);
    rc = read_models(json_object_get(root, "models"), &models, &n, &text, e);
    if (rc != OK) {
        fleet_free_models(models, n);
        buf_release(&text);
        return rc;
    }
    same = is_same_list(w, models, n);
    keep_bytes(w, models, n);
    fleet_free_models(w->models, w->n_models);
    buf_release(&w->list);
    w->models = models;
    w->n_models = n;
    w->list = text;
    w->store = json_is_true(json_object_get(root, "store")) ? STORE_THERE : STORE_NONE;
    w->says_draining = json_is_true(json_object_get(root, "draining"));
    read_room(w, json_object_get(root, "room"));
    read_devices(w, json_object_get(root, "devices"));
    read_gangs(w, json_object_get(root, "gangs"));
    w->running = w->waiting = 0;
    w->kv_free = 1;
    for (int i = 0; i < n; i++) {
        w->running += models[i].running, w->waiting += models[i].waiting;
        if (models[i].loaded && models[i].kv_free < w->kv_free) w->kv_free = models[i].kv_free;
    }
    w->is_new = w->instance[0] && strcmp(w->instance, instance) != 0;
    w->has_changed = !same;
    snprintf(w->instance, sizeof w->instance, "%s", instance);
    return OK;
}

int fleet_read_state(struct worker *w, struct str json, struct err *e)
{
    json_error_t je;
    json_t *root = str_json_parts(json) > 100000 ? NULL : jsonr_load(json, 0, &je);
    int rc;

    if (!json_is_object(root)) {
        json_decref(root);
        return err_set(e, E_FORMAT, "GET /cluster/state did not answer with a JSON object (%.*s)",
                       STR_ARG(str_take(json, 80)));
    }
    rc = take_state(w, root, e);
    json_decref(root);
    return rc;
}
