/* reply.c - rendering of chunks and bodies, by appending literals rather than through jsonw: chunks
 * are made for every token.
 *
 * The order of members is that of OpenAI's API, and tests compare whole chunks byte by byte. In the
 * steady state a chunk allocates nothing: the caller's buffer is reused. */
#include "api/reply.h"

#include "base/jsonw.h"
#include "engine/outbox.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* A quoted and escaped JSON string. */
static void append_str(struct buf *out, struct str s)
{
    struct jsonw w = { .out = out };
    jsonw_str(&w, s);
}

/* Faster than printf, and used for every index. */
static void append_int(struct buf *out, int64_t v)
{
    char digits[24];
    size_t at = sizeof digits;
    uint64_t u = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;

    do digits[--at] = (char)('0' + u % 10);
    while (u /= 10);
    if (v < 0) digits[--at] = '-';
    buf_add(out, digits + at, sizeof digits - at);
}

/* ---- the beginning of all chunks and bodies ---- */

/* Everything before the choices. */
static void append_head(const struct reply *y, struct buf *out, const char *object)
{
    buf_puts(out, "{\"id\":");
    append_str(out, str_c(y->id));
    buf_puts(out, ",\"object\":\"");
    buf_puts(out, object);
    buf_puts(out, "\",\"created\":");
    append_int(out, y->created);
    buf_puts(out, ",\"model\":");
    append_str(out, str_c(y->model));
    buf_puts(out, ",\"system_fingerprint\":");
    append_str(out, str_c(y->fingerprint));
    buf_puts(out, ",\"choices\":[");
}

void reply_render_head(struct reply *y)
{
    buf_clear(&y->head);
    append_head(y, &y->head, y->chat ? "chat.completion.chunk" : "text_completion");
}

void reply_release(struct reply *y)
{
    buf_release(&y->head);
    *y = (struct reply){ 0 };
}

/* ---- log probabilities ---- */

void logprobs_clear(struct logprobs *l)
{
    for (int i = 0; i < LOGPROB_LISTS; i++) buf_clear(&l->list[i]);
    l->n = 0;
}

void logprobs_release(struct logprobs *l)
{
    for (int i = 0; i < LOGPROB_LISTS; i++) buf_release(&l->list[i]);
    l->n = 0;
}

bool logprobs_failed(const struct logprobs *l)
{
    for (int i = 0; i < LOGPROB_LISTS; i++)
        if (l->list[i].failed) return true;
    return false;
}

/* The shortest text that parses to the same float. JSON has no -Inf; -9999.0 is what vLLM writes
 * for it. */
static void append_logprob(struct buf *out, float logprob)
{
    char text[32] = "-9999.0";

    for (int digits = 6; isfinite(logprob) && digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)logprob);
        if (!(strtof(text, NULL) < logprob) && !(strtof(text, NULL) > logprob)) break;
    }
    buf_puts(out, text);
}

/* The beginning of an object that the caller closes. */
static void append_token(struct reply *y, struct buf *out, int32_t id, float logprob)
{
    struct str bytes = y->piece(y->piece_arg, id);

    buf_putc(out, '{');
    if (y->ids) {
        buf_puts(out, "\"id\":");
        append_int(out, id);
        buf_putc(out, ',');
    }
    buf_puts(out, "\"token\":");
    append_str(out, bytes);
    buf_puts(out, ",\"logprob\":");
    append_logprob(out, logprob);
    buf_puts(out, ",\"bytes\":[");
    for (size_t i = 0; i < bytes.n; i++) {
        if (i) buf_putc(out, ',');
        append_int(out, (unsigned char)bytes.p[i]);
    }
    buf_putc(out, ']');
}

/* One element of logprobs.content. */
static void add_chat_logprob(struct logprobs *l, struct reply *y, const struct event *ev)
{
    struct buf *out = &l->list[0];

    if (l->n) buf_putc(out, ',');
    append_token(y, out, ev->id, ev->logprob);
    buf_puts(out, ",\"top_logprobs\":[");
    for (int i = 0; i < ev->n_top; i++) {
        if (i) buf_putc(out, ',');
        append_token(y, out, ev->top[i].id, ev->top[i].logprob);
        buf_putc(out, '}');
    }
    buf_puts(out, "]}");
}

/* Appends one "text":logprob to the object that begins at `begin`, unless the text is in it
 * already: different tokens can have the same text, and the first one is the most likely. */
static void append_alternative(struct reply *y, struct buf *out, size_t begin, int32_t id,
                               float logprob)
{
    size_t at = out->n, n;

    append_str(out, y->piece(y->piece_arg, id));
    buf_putc(out, ':');
    n = out->n - at;
    if (out->failed) return;
    for (size_t i = begin; i + n <= at; i++) {
        if ((out->p[i - 1] == '{' || out->p[i - 1] == ',') && !memcmp(out->p + i, out->p + at, n)) {
            out->n = at;
            return;
        }
    }
    append_logprob(out, logprob);
    buf_putc(out, ',');
}

