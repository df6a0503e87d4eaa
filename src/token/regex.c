#include "token/regex.h"

#include "base/buf.h"
#include "base/mem.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <pthread.h>
#include <stdatomic.h>

enum {
    MAX_PATTERN = 1 << 16,
    JIT_STACK = 4 << 20,
    MATCH_LIMIT = 1 << 26,
    HEAP_LIMIT_KIB = 256 << 10
};

enum jit { JIT_UNTRIED, JIT_READY, JIT_NONE };

struct regex {
    struct buf pattern;
    pcre2_code *code;
    struct scan scan;
    pthread_mutex_t lock;
    _Atomic int jit;
};

struct matcher {
    pcre2_match_data *data;
    pcre2_match_context *ctx;
    pcre2_jit_stack *stack;
};

int regex_open(struct regex **out, struct str pattern, struct err *e)
{
    struct regex *r = mem_new(struct regex);
    pcre2_compile_context *ctx = pcre2_compile_context_create(NULL);
    struct buf text = { 0 };
    PCRE2_SIZE at;
    int code, rc = OK;

    pthread_mutex_init(&r->lock, NULL);
    if (pattern.n > MAX_PATTERN) {
        rc = err_set(e, E_FORMAT, "a pattern of %zu bytes, at most %d are supported", pattern.n,
                     MAX_PATTERN);
        goto out;
    }
    if ((rc = onig_translate(&text, pattern, e)) != OK) goto out;
    pcre2_set_newline(ctx, PCRE2_NEWLINE_LF);
    r->code = pcre2_compile((PCRE2_SPTR)buf_cstr(&text), text.n,
                            PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                            &code, &at, ctx);
    if (!r->code) {
        char why[160];
        pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
        rc = err_set(e, E_FORMAT, "pattern '%.*s': %s", STR_ARG(str_take(pattern, 120)), why);
        goto out;
    }
    r->scan = scan_for(pattern);
    buf_put_str(&r->pattern, pattern);
    *out = r;
    r = NULL;
out:
    pcre2_compile_context_free(ctx);
    buf_release(&text);
    regex_close(r);
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

    m->data = pcre2_match_data_create(1, NULL);
    m->ctx = pcre2_match_context_create(NULL);
    m->stack = pcre2_jit_stack_create(32 << 10, JIT_STACK, NULL);
    if (m->ctx) {
        pcre2_set_match_limit(m->ctx, MATCH_LIMIT);
        pcre2_set_heap_limit(m->ctx, HEAP_LIMIT_KIB);
        pcre2_jit_stack_assign(m->ctx, NULL, m->stack);
    }
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

/* Machine code takes milliseconds to make, so it waits for the first text that needs it. */
static int jit_of(struct regex *r)
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

/* The first match from `from` on: 1, none: 0, given up: a negative number of PCRE2's. */
static int search(const struct regex_walk *w, size_t *start, size_t *end)
{
    PCRE2_SPTR p = (PCRE2_SPTR)(w->text.p ? w->text.p : "");
    struct matcher *m = w->m;
    int n = PCRE2_ERROR_JIT_STACKLIMIT;

    if (!m->data || !m->ctx) return PCRE2_ERROR_NOMEMORY;
    if (jit_of((struct regex *)w->r) == JIT_READY)
        n = pcre2_jit_match(w->r->code, p, w->text.n, w->from, 0, m->data, m->ctx);
    if (n == PCRE2_ERROR_JIT_STACKLIMIT)
        n = pcre2_match(w->r->code, p, w->text.n, w->from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                        m->data, m->ctx);
    if (n == PCRE2_ERROR_NOMATCH) return 0;
    if (n < 0) return n;
    PCRE2_SIZE *v = pcre2_get_ovector_pointer(m->data);
    *start = v[0];
    *end = v[1];
    return 1;
}

static size_t char_bytes(struct str s, size_t at)
{
    size_t n = 1;
    while (at + n < s.n && ((unsigned char)s.p[at + n] & 0xc0) == 0x80) n++;
    return n;
}

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
        int found = search(w, start, end);
        if (found < 0) w->rc = E_FORMAT;
        if (found <= 0 || *start > *end || *end < w->from) return false;
        if (*start == *end && w->any && *end == w->last_end) {
            w->from +=
                char_bytes(w->text, w->from); /* nothing, right behind a match: look further */
            continue;
        }
        w->from = w->last_end = *end;
        w->any = true;
        return true;
    }
    return false;
}
