/* regex.c - patterns compiled by PCRE2, and the iteration over their matches.
 *
 * Texts and patterns come from outside, so each match has a limit on its work and its memory: a
 * pattern that backtracks without end becomes an error, not a stuck server. */
#include "token/regex.h"

#include "base/mem.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <pthread.h>
#include <stdatomic.h>

enum {
    MAX_PATTERN = 1 << 16,     /* bytes */
    MIN_JIT_STACK = 32 << 10,  /* bytes */
    MAX_JIT_STACK = 4 << 20,   /* bytes; pages are used as they are needed */
    MATCH_LIMIT = 1 << 26,     /* calls of PCRE2's internal match(), for one match */
    HEAP_LIMIT_KIB = 256 << 10 /* of the interpreter, for one match */
};

enum jit { JIT_UNTRIED, JIT_READY, JIT_NONE };

struct regex {
    struct buf pattern; /* as given */
    pcre2_code *code;
    struct scan scan;
    pthread_mutex_t lock; /* held while machine code is generated */
    _Atomic int jit;      /* enum jit */
};

struct matcher {
    pcre2_match_data *data;
    pcre2_match_context *ctx;
    pcre2_jit_stack *stack;
};

/* Options as Oniguruma behaves: UTF-8, Unicode classes, ^ and $ at line ends. \C would split
 * characters and is refused. */
static int compile_pattern(struct regex *r, struct buf *text, struct err *e)
{
    pcre2_compile_context *ctx = pcre2_compile_context_create(NULL);
    const char *pattern = buf_cstr(text);
    char why[160];
    PCRE2_SIZE at;
    int code;

    if (!ctx || buf_check(text, NULL) != OK) {
        pcre2_compile_context_free(ctx);
        return err_nomem(e, "a pattern");
    }
    pcre2_set_newline(ctx, PCRE2_NEWLINE_LF);
    r->code = pcre2_compile((PCRE2_SPTR)pattern, text->n,
                            PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                            &code, &at, ctx);
    pcre2_compile_context_free(ctx);
    if (r->code) return OK;
    if (code == PCRE2_ERROR_HEAP_FAILED) return err_nomem(e, "a pattern");
    pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
    return err_set(e, E_FORMAT, "pattern '%.*s': %s", STR_ARG(str_take(buf_str(&r->pattern), 120)),
                   why);
}

int regex_open(struct regex **out, struct str pattern, struct err *e)
{
    struct regex *r;
    struct buf text = { 0 };
    int rc;

    if (pattern.n > MAX_PATTERN)
        return err_set(e, E_FORMAT, "a pattern has %zu bytes; at most %d are supported", pattern.n,
                       MAX_PATTERN);
    if (!(r = mem_new(struct regex))) return err_nomem(e, "a pattern");
    if (pthread_mutex_init(&r->lock, NULL) != 0) {
        mem_free(r);
        return err_nomem(e, "a pattern");
    }
    buf_put_str(&r->pattern, pattern);
    rc = buf_check(&r->pattern, e);
    if (rc == OK) rc = onig_translate(&text, pattern, e);
    if (rc == OK) rc = compile_pattern(r, &text, e);
    r->scan = scan_for(pattern);
    buf_release(&text);
    if (rc == OK) *out = r;
    else regex_close(r);
    return rc;
}

void regex_close(struct regex *r)
{
    if (!r) return;
    pcre2_code_free(r->code);
    buf_release(&r->pattern);
    pthread_mutex_destroy(&r->lock);
    mem_free(r);
}

struct str regex_pattern(const struct regex *r) { return buf_str(&r->pattern); }

struct matcher *matcher_open(void)
{
    struct matcher *m = mem_new(struct matcher);

