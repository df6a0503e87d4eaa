/* toolparse.c - a state machine over the bytes that are held. Each push appends bytes and takes
 * steps until none changes anything: a step reports what is decided, drops it, and may change the
 * state.
 *
 *     TEXT ── open of reasoning ──► REASONING ── close ──► TEXT
 *     TEXT ── open of a call, or a bare bracket ──► CALL
 *     CALL ── a head with a known tool ──► ARGS ──► TAIL ──► LIST or TEXT
 *     CALL ── a complete call ──► LIST or TEXT
 *     CALL ── no call ──► TEXT, with the bytes as text
 *
 * The answer is the same however it is cut: a step decides nothing that later bytes could change.
 * fuzz_tools checks this. */
#include "toolcall/toolparse.h"

#include "toolcall/toolparse_impl.h"

#include <stdio.h>

/* ---- reporting ---- */

void toolparse_emit(struct toolparse *p, struct str s, bool think)
{
    void (*emit)(void *arg, struct str text) = think ? p->out.think : p->out.text;
    bool *some = think ? &p->some_think : &p->some_text;
    size_t end;

    if (!*some && (think || p->after)) s = str_skip(s, count_spaces(s));
    if (!s.n) return;
    for (end = s.n; end > 0 && is_space(s.p[end - 1]);) end--;
    if (end > 0) {
        p->at_drop = false;
        if (p->space.n) emit(p->out.arg, buf_str(&p->space));
        buf_clear(&p->space);
        emit(p->out.arg, str_take(s, end));
        *some = true;
    }
    buf_put_str(&p->space, str_skip(s, end));
    p->failed |= p->space.failed;
}

void toolparse_drop_held(struct toolparse *p, size_t n)
{
    if (n) memmove(p->held.p, p->held.p + n, p->held.n - n);
    p->held.n -= n;
}

void toolparse_emit_held(struct toolparse *p, size_t n, bool think)
{
    toolparse_emit(p, str_take(buf_str(&p->held), n), think);
    toolparse_drop_held(p, n);
}

/* White space before a call is dropped. */
static void emit_call_begin(struct toolparse *p, struct str name, struct str id)
{
    p->n_calls++;
    p->after = true;
    buf_clear(&p->space);
    p->out.call(p->out.arg, name, id);
}

void toolparse_emit_call(void *arg, const struct toolcall *call)
{
    struct toolparse *p = arg;

    emit_call_begin(p, call->name, call->id);
    p->out.args(p->out.arg, call->args);
}

/* ---- marks ---- */

/* Marks are compared as text. Where they are special tokens of the vocabulary, the caller has made
 * their text visible (toolfamily_list_marks). */

#define MAX_MARKS (TOOLFAMILY_DROP + 7)

