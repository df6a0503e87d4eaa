/* front.c - the life of relayed requests: REQUEST and BODY in, END out.
 *
 * front_req.c has the operations of struct http_req. */
#include "worker/front_impl.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <stdio.h>

enum { BODY_DEFAULT = 16 << 20, UNREAD_DEFAULT = 1 << 20 };

typedef void handle_fn(struct api *a, struct http_req *q, const struct api_who *who);

/* Routes that name a model in their body. */
static const struct {
    const char *path;
    handle_fn *handle;
} handlers[] = {
    { "/v1/chat/completions", api_chat },
    { "/v1/completions", api_completions },
    { "/v1/responses", api_responses },
    { "/v1/embeddings", api_embeddings },
    { "/v1/classify", api_classify },
    { "/classify", api_classify },
    { "/v1/rerank", api_rerank },
    { "/v2/execute", api_execute },
    { "/execute", api_execute },
    { "/v1/chat/completions/input_tokens", api_count_chat },
    { "/api/chat", api_ollama_chat },
    { "/api/generate", api_ollama_generate },
    { "/api/embed", api_ollama_embed },
    { "/api/embeddings", api_ollama_embed },
    { "/completion", api_native_completion },
    { "/infill", api_infill },
    { "/apply-template", api_apply_template },
    { "/v1/messages", api_messages },
    { "/v1/messages/count_tokens", api_count_tokens },
    { "/tokenize", api_tokenize },
    { "/detokenize", api_detokenize },
};

struct front *front_open(const struct front_opt *opt)
{
    struct front *f = mem_new(struct front);

    if (!f) return NULL;
    f->opt = *opt;
    if (!f->opt.max_body_bytes) f->opt.max_body_bytes = BODY_DEFAULT;
    if (!f->opt.max_unread_bytes) f->opt.max_unread_bytes = UNREAD_DEFAULT;
    return f;
}

void front_set_api(struct front *f, struct api *a) { f->opt.api = a; }
int front_n(const struct front *f) { return f->n; }

/* ---- life ---- */

static struct front_req *open_req(struct front *f, struct link_stream *s)
{
    struct front_req *r = mem_new(struct front_req);

    if (!r) return NULL;
    *r = (struct front_req){ .req.ops = &front_ops, .front = f, .s = s, .gone_reason = "" };
    r->next = f->reqs;
    if (f->reqs) f->reqs->prev = r;
    f->reqs = r;
    f->n++;
    s->user = r;
    return r;
}

static void free_req(struct front_req *r)
{
    struct front *f = r->front;

    if (r->prev) r->prev->next = r->next;
    else f->reqs = r->next;
    if (r->next) r->next->prev = r->prev;
    if (r->s) r->s->user = NULL;
    buf_release(&r->body);
    buf_release(&r->out);
    buf_release(&r->end);
    arena_release(&r->arena);
    mem_free(r);
    if (--f->n == 0 && f->opt.idle) f->opt.idle(f->opt.arg);
}

void front_cut_off(struct front *f)
{
    for (struct front_req *r = f->reqs, *next; r; r = next) {
        next = r->next;
        if (r->s) r->s->user = NULL;
        r->s = NULL;
        if (!r->handled) free_req(r);
        else if (!r->gone_reason[0]) r->gone_reason = "closed";
    }
}

void front_close(struct front *f)
{
    if (!f) return;
    f->opt.idle = NULL;
    while (f->reqs) free_req(f->reqs);
    mem_free(f);
}

/* ---- the end ---- */

/* Sends what the link takes of the bytes that wait. */
void front_flush(struct front_req *r)
{
    if (r->s && r->out_at < r->out.n)
        r->out_at += link_write(r->s, r->out.p + r->out_at, r->out.n - r->out_at, false);
    if (r->out_at < r->out.n) return;
    buf_clear(&r->out);
    r->out_at = 0;
}

void front_end_if_done(struct front_req *r)
{
    struct link_stream *s = r->s;

    if (!r->answered || !r->ended) return;
    if (s && r->out_at < r->out.n && !r->gone_reason[0]) return; /* front_writable comes back */
    if (s) {
        s->user = NULL;
        r->s = NULL;
        link_end_stream(s, buf_str(&r->end));
    }
    free_req(r);
}

/* Without memory for its text END has no members: the server sees a call that ended without a
 * status. */
void front_ended(void *arg, const struct api_end *end)
{
    struct front_req *r = end->who->user;

    (void)arg;
    if (!r) return;
    msg_write_end(&r->end, end);
    if (r->end.failed) {
        buf_release(&r->end);
        buf_puts(&r->end, "{}");
    }
    r->ended = true;
    front_end_if_done(r);
}

/* ---- frames ---- */

/* The stream ends before the API has heard of it. */
static void refuse_req(struct front_req *r, int status, const char *code)
{
    struct api_end end = { .model = "", .code = code, .finish = "", .gone = "", .status = status };

    log_warn("a relayed request was refused: %s", code);
    http_reply(&r->req, status, "application/json", "{}", 2);
    msg_write_end(&r->end, &end);
    r->ended = true;
    front_end_if_done(r);
}

