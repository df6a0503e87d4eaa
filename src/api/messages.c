/* messages.c - POST /v1/messages and /v1/messages/count_tokens: Anthropic's API.
 *
 *     message_start, ping
 *     for each part of the answer, a block: content_block_start, content_block_delta …, content_block_stop
 *         text: text_delta; reasoning: thinking_delta …, signature_delta; call: input_json_delta
 *     message_delta (stop_reason, usage), message_stop; or error
 *
 * Tokens that the prefix cache had are cache_read_input_tokens and, as Anthropic counts, not part of
 * input_tokens. A thinking block's signature is a checksum of its text: blocks come back with it, and
 * are accepted with any. messages_body.c reads the body. */
#include "api/messages_impl.h"

#include "api/choice.h"
#include "api/dialect.h"
#include "api/fail.h"
#include "base/jsonw.h"
#include "engine/request.h"
#include "net/http.h"

#include <stdio.h>

/* ---- pieces ---- */

static void write_str(struct jsonw *w, const char *key, struct str s)
{
    jsonw_key(w, key), jsonw_str(w, s);
}

static void begin_event(struct jsonw *w, struct call *c, const char *name)
{
    respond_begin_event(c, name);
    *w = (struct jsonw){ .out = &c->out };
    jsonw_obj(w);
    write_str(w, "type", str_c(name));
}

/* FNV-1a of the text. */
static void write_signature(struct jsonw *w, const char *key, struct str text)
{
    uint64_t h = 0xcbf29ce484222325u;
    char hex[20];

    for (size_t i = 0; i < text.n; i++) h = (h ^ (unsigned char)text.p[i]) * 0x100000001b3u;
    snprintf(hex, sizeof hex, "%016llx", (unsigned long long)h);
    write_str(w, key, str_c(hex));
}

static void write_usage(struct jsonw *w, int prompt, int cached, int output)
{
    jsonw_key(w, "usage"), jsonw_obj(w);
    jsonw_key(w, "input_tokens"), jsonw_int(w, prompt - cached);
    jsonw_key(w, "cache_creation_input_tokens"), jsonw_int(w, 0);
    jsonw_key(w, "cache_read_input_tokens"), jsonw_int(w, cached);
    jsonw_key(w, "output_tokens"), jsonw_int(w, output);
    jsonw_end(w);
}

/* Arguments that were cut off are no object: the client gets an empty one. */
static bool is_object(struct str text)
{
    bool failed = false;

    return text.p[0] == '{' && toolcall_is_json(text, &failed) && !failed;
}

/* With the text of a whole answer; without it the beginning of a stream's block. */
static void write_block(struct jsonw *w, const struct part *p, bool whole)
{
    struct str text = whole ? buf_str(&p->text) : STR("");

    jsonw_obj(w);
    if (p->kind == PART_TEXT) {
        write_str(w, "type", STR("text"));
        write_str(w, "text", text);
    } else if (p->kind == PART_REASONING) {
        write_str(w, "type", STR("thinking"));
        write_str(w, "thinking", text);
        if (whole) write_signature(w, "signature", text);
        else write_str(w, "signature", STR(""));
    } else {
        write_str(w, "type", STR("tool_use"));
        write_str(w, "id", buf_str(&p->id));
        write_str(w, "name", buf_str(&p->name));
        jsonw_key(w, "input");
        jsonw_raw(w, text.n && is_object(text) ? text : STR("{}"));
    }
    jsonw_end(w);
}

/* *sequence: the stop sequence that ended the answer; p NULL: none. */
static const char *stop_reason(const struct choice *ch, struct str *sequence)
{
    const char *reason = choice_finish_reason(ch);
    const struct messages *s = messages_state(ch->call);

    *sequence = (struct str){ 0 };
    if (!strcmp(reason, "tool_calls")) return "tool_use";
    if (!strcmp(reason, "length")) return "max_tokens";
    if (ch->stop_hit >= 0 && ch->stop_hit < s->n_stops) {
        *sequence = s->stops[ch->stop_hit];
        return "stop_sequence";
    }
    return "end_turn";
}

static void write_stop(struct jsonw *w, const struct choice *ch)
{
    struct str sequence;

    write_str(w, "stop_reason", str_c(stop_reason(ch, &sequence)));
    jsonw_key(w, "stop_sequence");
    if (sequence.p) jsonw_str(w, sequence);
    else jsonw_null(w);
}

static void write_message_head(struct jsonw *w, const struct call *c)
{
    write_str(w, "id", str_c(c->id));
    write_str(w, "type", STR("message"));
    write_str(w, "role", STR("assistant"));
    write_str(w, "model", str_c(c->model_id));
}

/* ---- the stream ---- */

static void begin(struct choice *ch)
{
    struct call *c = ch->call;
    struct jsonw w;

    begin_event(&w, c, "message_start");
    jsonw_key(&w, "message"), jsonw_obj(&w);
    write_message_head(&w, c);
    jsonw_key(&w, "content"), jsonw_arr(&w), jsonw_end(&w);
    jsonw_key(&w, "stop_reason"), jsonw_null(&w);
    jsonw_key(&w, "stop_sequence"), jsonw_null(&w);
    write_usage(&w, c->prompt_tokens[0], ch->n_cached, 0);
    jsonw_end(&w);
    jsonw_end(&w);
    begin_event(&w, c, "ping");
    jsonw_end(&w);
}

