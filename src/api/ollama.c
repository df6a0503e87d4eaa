/* ollama.c - Ollama's POST /api/chat, /api/generate, /api/embed and /api/embeddings.
 *
 * A stream is a JSON object per line: one for each piece of text or reasoning, one for each complete
 * tool call, and the last one with "done":true, the reason, and durations in nanoseconds. Without
 * "stream":false an answer is streamed. ollama_body.c reads the bodies, ollama_models.c has the routes
 * about models. */
#include "api/ollama_impl.h"

#include "api/choice.h"
#include "api/dialect.h"
#include "api/fail.h"
#include "base/clock.h"
#include "base/jsonw.h"
#include "net/http.h"
#include "pool/pool.h"

#include <time.h>

static void write_str(struct jsonw *w, const char *key, struct str s)
{
    jsonw_key(w, key), jsonw_str(w, s);
}

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* ---- the objects ---- */

static void open_object(struct jsonw *w, struct call *c)
{
    *w = (struct jsonw){ .out = &c->out };
    jsonw_obj(w);
    write_str(w, "model", str_c(c->model_id));
    ollama_write_time(w, "created_at", now_ms());
}

/* calls: rendered, may be empty. */
static void write_content(struct jsonw *w, const struct call *c, struct str text,
                          struct str thought, struct str calls)
{
    bool chat = ollama_state(c)->chat;

    if (chat) {
        jsonw_key(w, "message"), jsonw_obj(w);
        write_str(w, "role", STR("assistant"));
    }
    write_str(w, chat ? "content" : "response", text);
    if (thought.n) write_str(w, "thinking", thought);
    if (calls.n) {
        jsonw_key(w, "tool_calls"), jsonw_arr(w);
        jsonw_raw(w, calls);
        jsonw_end(w);
    }
    if (chat) jsonw_end(w);
}

/* Arguments are an object here, and no text. */
static void write_call(struct buf *out, const struct part *p)
{
    struct jsonw w = { .out = out };
    struct str args = buf_str(&p->text);
    bool failed = false, whole = args.n && args.p[0] == '{' && toolcall_is_json(args, &failed);

    jsonw_obj(&w);
    write_str(&w, "id", buf_str(&p->id));
    jsonw_key(&w, "function"), jsonw_obj(&w);
    write_str(&w, "name", buf_str(&p->name));
    jsonw_key(&w, "arguments"), jsonw_raw(&w, whole && !failed ? args : STR("{}"));
    jsonw_end(&w);
    jsonw_end(&w);
}

static int64_t ns_of(double ms) { return ms > 0 ? (int64_t)(ms * 1e6) : 0; }

/* load_duration: until the request was in the engine. */
static void write_end(struct jsonw *w, const struct call *c, const char *reason,
                      const struct usage *u)
{
    const struct choice *ch = c->n_choices ? c->choices[0] : NULL;

    jsonw_key(w, "done"), jsonw_bool(w, true);
    write_str(w, "done_reason", str_c(reason));
    if (!u) return;
    jsonw_key(w, "total_duration"), jsonw_int(w, (int64_t)(clock_ns() - c->start_ns));
    jsonw_key(w, "load_duration"), jsonw_int(w, ns_of(ch && ch->has_phases ? ch->admission_ms : 0));
    jsonw_key(w, "prompt_eval_count"), jsonw_int(w, u->prompt);
    jsonw_key(w, "prompt_eval_duration"), jsonw_int(w, ns_of(u->prefill_ms));
    jsonw_key(w, "eval_count"), jsonw_int(w, u->completion);
    jsonw_key(w, "eval_duration"), jsonw_int(w, ns_of(u->decode_ms));
}

/* Ollama has no reason of its own for tool calls. */
static const char *done_reason(const struct call *c)
{
    return strcmp(choice_finish_reason(c->choices[0]), "length") ? "stop" : "length";
}

/* ---- the stream ---- */

static void begin(struct choice *ch) { (void)ch; }

static void open_part(struct choice *ch, const struct part *p) { (void)ch, (void)p; }

static void write_line(struct call *c, struct str text, struct str thought, struct str calls)
{
    struct jsonw w;

    respond_begin_chunk(c);
    open_object(&w, c);
    write_content(&w, c, text, thought, calls);
    jsonw_key(&w, "done"), jsonw_bool(&w, false);
    jsonw_end(&w);
}

static void add_part(struct choice *ch, const struct part *p, struct str piece)
{
    if (!piece.n) return;
    if (p->kind == PART_TEXT) write_line(ch->call, piece, STR(""), STR(""));
    else if (p->kind == PART_REASONING) write_line(ch->call, STR(""), piece, STR(""));
}

static void close_part(struct choice *ch, const struct part *p)
{
    struct buf call = { 0 };

    if (p->kind != PART_CALL) return;
    write_call(&call, p);
    ch->call->out.failed |= call.failed;
    write_line(ch->call, STR(""), STR(""), buf_str(&call));
    buf_release(&call);
}

static void end(struct call *c, const struct usage *u)
{
    struct jsonw w;

    respond_begin_chunk(c);
    open_object(&w, c);
    write_content(&w, c, STR(""), STR(""), STR(""));
    write_end(&w, c, done_reason(c), u);
    jsonw_end(&w);
}

static void write_failure(struct call *c, const struct fail *f, const char *msg, const char *param)
{
    respond_begin_chunk(c);
    fail_write_body(&c->out, FAIL_OLLAMA, f, msg, param, c->who.correlation);
}

