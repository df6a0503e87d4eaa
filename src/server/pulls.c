/* pulls.c - the pulls of the server, their clients, and progress in Ollama's words.
 *
 *     {"status":"pulling manifest"}
 *     {"status":"pulling 3f2a…","digest":"sha256:3f2a…","total":N,"completed":M}   of each file
 *     {"status":"success"}                                                         or {"error":TEXT}
 *
 * A client that joins a pull sees its progress from then on. */
#include "server/pulls.h"

#include "api/body.h"
#include "base/jsonr.h"
#include "base/jsonw.h"
#include "base/log.h"
#include "base/mem.h"
#include "net/http.h"
#include "pool/pool.h"
#include "pool/registry.h"
#include "server/auth.h"
#include "server/pullchild.h"
#include "server/server_impl.h"
#include "server/visit.h"

#include <stdio.h>
#include <string.h>

enum {
    PULLS_MOST = 4,    /* at once */
    CLIENTS_MOST = 32, /* of one pull */
    ERROR_BYTES = 400
};

struct puller { /* one client */
    struct puller *next;
    struct visit t;
    struct pull *pull;
    bool stream;
};

struct pull {
    struct pull *next;
    struct server *v;
    char *id; /* "hf.co/ORG/NAME[@REV][:FILE]" */
    struct pullchild *child;
    struct puller *clients;
    struct buf out;          /* a line to send */
    bool stopping, done;     /* done: the process said that all files are there */
    int status;              /* of the error */
    char error[ERROR_BYTES]; /* that it told; "": none */
};

/* ---- clients ---- */

/* The visit has ended. */
static void free_client(struct puller *c)
{
    for (struct puller **p = &c->pull->clients; *p; p = &(*p)->next)
        if (*p == c) {
            *p = c->next;
            break;
        }
    mem_free(c);
}

static void end_stream(struct puller *c)
{
    http_on_gone(c->t.q, NULL, NULL);
    http_end(c->t.q);
    visit_end_stream(&c->t, 200);
    free_client(c);
}

/* http_on_gone. A client that waits for one body is answered all the same, which ends its request. */
static void on_gone(void *arg)
{
    struct puller *c = arg;
    struct pull *p = c->pull;

    http_on_gone(c->t.q, NULL, NULL);
    if (c->stream) {
        end_stream(c);
    } else {
        visit_fail_status(&c->t, 499, "cancelled", "the client is gone");
        free_client(c);
    }
    if (p->clients || p->stopping) return;
    p->stopping = true;
    log_info("the pull of %s is stopped: nobody waits for it", p->id);
    pullchild_stop(p->child);
}

/* One line of JSON to those that read a stream. Whoever cannot be written to is gone soon. */
static void send_line(struct pull *p)
{
    buf_putc(&p->out, '\n');
    for (struct puller *c = p->clients, *next; c && !p->out.failed; c = next) {
        next = c->next;
        if (c->stream) http_write(c->t.q, p->out.p, p->out.n);
    }
    buf_clear(&p->out);
}

static void write_status(struct buf *out, const char *text)
{
    struct jsonw w = { .out = out };

    jsonw_obj(&w);
    jsonw_key(&w, "status"), jsonw_str(&w, str_c(text));
    jsonw_end(&w);
}

/* ---- events of the process ---- */

static const char *text_of(const json_t *ev, const char *key)
{
    const char *s = json_string_value(json_object_get(ev, key));
    return s ? s : "";
}

static void send_progress(struct pull *p, const char *sum, json_int_t done, json_int_t total)
{
    struct jsonw w = { .out = &p->out };
    char digest[80], status[40];

    snprintf(status, sizeof status, "pulling %.12s", sum);
    snprintf(digest, sizeof digest, "%s:%.64s", strlen(sum) == 64 ? "sha256" : "sha1", sum);
    jsonw_obj(&w);
    jsonw_key(&w, "status"), jsonw_str(&w, str_c(status));
    jsonw_key(&w, "digest"), jsonw_str(&w, str_c(digest));
    jsonw_key(&w, "total"), jsonw_int(&w, total);
    jsonw_key(&w, "completed"), jsonw_int(&w, done);
    jsonw_end(&w);
    send_line(p);
}

/* The words of the hub's error, and what it means for an answer that is not a stream. */
static void note_error(struct pull *p, const char *code, const char *text)
{
    p->status = !strcmp(code, "not_found") ? 404 : !strcmp(code, "invalid") ? 400 : 502;
    snprintf(p->error, sizeof p->error, "%s", *text ? text : "the pull has failed");
}

