/* responses.c - POST /v1/responses: the answer as items, streamed or whole.
 *
 *     response.created, response.in_progress
 *     for each part of the answer, an item:
 *         response.output_item.added
 *         text:      content_part.added, output_text.delta …, output_text.done, content_part.done
 *         reasoning: content_part.added, reasoning_text.delta …, reasoning_text.done, content_part.done;
 *                    or, if the request asks for a summary, the same events of reasoning_summary_…
 *         call:      function_call_arguments.delta …, function_call_arguments.done
 *         response.output_item.done
 *     response.completed, response.incomplete (max_output_tokens) or response.failed
 *
 * Every event has its type and a sequence_number. responses_body.c reads the body, respstore.h keeps
 * answers. */
#include "api/responses_impl.h"

#include "api/choice.h"
#include "api/dialect.h"
#include "api/fail.h"
#include "api/respstore.h"
#include "base/jsonw.h"
#include "base/mem.h"

#include <stdio.h>
#include <time.h>

static struct responses *state_of(const struct call *c) { return c->state; }

/* ---- items ---- */

/* "msg_", "rs_" or "fc_", the random part of the response's id, and the index of the item. */
static void make_item_id(char id[RESPSTORE_ITEM_ID], const struct call *c, const struct part *p,
                         int index)
{
    static const char *const prefixes[] = { "msg", "rs", "fc" };
    const char *random = strchr(c->id, '_');

    snprintf(id, RESPSTORE_ITEM_ID, "%s_%s%02d", prefixes[p->kind], random ? random + 1 : c->id,
             index);
}

static void write_item_id(struct jsonw *w, const char *key, const struct call *c,
                          const struct part *p, int index)
{
    char id[RESPSTORE_ITEM_ID];

    make_item_id(id, c, p, index);
    jsonw_key(w, key), jsonw_str(w, str_c(id));
}

static void write_str(struct jsonw *w, const char *key, struct str s)
{
    jsonw_key(w, key), jsonw_str(w, s);
}

static void write_logprobs(struct jsonw *w, const struct choice *ch, size_t from)
{
    struct str all = buf_str(&ch->lp.list[0]);

    if (ch->call->p.n_top < 0) all = STR("");
    all = str_skip(all, from);
    if (all.n && all.p[0] == ',') all = str_skip(all, 1);
    jsonw_key(w, "logprobs"), jsonw_arr(w);
    if (all.n) jsonw_raw(w, all);
    jsonw_end(w);
}

/* A content part with the text so far; empty: before the first delta. */
static void write_content(struct jsonw *w, const struct choice *ch, const struct part *p,
                          struct str text)
{
    bool summary = p->kind == PART_REASONING && state_of(ch->call)->summary;

    jsonw_obj(w);
    write_str(w, "type",
              p->kind == PART_TEXT ? STR("output_text")
              : summary            ? STR("summary_text")
                                   : STR("reasoning_text"));
    if (p->kind == PART_TEXT) {
        jsonw_key(w, "annotations"), jsonw_arr(w), jsonw_end(w);
        write_logprobs(w, ch, text.n ? 0 : SIZE_MAX);
    }
    write_str(w, "text", text);
    jsonw_end(w);
}

/* encrypted_content is the text itself: it only has to come back. */
static void write_reasoning_item(struct jsonw *w, const struct choice *ch, const struct part *p,
                                 bool done)
{
    const struct responses *s = state_of(ch->call);
    bool shown = done && p->text.n;

    jsonw_key(w, "summary"), jsonw_arr(w);
    if (shown && s->summary) write_content(w, ch, p, buf_str(&p->text));
    jsonw_end(w);
    if (!s->summary) {
        jsonw_key(w, "content"), jsonw_arr(w);
        if (shown) write_content(w, ch, p, buf_str(&p->text));
        jsonw_end(w);
    }
    jsonw_key(w, "encrypted_content");
    if (shown && s->encrypted) {
        struct buf sealed = { 0 };
        buf_puts(&sealed, RESPONSES_SEALED);
        buf_put_str(&sealed, buf_str(&p->text));
        w->out->failed |= sealed.failed;
        jsonw_str(w, buf_str(&sealed));
        buf_release(&sealed);
    } else {
        jsonw_null(w);
    }
}