int toolparse_find_mark(const struct toolparse *p, const char *const *marks, size_t *at,
                        size_t *keep)
{
    struct str held = buf_str(&p->held);
    int found = -1;

    *keep = 0;
    for (int i = 0; marks[i]; i++) {
        struct str mark = str_c(marks[i]);
        ptrdiff_t here = str_find(held, mark);
        /* of two marks at the same position the longer one */
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

/* ---- text and reasoning ---- */

/* Some models write calls without a mark: an answer that begins with a bracket. */
static bool begins_bare(const struct toolparse *p)
{
    size_t i = count_spaces(buf_str(&p->held));

    if (!p->calls || p->calls->payload != PAYLOAD_BARE || !p->tools) return false;
    if (!p->at_drop && (p->some_text || p->n_calls)) return false;
    return i < p->held.n && (p->held.p[i] == '{' || p->held.p[i] == '[');
}

/* Reasoning is looked for at the beginning of an answer only, if its mark may be text. */
static bool may_begin_reasoning(const struct toolparse *p)
{
    struct str held = buf_str(&p->held), mark;

    if (!p->think) return false;
    if (p->think->anywhere || p->some_text) return p->think->anywhere;
    mark = str_c(p->think->open);
    held = str_skip(held, count_spaces(held));
    return str_starts(held, mark) || str_starts(mark, held);
}

/* The marks that may come in text: of a call, of reasoning, and those that are dropped. */
static void list_text_marks(const struct toolparse *p, const char *marks[MAX_MARKS])
{
    int n = 0;

    if (p->calls && p->calls->open) marks[n++] = p->calls->open;
    if (may_begin_reasoning(p)) marks[n++] = p->think->open;
    if (p->think && p->think->after) marks[n++] = p->think->after;
    for (int i = 0; p->think && i < 2 && p->think->drop[i]; i++) marks[n++] = p->think->drop[i];
    if (p->calls && p->calls->close) marks[n++] = p->calls->close;
    for (int i = 0; p->calls && i < TOOLFAMILY_DROP && p->calls->drop[i]; i++)
        marks[n++] = p->calls->drop[i];
    marks[n] = NULL;
}

/* marked: the call began with its mark, which is text if this is no call. */
static void begin_call(struct toolparse *p, bool marked)
{
    p->state = PARSE_CALL;
    p->marked = marked;
}

/* Reports text up to the first mark, or up to what may be the beginning of one. */
static bool step_text(struct toolparse *p)
{
    const char *marks[MAX_MARKS];
    size_t at, keep;
    int found;

    if (begins_bare(p)) return begin_call(p, false), true;
    list_text_marks(p, marks);
    found = toolparse_find_mark(p, marks, &at, &keep);
    if (found < 0) {
        toolparse_emit_held(p, p->held.n - keep, false);
        return false;
    }
    toolparse_emit_held(p, at, false);
    toolparse_drop_held(p, strlen(marks[found]));
    p->at_drop = true;
    if (p->calls && marks[found] == p->calls->open) {
        begin_call(p, true);
    } else if (p->think && marks[found] == p->think->open) {
        buf_clear(&p->space);
        p->state = PARSE_REASONING;
    }
    return true;
}

/* Reasoning goes on to its closing mark, whatever it contains. */
static bool step_reasoning(struct toolparse *p)
{
    const char *marks[] = { p->think->close, NULL };
    size_t at, keep;

    if (toolparse_find_mark(p, marks, &at, &keep) < 0) {
        toolparse_emit_held(p, p->held.n - keep, true);
        return false;
    }
    toolparse_emit_held(p, at, true);
    toolparse_drop_held(p, strlen(marks[0]));
    buf_clear(&p->space);
    p->after = true;
    p->state = PARSE_TEXT;
    return true;
}

/* ---- calls ---- */

/* The text was no call: it is reported as the model wrote it. */
static void emit_as_text(struct toolparse *p)
{
    bool after = p->after;

    p->state = PARSE_TEXT;
    p->head = (struct toolcall_head){ 0 };
    p->after = false;
    if (p->marked) toolparse_emit(p, str_c(p->calls->open), false);
    p->after = after;
    if (!p->marked) { /* report its bracket at once, so that it does not begin a bare call again */
        size_t n = count_spaces(buf_str(&p->held));
        toolparse_emit_held(p, n < p->held.n ? n + 1 : n, false);
        p->some_text = true;
    }
}

/* Does another bare call follow? -1: that needs more bytes. */
static int find_next_bare(struct toolparse *p)
{
    size_t i = 0;

    while (i < p->held.n && (is_space(p->held.p[i]) || p->held.p[i] == ';' || p->held.p[i] == ','))
        i++;
    if (i == p->held.n) return -1;
    if (p->held.p[i] != '{' && p->held.p[i] != '[') return 0;
    toolparse_drop_held(p, i);
    return 1;
}

/* Bare calls may follow each other directly. */
static void end_call(struct toolparse *p)
{
    p->head = (struct toolcall_head){ 0 };
    p->state = p->calls->payload == PAYLOAD_BARE ? PARSE_CALL : PARSE_TEXT;
}

static void begin_list(struct toolparse *p)
{
    p->head.list = true;
    p->state = PARSE_LIST;
}

/* After a call, another may follow in the same array or before the closing mark. */
static void end_object(struct toolparse *p)
{
    if (p->head.list || (p->calls->payload == PAYLOAD_JSON && p->calls->close)) begin_list(p);
    else end_call(p);
}

void toolparse_begin_args(struct toolparse *p, const struct toolcall_head *h)
{
    emit_call_begin(p, h->name, h->id);
    p->head = *h;
    p->head.name = p->head.id = STR(""); /* they point into held, which moves */
    toolparse_drop_held(p, h->args);
    p->json = (struct toolparse_json){ 0 };
    p->state = PARSE_ARGS;
}

/* A later object of an array, whose arguments cannot be passed on as they arrive. */
static bool step_object(struct toolparse *p, bool at_end)
{
    struct toolcall_sink sink = { .call = toolparse_emit_call, .arg = p };
    ptrdiff_t n = toolcall_read_object(buf_str(&p->held), &sink);

    if ((p->failed |= sink.failed)) return false;
    if (n == 0 && !at_end) return false;
    if (n == 0) {
        p->marked = false;
        emit_as_text(p);
        return true;
    }
    toolparse_drop_held(p, (size_t)n);
    begin_list(p);
    return true;
}

/* Reads the call as a whole. */
static bool step_whole_call(struct toolparse *p, bool at_end)
{
    struct toolcall_sink sink = { .call = toolparse_emit_call, .arg = p };
    ptrdiff_t n = toolcall_read(p->calls, buf_str(&p->held), at_end, p->tools, &sink);

    if ((p->failed |= sink.failed)) return false;
    if (n == 0 && !at_end) return false;
    if (n <= 0) {
        emit_as_text(p);
        return true;
    }
    toolparse_drop_held(p, (size_t)n);
    end_object(p);
    return true;
}

/* First the head is tried, then the call as a whole. at_end: no more bytes come. */
static bool step_call(struct toolparse *p, bool at_end)
{
    struct toolcall_head head;
    int more;

    if (!p->head.list && p->calls->payload == PAYLOAD_BARE && p->n_calls &&
        (more = find_next_bare(p)) != 1) {
        if (more < 0) return false;
        p->state = PARSE_TEXT;
        return true;
    }
    more = toolcall_read_head(p->calls, buf_str(&p->held), p->head.list, p->tools, &head);
    if (more > 0) return toolparse_begin_args(p, &head), true;
    if (more == 0 && !at_end) return false;
    return p->head.list ? step_object(p, at_end) : step_whole_call(p, at_end);
}

/* ---- arguments that are passed on ---- */

/* Nothing is held back here: only brackets and quotes are followed, to find the end of the object.
 * If the answer ends before it, `cut` says so, and the client gets incomplete JSON, as from other
 * servers. */

/* Moves over one byte. true: it was the last one of the object. */
static bool scan_byte(struct toolparse_json *j, char c)
{
    if (j->in_string) {
        if (j->escaped) j->escaped = false;
        else if (c == '\\') j->escaped = true;
        else if (c == '"') j->in_string = false;
        return false;
    }
    if (c == '"') j->in_string = true;
    if (c == '{' || c == '[') j->depth++;
    return (c == '}' || c == ']') && --j->depth <= 0;
}

/* Control characters inside of strings, which models write and JSON forbids, are escaped. */
static void emit_args(struct toolparse *p, struct str s)
{
    size_t from = 0;
    char code[8];

    for (size_t i = 0; i < s.n; i++) {
        unsigned char c = (unsigned char)s.p[i];
        if (c >= 0x20 || !p->json.in_string || p->json.escaped) {
            scan_byte(&p->json, s.p[i]);
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

/* The bytes held that belong to the object. *over: its end is among them. */
static size_t measure_object(struct toolparse *p, bool *over)
{
    struct toolparse_json ahead = p->json;

    *over = false;
    for (size_t i = 0; i < p->held.n; i++)
        if (scan_byte(&ahead, p->held.p[i])) {
            *over = true;
            return i + 1;
        }
    return p->held.n;
}

/* Passes on what belongs to the object of the arguments. */
static bool step_args(struct toolparse *p)
{
    bool over;
    size_t n = measure_object(p, &over);

    emit_args(p, str_take(buf_str(&p->held), n));
    toolparse_drop_held(p, n);
    if (!over) return false;
    p->json = (struct toolparse_json){ .depth = 1 }; /* inside of the object around them */
    if (p->head.tail == TAIL_BODY) p->state = PARSE_BODY;
    else if (p->head.tail == TAIL_NONE) end_call(p);
    else p->state = PARSE_TAIL;
    return true;
}

/* Skips the rest of the object around the arguments. */
static bool step_tail_object(struct toolparse *p)
{
    bool over;
    size_t n = measure_object(p, &over);

    for (size_t i = 0; i < n; i++) scan_byte(&p->json, p->held.p[i]);
    toolparse_drop_held(p, n);
    if (over) end_object(p);
    return over;
}

/* Skips the end of a ``` block, if there is one. */
static bool step_tail(struct toolparse *p)
{
    static const char fence[] = "```";
    struct str held = buf_str(&p->held), rest;
    size_t n = count_spaces(held);

    if (p->head.tail == TAIL_OBJECT) return step_tail_object(p);
    rest = str_skip(held, n);
    if (rest.n < 3 && str_starts(str_c(fence), rest)) return false;
    if (str_starts(rest, str_c(fence))) toolparse_drop_held(p, n + 3);
    end_call(p);
    return true;
}

/* After a call of an array: a comma, another object, or the end of the array. */
static bool step_list(struct toolparse *p)
{
    size_t n = 0;

    while (n < p->held.n && (is_space(p->held.p[n]) || p->held.p[n] == ',')) n++;
    toolparse_drop_held(p, n);
    if (!p->held.n) return false;
    if (p->held.p[0] == '{') {
        p->state = PARSE_CALL;
        return true;
    }
    if (p->held.p[0] == ']') toolparse_drop_held(p, 1);
    end_call(p);
    return true;
}

/* ---- the whole answer ---- */

/* One step; false: more bytes are needed, or memory ran out. */
static bool take_step(struct toolparse *p)
{
    if (!p->held.n || p->failed) return false;
    switch (p->state) {
    case PARSE_TEXT: return step_text(p);
    case PARSE_REASONING: return step_reasoning(p);
    case PARSE_CALL: return step_call(p, false);
    case PARSE_ARGS: return step_args(p);
    case PARSE_TAIL: return step_tail(p);
    case PARSE_LIST: return step_list(p);
    case PARSE_HEADER: return toolparse_step_header(p);
    case PARSE_BODY: return toolparse_step_body(p);
    }
    return false;
}

void toolparse_init(struct toolparse *p, const struct toolfamily *calls,
                    const struct reasoning_format *think, const json_t *tools, struct str prompt,
                    const struct toolparse_out *out)
{
    *p = (struct toolparse){ .calls = calls, .think = think, .tools = tools, .out = *out };
    prompt = str_trim(prompt);
    if (calls && calls->payload == PAYLOAD_HARMONY) p->state = PARSE_HEADER;
    else if (think && str_ends(prompt, str_c(think->open))) p->state = PARSE_REASONING;
    else if (think && toolfamily_is_closed(think, prompt)) p->after = true;
}

void toolparse_push(struct toolparse *p, struct str text)
{
    if (p->failed) return;
    buf_put_str(&p->held, text);
    p->failed |= p->held.failed;
    while (take_step(p)) {}
}

/* A call that is not complete is read with what is there, or is text. */
static void end_open_call(struct toolparse *p)
{
    if (p->held.n && !(p->n_calls && p->calls->payload == PAYLOAD_BARE && find_next_bare(p) != 1)) {
        if (!step_call(p, true) && !p->failed) emit_as_text(p);
        while (p->state != PARSE_CALL && take_step(p)) {}
    } else if (!p->n_calls && p->marked) {
        emit_as_text(p);
    }
}

void toolparse_end(struct toolparse *p)
{
    while (take_step(p)) {}
    p->cut = p->state == PARSE_ARGS || (p->state == PARSE_CALL && p->held.n);
    if (p->state == PARSE_CALL && !p->failed) end_open_call(p);
    if (p->failed) return;
    if (p->state == PARSE_HEADER || p->state == PARSE_BODY) toolparse_end_harmony(p);
    else if (p->state == PARSE_TEXT || p->state == PARSE_REASONING)
        toolparse_emit_held(p, p->held.n, p->state == PARSE_REASONING);
    if (p->space.n && !p->n_calls && p->state != PARSE_REASONING && p->some_text)
        p->out.text(p->out.arg, buf_str(&p->space));
    buf_clear(&p->held);
    buf_clear(&p->space);
}

int toolparse_check(const struct toolparse *p, struct err *e)
{
    return p->failed ? err_nomem(e, "the text of an answer") : OK;
}

void toolparse_release(struct toolparse *p)
{
    buf_release(&p->held);
    buf_release(&p->space);
    buf_release(&p->body);
    *p = (struct toolparse){ 0 };
}
