/* jsonr.c - parsing with a record of all allocations, so that the parser can be left at any of
 * them.
 *
 * jansson has one allocator for the process. It is replaced once, by one that forwards to the
 * allocator that was set before, so memory from before is freed as ever. While a thread is inside
 * jsonr_load, each of its allocations is recorded; one that fails ends the parse with longjmp, and
 * the recorded ones are freed. Frees during the parse are put off to its end: that keeps the record
 * a plain list, and what the parser frees is little (keys of objects and tables that have grown).
 *
 * An integer beyond 64 bits makes jansson refuse the whole text. The text is then parsed again with
 * ".0" after each of them, so that they become real numbers. */
#include "base/jsonr.h"

#include "base/mem.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdio.h>
#include <string.h>

struct pointers {
    void **p;
    size_t n, cap;
};

/* One parse under way. */
struct parse {
    struct pointers made;   /* every allocation */
    struct pointers freed;  /* those that the parser does not need any more */
    const atomic_int *stop; /* NULL, or: ends the parse when it is not 0 */
    jmp_buf nomem;
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static json_malloc_t real_malloc;
static json_free_t real_free;
static _Thread_local struct parse *parse; /* NULL: this thread is not in jsonr_load */

static bool add_pointer(struct pointers *v, void *p)
{
    if (!mem_ensure(v->p, v->cap, v->n + 1)) return false;
    v->p[v->n++] = p;
    return true;
}

static void *recorded_malloc(size_t n)
{
    void *p = real_malloc(n);
    bool stopped;

    if (!parse) return p;
    stopped = parse->stop && atomic_load_explicit(parse->stop, memory_order_relaxed);
    if (p && !stopped && add_pointer(&parse->made, p)) return p;
    real_free(p);
    longjmp(parse->nomem, 1);
}

static void recorded_free(void *p)
{
    if (!parse) real_free(p);
    else if (p && !add_pointer(&parse->freed, p)) longjmp(parse->nomem, 1);
}

static void replace_allocator(void)
{
    json_get_alloc_funcs(&real_malloc, &real_free);
    json_set_alloc_funcs(recorded_malloc, recorded_free);
}

static void free_pointers(const struct pointers *v)
{
    for (size_t i = 0; i < v->n; i++) real_free(v->p[i]);
}

static void set_nomem(json_error_t *je)
{
    if (!je) return;
    *je = (json_error_t){ .line = -1, .column = -1 };
    snprintf(je->text, sizeof je->text, "out of memory");
    je->text[JSON_ERROR_TEXT_LENGTH - 1] = (char)json_error_out_of_memory; /* see json_error_code */
}

/* Parses, or returns NULL with *nomem set as soon as an allocation fails. */
static json_t *load_recorded(struct parse *p, struct str text, size_t flags, json_error_t *je,
                             bool *nomem)
{
    json_t *root;

    *nomem = setjmp(p->nomem) != 0;
    if (*nomem) return NULL;
    parse = p;
    root = json_loadb(text.n ? text.p : "", text.n, flags, je);
    return root;
}

static json_t *load_text(struct str text, size_t flags, const atomic_int *stop, json_error_t *je)
{
    struct parse p = { .stop = stop };
    json_t *root;
    bool nomem;

    pthread_once(&once, replace_allocator);
    root = load_recorded(&p, text, flags, je, &nomem);
    parse = NULL;
    free_pointers(nomem ? &p.made : &p.freed);
    mem_free(p.made.p);
    mem_free(p.freed.p);
    if (nomem) set_nomem(je);
    return root;
}

/* ---- integers beyond 64 bits ---- */

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* The number at the beginning of s, with its sign, fraction and exponent. */
static struct str take_number(struct str s)
{
    size_t n = 0;

    while (n < s.n && (is_digit(s.p[n]) || (s.p[n] && strchr("+-.eE", s.p[n])))) n++;
    return str_take(s, n);
}

/* An integer that does not fit into 64 bits with a sign. */
static bool is_large_integer(struct str number)
{
    bool minus = number.n && number.p[0] == '-';
    struct str most = minus ? STR("9223372036854775808") : STR("9223372036854775807"), digits;

    digits = str_skip(number, minus);
    for (size_t i = 0; i < digits.n; i++)
        if (!is_digit(digits.p[i])) return false;
    if (digits.n != most.n) return digits.n > most.n;
    return memcmp(digits.p, most.p, most.n) > 0;
}

/* The end of the string that begins at text.p[at]. */
static size_t skip_string(struct str text, size_t at)
{
    for (at++; at < text.n && text.p[at] != '"'; at++)
        if (text.p[at] == '\\') at++;
    return at + 1;
}

/* Copies the text with ".0" after every integer that is too large. */
static void write_as_reals(struct str text, struct buf *out)
{
    size_t from = 0; /* not copied yet */

    for (size_t i = 0; i < text.n;) {
        struct str number;
        if (text.p[i] == '"') {
            i = skip_string(text, i);
            continue;
        }
        number = take_number(str_skip(text, i));
        i += number.n ? number.n : 1;
        if (!is_large_integer(number)) continue;
        buf_add(out, text.p + from, i - from);
        buf_puts(out, ".0");
        from = i;
    }
    buf_put_str(out, str_skip(text, from));
}

json_t *jsonr_load_until(struct str text, size_t flags, const atomic_int *stop, json_error_t *je)
{
    json_error_t why;
    struct buf reals = { 0 };
    json_t *root = load_text(text, flags, stop, &why);

    if (!root && json_error_code(&why) == json_error_numeric_overflow) {
        write_as_reals(text, &reals);
        if (reals.failed) set_nomem(&why);
        else root = load_text(buf_str(&reals), flags, stop, &why);
        buf_release(&reals);
    }
    if (je) *je = why;
    return root;
}

json_t *jsonr_load(struct str text, size_t flags, json_error_t *je)
{
    return jsonr_load_until(text, flags, NULL, je);
}

static int append_text(const char *text, size_t n, void *out)
{
    buf_add(out, text, n);
    return 0; /* jansson does not look at it everywhere: the buf remembers */
}

void jsonr_dump(struct buf *out, const json_t *v, size_t flags)
{
    if (json_dump_callback(v, append_text, out, flags) != 0) out->failed = true;
}