static void write_item(struct jsonw *w, const struct choice *ch, const struct part *p, int index,
                       bool done)
{
    static const char *const types[] = { "message", "reasoning", "function_call" };

    jsonw_obj(w);
    write_item_id(w, "id", ch->call, p, index);
    write_str(w, "type", str_c(types[p->kind]));
    write_str(w, "status", done ? STR("completed") : STR("in_progress"));
    if (p->kind == PART_TEXT) {
        jsonw_key(w, "content"), jsonw_arr(w);
        if (done) write_content(w, ch, p, buf_str(&p->text));
        jsonw_end(w);
        write_str(w, "role", STR("assistant"));
    } else if (p->kind == PART_REASONING) {
        write_reasoning_item(w, ch, p, done);
    } else {
        write_str(w, "arguments", done ? buf_str(&p->text) : STR(""));
        write_str(w, "call_id", buf_str(&p->id));
        write_str(w, "name", buf_str(&p->name));
    }
    jsonw_end(w);
}

/* ---- the response object ---- */

/* Fields of the object besides the request's: all NULL while it is in progress. */
struct outcome {
    const char *status;
    const struct usage *usage;
    const struct fail *fail; /* with msg */
    const char *msg;
    bool cut; /* incomplete: max_output_tokens */
};

static void write_usage(struct jsonw *w, const struct usage *u)
{
    jsonw_obj(w);
    jsonw_key(w, "input_tokens"), jsonw_int(w, u->prompt);
    jsonw_key(w, "input_tokens_details"), jsonw_obj(w);
    jsonw_key(w, "cached_tokens"), jsonw_int(w, u->cached);
    jsonw_end(w);
    jsonw_key(w, "output_tokens"), jsonw_int(w, u->completion);
    jsonw_key(w, "output_tokens_details"), jsonw_obj(w);
    jsonw_key(w, "reasoning_tokens"), jsonw_int(w, u->reasoning);
    jsonw_end(w);
    jsonw_key(w, "total_tokens"), jsonw_int(w, (int64_t)u->prompt + u->completion);
    jsonw_end(w);
}

static void write_error(struct jsonw *w, const struct outcome *o)
{
    jsonw_key(w, "error");
    if (!o->fail) {
        jsonw_null(w);
        return;
    }
    jsonw_obj(w);
    write_str(w, "code", o->fail->status == 429 ? STR("rate_limit_exceeded") : STR("server_error"));
    write_str(w, "message", str_c(o->msg));
    write_str(w, "tern_code", str_c(o->fail->code));
    jsonw_end(w);
}

static void write_output(struct jsonw *w, const struct call *c)
{
    const struct choice *ch = c->n_choices ? c->choices[0] : NULL;

    jsonw_key(w, "output"), jsonw_arr(w);
    for (int i = 0; ch && i < ch->answer.n; i++) write_item(w, ch, &ch->answer.parts[i], i, true);
    jsonw_end(w);
}

static void write_response(struct jsonw *w, const struct call *c, const struct outcome *o)
{
    bool ended = strcmp(o->status, "in_progress") != 0;

    jsonw_obj(w);
    write_str(w, "id", str_c(c->id));
    write_str(w, "object", STR("response"));
    jsonw_key(w, "created_at"), jsonw_int(w, c->reply.created);
    write_str(w, "status", str_c(o->status));
    jsonw_key(w, "background"), jsonw_bool(w, false);
    if (ended) jsonw_key(w, "completed_at"), jsonw_int(w, (int64_t)time(NULL));
    write_error(w, o);
    jsonw_key(w, "incomplete_details");
    if (o->cut) {
        jsonw_obj(w);
        write_str(w, "reason", STR("max_output_tokens"));
        jsonw_end(w);
    } else {
        jsonw_null(w);
    }
    write_str(w, "model", str_c(c->model_id));
    if (ended) write_output(w, c);
    else jsonw_key(w, "output"), jsonw_arr(w), jsonw_end(w);
    buf_putc(w->out, ',');
    buf_put_str(w->out, state_of(c)->given);
    jsonw_key(w, "usage");
    if (o->usage) write_usage(w, o->usage);
    else jsonw_null(w);
    jsonw_end(w);
}

/* ---- events ---- */

/* {"type":NAME,"sequence_number":N, open for more members. */
static void begin_event(struct jsonw *w, struct call *c, const char *name)
{
    respond_begin_event(c, name);
    *w = (struct jsonw){ .out = &c->out };
    jsonw_obj(w);
    write_str(w, "type", str_c(name));
    jsonw_key(w, "sequence_number"), jsonw_int(w, c->n_events++);
}

/* The text of the response is the caller's to read until c->out grows. */
static struct str send_response_event(struct call *c, const char *name, const struct outcome *o)
{
    struct jsonw w;
    size_t from, to;

    begin_event(&w, c, name);
    jsonw_key(&w, "response");
    from = c->out.n;
    write_response(&w, c, o);
    to = c->out.n;
    jsonw_end(&w);
    return str_take(str_skip(buf_str(&c->out), from), to - from);
}

