/* load_probe.c - questions to the server before a load run: is it there, does it accept the key,
 * which model does it have, how many tokens are our words. */
#include "loadtest/load_run.h"

#include "base/jsonr.h"

#include <jansson.h>
#include <stdio.h>

#define SAMPLE_WORDS 200
#define PROBE_MS 30000 /* wait for an answer at most */

struct probe {
    struct load_target *target;
    bool over;
    enum load_end end;
};

static void on_probe_timeout(evutil_socket_t fd, short what, void *arg)
{
    struct probe *p = arg;
    (void)fd, (void)what;
    event_base_loopbreak(p->target->base);
}

static void on_probe_done(void *arg, enum load_end end)
{
    struct probe *p = arg;

    p->over = true;
    p->end = end;
    event_base_loopbreak(p->target->base);
}

/* Sends one request and waits for its reply. *status: 0 if there was none; *json: the reply's body,
 * NULL if it is not JSON. */
static int send_probe(struct load_target *t, const char *path, struct str body, int *status,
                      json_t **json, struct err *e)
{
    static const struct load_calls calls = { .done = on_probe_done };
    struct probe p = { .target = t };
    struct load_client *c = load_client_open(t, &calls, &p);
    struct event *timeout = evtimer_new(t->base, on_probe_timeout, &p);
    int rc = c && timeout && load_arm(timeout, PROBE_MS) ? OK : err_nomem(e, "an HTTP client");

    *status = 0;
    if (rc == OK) load_client_send(c, path, "", body);
    if (rc == OK && !p.over) event_base_dispatch(t->base);
    if (timeout) event_free(timeout);
    if (p.over && p.end == LOAD_END_REPLY) {
        const struct load_http *h = load_client_reply(c);
        *status = h->status;
        *json = jsonr_load(buf_str(&h->body), 0, NULL);
    }
    if (p.over && p.end == LOAD_END_NOMEM) rc = err_nomem(e, "an HTTP request");
    load_client_close(c);
    return rc;
}

/* By llama.cpp's and tern's /tokenize; a server without it gets 1 token per word. */
static int measure_tokens_per_word(struct load_target *t, struct load_plan *p, struct err *e)
{
    struct buf text = { 0 }, body = { 0 };
    json_t *json = NULL;
    int status = 0, rc;

    load_plan_words(p->seed, SAMPLE_WORDS, &text);
    buf_printf(&body, "{\"content\":\"%s\",\"add_special\":false}", buf_cstr(&text));
    p->tokens_per_word = 1;
    if ((rc = buf_check(&text, e)) == OK && (rc = buf_check(&body, e)) == OK)
        rc = send_probe(t, "/tokenize", buf_str(&body), &status, &json, e);
    if (rc == OK && status == 200) {
        size_t n = json_array_size(json_object_get(json, "tokens"));
        if (n >= SAMPLE_WORDS / 4 && n <= 20 * SAMPLE_WORDS)
            p->tokens_per_word = (double)n / SAMPLE_WORDS;
    }
    json_decref(json);
    buf_release(&body);
    buf_release(&text);
    return rc;
}

int load_probe(struct load_target *t, struct load_plan *p, struct err *e)
{
    json_t *json = NULL;
    int status = 0, rc = send_probe(t, "/v1/models", (struct str){ 0 }, &status, &json, e);

    if (rc == OK && status == 0)
        rc = err_set(e, E_IO, "%s: no HTTP server answers there%s", p->url,
                     t->tls ? ", or its certificate is not trusted (--insecure accepts any)" : "");
    else if (rc == OK && (status == 401 || status == 403))
        rc = err_set(e, E_DENIED, "%s: the server does not accept this --api-key", p->url);
    if (rc == OK && !*p->model) {
        const char *id = json_string_value(
            json_object_get(json_array_get(json_object_get(json, "data"), 0), "id"));
        if (id) snprintf(p->model, sizeof p->model, "%s", id);
    }
    json_decref(json);
    if (rc == OK && !p->id_high) rc = measure_tokens_per_word(t, p, e);
    return rc;
}