/* One element in each of the four parallel lists. */
static void add_text_logprob(struct logprobs *l, struct reply *y, const struct event *ev,
                             size_t offset)
{
    struct buf *top = &l->list[2];
    size_t begin;

    for (int i = 0; l->n && i < 4; i++) buf_putc(&l->list[i], ',');
    append_str(&l->list[0], y->piece(y->piece_arg, ev->id));
    append_logprob(&l->list[1], ev->logprob);
    buf_putc(top, '{');
    begin = top->n;
    for (int i = 0; i < ev->n_top; i++)
        append_alternative(y, top, begin, ev->top[i].id, ev->top[i].logprob);
    if (ev->n_top) append_alternative(y, top, begin, ev->id, ev->logprob);
    if (top->n > begin) top->n--; /* removes the last comma */
    buf_putc(top, '}');
    append_int(&l->list[3], (int64_t)offset);
}

void logprobs_add(struct logprobs *l, struct reply *y, const struct event *ev, size_t offset)
{
    if (y->chat || y->ids) add_chat_logprob(l, y, ev);
    else add_text_logprob(l, y, ev, offset);
    l->n++;
}

static void append_logprobs(const struct reply *y, struct buf *out, const struct logprobs *l)
{
    static const char *const names[] = { "{\"tokens\":[", "],\"token_logprobs\":[",
                                         "],\"top_logprobs\":[", "],\"text_offset\":[" };

    buf_puts(out, ",\"logprobs\":");
    if (!l) {
        buf_puts(out, "null");
    } else if (y->chat) {
        buf_puts(out, "{\"content\":[");
        buf_put_str(out, buf_str(&l->list[0]));
        buf_puts(out, "],\"refusal\":null}");
    } else {
        for (int i = 0; i < 4; i++) {
            buf_puts(out, names[i]);
            buf_put_str(out, buf_str(&l->list[i]));
        }
        buf_puts(out, "]}");
    }
}

/* ---- chunks ---- */

/* The shared head, and the index of the choice. */
static void append_chunk_head(const struct reply *y, struct buf *out, int index)
{
    buf_put_str(out, buf_str(&y->head));
    buf_puts(out, "{\"index\":");
    append_int(out, index);
}

static void append_chunk_end(const struct reply *y, struct buf *out)
{
    buf_puts(out, y->usage ? "}],\"usage\":null}" : "}]}");
}

void reply_chunk_role(const struct reply *y, struct buf *out, int index)
{
    append_chunk_head(y, out, index);
    buf_puts(out, ",\"delta\":{\"role\":\"assistant\",\"content\":\"\"}");
    buf_puts(out, ",\"logprobs\":null,\"finish_reason\":null");
    append_chunk_end(y, out);
}

void reply_chunk_text(const struct reply *y, struct buf *out, int index, struct str text,
                      const struct logprobs *lp)
{
    append_chunk_head(y, out, index);
    buf_puts(out, y->chat ? ",\"delta\":{\"content\":" : ",\"text\":");
    append_str(out, text);
    if (y->chat) buf_putc(out, '}');
    append_logprobs(y, out, lp);
    buf_puts(out, ",\"finish_reason\":null");
    append_chunk_end(y, out);
}

/* The end of a chunk that has neither logprobs nor a finish reason. */
static void append_null_end(const struct reply *y, struct buf *out)
{
    buf_puts(out, ",\"logprobs\":null,\"finish_reason\":null");
    append_chunk_end(y, out);
}

/* Clients read it under one of two names. */
static void append_reasoning(struct buf *out, struct str text)
{
    buf_puts(out, "\"reasoning_content\":");
    append_str(out, text);
    buf_puts(out, ",\"reasoning\":");
    append_str(out, text);
}

void reply_chunk_reasoning(const struct reply *y, struct buf *out, int index, struct str text)
{
    append_chunk_head(y, out, index);
    buf_puts(out, ",\"delta\":{");
    append_reasoning(out, text);
    buf_putc(out, '}');
    append_null_end(y, out);
}

void reply_open_tool_call(struct buf *out, int k, struct str id, struct str name)
{
    buf_putc(out, '{');
    if (k >= 0) {
        buf_puts(out, "\"index\":");
        append_int(out, k);
        buf_putc(out, ',');
    }
    buf_puts(out, "\"id\":");
    append_str(out, id);
    buf_puts(out, ",\"type\":\"function\",\"function\":{\"name\":");
    append_str(out, name);
    buf_puts(out, ",\"arguments\":");
}