static void on_line(void *arg, struct str line)
{
    struct pull *p = arg;
    json_t *ev = jsonr_load(line, 0, NULL);
    const char *what = text_of(ev, "event"), *sum = text_of(ev, "sum");
    json_int_t bytes = json_integer_value(json_object_get(ev, "bytes"));

    if (!strcmp(what, "progress") && *sum)
        send_progress(p, sum, json_integer_value(json_object_get(ev, "file_done")),
                      json_integer_value(json_object_get(ev, "file_bytes")));
    else if (!strcmp(what, "file") && *sum) send_progress(p, sum, bytes, bytes);
    else if (!strcmp(what, "note")) write_status(&p->out, text_of(ev, "text")), send_line(p);
    else if (!strcmp(what, "error")) note_error(p, text_of(ev, "code"), text_of(ev, "message"));
    else if (!strcmp(what, "done")) p->done = true;
    json_decref(ev);
}

/* ---- the end ---- */

static void end_client(struct puller *c)
{
    struct pull *p = c->pull;

    if (c->stream) {
        end_stream(c);
        return;
    }
    http_on_gone(c->t.q, NULL, NULL);
    if (p->error[0]) {
        visit_fail_status(&c->t, p->status, "pull_failed", p->error);
    } else {
        buf_clear(&p->out);
        write_status(&p->out, "success");
        visit_reply_buf(&c->t, 200, "application/json", &p->out);
    }
    free_client(c);
}

static void free_pull(struct pull *p)
{
    for (struct pull **at = &p->v->pulls; *at; at = &(*at)->next)
        if (*at == p) {
            *at = p->next;
            break;
        }
    buf_release(&p->out);
    mem_free(p->id);
    mem_free(p);
}

/* Everybody is told how it ended. */
static void end_clients(struct pull *p)
{
    struct jsonw w = { .out = &p->out };

    if (p->error[0]) {
        jsonw_obj(&w);
        jsonw_key(&w, "error"), jsonw_str(&w, str_c(p->error));
        jsonw_end(&w);
    } else {
        write_status(&p->out, "success");
    }
    send_line(p);
    while (p->clients) end_client(p->clients);
}

/* The model is added to the list here, on the loop: some calls of stat, once for a download. */
static void on_ended(void *arg, int code)
{
    struct pull *p = arg;
    struct err e = { 0 };
    int i;

    p->child = NULL;
    if (p->done && code == 0) {
        p->error[0] = 0;
        if (pool_add_hub(p->v->pool, p->id, &i, &e) != OK) note_error(p, "", e.msg);
        else log_info("%s was pulled", p->id);
    } else if (!p->error[0]) {
        note_error(p, "", "the process of the pull has ended too early");
    }
    if (p->error[0] && p->clients) log_warn("the pull of %s has failed: %s", p->id, p->error);
    end_clients(p);
    free_pull(p);
}

void pulls_drain(struct server *v)
{
    for (struct pull *p = v->pulls; p; p = p->next) {
        note_error(p, "", "the server is shutting down");
        end_clients(p);
        if (!p->stopping) pullchild_stop(p->child);
        p->stopping = true;
    }
}

void pulls_close(struct server *v)
{
    while (v->pulls) {
        pullchild_close(v->pulls->child);
        v->pulls->child = NULL;
        note_error(v->pulls, "", "the server is shutting down");
        end_clients(v->pulls);
        free_pull(v->pulls);
    }
}

/* ---- the request ---- */

struct asked {
    char *id;
    bool stream;
    bool known; /* a model that is here, and that no hub has */
};

/* Whoever can fill the disk has a key, or is on this machine. */
static bool is_trusted(const struct visit *t)
{
    struct str peer = str_c(t->peer);

    return !auth_is_open(t->v->auth) || str_is(peer, "unix") || str_starts(peer, STR("127.")) ||
           str_starts(peer, STR("[::1]")) || str_starts(peer, STR("::1")) ||
           str_starts(peer, STR("[::ffff:127."));
}

static int read_asked(const struct visit *t, const json_t *root, struct asked *out, struct err *e)
{
    struct str name;
    int rc = api_read_pull(root, &name, &out->stream, e);

    if (rc != OK || registry_hub_id(&out->id, name, e) == OK) return rc;
    if (registry_is_hub(name) || pool_index(t->v->pool, name) < 0) return e->code;
    out->known = true;
    e->code = OK;
    return OK;
}