/* The facts of a gateway, as the server has read them (write_hop of relay.c). */
static void fill_hop(const char *text, struct api_hop *h)
{
    int ids = 0, resumes = 0, has_created = 0, has_seed = 0, n_resume = 0, n_events = 0;
    long long created = 0;
    unsigned long long seed = 0;

    if (!text || sscanf(text, "%d %d %d %d %d %lld %d %llu", &ids, &resumes, &n_resume, &n_events,
                        &has_created, &created, &has_seed, &seed) != 8)
        return;
    *h = (struct api_hop){ .ids = ids,
                           .resumes = resumes,
                           .n_resume = n_resume,
                           .n_events = n_events,
                           .has_created = has_created,
                           .created = created,
                           .has_seed = has_seed,
                           .seed = seed };
}

static void fill_who(struct front_req *r, struct api_who *who)
{
    *who = (struct api_who){ .name = r->head.tenant.name,
                             .tenant = (uint32_t)r->head.tenant.index,
                             .admin = r->head.tenant.admin,
                             .priority_max = (int)r->head.tenant.priority_max,
                             .id = msg_header(r->head.headers, r->head.n_headers, FRONT_CALL_ID),
                             .user = r };
    snprintf(who->correlation, sizeof who->correlation, "%s", r->head.id);
    fill_hop(msg_header(r->head.headers, r->head.n_headers, FRONT_HOP), &who->hop);
}

/* Routes of responses that this process has stored; the server knows which ones. NULL: none. */
static handle_fn *find_stored(const struct front_req *r, struct str path)
{
    enum http_method m = http_method(&r->req);

    if (!str_starts(path, STR("/v1/responses/")) && !str_starts(path, STR("/responses/")))
        return NULL;
    if (m == HTTP_GET && str_ends(path, STR("/input_items"))) return api_response_items;
    if (m == HTTP_POST && str_ends(path, STR("/cancel"))) return api_cancel_response;
    return m == HTTP_GET ? api_get_response : m == HTTP_DELETE ? api_delete_response : NULL;
}

/* The request is complete: its handler owns it from here on. */
static void handle_req(struct front_req *r)
{
    struct str path = str_c(r->head.path);
    handle_fn *handle = find_stored(r, path);
    struct api_who who;

    for (size_t i = 0; i < sizeof handlers / sizeof *handlers && !handle; i++)
        if (str_is(path, handlers[i].path)) handle = handlers[i].handle;
    if (!handle) {
        refuse_req(r, 404, "not_found");
        return;
    }
    fill_who(r, &who);
    r->handled = true;
    handle(r->front->opt.api, &r->req, &who);
}

/* The age of the request counts from its arrival at the server. */
static void on_request(struct front *f, struct link_stream *s, const struct frame *fr)
{
    struct front_req *r = open_req(f, s);
    uint64_t now = clock_ns(), age;
    struct err e = { 0 };

    if (!r) {
        link_end_stream(s, STR("{\"status\":503,\"code\":\"memory_admission\"}"));
        return;
    }
    if (msg_read_request(&r->head, &r->arena, frame_payload(fr), &e) != OK) {
        log_error("%s", e.msg);
        r->head = (struct msg_request){ .path = "", .query = "", .method = "POST", .id = "" };
        r->bad = true;
    } else if (r->head.body_bytes < 0 || (uint64_t)r->head.body_bytes > f->opt.max_body_bytes ||
               !buf_reserve(&r->body, (size_t)r->head.body_bytes)) {
        r->bad = true;
    }
    age = r->head.age_ms > 0 ? (uint64_t)r->head.age_ms * 1000000 : 0;
    r->start_ns = age < now ? now - age : 1;
    if (r->bad) refuse_req(r, 503, "memory_admission");
    else if (fr->flags & FRAME_LAST) handle_req(r);
}

static void on_body(struct front_req *r, struct link_stream *s, const struct frame *fr)
{
    if (!r || r->handled || r->answered || r->body.n + fr->n > (size_t)r->head.body_bytes) {
        link_consumed(s, fr->n);
        if (r && !r->handled && !r->answered) refuse_req(r, 400, "invalid_request");
        return;
    }
    buf_add(&r->body, fr->p, fr->n);
    link_consumed(s, fr->n);
    if (fr->flags & FRAME_LAST) handle_req(r);
}

/* The client is gone: what it would have read is dropped. */
static void lose_client(struct front_req *r)
{
    if (r->gone_reason[0]) return;
    r->gone_reason = "closed";
    buf_clear(&r->out);
    r->out_at = 0;
    if (r->answered) front_end_if_done(r);
    else if (r->gone) r->gone(r->gone_arg);
}

/* A call that is asked to end answers that itself; see api_stop_call. */
static void on_cancel(struct front_req *r, const struct frame *fr)
{
    struct msg_cancel m = { 0 };
    struct arena a = { 0 };
    struct err e = { 0 };

    if (!r) return;
    if (msg_read_cancel(&m, &a, frame_payload(fr), &e) != OK) log_error("%s", e.msg);
    arena_release(&a);
    if (!r->handled && !r->answered) refuse_req(r, 499, "cancelled");
    else if (m.why == MSG_GONE) lose_client(r);
    else api_stop_call(r->front->opt.api, r, m.why == MSG_SHUTDOWN);
}

void front_frame(struct front *f, struct link_stream *s, const struct frame *fr)
{
    switch (fr->type) {
    case FRAME_REQUEST: on_request(f, s, fr); break;
    case FRAME_BODY: on_body(s->user, s, fr); break;
    case FRAME_CANCEL: on_cancel(s->user, fr); break;
    default: break;
    }
}

void front_writable(struct link_stream *s)
{
    struct front_req *r = s->user;

    if (!r) return;
    front_flush(r);
    front_end_if_done(r);
}