    if (!m) return NULL;
    m->data = pcre2_match_data_create(1, NULL);
    m->ctx = pcre2_match_context_create(NULL);
    m->stack = pcre2_jit_stack_create(MIN_JIT_STACK, MAX_JIT_STACK, NULL);
    if (!m->data || !m->ctx) {
        matcher_close(m);
        return NULL;
    }
    pcre2_set_match_limit(m->ctx, MATCH_LIMIT);
    pcre2_set_heap_limit(m->ctx, HEAP_LIMIT_KIB);
    pcre2_jit_stack_assign(m->ctx, NULL, m->stack); /* NULL: PCRE2 uses 32 KiB of the C stack */
    return m;
}

void matcher_close(struct matcher *m)
{
    if (!m) return;
    pcre2_match_data_free(m->data);
    pcre2_match_context_free(m->ctx);
    pcre2_jit_stack_free(m->stack);
    mem_free(m);
}

/* Generates machine code at the first call. It takes milliseconds for a pattern, and many patterns
 * of a model never meet a text that their scanner does not handle. */
static int find_jit_state(struct regex *r)
{
    int state = atomic_load_explicit(&r->jit, memory_order_acquire);

    if (state != JIT_UNTRIED) return state;
    pthread_mutex_lock(&r->lock);
    if (atomic_load(&r->jit) == JIT_UNTRIED)
        atomic_store(&r->jit,
                     pcre2_jit_compile(r->code, PCRE2_JIT_COMPLETE) == 0 ? JIT_READY : JIT_NONE);
    pthread_mutex_unlock(&r->lock);
    return atomic_load(&r->jit);
}

/* The first match from w->from on: 1. No match: 0. A negative error code of PCRE2 otherwise. */
static int search_match(const struct regex_walk *w, size_t *start, size_t *end)
{
    PCRE2_SPTR p = (PCRE2_SPTR)(w->text.p ? w->text.p : "");
    struct matcher *m = w->m;
    int n = PCRE2_ERROR_JIT_STACKLIMIT;

    if (find_jit_state((struct regex *)w->r) == JIT_READY)
        n = pcre2_jit_match(w->r->code, p, w->text.n, w->from, 0, m->data, m->ctx);
    if (n == PCRE2_ERROR_JIT_STACKLIMIT) /* the interpreter keeps its stack on the heap */
        n = pcre2_match(w->r->code, p, w->text.n, w->from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                        m->data, m->ctx);
    if (n == PCRE2_ERROR_NOMATCH) return 0;
    if (n < 0) return n;
    PCRE2_SIZE *v = pcre2_get_ovector_pointer(m->data);
    *start = v[0];
    *end = v[1];
    return 1;
}

static size_t count_char_bytes(struct str s, size_t at)
{
    size_t n = 1;
    while (at + n < s.n && ((unsigned char)s.p[at + n] & 0xc0) == 0x80) n++;
    return n;
}

/* The scanner is asked first; where it does not decide, PCRE2 searches from the same byte. */
bool regex_next(struct regex_walk *w, size_t *start, size_t *end)
{
    while (w->from <= w->text.n) {
        if (w->r->scan.known && w->from < w->text.n) {
            size_t n = scan_next(&w->r->scan, (const unsigned char *)w->text.p + w->from,
                                 w->text.n - w->from);
            if (n) {
                *start = w->from;
                *end = w->from = w->last_end = w->from + n;
                w->any = true;
                return true;
            }
        }
        int found = search_match(w, start, end);
        if (found < 0) w->rc = found == PCRE2_ERROR_NOMEMORY ? E_NOMEM : E_FORMAT;
        if (found <= 0 || *start > *end || *end < w->from) return false;
        if (*start == *end && w->any && *end == w->last_end) {
            /* an empty match right after a match does not count: search one character further */
            w->from += count_char_bytes(w->text, w->from);
            continue;
        }
        w->from = w->last_end = *end;
        w->any = true;
        return true;
    }
    return false;
}

int regex_walk_check(const struct regex_walk *w, const char *where, struct err *e)
{
    if (w->rc == OK) return OK;
    if (w->rc == E_NOMEM) return err_nomem(e, "matching a pattern");
    return err_set(e, w->rc, "a pattern of the %s takes too long on this text", where);
}
