#include "api/reply.h"

#include "base/jsonw.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static void put_str(struct buf *out, struct str s)
{
    struct jsonw w = { .out = out };
    jsonw_str(&w, s);
}

static void put_int(struct buf *out, int64_t v)
{
    char digits[24];
    size_t at = sizeof digits;
    uint64_t u = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;

    do digits[--at] = (char)('0' + u % 10);
    while (u /= 10);
    if (v < 0) digits[--at] = '-';
    buf_add(out, digits + at, sizeof digits - at);
}

/* ---- what all chunks and bodies begin with ---- */

static void put_head(const struct reply *y, struct buf *out, const char *object)
{
    buf_puts(out, "{\"id\":");
    put_str(out, str_c(y->id));
    buf_puts(out, ",\"object\":\"");
    buf_puts(out, object);
    buf_puts(out, "\",\"created\":");
    put_int(out, y->created);
    buf_puts(out, ",\"model\":");
    put_str(out, str_c(y->model));
    buf_puts(out, ",\"system_fingerprint\":");
    put_str(out, str_c(y->fingerprint));
    buf_puts(out, ",\"choices\":[");
}

void reply_begin(struct reply *y)
{
    buf_clear(&y->head);
    put_head(y, &y->head, y->chat ? "chat.completion.chunk" : "text_completion");
}

void reply_release(struct reply *y)
{
    buf_release(&y->head);
    *y = (struct reply){ 0 };
}

/* ---- log probabilities ---- */

void logprobs_clear(struct logprobs *l)
{
    for (int i = 0; i < 4; i++) buf_clear(&l->list[i]);
    l->n = 0;
}

void logprobs_release(struct logprobs *l)
{
    for (int i = 0; i < 4; i++) buf_release(&l->list[i]);
    l->n = 0;
}

/* The shortest text that reads back as the same float. JSON has no -inf: "never" is a number that
 * others write too. */
static void put_logprob(struct buf *out, float logprob)
{
    char text[32] = "-9999.0";

    for (int digits = 6; isfinite(logprob) && digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)logprob);
        if (!(strtof(text, NULL) < logprob) && !(strtof(text, NULL) > logprob)) break;
    }
    buf_puts(out, text);
}

static void put_token(struct reply *y, struct buf *out, int32_t id, float logprob)
{
    struct str bytes = y->piece(y->arg, id);

    buf_puts(out, "{\"token\":");
    put_str(out, bytes);
    buf_puts(out, ",\"logprob\":");
    put_logprob(out, logprob);
    buf_puts(out, ",\"bytes\":[");
    for (size_t i = 0; i < bytes.n; i++) {
        if (i) buf_putc(out, ',');
        put_int(out, (unsigned char)bytes.p[i]);
    }
    buf_putc(out, ']');
}

static void add_chat(struct logprobs *l, struct reply *y, const struct event *ev)
{
    struct buf *out = &l->list[0];

    if (l->n) buf_putc(out, ',');
    put_token(y, out, ev->id, ev->logprob);
    buf_puts(out, ",\"top_logprobs\":[");
    for (int i = 0; i < ev->n_top; i++) {
        if (i) buf_putc(out, ',');
        put_token(y, out, ev->top[i].id, ev->top[i].logprob);
        buf_putc(out, '}');
    }
    buf_puts(out, "]}");
}

/* One "text":logprob of an object, unless its text is there already: the first is the likelier. */
static void put_top(struct reply *y, struct buf *out, size_t begin, int32_t id, float logprob)
{
    size_t at = out->n, n;

    put_str(out, y->piece(y->arg, id));
    buf_putc(out, ':');
    n = out->n - at;
    for (size_t i = begin; i + n <= at; i++) {
        if ((out->p[i - 1] == '{' || out->p[i - 1] == ',') && !memcmp(out->p + i, out->p + at, n)) {
            out->n = at;
            return;
        }
    }
    put_logprob(out, logprob);
    buf_putc(out, ',');
}

static void add_text(struct logprobs *l, struct reply *y, const struct event *ev, size_t offset)
{
    struct buf *top = &l->list[2];
    size_t begin;

    for (int i = 0; l->n && i < 4; i++) buf_putc(&l->list[i], ',');
    put_str(&l->list[0], y->piece(y->arg, ev->id));
    put_logprob(&l->list[1], ev->logprob);
    buf_putc(top, '{');
    begin = top->n;
    for (int i = 0; i < ev->n_top; i++) put_top(y, top, begin, ev->top[i].id, ev->top[i].logprob);
    if (ev->n_top) put_top(y, top, begin, ev->id, ev->logprob);
    if (top->n > begin) top->n--; /* the last comma */
    buf_putc(top, '}');
    put_int(&l->list[3], (int64_t)offset);
}

void logprobs_add(struct logprobs *l, struct reply *y, const struct event *ev, size_t offset)
{
    if (y->chat) add_chat(l, y, ev);
    else add_text(l, y, ev, offset);
    l->n++;
}

static void put_logprobs(const struct reply *y, struct buf *out, const struct logprobs *l)
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

static void put_index(const struct reply *y, struct buf *out, int index)
{
    buf_put_str(out, buf_str(&y->head));
    buf_puts(out, "{\"index\":");
    put_int(out, index);
}

static void put_end(const struct reply *y, struct buf *out)
{
    buf_puts(out, y->usage ? "}],\"usage\":null}" : "}]}");
}

void reply_role(const struct reply *y, struct buf *out, int index)
{
    put_index(y, out, index);
    buf_puts(out, ",\"delta\":{\"role\":\"assistant\",\"content\":\"\"}");
    buf_puts(out, ",\"logprobs\":null,\"finish_reason\":null");
    put_end(y, out);
}