static void begin(struct choice *ch)
{
    const struct outcome none = { .status = "in_progress" };

    send_response_event(ch->call, "response.created", &none);
    send_response_event(ch->call, "response.in_progress", &none);
}

static int index_of(const struct choice *ch) { return ch->answer.n - 1; }

static void send_item_event(struct choice *ch, const struct part *p, const char *name, bool done)
{
    struct jsonw w;

    begin_event(&w, ch->call, name);
    jsonw_key(&w, "output_index"), jsonw_int(&w, index_of(ch));
    jsonw_key(&w, "item"), write_item(&w, ch, p, index_of(ch), done);
    jsonw_end(&w);
}

/* An event about a part of the item: begins it with the members that all have. */
static void begin_part_event(struct jsonw *w, struct choice *ch, const struct part *p,
                             const char *name)
{
    begin_event(w, ch->call, name);
    write_item_id(w, "item_id", ch->call, p, index_of(ch));
    jsonw_key(w, "output_index"), jsonw_int(w, index_of(ch));
    if (p->kind == PART_CALL) return;
    jsonw_key(w, p->kind == PART_REASONING && state_of(ch->call)->summary ? "summary_index"
                                                                          : "content_index");
    jsonw_int(w, 0);
}

/* The names of the events of a part, by its kind. */
struct event_names {
    const char *added, *delta, *done, *part_done;
};

static const struct event_names *names_of(const struct choice *ch, const struct part *p)
{
    static const struct event_names all[] = {
        { "response.content_part.added", "response.output_text.delta", "response.output_text.done",
          "response.content_part.done" },
        { "response.content_part.added", "response.reasoning_text.delta",
          "response.reasoning_text.done", "response.content_part.done" },
        { NULL, "response.function_call_arguments.delta", "response.function_call_arguments.done",
          NULL },
        { "response.reasoning_summary_part.added", "response.reasoning_summary_text.delta",
          "response.reasoning_summary_text.done", "response.reasoning_summary_part.done" },
    };

    return &all[p->kind == PART_REASONING && state_of(ch->call)->summary ? 3 : (int)p->kind];
}

static void open_part(struct choice *ch, const struct part *p)
{
    const struct event_names *n = names_of(ch, p);
    struct jsonw w;

    send_item_event(ch, p, "response.output_item.added", false);
    if (!n->added) return;
    begin_part_event(&w, ch, p, n->added);
    jsonw_key(&w, "part"), write_content(&w, ch, p, STR(""));
    jsonw_end(&w);
}

static void add_part(struct choice *ch, const struct part *p, struct str piece)
{
    struct jsonw w;

    begin_part_event(&w, ch, p, names_of(ch, p)->delta);
    write_str(&w, "delta", piece);
    if (p->kind == PART_TEXT) {
        write_logprobs(&w, ch, ch->lp_sent);
        ch->lp_sent = ch->lp.list[0].n;
    }
    jsonw_end(&w);
}

static void close_part(struct choice *ch, const struct part *p)
{
    const struct event_names *n = names_of(ch, p);
    struct jsonw w;

    begin_part_event(&w, ch, p, n->done);
    if (p->kind == PART_CALL) write_str(&w, "name", buf_str(&p->name));
    write_str(&w, p->kind == PART_CALL ? "arguments" : "text", buf_str(&p->text));
    if (p->kind == PART_TEXT) write_logprobs(&w, ch, 0);
    jsonw_end(&w);
    if (n->part_done) {
        begin_part_event(&w, ch, p, n->part_done);
        jsonw_key(&w, "part"), write_content(&w, ch, p, buf_str(&p->text));
        jsonw_end(&w);
    }
    send_item_event(ch, p, "response.output_item.done", true);
}

/* An answer without text and calls has an empty message: clients look for one. */
static void add_empty_message(struct choice *ch)
{
    struct part *p;

    if (answer_count(&ch->answer, PART_TEXT) || answer_count(&ch->answer, PART_CALL)) return;
    if (!(p = answer_open_part(&ch->answer, PART_TEXT, STR(""), STR("")))) return;
    if (!ch->call->p.stream) return;
    open_part(ch, p);
    close_part(ch, p);
}

static void finish(struct choice *ch, const char *reason)
{
    (void)reason;
    add_empty_message(ch);
}

/* ---- storing ---- */

