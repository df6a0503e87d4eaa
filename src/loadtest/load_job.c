#include "loadtest/load_job.h"

#include "base/clock.h"
#include "base/mem.h"

#include <jansson.h>
#include <stdio.h>

struct load_job {
    struct load_target *target;
    const struct load_plan *plan;
    const struct load_job_calls *calls;
    void *run;
    struct load_client *client, *canceller;
    struct event *cut_timer, *timeout, *pause;
    struct load_job *next;

    struct load_ask ask;
    struct load_rec rec;
    uint64_t start_ns, sent_ns, last_ns, cancel_ns;
    bool open, cancelling; /* the stream, the cancel: under way */
    bool marked;           /* [DONE] has come */
    bool answered;         /* the cancel was */
    enum load_end end;
    size_t n_missed;
    char id[80];   /* what the server calls it */
    char fail[80]; /* an error inside the stream */
};

static double ms_between(uint64_t a, uint64_t b) { return (double)(b - a) / 1e6; }

bool load_job_counted(const struct load_job *j) { return j->ask.index >= 0; }
size_t load_job_missed(const struct load_job *j) { return j->n_missed; }
void *load_job_run(const struct load_job *j) { return j->run; }
struct load_job **load_job_next(struct load_job *j) { return &j->next; }
struct event **load_job_pause(struct load_job *j) { return &j->pause; }

/* ---- the end of a request ---- */

static void end(struct load_job *j, enum load_outcome outcome, const char *kind, int pause_ms)
{
    evtimer_del(j->cut_timer);
    evtimer_del(j->timeout);
    j->rec.outcome = outcome;
    j->open = j->cancelling = false;
    j->calls->ended(j->run, j, &j->rec, kind, pause_ms);
}

static void give_up(struct load_job *j, bool reset)
{
    if (j->open) load_client_leave(j->client, reset);
    if (j->cancelling) load_client_leave(j->canceller, false);
}

/* "429 queue_full" from the error's envelope. */
static void error_kind(char *out, size_t cap, int status, json_t *root)
{
    json_t *error = json_object_get(root, "error"), *code = json_object_get(error, "code");
    const char *word = json_string_value(code);

    if (!word) word = json_string_value(json_object_get(error, "type"));
    if (status) snprintf(out, cap, "%d%s%.40s", status, word ? " " : "", word ? word : "");
    else snprintf(out, cap, "in the stream: %.40s", word ? word : "error");
}

static void take_usage(struct load_job *j, json_t *root)
{
    json_t *usage = json_object_get(root, "usage");

    if (!json_is_object(usage)) return;
    j->rec.n_in = (int)json_integer_value(json_object_get(usage, "prompt_tokens"));
    j->rec.n_out = (int)json_integer_value(json_object_get(usage, "completion_tokens"));
}

static void whole_reply(struct load_job *j, const struct load_http *h, char *kind, size_t cap)
{
    json_t *root = json_loadb(h->body.p ? h->body.p : "", h->body.n, JSON_ALLOW_NUL, NULL);

    if (h->status != 200) error_kind(kind, cap, h->status, root);
    else if (!json_is_array(json_object_get(root, "choices")))
        snprintf(kind, cap, "not a completion");
    else take_usage(j, root);
    json_decref(root);
}

static void judge(struct load_job *j)
{
    const struct load_http *h = load_client_reply(j->client);
    char kind[80] = "";
    bool cut;

    if (j->end == END_CONNECT) snprintf(kind, sizeof kind, "connect");
    else if (j->end == END_BAD) snprintf(kind, sizeof kind, "bad HTTP: %.60s", h->why);
    else if (j->end == END_CUT && !h->any) snprintf(kind, sizeof kind, "closed without a reply");
    else if (j->end == END_CUT) snprintf(kind, sizeof kind, "truncated stream");
    else if (!h->sse) whole_reply(j, h, kind, sizeof kind);
    else if (*j->fail) snprintf(kind, sizeof kind, "%s", j->fail);
    else if (!j->marked) snprintf(kind, sizeof kind, "truncated stream");
    if (!j->rec.n_out) j->rec.n_out = j->rec.n_events;
    cut = j->cancel_ns && (*kind || j->rec.n_out < j->ask.n_output);
    if (!cut) j->rec.cancel_ms = 0;
    end(j,
        cut     ? LOAD_CANCELLED
        : *kind ? LOAD_FAILED
                : LOAD_OK,
        cut ? "" : kind, *kind && !cut ? 50 : 0);
}

static void stream_done(void *arg, enum load_end how)
{
    struct load_job *j = arg;
    uint64_t now = clock_ns();

    j->open = false;
    j->end = how;
    if (j->sent_ns) j->rec.e2e_ms = ms_between(j->sent_ns, now);
    if (j->cancel_ns) j->rec.cancel_ms = ms_between(j->cancel_ns, now);
    if (!j->cancelling) judge(j);
}

/* ---- a request cut short ---- */

static void cancel_done(void *arg, enum load_end how)
{
    struct load_job *j = arg;
    int status = how == END_REPLY ? load_client_reply(j->canceller)->status : 0;

    j->cancelling = false;
    if (status == 200 || status == 202 || status == 204) j->answered = true;
    else j->n_missed++;
    if (!j->open) judge(j);
}

