#include "api/toolparse.h"

#include <ctype.h>
#include <stdio.h>

/* ---- giving out ---- */

static bool is_space(char c) { return isspace((unsigned char)c); }

/* Text or reasoning: white space at the beginning goes, at the end it waits for more. */
static void give(struct toolparse *p, struct str s, bool think)
{
    bool *some = think ? &p->some_think : &p->some_text;
    size_t end;

    if (!*some && (think || p->after))
        while (s.n && is_space(s.p[0])) s = str_skip(s, 1);
    if (!s.n) return;
    for (end = s.n; end > 0 && is_space(s.p[end - 1]);) end--;
    if (end > 0) {
        if (p->space.n) (think ? p->out.think : p->out.text)(p->out.arg, buf_str(&p->space));
        buf_clear(&p->space);
        (think ? p->out.think : p->out.text)(p->out.arg, str_take(s, end));
        *some = true;
    }
    buf_put_str(&p->space, str_skip(s, end));
}

/* What a part ends with is left out. */
static void end_part(struct toolparse *p) { buf_clear(&p->space); }

static void drop_held(struct toolparse *p, size_t n)
{
    if (n) memmove(p->held.p, p->held.p + n, p->held.n - n);
    p->held.n -= n;
}

static void give_held(struct toolparse *p, size_t n, bool think)
{
    give(p, str_take(buf_str(&p->held), n), think);
    drop_held(p, n);
}

static void tell_call(void *arg, const struct tool_call *call)
{
    struct toolparse *p = arg;

    p->n_calls++;
    p->after = true;
    buf_clear(&p->space);
    p->out.call(p->out.arg, call);
}

/* ---- looking for marks ---- */

#define MARKS 10

/* The first of the marks in what is held, and where; -1: none. *keep: bytes at the end that may begin one. */
static int find_mark(const struct toolparse *p, const char *const *marks, size_t *at, size_t *keep)
{
    struct str held = buf_str(&p->held);
    int found = -1;

    *keep = 0;
    for (int i = 0; marks[i]; i++) {
        struct str mark = str_c(marks[i]);
        ptrdiff_t here = str_find(held, mark);
        if (here >= 0 &&
            (found < 0 || (size_t)here < *at || ((size_t)here == *at && mark.n > strlen(marks[found])))) {
            found = i;
            *at = (size_t)here;
        }
        for (size_t n = mark.n - 1 < held.n ? mark.n - 1 : held.n; n > *keep; n--)
            if (!memcmp(held.p + held.n - n, mark.p, n)) *keep = n;
    }
    return found;
}

/* ---- text ---- */

static bool begins_bare(const struct toolparse *p)
{
    size_t i = 0;

    if (!p->calls || p->calls->payload != PAYLOAD_BARE || !p->tools || p->some_text || p->n_calls)
        return false;
    while (i < p->held.n && is_space(p->held.p[i])) i++;
    return i < p->held.n && (p->held.p[i] == '{' || p->held.p[i] == '[');
}

/* Reasoning begins an answer, or there is none. */
static bool begins_think(const struct toolparse *p)
{
    struct str held = buf_str(&p->held), mark;
    size_t i = 0;

    if (!p->think || p->some_text) return false;
    mark = str_c(p->think->open);
    while (i < held.n && is_space(held.p[i])) i++;
    held = str_skip(held, i);
    return str_starts(held, mark) || str_starts(mark, held);
}

/* A list of what may come in a text: the call's mark first, then reasoning's, then what is dropped. */
static int text_marks(const struct toolparse *p, const char *marks[MARKS])
{
    int n = 0;

    if (p->calls && p->calls->open) marks[n++] = p->calls->open;
    if (begins_think(p)) marks[n++] = p->think->open;
    if (p->calls && p->calls->close) marks[n++] = p->calls->close;
    for (int i = 0; p->calls && i < 3 && p->calls->drop[i]; i++) marks[n++] = p->calls->drop[i];
    marks[n] = NULL;
    return n;
}

static void begin_call(struct toolparse *p, bool marked)
{
    p->state = PARSE_CALL;
    p->marked = marked;
}

