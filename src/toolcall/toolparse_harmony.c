/* toolparse_harmony.c - answers in the harmony format of gpt-oss: a series of messages
 *
 *     <|start|>assistant<|channel|>CHANNEL to=RECIPIENT <|constrain|>json<|message|>BODY<|end|>
 *
 * The channel "analysis" is reasoning. A message to functions.NAME is a call, and its body the
 * arguments. Everything else is text. The first header follows the prompt, so it may begin anywhere
 * in this form; an answer without a header is plain text. */
#include "toolcall/toolparse_impl.h"

#include <stdio.h>

enum { MAX_HEADER = 400 /* bytes */ };

/* ---- headers ---- */

/* The word after a text in the header; "" if there is none. */
static void read_word_after(struct str s, const char *what, char *out, size_t cap)
{
    ptrdiff_t at = str_find(s, str_c(what));
    size_t n = 0;

    out[0] = 0;
    if (at < 0) return;
    s = str_skip(s, (size_t)at + strlen(what));
    while (n + 1 < cap && n < s.n && !is_space(s.p[n]) && s.p[n] != '<') n++;
    snprintf(out, cap, "%.*s", (int)n, s.p);
}

/* Does the text begin as headers do, as far as it goes? */
static bool may_be_header(struct str s)
{
    static const char *const ways[] = { "<|", "to=", "assistant" };

    s = str_skip(s, count_spaces(s));
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        if (str_starts(s, str_c(ways[i])) || str_starts(str_c(ways[i]), s)) return true;
    return false;
}

/* Reads channel and recipient. "to=user" is text for the user. */
bool toolparse_step_header(struct toolparse *p)
{
    struct str held = buf_str(&p->held), header = str_take(held, MAX_HEADER);
    ptrdiff_t end = str_find(header, STR("<|message|>"));
    char channel[32];

    p->is_think = p->reported = false;
    p->to[0] = 0;
    if (!may_be_header(held) || (end < 0 && held.n >= MAX_HEADER)) {
        p->state = PARSE_BODY; /* no header at all: plain text */
        return true;
    }
    if (end < 0) return false;
    header = str_take(held, (size_t)end);
    read_word_after(header, "<|channel|>", channel, sizeof channel);
    read_word_after(header, "to=", p->to, sizeof p->to);
    p->is_think = !strcmp(channel, "analysis") && !p->to[0];
    if (!strcmp(p->to, "user") || !strcmp(p->to, "assistant")) p->to[0] = 0;
    toolparse_drop_held(p, (size_t)end + strlen("<|message|>"));
    p->state = PARSE_BODY;
    return true;
}

/* ---- bodies ---- */

/* A body is text, reasoning, or the arguments of a call. Arguments of a known tool are passed on as
 * they arrive, those of an unknown tool are collected: if they are not JSON the message is text. */

/* The recipient without "functions.". */
static struct str function_name(const struct toolparse *p)
{
    struct str name = str_c(p->to);

    return str_starts(name, STR("functions.")) ? str_skip(name, 10) : name;
}

/* Reports a call whose arguments were collected. If they are not JSON they are text. */
static void emit_collected(struct toolparse *p)
{
    struct toolcall call = { function_name(p), str_trim(buf_str(&p->body)), STR("") };
    bool is = call.name.n && (!call.args.n || toolcall_is_json(call.args, &p->failed));

    if (p->failed) return;
    if (!is) {
        toolparse_emit(p, call.args, false);
        return;
    }
    if (!call.args.n) call.args = STR("{}");
    toolparse_emit_call(p, &call);
}

/* The message is over: reports a collected call, and forgets the recipient. */
static void end_body(struct toolparse *p)
{
    if (p->to[0] && !p->reported) emit_collected(p);
    else if (!p->to[0] && p->is_think) p->after = true;
    buf_clear(&p->body);
    buf_clear(&p->space);
    p->to[0] = 0;
    p->state = PARSE_HEADER;
}

/* Passes on the first n bytes held. */
static void emit_body(struct toolparse *p, size_t n)
{
    if (p->reported) { /* after the arguments */
        toolparse_drop_held(p, n);
    } else if (p->to[0]) {
        buf_add(&p->body, p->held.p, n);
        p->failed |= p->body.failed;
        toolparse_drop_held(p, n);
    } else {
        toolparse_emit_held(p, n, p->is_think);
    }
}

/* A message to a known tool that begins with a JSON object: its arguments can be passed on. */
static bool begin_body_args(struct toolparse *p)
{
    struct toolcall_head h = { .name = function_name(p), .id = STR(""), .tail = TAIL_BODY };

    if (!p->to[0] || p->reported || p->body.n || !toolcall_is_known(p->tools, h.name)) return false;
    h.args = count_spaces(buf_str(&p->held));
    if (h.args >= p->held.n || p->held.p[h.args] != '{') return false;
    toolparse_begin_args(p, &h);
    p->reported = true;
    return true;
}

bool toolparse_step_body(struct toolparse *p)
{
    /* <|channel|> begins the next header and is left in place. */
    static const char *const marks[] = { "<|end|>",   "<|call|>",    "<|return|>",
                                         "<|start|>", "<|channel|>", NULL };
    size_t at, keep;
    int found;

    if (begin_body_args(p)) return true;
    found = toolparse_find_mark(p, marks, &at, &keep);
    if (found < 0 && p->to[0] && !p->reported && !p->body.n &&
        count_spaces(buf_str(&p->held)) == p->held.n)
        return false; /* white space before the arguments */
    if (found < 0) {
        emit_body(p, p->held.n - keep);
        return false;
    }
    emit_body(p, at);
    if (found < 4) toolparse_drop_held(p, strlen(marks[found]));
    end_body(p);
    return true;
}

void toolparse_end_harmony(struct toolparse *p)
{
    if (p->state == PARSE_HEADER && str_find(buf_str(&p->held), STR("<|channel|>")) >= 0) return;
    p->state = PARSE_BODY; /* a header that never ended is text */
    emit_body(p, p->held.n);
    if (p->to[0]) end_body(p);
}
