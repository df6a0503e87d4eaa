/* load_probe.c - what a load run must know of the server before it starts. */
#include "loadtest/load_run.h"

#include <jansson.h>
#include <stdio.h>

#define SAMPLE_WORDS 200
#define PROBE_MS 30000

struct probe {
    struct load_target *target;
    bool over;
    enum load_end end;
};

static void probe_late(evutil_socket_t fd, short what, void *arg)
{
    struct probe *p = arg;
    (void)fd, (void)what;
    event_base_loopbreak(p->target->base);
}

static void probe_done(void *arg, enum load_end end)
{
    struct probe *p = arg;

    p->over = true;
    p->end = end;
    event_base_loopbreak(p->target->base);
}

/* One request, waited for. The status, or 0; *json is the reply or NULL. */
static int ask(struct load_target *t, const char *path, struct str body, json_t **json)
{
    static const struct load_calls calls = { .done = probe_done };
    struct probe p = { .target = t };
    struct load_client *c = load_client_open(t, &calls, &p);
    struct event *late = evtimer_new(t->base, probe_late, &p);
    int status = 0;

    load_arm(late, PROBE_MS);
    load_client_send(c, path, "", body);
    if (!p.over) event_base_dispatch(t->base);
    event_free(late);
    if (p.over && p.end == END_REPLY) {
        const struct load_http *h = load_client_reply(c);
        status = h->status;
        *json = json_loadb(h->body.p ? h->body.p : "", h->body.n, 0, NULL);
    }
    load_client_close(c);
    return status;
}

static void tokens_per_word(struct load_target *t, struct load_plan *p)
{
    struct buf text = { 0 }, body = { 0 };
    json_t *json = NULL;
    size_t n;

    load_plan_words(p->seed, SAMPLE_WORDS, &text);
    buf_printf(&body, "{\"content\":\"%.*s\",\"add_special\":false}", STR_ARG(buf_str(&text)));
    p->tokens_per_word = 1;
    if (ask(t, "/tokenize", buf_str(&body), &json) == 200) {
        n = json_array_size(json_object_get(json, "tokens"));
        if (n >= SAMPLE_WORDS / 4 && n <= 20 * SAMPLE_WORDS)
            p->tokens_per_word = (double)n / SAMPLE_WORDS;
    }
    json_decref(json);
    buf_release(&body);
    buf_release(&text);
}

int load_probe(struct load_target *t, struct load_plan *p, struct err *e)
{
    json_t *json = NULL;
    const char *id;
    int rc = OK, status = ask(t, "/v1/models", (struct str){ 0 }, &json);

    if (status == 0)
        rc = err_set(e, E_IO, "%s: no HTTP server answers there%s", p->url,
                     t->tls ? ", or its certificate is not to be trusted (--insecure)" : "");
    else if (status == 401 || status == 403)
        rc = err_set(e, E_DENIED, "%s: wants another --api-key", p->url);
    if (rc == OK && !*p->model) {
        id = json_string_value(
            json_object_get(json_array_get(json_object_get(json, "data"), 0), "id"));
        if (id) snprintf(p->model, sizeof p->model, "%s", id);
    }
    json_decref(json);
    if (rc == OK && !p->id_high) tokens_per_word(t, p);
    return rc;
}