void reply_delta(const struct reply *y, struct buf *out, int index, struct str text,
                 const struct logprobs *lp)
{
    put_index(y, out, index);
    buf_puts(out, y->chat ? ",\"delta\":{\"content\":" : ",\"text\":");
    put_str(out, text);
    if (y->chat) buf_putc(out, '}');
    put_logprobs(y, out, lp);
    buf_puts(out, ",\"finish_reason\":null");
    put_end(y, out);
}

static void put_nulls(const struct reply *y, struct buf *out)
{
    buf_puts(out, ",\"logprobs\":null,\"finish_reason\":null");
    put_end(y, out);
}

/* Two names for it are in use among clients. */
static void put_think(struct buf *out, struct str text)
{
    buf_puts(out, "\"reasoning_content\":");
    put_str(out, text);
    buf_puts(out, ",\"reasoning\":");
    put_str(out, text);
}

void reply_think(const struct reply *y, struct buf *out, int index, struct str text)
{
    put_index(y, out, index);
    buf_puts(out, ",\"delta\":{");
    put_think(out, text);
    buf_putc(out, '}');
    put_nulls(y, out);
}

void reply_open_call(struct buf *out, int k, struct str id, struct str name)
{
    buf_putc(out, '{');
    if (k >= 0) {
        buf_puts(out, "\"index\":");
        put_int(out, k);
        buf_putc(out, ',');
    }
    buf_puts(out, "\"id\":");
    put_str(out, id);
    buf_puts(out, ",\"type\":\"function\",\"function\":{\"name\":");
    put_str(out, name);
    buf_puts(out, ",\"arguments\":");
}

void reply_close_call(struct buf *out, struct str args)
{
    put_str(out, args);
    buf_puts(out, "}}");
}

void reply_call(const struct reply *y, struct buf *out, int index, int k, struct str id,
                struct str name)
{
    put_index(y, out, index);
    buf_puts(out, ",\"delta\":{\"tool_calls\":[");
    reply_open_call(out, k, id, name);
    reply_close_call(out, STR(""));
    buf_puts(out, "]}");
    put_nulls(y, out);
}

void reply_args(const struct reply *y, struct buf *out, int index, int k, struct str piece)
{
    put_index(y, out, index);
    buf_puts(out, ",\"delta\":{\"tool_calls\":[{\"index\":");
    put_int(out, k);
    buf_puts(out, ",\"function\":{\"arguments\":");
    put_str(out, piece);
    buf_puts(out, "}}]}");
    put_nulls(y, out);
}

void reply_finish(const struct reply *y, struct buf *out, int index, const char *finish)
{
    put_index(y, out, index);
    buf_puts(out, y->chat ? ",\"delta\":{}" : ",\"text\":\"\"");
    buf_puts(out, ",\"logprobs\":null,\"finish_reason\":");
    put_str(out, str_c(finish));
    put_end(y, out);
}

/* ---- usage ---- */

static double rounded(double ms) { return round(ms * 1000) / 1000; }

static void put_usage(struct buf *out, const struct usage *u)
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
    jsonw_key(&w, "queue_ms"), jsonw_num(&w, rounded(u->queue_ms));
    jsonw_key(&w, "prefill_ms"), jsonw_num(&w, rounded(u->prefill_ms));
    jsonw_key(&w, "decode_ms"), jsonw_num(&w, rounded(u->decode_ms));
    jsonw_key(&w, "cached_tokens"), jsonw_int(&w, u->cached);
    jsonw_end(&w);
    jsonw_end(&w);
}

void reply_usage(const struct reply *y, struct buf *out, const struct usage *u)
{
    buf_put_str(out, buf_str(&y->head));
    buf_puts(out, "],");
    put_usage(out, u);
    buf_putc(out, '}');
}

/* ---- whole replies ---- */

void reply_open(const struct reply *y, struct buf *out)
{
    put_head(y, out, y->chat ? "chat.completion" : "text_completion");
}

static void put_message(struct buf *out, const struct reply_parts *p)
{
    buf_puts(out, ",\"message\":{\"role\":\"assistant\",\"content\":");
    if (p->calls.n && !p->text.n) buf_puts(out, "null");
    else put_str(out, p->text);
    buf_puts(out, ",\"refusal\":null");
    if (p->think.n) {
        buf_putc(out, ',');
        put_think(out, p->think);
    }
    if (p->calls.n) {
        buf_puts(out, ",\"tool_calls\":[");
        buf_put_str(out, p->calls);
        buf_putc(out, ']');
    }
    buf_putc(out, '}');
}

void reply_message(const struct reply *y, struct buf *out, int index,
                   const struct reply_parts *parts, const struct logprobs *lp, const char *finish)
{
    if (out->p[out->n - 1] == '}') buf_putc(out, ',');
    buf_puts(out, "{\"index\":");
    put_int(out, index);
    if (y->chat) {
        put_message(out, parts);
    } else {
        buf_puts(out, ",\"text\":");
        put_str(out, parts->text);
    }
    put_logprobs(y, out, lp);
    buf_puts(out, ",\"finish_reason\":");
    put_str(out, str_c(finish));
    buf_putc(out, '}');
}

void reply_choice(const struct reply *y, struct buf *out, int index, struct str text,
                  const struct logprobs *lp, const char *finish)
{
    reply_message(y, out, index, &(struct reply_parts){ .text = text }, lp, finish);
}

void reply_close(const struct reply *y, struct buf *out, const struct usage *u)
{
    (void)y;
    buf_puts(out, "],");
    put_usage(out, u);
    buf_putc(out, '}');
}