static void cut(struct load_job *j)
{
    const struct load_http *h = load_client_reply(j->client);
    char path[160];

    evtimer_del(j->cut_timer);
    if (j->ask.cut != CUT_CANCEL) {
        give_up(j, j->ask.cut == CUT_RESET);
        if (!j->rec.n_out) j->rec.n_out = j->rec.n_events;
        end(j, LOAD_LEFT, "", 0);
        return;
    }
    if (*h->request_id) snprintf(j->id, sizeof j->id, "%s", h->request_id);
    snprintf(path, sizeof path, "/v1/requests/%s/cancel", j->id);
    j->ask.cut = CUT_NONE;
    j->cancel_ns = clock_ns();
    j->cancelling = true;
    load_client_send(j->canceller, path, "", STR("{}"));
}

static void on_cut(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    cut(arg);
}

static void on_timeout(evutil_socket_t fd, short what, void *arg)
{
    struct load_job *j = arg;

    (void)fd, (void)what;
    give_up(j, false);
    end(j, LOAD_FAILED, "timeout", 0);
}

/* ---- its way ---- */

static void on_sent(void *arg)
{
    struct load_job *j = arg;
    uint64_t now = clock_ns();

    if (!j->sent_ns) {
        if (!load_client_kept(j->client)) j->rec.connect_ms = ms_between(j->start_ns, now);
        if (j->ask.cut != CUT_NONE && !j->ask.cut_events) load_arm(j->cut_timer, j->ask.cut_ms);
    }
    j->sent_ns = now;
}

static void content(struct load_job *j)
{
    uint64_t now = clock_ns();
    double gap = -1;

    if (j->rec.n_events++ == 0) {
        j->rec.ttft_ms = ms_between(j->sent_ns, now);
    } else {
        gap = ms_between(j->last_ns, now);
        j->rec.gap_sum_ms += gap;
        if (gap > j->rec.gap_max_ms) j->rec.gap_max_ms = gap;
    }
    j->last_ns = now;
    j->rec.n_late += j->answered;
    j->calls->token(j->run, now, gap, load_job_counted(j));
    if (j->ask.cut != CUT_NONE && j->ask.cut_events && j->rec.n_events >= j->ask.cut_events) cut(j);
}

static bool has_text(json_t *choice)
{
    json_t *delta = json_object_get(choice, "delta");
    const char *s = json_string_value(json_object_get(choice, "text"));

    if (!s || !*s) s = json_string_value(json_object_get(delta, "content"));
    if (!s || !*s) s = json_string_value(json_object_get(delta, "reasoning_content"));
    return s && *s;
}

static void on_event(void *arg, struct str data)
{
    struct load_job *j = arg;
    json_t *root, *id;

    if (str_is(data, "[DONE]")) {
        j->marked = true;
        return;
    }
    root = json_loadb(data.p, data.n, JSON_ALLOW_NUL, NULL);
    if (!json_is_object(root)) {
        if (!*j->fail) snprintf(j->fail, sizeof j->fail, "in the stream: not JSON");
    } else if (json_object_get(root, "error")) {
        if (!*j->fail) error_kind(j->fail, sizeof j->fail, 0, root);
    } else {
        id = json_object_get(root, "id");
        if (json_is_string(id)) snprintf(j->id, sizeof j->id, "%.79s", json_string_value(id));
        take_usage(j, root);
        if (has_text(json_array_get(json_object_get(root, "choices"), 0))) content(j);
    }
    json_decref(root);
}

void load_job_start(struct load_job *j, int64_t index)
{
    const struct load_plan *p = j->plan;
    char headers[200] = "", label[64];
    struct timespec wall;
    int n;

    load_plan_ask(p, index, &j->ask);
    j->rec = (struct load_rec){ .n_in = j->ask.n_prompt + (j->ask.shared ? p->n_shared : 0) };
    j->sent_ns = j->last_ns = j->cancel_ns = 0;
    j->marked = j->answered = j->cancelling = false;
    j->fail[0] = 0;
    if (p->no_keep) load_client_forget(j->client);
    snprintf(label, sizeof label, "load-%llx-%lld", (unsigned long long)p->tag, (long long)index);
    snprintf(j->id, sizeof j->id, "%s", label);
    n = snprintf(headers, sizeof headers, "X-Correlation-Id: %s\r\n", label);
    if (p->deadline_ms) {
        clock_gettime(CLOCK_REALTIME, &wall);
        snprintf(headers + n, sizeof headers - (size_t)n, "X-Deadline: %lld\r\n",
                 (long long)wall.tv_sec * 1000 + wall.tv_nsec / 1000000 + p->deadline_ms);
    }
    j->open = true;
    j->start_ns = clock_ns();
    if (p->timeout_ms) load_arm(j->timeout, p->timeout_ms);
    load_client_send(j->client, p->completions ? "/v1/completions" : "/v1/chat/completions",
                     headers, buf_str(&j->ask.body));
}

struct load_job *load_job_open(struct load_target *t, const struct load_plan *p,
                               const struct load_job_calls *calls, void *run)
{
    static const struct load_calls main_calls = { on_sent, on_event, stream_done };
    static const struct load_calls cancel_calls = { .done = cancel_done };
    struct load_job *j = mem_new(struct load_job);

    j->target = t;
    j->plan = p;
    j->calls = calls;
    j->run = run;
    j->client = load_client_open(t, &main_calls, j);
    j->canceller = load_client_open(t, &cancel_calls, j);
    j->cut_timer = evtimer_new(t->base, on_cut, j);
    j->timeout = evtimer_new(t->base, on_timeout, j);
    return j;
}

void load_job_close(struct load_job *j)
{
    if (!j) return;
    event_free(j->cut_timer);
    event_free(j->timeout);
    if (j->pause) event_free(j->pause);
    load_client_close(j->client);
    load_client_close(j->canceller);
    buf_release(&j->ask.body);
    mem_free(j);
}