static struct pull *find_pull(struct server *v, const char *id)
{
    struct pull *p = v->pulls;

    while (p && (p->stopping || strcmp(p->id, id) != 0)) p = p->next;
    return p;
}

/* Takes id over. */
static int start_pull(struct server *v, char *id, struct pull **out, struct err *e)
{
    struct pull *p = mem_new(struct pull);
    struct buf name = { 0 };
    struct pullchild_opt o = { .loop = v->loop, .line = on_line, .ended = on_ended, .arg = p };
    int rc;

    if (!p) {
        mem_free(id);
        return err_nomem(e, "a pull");
    }
    *p = (struct pull){ .next = v->pulls, .v = v, .id = id };
    v->pulls = p;
    buf_printf(&name, "hf:%s", id + strlen("hf.co/"));
    o.name = buf_cstr(&name);
    if ((rc = buf_check(&name, e)) == OK) rc = pullchild_start(&p->child, &o, e);
    buf_release(&name);
    if (rc == OK) *out = p;
    else free_pull(p);
    return rc;
}

static int count_pulls(const struct server *v)
{
    int n = 0;

    for (const struct pull *p = v->pulls; p; p = p->next) n++;
    return n;
}

/* The pull of that model, which may be under way already. Takes id over. */
static int find_or_start(struct server *v, char *id, struct pull **out, struct err *e)
{
    int n = 0, rc = OK;

    if ((*out = find_pull(v, id))) {
        for (const struct puller *c = (*out)->clients; c; c = c->next) n++;
        if (n >= CLIENTS_MOST)
            rc = err_set(e, E_CONCURRENCY, "%d clients wait for the pull of %s", n, id);
        mem_free(id);
        return rc;
    }
    if (count_pulls(v) < PULLS_MOST) return start_pull(v, id, out, e);
    mem_free(id);
    return err_set(e, E_CONCURRENCY, "%d models are being pulled; at most %d at once", PULLS_MOST,
                   PULLS_MOST);
}

/* The first bytes of a stream. false: no memory, and nothing was sent. */
static bool begin_stream(struct visit *t)
{
    static const char first[] = "{\"status\":\"pulling manifest\"}\n";

    if (!visit_begin_stream(t, 200, "application/x-ndjson")) return false;
    http_write(t->q, first, sizeof first - 1);
    return true;
}

/* The name of a model that is here and not of a hub: there is nothing to do. */
static void answer_known(struct visit *t, bool stream)
{
    static const char success[] = "{\"status\":\"success\"}\n";
    struct err e = { 0 };

    if (!stream) {
        visit_reply(t, 200, "application/json", str_of(success, sizeof success - 2));
    } else if (begin_stream(t)) {
        http_write(t->q, success, sizeof success - 1);
        http_end(t->q);
        visit_end_stream(t, 200);
    } else {
        err_nomem(&e, "a pull");
        visit_fail(t, &e);
    }
}

/* Takes id over. */
static void join_pull(struct visit *t, char *id, bool stream)
{
    struct puller *c = mem_new(struct puller);
    struct pull *p = NULL;
    struct err e = { 0 };
    int rc = c ? find_or_start(t->v, id, &p, &e) : err_nomem(&e, "a pull");

    if (!c) mem_free(id);
    if (rc == OK) {
        *c = (struct puller){ .next = p->clients, .t = *t, .pull = p, .stream = stream };
        if (!stream || begin_stream(&c->t)) {
            p->clients = c;
            http_on_gone(c->t.q, on_gone, c);
            if (http_is_gone(c->t.q)) on_gone(c);
            return;
        }
        rc = err_nomem(&e, "a pull");
        if (!p->clients) p->stopping = true, pullchild_stop(p->child);
    }
    mem_free(c);
    visit_fail(t, &e);
}

void pulls_post(struct visit *t)
{
    struct asked a = { 0 };
    struct err e = { 0 };
    json_t *root = NULL;
    int rc;

    if (!is_trusted(t)) {
        visit_fail_status(t, 403, "unauthorized",
                          "models are pulled by clients with a key, or from this machine");
        return;
    }
    if ((rc = body_parse(&root, http_body(t->q), NULL, &e)) == OK) rc = read_asked(t, root, &a, &e);
    json_decref(root);
    if (rc != OK) visit_fail(t, &e);
    else if (a.known) answer_known(t, a.stream);
    else join_pull(t, a.id, a.stream);
}