void reply_close_tool_call(struct buf *out, struct str args)
{
    append_str(out, args);
    buf_puts(out, "}}");
}

void reply_chunk_tool_call(const struct reply *y, struct buf *out, int index, int k, struct str id,
                           struct str name)
{
    append_chunk_head(y, out, index);
    buf_puts(out, ",\"delta\":{\"tool_calls\":[");
    reply_open_tool_call(out, k, id, name);
    reply_close_tool_call(out, STR(""));
    buf_puts(out, "]}");
    append_null_end(y, out);
}

void reply_chunk_tool_args(const struct reply *y, struct buf *out, int index, int k,
                           struct str piece)
{
    append_chunk_head(y, out, index);
    buf_puts(out, ",\"delta\":{\"tool_calls\":[{\"index\":");
    append_int(out, k);
    buf_puts(out, ",\"function\":{\"arguments\":");
    append_str(out, piece);
    buf_puts(out, "}}]}");
    append_null_end(y, out);
}

void reply_chunk_finish(const struct reply *y, struct buf *out, int index, const char *finish)
{
    append_chunk_head(y, out, index);
    buf_puts(out, y->chat ? ",\"delta\":{}" : ",\"text\":\"\"");
    buf_puts(out, ",\"logprobs\":null,\"finish_reason\":");
    append_str(out, str_c(finish));
    append_chunk_end(y, out);
}

/* ---- usage ---- */

/* Microseconds are enough. */
static double round_ms(double ms) { return round(ms * 1000) / 1000; }

/* "tern" holds times that OpenAI's usage has no members for. */
static void append_usage(struct buf *out, const struct usage *u)
{
    struct jsonw w = { .out = out };

    buf_puts(out, "\"usage\":");
    jsonw_obj(&w);
    jsonw_key(&w, "prompt_tokens"), jsonw_int(&w, u->prompt);
    jsonw_key(&w, "completion_tokens"), jsonw_int(&w, u->completion);
    jsonw_key(&w, "total_tokens"), jsonw_int(&w, (int64_t)u->prompt + u->completion);
    jsonw_key(&w, "prompt_tokens_details"), jsonw_obj(&w);
    jsonw_key(&w, "cached_tokens"), jsonw_int(&w, u->cached);
    jsonw_end(&w);
    jsonw_key(&w, "tern"), jsonw_obj(&w);
    jsonw_key(&w, "queue_ms"), jsonw_num(&w, round_ms(u->queue_ms));
    jsonw_key(&w, "prefill_ms"), jsonw_num(&w, round_ms(u->prefill_ms));
    jsonw_key(&w, "decode_ms"), jsonw_num(&w, round_ms(u->decode_ms));
    jsonw_key(&w, "cached_tokens"), jsonw_int(&w, u->cached);
    jsonw_end(&w);
    jsonw_end(&w);
}

void reply_chunk_usage(const struct reply *y, struct buf *out, const struct usage *u)
{
    buf_put_str(out, buf_str(&y->head));
    buf_puts(out, "],");
    append_usage(out, u);
    buf_putc(out, '}');
}

/* ---- bodies ---- */

void reply_open(const struct reply *y, struct buf *out)
{
    append_head(y, out, y->chat ? "chat.completion" : "text_completion");
}

/* content is null where the message has only tool calls. */
static void append_message(struct buf *out, const struct reply_parts *p)
{
    buf_puts(out, ",\"message\":{\"role\":\"assistant\",\"content\":");
    if (p->tool_calls.n && !p->text.n) buf_puts(out, "null");
    else append_str(out, p->text);
    buf_puts(out, ",\"refusal\":null");
    if (p->reasoning.n) {
        buf_putc(out, ',');
        append_reasoning(out, p->reasoning);
    }
    if (p->tool_calls.n) {
        buf_puts(out, ",\"tool_calls\":[");
        buf_put_str(out, p->tool_calls);
        buf_putc(out, ']');
    }
    buf_putc(out, '}');
}

void reply_add_choice(const struct reply *y, struct buf *out, int index,
                      const struct reply_parts *parts, const struct logprobs *lp,
                      const char *finish)
{
    if (out->n && out->p[out->n - 1] == '}') buf_putc(out, ',');
    buf_puts(out, "{\"index\":");
    append_int(out, index);
    if (y->chat) {
        append_message(out, parts);
    } else {
        buf_puts(out, ",\"text\":");
        append_str(out, parts->text);
    }
    append_logprobs(y, out, lp);
    buf_puts(out, ",\"finish_reason\":");
    append_str(out, str_c(finish));
    buf_putc(out, '}');
}

void reply_close(struct buf *out, const struct usage *u)
{
    buf_puts(out, "],");
    append_usage(out, u);
    buf_putc(out, '}');
}
