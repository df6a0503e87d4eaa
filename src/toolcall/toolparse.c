#include "toolcall/toolparse.h"

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

static void begin_told(struct toolparse *p, struct str name, struct str id)
{
    p->n_calls++;
    p->after = true;
    buf_clear(&p->space);
    p->out.call(p->out.arg, name, id);
}

static void tell_call(void *arg, const struct tool_call *call)
{
    struct toolparse *p = arg;

    begin_told(p, call->name, call->id);
    p->out.args(p->out.arg, call->args);
}

/* ---- looking for marks ---- */

#define MARKS (TOOLFAMILY_DROP + 4)

/* The first of the marks in what is held, and where; -1: none. *keep: bytes at the end that may
 * begin one. */
static int find_mark(const struct toolparse *p, const char *const *marks, size_t *at, size_t *keep)
{
    struct str held = buf_str(&p->held);
    int found = -1;

    *keep = 0;
    for (int i = 0; marks[i]; i++) {
        struct str mark = str_c(marks[i]);
        ptrdiff_t here = str_find(held, mark);
        if (here >= 0 && (found < 0 || (size_t)here < *at ||
                          ((size_t)here == *at && mark.n > strlen(marks[found])))) {
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

/* A list of what may come in a text: the call's mark first, then reasoning's, then what is dropped.
 */
static int text_marks(const struct toolparse *p, const char *marks[MARKS])
{
    int n = 0;

    if (p->calls && p->calls->open) marks[n++] = p->calls->open;
    if (begins_think(p)) marks[n++] = p->think->open;
    if (p->calls && p->calls->close) marks[n++] = p->calls->close;
    for (int i = 0; p->calls && i < TOOLFAMILY_DROP && p->calls->drop[i]; i++)
        marks[n++] = p->calls->drop[i];
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
    p->head = (struct tool_head){ 0 };
    p->after = false;
    if (p->marked) give(p, str_c(p->calls->open), false);
    p->after = after;
    if (!p->marked) { /* its bracket is text: it is not taken for one again */
        size_t n = 0;
        while (n < p->held.n && is_space(p->held.p[n])) n++;
        give_held(p, n < p->held.n ? n + 1 : n, false);
        p->some_text = true;
    }
}

/* Behind a bare call, or one of llama's list: is there another? -1: not known yet. */
static int another_bare(struct toolparse *p)
{
    size_t i = 0;

    while (i < p->held.n && (is_space(p->held.p[i]) || p->held.p[i] == ';' || p->held.p[i] == ','))
        i++;
    if (i == p->held.n) return -1;
    if (p->held.p[i] != '{' && p->held.p[i] != '[') return 0;
    drop_held(p, i);
    return 1;
}

static void end_call(struct toolparse *p)
{
    p->head = (struct tool_head){ 0 };
    p->state = p->calls->payload == PAYLOAD_BARE ? PARSE_CALL : PARSE_TEXT;
}

/* In a list, or one behind the other up to the closing mark. */
static bool more_may_follow(const struct toolparse *p)
{
    return p->head.list || (p->calls->payload == PAYLOAD_JSON && p->calls->close);
}

static void begin_list(struct toolparse *p)
{
    p->head.list = true;
    p->state = PARSE_LIST;
}

/* Its name is known: from here on arguments go out as they come. */
static void begin_args(struct toolparse *p, const struct tool_head *h)
{
    begin_told(p, h->name, h->id);
    p->head = *h;
    p->head.name = p->head.id = STR("");
    drop_held(p, h->args);
    p->json = (struct json_at){ 0 };
    p->state = PARSE_ARGS;
}

/* A later one of a list that cannot be given on as it comes. */
static bool step_object(struct toolparse *p, bool over)
{
    const struct tool_sink sink = { tell_call, p };
    ptrdiff_t n = toolcall_object(buf_str(&p->held), &sink);

    if (n == 0 && !over) return false;
    if (n == 0) {
        p->marked = false;
        give_back(p);
        return true;
    }
    drop_held(p, (size_t)n);
    begin_list(p);
    return true;
}

static bool step_call(struct toolparse *p, bool over)
{
    const struct tool_sink sink = { tell_call, p };
    struct tool_head head;
    ptrdiff_t n;
    int more;

    if (!p->head.list && p->calls->payload == PAYLOAD_BARE && p->n_calls &&
        (more = another_bare(p)) != 1) {
        if (more < 0) return false;
        p->state = PARSE_TEXT;
        return true;
    }
    more = toolcall_head(p->calls, buf_str(&p->held), p->head.list, p->tools, &head);
    if (more > 0) return begin_args(p, &head), true;
    if (more == 0 && !over) return false;
    if (p->head.list) return step_object(p, over);
    n = toolcall_read(p->calls, buf_str(&p->held), over, p->tools, &sink);
    if (n == 0 && !over) return false;
    if (n <= 0) {
        give_back(p);
        return true;
    }
    drop_held(p, (size_t)n);
    if (more_may_follow(p)) begin_list(p);
    else end_call(p);
    return true;
}

/* ---- arguments on their way ---- */

/* One byte further; true: that was the last of the object. */
static bool scan(struct json_at *j, char c)
{
    if (j->in_text) {
        if (j->escaped) j->escaped = false;
        else if (c == '\\') j->escaped = true;
        else if (c == '"') j->in_text = false;
        return false;
    }
    if (c == '"') j->in_text = true;
    if (c == '{' || c == '[') j->depth++;
    return (c == '}' || c == ']') && --j->depth <= 0;
}

/* Newlines and the like in texts are written as JSON has them. */
static void give_args(struct toolparse *p, struct str s)
{
    size_t from = 0;
    char code[8];

    for (size_t i = 0; i < s.n; i++) {
        unsigned char c = (unsigned char)s.p[i];
        if (c >= 0x20 || !p->json.in_text || p->json.escaped) {
            scan(&p->json, s.p[i]);
            continue;
        }
        if (i > from) p->out.args(p->out.arg, str_of(s.p + from, i - from));
        snprintf(code, sizeof code,
                 c == '\n'   ? "\\n"
                 : c == '\t' ? "\\t"
                 : c == '\r' ? "\\r"
                             : "\\u%04x",
                 c);
        p->out.args(p->out.arg, str_c(code));
        from = i + 1;
    }
    if (s.n > from) p->out.args(p->out.arg, str_skip(s, from));
}

/* How much of what is held belongs to the object; *over: its end is among it. */
static size_t rest_of_object(struct toolparse *p, bool *over)
{
    struct json_at ahead = p->json;

    *over = false;
    for (size_t i = 0; i < p->held.n; i++)
        if (scan(&ahead, p->held.p[i])) {
            *over = true;
            return i + 1;
        }
    return p->held.n;
}

static bool step_args(struct toolparse *p)
{
    bool over;
    size_t n = rest_of_object(p, &over);

    give_args(p, str_take(buf_str(&p->held), n));
    drop_held(p, n);
    if (!over) return false;
    p->json = (struct json_at){ .depth = 1 }; /* the object around them */
    if (p->head.tail == TAIL_BODY) p->state = PARSE_BODY;
    else if (p->head.tail == TAIL_NONE) end_call(p);
    else p->state = PARSE_TAIL;
    return true;
}

static bool step_tail(struct toolparse *p)
{
    static const char fence[] = "```";
    bool over = false;
    size_t n = 0;

    if (p->head.tail == TAIL_OBJECT) {
        n = rest_of_object(p, &over);
        for (size_t i = 0; i < n; i++) scan(&p->json, p->held.p[i]);
        drop_held(p, n);
        if (!over) return false;
        if (more_may_follow(p)) begin_list(p);
        else end_call(p);
        return true;
    }
    while (n < p->held.n && is_space(p->held.p[n])) n++;
    if (p->held.n - n < 3 && str_starts(str_c(fence), str_skip(buf_str(&p->held), n))) return false;
    if (str_starts(str_skip(buf_str(&p->held), n), str_c(fence))) drop_held(p, n + 3);
    end_call(p);
    return true;
}

/* Behind one call of a list. */
static bool step_list(struct toolparse *p)
{
    size_t n = 0;

    while (n < p->held.n && (is_space(p->held.p[n]) || p->held.p[n] == ',')) n++;
    drop_held(p, n);
    if (!p->held.n) return false;
    if (p->held.p[0] == '{') {
        p->state = PARSE_CALL;
        return true;
    }
    if (p->held.p[0] == ']') drop_held(p, 1);
    end_call(p);
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

    p->is_think = p->told = false;
    p->to[0] = 0;
    if (!begins_header(held) || (end < 0 && held.n >= LONGEST)) {
        p->state = PARSE_BODY; /* no header at all: plain text */
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

static struct str function_name(const struct toolparse *p)
{
    struct str name = str_c(p->to);

    return str_starts(name, STR("functions.")) ? str_skip(name, 10) : name;
}

static void end_body(struct toolparse *p)
{
    struct tool_call call = { str_c(p->to), str_trim(buf_str(&p->body)), STR("") };

    call.name = function_name(p);
    if (p->told) {
        p->to[0] = 0;
    } else if (p->to[0] && (!call.name.n || (call.args.n && !json_valid(call.args)))) {
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
    if (p->told) {
        drop_held(p, n);
    } else if (p->to[0]) {
        buf_add(&p->body, p->held.p, n);
        drop_held(p, n);
    } else {
        give_held(p, n, p->is_think);
    }
}

/* A message to a tool that is known, and that begins as JSON does. */
static bool begins_body_args(struct toolparse *p)
{
    struct tool_head h = { .name = function_name(p), .id = STR(""), .tail = TAIL_BODY };

    if (!p->to[0] || p->told || p->body.n || !toolcall_is_known(p->tools, h.name)) return false;
    while (h.args < p->held.n && is_space(p->held.p[h.args])) h.args++;
    if (h.args >= p->held.n || p->held.p[h.args] != '{') return false;
    begin_args(p, &h);
    p->told = true;
    return true;
}

static bool step_body(struct toolparse *p)
{
    static const char *const marks[] = { "<|end|>",   "<|call|>",    "<|return|>",
                                         "<|start|>", "<|channel|>", NULL };
    size_t at, keep;
    int found;

    if (begins_body_args(p)) return true;
    found = find_mark(p, marks, &at, &keep);
    if (found < 0 && p->to[0] && !p->told && !p->body.n) { /* white space first */
        for (size_t i = 0; i < p->held.n && is_space(p->held.p[i]);)
            if (++i == p->held.n) return false;
    }
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
    case PARSE_ARGS: return step_args(p);
    case PARSE_TAIL: return step_tail(p);
    case PARSE_LIST: return step_list(p);
    default: return step_body(p);
    }
}

void toolparse_init(struct toolparse *p, const struct toolfamily *calls,
                    const struct reasoning_format *think, const json_t *tools, struct str prompt,
                    const struct toolparse_out *out)
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
    p->cut = p->state == PARSE_ARGS || (p->state == PARSE_CALL && p->held.n);
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