static void write_body(struct call *c, const struct usage *u)
{
    const struct answer *a = &c->choices[0]->answer;
    struct buf text = { 0 }, thought = { 0 }, calls = { 0 };
    struct jsonw w;

    for (int i = 0; i < a->n; i++) {
        if (a->parts[i].kind != PART_CALL) continue;
        if (calls.n) buf_putc(&calls, ',');
        write_call(&calls, &a->parts[i]);
    }
    open_object(&w, c);
    write_content(&w, c, answer_join(a, PART_TEXT, &text), answer_join(a, PART_REASONING, &thought),
                  buf_str(&calls));
    write_end(&w, c, done_reason(c), u);
    jsonw_end(&w);
    c->out.failed |= text.failed || thought.failed || calls.failed;
    buf_release(&text);
    buf_release(&thought);
    buf_release(&calls);
}

#define OLLAMA_DIALECT(reader)                                                                  \
    {                                                                                           \
        .id_prefix = "ollama-", .ndjson = true, .keeps = true, .translate = (reader),           \
        .begin = begin, .open_part = open_part, .add_part = add_part, .close_part = close_part, \
        .end = end, .fail = write_failure, .write_body = write_body                             \
    }
static const struct dialect dialect_chat = OLLAMA_DIALECT(ollama_translate_chat),
                            dialect_generate = OLLAMA_DIALECT(ollama_translate_generate);

/* ---- handlers ---- */

static int prepare(struct call *c, struct err *e)
{
    int rc = call_read_body(c, BODY_EXECUTE, e);

    if (rc != OK || ollama_state(c)->only_load) return rc;
    if (c->p.suffix.p) return call_prepare_infill(c, e);
    return c->p.kind == BODY_CHAT ? call_prepare_chat(c, e) : call_prepare_text(c, e);
}

/* The answer to a body without a message: the model is there, or is gone. */
static void send_done(struct call *c, const char *reason)
{
    struct jsonw w;

    buf_clear(&c->out);
    open_object(&w, c);
    write_content(&w, c, STR(""), STR(""), STR(""));
    write_end(&w, c, reason, NULL);
    jsonw_end(&w);
    call_send_body(c, 200);
}

static int send_unloaded(struct call *c, struct err *e)
{
    (void)e;
    send_done(c, "unload");
    return OK;
}

/* keep_alive 0 unloads at once. */
static int submit(struct call *c, struct err *e)
{
    static const struct call_job unload = { NULL, send_unloaded };
    int i;

    if (!ollama_state(c)->only_load) return call_submit(c, e);
    if (!c->p.has_keep || c->p.keep_ms != 0) {
        send_done(c, "load");
        return OK;
    }
    i = pool_index(c->api->opt.pool, str_c(c->model_id));
    pool_release(c->model);
    c->model = NULL;
    if (i < 0) return send_unloaded(c, e);
    call_unload(c, i, false, &unload);
    return OK;
}

void api_ollama_chat(struct api *a, struct http_req *q, const struct api_who *who)
{
    static const struct call_job job = { prepare, submit };

    call_begin_as(a, q, who, "/api/chat", &job, &dialect_chat);
}

void api_ollama_generate(struct api *a, struct http_req *q, const struct api_who *who)
{
    static const struct call_job job = { prepare, submit };

    call_begin_as(a, q, who, "/api/generate", &job, &dialect_generate);
}

/* ---- embeddings ---- */

/* {"embeddings":[[…]]}, or of /api/embeddings {"embedding":[…]} */
static void write_vectors(struct call *c)
{
    bool one = ollama_state(c)->one;
    struct jsonw w = { .out = &c->out };
    int tokens = 0;

    jsonw_obj(&w);
    write_str(&w, "model", str_c(c->model_id));
    jsonw_key(&w, one ? "embedding" : "embeddings");
    if (!one) jsonw_arr(&w);
    for (int i = 0; i < c->n_choices; i++) {
        struct buf text = { 0 };
        embeddings_append(c, i, &text);
        c->out.failed |= text.failed;
        jsonw_raw(&w, buf_str(&text));
        buf_release(&text);
        if (one) break;
    }
    if (!one) jsonw_end(&w);
    for (int i = 0; i < c->n_prompts; i++) tokens += c->prompt_tokens[i];
    jsonw_key(&w, "total_duration"), jsonw_int(&w, (int64_t)(clock_ns() - c->start_ns));
    jsonw_key(&w, "load_duration"), jsonw_int(&w, ns_of(c->choices[0]->admission_ms));
    jsonw_key(&w, "prompt_eval_count"), jsonw_int(&w, tokens);
    jsonw_end(&w);
}

static const struct dialect dialect_embed = { .id_prefix = "ollama-",
                                              .translate = ollama_translate_embed,
                                              .fail = write_failure,
                                              .write_vectors = write_vectors };

static int prepare_embed(struct call *c, struct err *e)
{
    int rc = embeddings_prepare(c, e);

    if (rc == OK) ollama_state(c)->one = !strcmp(c->route, "/api/embeddings");
    return rc;
}

void api_ollama_embed(struct api *a, struct http_req *q, const struct api_who *who)
{
    static const struct call_job job = { prepare_embed, call_submit_inputs };

    call_begin_as(a, q, who,
                  str_ends(http_path(q), STR("/embeddings")) ? "/api/embeddings" : "/api/embed",
                  &job, &dialect_embed);
}