static bool step_text(struct toolparse *p)
{
    const char *marks[MARKS];
    size_t at, keep;
    int found;

    if (begins_bare(p)) return begin_call(p, false), true;
    text_marks(p, marks);
    found = find_mark(p, marks, &at, &keep);
    if (found < 0) {
        give_held(p, p->held.n - keep, false);
        return false;
    }
    give_held(p, at, false);
    drop_held(p, strlen(marks[found]));
    if (p->calls && marks[found] == p->calls->open) {
        begin_call(p, true);
    } else if (p->think && marks[found] == p->think->open) {
        end_part(p);
        p->state = PARSE_THINK;
    }
    return true;
}

static bool step_think(struct toolparse *p)
{
    const char *marks[] = { p->think->close, NULL };
    size_t at, keep;

    if (find_mark(p, marks, &at, &keep) < 0) {
        give_held(p, p->held.n - keep, true);
        return false;
    }
    give_held(p, at, true);
    drop_held(p, strlen(marks[0]));
    end_part(p);
    p->after = true;
    p->state = PARSE_TEXT;
    return true;
}

/* ---- calls ---- */

/* It was none: as the model wrote it. */
static void give_back(struct toolparse *p)
{
    bool after = p->after;

    p->state = PARSE_TEXT;
    p->after = false;
    if (p->marked) give(p, str_c(p->calls->open), false);
    p->after = after;
    if (!p->marked) {                                    /* not to be taken for one again */
        give_held(p, p->held.n, false);
        p->some_text = true;
    }
}

/* Behind a bare call, or one of llama's list: is there another? -1: not known yet. */
static int another_bare(struct toolparse *p)
{
    size_t i = 0;

    while (i < p->held.n && (is_space(p->held.p[i]) || p->held.p[i] == ';' || p->held.p[i] == ',')) i++;
    if (i == p->held.n) return -1;
    if (p->held.p[i] != '{' && p->held.p[i] != '[') return 0;
    drop_held(p, i);
    return 1;
}

static bool step_call(struct toolparse *p, bool over)
{
    const struct tool_sink sink = { tell_call, p };
    ptrdiff_t n;
    int more;

    if (p->calls->payload == PAYLOAD_BARE && p->n_calls && (more = another_bare(p)) != 1) {
        if (more < 0) return false;
        p->state = PARSE_TEXT;
        return true;
    }
    n = toolcall_read(p->calls, buf_str(&p->held), over, p->tools, &sink);
    if (n == 0 && !over) return false;
    if (n <= 0) {
        give_back(p);
        return true;
    }
    drop_held(p, (size_t)n);
    if (p->calls->payload != PAYLOAD_BARE) p->state = PARSE_TEXT;
    return true;
}

/* ---- harmony: messages with a header ---- */

static bool word_after(struct str s, const char *what, char *out, size_t cap)
{
    ptrdiff_t at = str_find(s, str_c(what));
    size_t n = 0;

    out[0] = 0;
    if (at < 0) return false;
    s = str_skip(s, (size_t)at + strlen(what));
    while (n + 1 < cap && n < s.n && !is_space(s.p[n]) && s.p[n] != '<') n++;
    snprintf(out, cap, "%.*s", (int)n, s.p);
    return true;
}

/* Does this begin as headers do? What is too short to tell does. */
static bool begins_header(struct str s)
{
    static const char *const ways[] = { "<|", "to=", "assistant" };

    while (s.n && is_space(s.p[0])) s = str_skip(s, 1);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        if (str_starts(s, str_c(ways[i])) || str_starts(str_c(ways[i]), s)) return true;
    return false;
}

static bool step_header(struct toolparse *p)
{
    enum { LONGEST = 400 };
    struct str held = buf_str(&p->held), header = str_take(held, LONGEST);
    ptrdiff_t end = str_find(header, STR("<|message|>"));
    char channel[32];

    p->is_think = false;
    p->to[0] = 0;
    if (!begins_header(held) || (end < 0 && held.n >= LONGEST)) {
        p->state = PARSE_BODY;                           /* no header at all: plain text */
        return true;
    }
    if (end < 0) return false;
    header = str_take(held, (size_t)end);
    word_after(header, "<|channel|>", channel, sizeof channel);
    word_after(header, "to=", p->to, sizeof p->to);
    p->is_think = !strcmp(channel, "analysis") && !p->to[0];
    if (!strcmp(p->to, "user") || !strcmp(p->to, "assistant")) p->to[0] = 0;
    drop_held(p, (size_t)end + 11);
    p->state = PARSE_BODY;
    return true;
}

