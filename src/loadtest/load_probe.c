/* load_probe.c - questions to the server before a load run: is it there, does it accept the key,
 * which model does it have, how many tokens are our words. */
#include "loadtest/load_run.h"

#include "base/jsonr.h"

#include <jansson.h>
#include <stdio.h>

#define SAMPLE_WORDS 200
#define PROBE_MS 30000 /* wait for an answer at most */

/* Sends one request and waits for its reply. *status: 0 if there was none; *json: the reply's body,
 * NULL if it is not JSON. */
static int send_probe(struct load_target *t, const char *path, struct str body, int *status,
                      json_t **json, struct err *e)
{
    struct load_ask a = { .path = path, .body = body, .timeout_ms = PROBE_MS };
    struct load_reply r;
    int rc = load_ask(t, &a, &r, e);

    *status = r.status;
    if (r.end == LOAD_END_REPLY) *json = jsonr_load(buf_str(&r.body), 0, NULL);
    buf_release(&r.body);
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