static void open_part(struct choice *ch, const struct part *p)
{
    struct jsonw w;

    begin_event(&w, ch->call, "content_block_start");
    jsonw_key(&w, "index"), jsonw_int(&w, ch->answer.n - 1);
    jsonw_key(&w, "content_block"), write_block(&w, p, false);
    jsonw_end(&w);
}

static void begin_delta(struct jsonw *w, struct choice *ch, const char *type)
{
    begin_event(w, ch->call, "content_block_delta");
    jsonw_key(w, "index"), jsonw_int(w, ch->answer.n - 1);
    jsonw_key(w, "delta"), jsonw_obj(w);
    write_str(w, "type", str_c(type));
}

static void add_part(struct choice *ch, const struct part *p, struct str piece)
{
    static const char *const types[] = { "text_delta", "thinking_delta", "input_json_delta" };
    static const char *const members[] = { "text", "thinking", "partial_json" };
    struct jsonw w;

    if (!piece.n) return;
    begin_delta(&w, ch, types[p->kind]);
    write_str(&w, members[p->kind], piece);
    jsonw_end(&w);
    jsonw_end(&w);
}

static void close_part(struct choice *ch, const struct part *p)
{
    struct jsonw w;

    if (p->kind == PART_REASONING) {
        begin_delta(&w, ch, "signature_delta");
        write_signature(&w, "signature", buf_str(&p->text));
        jsonw_end(&w);
        jsonw_end(&w);
    }
    begin_event(&w, ch->call, "content_block_stop");
    jsonw_key(&w, "index"), jsonw_int(&w, ch->answer.n - 1);
    jsonw_end(&w);
}

static void end(struct call *c, const struct usage *u)
{
    struct jsonw w;

    begin_event(&w, c, "message_delta");
    jsonw_key(&w, "delta"), jsonw_obj(&w);
    write_stop(&w, c->choices[0]);
    jsonw_end(&w);
    write_usage(&w, u->prompt, u->cached, u->completion);
    jsonw_end(&w);
    begin_event(&w, c, "message_stop");
    jsonw_end(&w);
}

static void write_failure(struct call *c, const struct fail *f, const char *msg, const char *param)
{
    respond_begin_event(c, "error");
    fail_write_body(&c->out, FAIL_ANTHROPIC, f, msg, param, c->who.correlation);
}

/* Before message_start, too: the SDK ignores it anywhere. */
static void ping(struct call *c)
{
    struct jsonw w;

    begin_event(&w, c, "ping");
    jsonw_end(&w);
}

/* ---- the body ---- */

static void write_body(struct call *c, const struct usage *u)
{
    const struct choice *ch = c->choices[0];
    struct jsonw w = { .out = &c->out };

    jsonw_obj(&w);
    write_message_head(&w, c);
    jsonw_key(&w, "content"), jsonw_arr(&w);
    for (int i = 0; i < ch->answer.n; i++) write_block(&w, &ch->answer.parts[i], true);
    jsonw_end(&w);
    write_stop(&w, ch);
    write_usage(&w, u->prompt, u->cached, u->completion);
    jsonw_end(&w);
}

static const struct dialect dialect_messages = { .id_prefix = "msg_",
                                                 .keeps = true,
                                                 .translate = messages_translate,
                                                 .begin = begin,
                                                 .open_part = open_part,
                                                 .add_part = add_part,
                                                 .close_part = close_part,
                                                 .end = end,
                                                 .fail = write_failure,
                                                 .ping = ping,
                                                 .write_body = write_body };

static int prepare(struct call *c, struct err *e)
{
    int rc = call_read_body(c, BODY_CHAT, e);

    return rc == OK ? call_prepare_chat(c, e) : rc;
}

void api_messages(struct api *a, struct http_req *q, const struct api_who *who)
{
    static const struct call_job job = { prepare, call_submit };

    http_set_header(q, "request-id", who->correlation);
    call_begin_as(a, q, who, "/v1/messages", &job, &dialect_messages);
}

/* ---- counting tokens ---- */

/* The prompt is made as for an answer, and only counted. */
static int count_tokens(struct call *c, struct err *e)
{
    struct jsonw w = { .out = &c->out };
    int rc = prepare(c, e);

    if (rc != OK) return rc;
    jsonw_obj(&w);
    jsonw_key(&w, "input_tokens"), jsonw_int(&w, c->prompt_tokens[0]);
    jsonw_end(&w);
    return OK;
}

static int send_count(struct call *c, struct err *e)
{
    (void)e;
    call_send_body(c, 200);
    return OK;
}

void api_count_tokens(struct api *a, struct http_req *q, const struct api_who *who)
{
    static const struct call_job job = { count_tokens, send_count };

    call_begin_as(a, q, who, "/v1/messages/count_tokens", &job, &dialect_messages);
}
