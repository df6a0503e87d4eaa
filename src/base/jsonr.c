/* jsonr.c - parsing with a record of all allocations, so that the parser can be left at any of
 * them.
 *
 * jansson has one allocator for the process. It is replaced once, by one that forwards to the
 * allocator that was set before, so memory from before is freed as ever. While a thread is inside
 * jsonr_load, each of its allocations is recorded; one that fails ends the parse with longjmp, and
 * the recorded ones are freed. Frees during the parse are put off to its end: that keeps the record
 * a plain list, and what the parser frees is little (keys of objects and tables that have grown). */
#include "base/jsonr.h"

#include "base/mem.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdio.h>

struct pointers {
    void **p;
    size_t n, cap;
};

/* One parse under way. */
struct parse {
    struct pointers made;  /* every allocation */
    struct pointers freed; /* those that the parser does not need any more */
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

    if (!parse) return p;
    if (p && add_pointer(&parse->made, p)) return p;
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

json_t *jsonr_load(struct str text, size_t flags, json_error_t *je)
{
    struct parse p = { 0 };
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

static int append_text(const char *text, size_t n, void *out)
{
    buf_add(out, text, n);
    return 0; /* jansson does not look at it everywhere: the buf remembers */
}

void jsonr_dump(struct buf *out, const json_t *v, size_t flags)
{
    if (json_dump_callback(v, append_text, out, flags) != 0) out->failed = true;
}