/* The assistant's message, as a chat has it. */
static void write_turn(struct buf *out, const struct answer *a)
{
    struct jsonw w = { .out = out };
    struct buf text = { 0 }, thought = { 0 };

    jsonw_obj(&w);
    write_str(&w, "role", STR("assistant"));
    write_str(&w, "content", answer_join(a, PART_TEXT, &text));
    if (answer_count(a, PART_REASONING))
        write_str(&w, "reasoning_content", answer_join(a, PART_REASONING, &thought));
    if (answer_count(a, PART_CALL)) {
        jsonw_key(&w, "tool_calls"), jsonw_arr(&w);
        for (int i = 0; i < a->n; i++) {
            const struct part *p = &a->parts[i];
            if (p->kind != PART_CALL) continue;
            jsonw_obj(&w);
            write_str(&w, "id", buf_str(&p->id));
            write_str(&w, "type", STR("function"));
            jsonw_key(&w, "function"), jsonw_obj(&w);
            write_str(&w, "name", buf_str(&p->name));
            write_str(&w, "arguments", buf_str(&p->text));
            jsonw_end(&w);
            jsonw_end(&w);
        }
        jsonw_end(&w);
    }
    jsonw_end(&w);
    out->failed |= text.failed || thought.failed;
    buf_release(&text);
    buf_release(&thought);
}

/* An answer for whose copy there is no memory is not stored; it is sent all the same. */
static void store_answer(struct call *c, struct str response)
{
    const struct responses *s = state_of(c);
    const struct answer *a = &c->choices[0]->answer;
    char(*ids)[RESPSTORE_ITEM_ID] = NULL;
    struct buf history = { 0 };

    if (!s->store || s->messages.n < 2 || c->out.failed) return;
    buf_put_str(&history, str_take(s->messages, s->messages.n - 1));
    if (s->messages.n > 2) buf_putc(&history, ',');
    write_turn(&history, a);
    buf_putc(&history, ']');
    ids = mem_array((size_t)a->n + 1, sizeof *ids);
    for (int i = 0; ids && i < a->n; i++) make_item_id(ids[i], c, &a->parts[i], i);
    if (ids && !history.failed)
        respstore_put(c->api->responses,
                      &(struct respstore_entry){ .id = c->id,
                                                 .tenant = c->who.tenant,
                                                 .response = response,
                                                 .items = s->items,
                                                 .history = buf_str(&history),
                                                 .item_ids = (const char(*)[RESPSTORE_ITEM_ID])ids,
                                                 .n_items = (size_t)a->n });
    mem_free(ids);
    buf_release(&history);
}

/* ---- the end ---- */

static struct outcome outcome_of(const struct call *c, const struct usage *u)
{
    bool cut = !strcmp(choice_finish_reason(c->choices[0]), "length");

    return (struct outcome){ .status = cut ? "incomplete" : "completed", .usage = u, .cut = cut };
}

static void end(struct call *c, const struct usage *u)
{
    struct outcome o = outcome_of(c, u);

    store_answer(c,
                 send_response_event(c, o.cut ? "response.incomplete" : "response.completed", &o));
}

static void write_body(struct call *c, const struct usage *u)
{
    struct outcome o = outcome_of(c, u);
    struct jsonw w = { .out = &c->out };

    add_empty_message(c->choices[0]);
    write_response(&w, c, &o);
    store_answer(c, buf_str(&c->out));
}

/* In a stream that has begun: an error event, and the failed response. One that was cancelled is stored,
 * with what there was of it. */
static void write_failure(struct call *c, const struct fail *f, const char *msg, const char *param)
{
    struct outcome o = { .status = f->status == 499 ? "cancelled" : "failed",
                         .fail = f,
                         .msg = msg };
    struct str response;
    struct jsonw w;

    begin_event(&w, c, "error");
    write_str(&w, "code", str_c(f->code));
    write_str(&w, "message", str_c(msg));
    jsonw_key(&w, "param");
    if (param && param[0]) jsonw_str(&w, str_c(param));
    else jsonw_null(&w);
    jsonw_end(&w);
    response = send_response_event(c, "response.failed", &o);
    if (f->status == 499 && c->n_choices) store_answer(c, response);
}

static const struct dialect dialect_responses = { .id_prefix = "resp_",
                                                  .keeps = true,
                                                  .translate = responses_translate,
                                                  .begin = begin,
                                                  .open_part = open_part,
                                                  .add_part = add_part,
                                                  .close_part = close_part,
                                                  .finish = finish,
                                                  .end = end,
                                                  .fail = write_failure,
                                                  .write_body = write_body };

static int prepare(struct call *c, struct err *e)
{
    int rc = call_read_body(c, BODY_CHAT, e);

    if (rc == OK && c->p.n != 1) {
        call_blame(c, "n");
        return err_set(e, E_INVALID, "n must be 1: a response has one output");
    }
    return rc == OK ? call_prepare_chat(c, e) : rc;
}

void api_responses(struct api *a, struct http_req *q, const struct api_who *who)
{
    static const struct call_job job = { prepare, call_submit };

    call_begin_as(a, q, who, "/v1/responses", &job, &dialect_responses);
}