static void end_body(struct toolparse *p)
{
    struct tool_call call = { str_c(p->to), str_trim(buf_str(&p->body)), STR("") };

    if (str_starts(call.name, STR("functions."))) call.name = str_skip(call.name, 10);
    if (p->to[0] && (!call.name.n || (call.args.n && !json_valid(call.args)))) {
        p->to[0] = 0;
        give(p, call.args, false);
    } else if (p->to[0]) {
        if (!call.args.n) call.args = STR("{}");
        tell_call(p, &call);
    } else if (p->is_think) {
        p->after = true;
    }
    buf_clear(&p->body);
    end_part(p);
    p->to[0] = 0;
    p->state = PARSE_HEADER;
}

static void give_body(struct toolparse *p, size_t n)
{
    if (p->to[0]) {
        buf_add(&p->body, p->held.p, n);
        drop_held(p, n);
    } else {
        give_held(p, n, p->is_think);
    }
}

static bool step_body(struct toolparse *p)
{
    static const char *const marks[] = {
        "<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>", NULL
    };
    size_t at, keep;
    int found = find_mark(p, marks, &at, &keep);

    if (found < 0) {
        give_body(p, p->held.n - keep);
        return false;
    }
    give_body(p, at);
    if (found < 4) drop_held(p, strlen(marks[found]));
    end_body(p);
    return true;
}

/* ---- the whole ---- */

static bool step(struct toolparse *p)
{
    if (!p->held.n) return false;
    switch (p->state) {
    case PARSE_TEXT: return step_text(p);
    case PARSE_THINK: return step_think(p);
    case PARSE_CALL: return step_call(p, false);
    case PARSE_HEADER: return step_header(p);
    default: return step_body(p);
    }
}

void toolparse_init(struct toolparse *p, const struct tool_family *calls, const struct think_family *think,
                    const json_t *tools, struct str prompt, const struct toolparse_out *out)
{
    *p = (struct toolparse){ .calls = calls, .think = think, .tools = tools, .out = *out };
    prompt = str_trim(prompt);
    if (calls && calls->payload == PAYLOAD_HARMONY) p->state = PARSE_HEADER;
    else if (think && str_ends(prompt, str_c(think->open))) p->state = PARSE_THINK;
    else if (think && str_ends(prompt, str_c(think->close))) p->after = true;
}

void toolparse_push(struct toolparse *p, struct str text)
{
    buf_put_str(&p->held, text);
    while (step(p)) {}
}

void toolparse_end(struct toolparse *p)
{
    while (step(p)) {}
    if (p->state == PARSE_CALL && p->held.n &&
        !(p->n_calls && p->calls->payload == PAYLOAD_BARE && another_bare(p) != 1)) {
        if (!step_call(p, true)) give_back(p);
        while (p->state != PARSE_CALL && step(p)) {}
    } else if (p->state == PARSE_CALL && !p->n_calls && p->marked) {
        give_back(p);
    }
    if (p->state == PARSE_HEADER && str_find(buf_str(&p->held), STR("<|channel|>")) < 0)
        p->state = PARSE_BODY;
    if (p->state == PARSE_BODY) {
        give_body(p, p->held.n);
        if (p->to[0]) end_body(p);
    } else if (p->state == PARSE_TEXT || p->state == PARSE_THINK) {
        give_held(p, p->held.n, p->state == PARSE_THINK);
    }
    if (p->space.n && !p->n_calls && p->state != PARSE_THINK && p->some_text)
        p->out.text(p->out.arg, buf_str(&p->space));
    buf_clear(&p->held);
    buf_clear(&p->space);
}

void toolparse_release(struct toolparse *p)
{
    buf_release(&p->held);
    buf_release(&p->space);
    buf_release(&p->body);
    *p = (struct toolparse){ 0 };
}
