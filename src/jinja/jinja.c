/* jinja.c - opening and rendering templates; the limits and the failure state of a rendering.
 *
 * Opening is lexer, parser, scope resolution. All of a template's memory is one arena; tokens are
 * temporary. Rendering walks the tree (eval.c, expr.c) with all values in an arena of its own.
 *
 *     source --lex_tokens--> tokens --parse_template--> tree --scope_template--> tree with slots
 *     JSON variables --load_vars--> values --eval_template--> text
 *
 * Walking the tree is fast enough: a rendering is short compared with the model's pass over the
 * prompt that it makes. */
#include "jinja/jinja.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "jinja/builtins.h"
#include "jinja/parse.h"
#include "jinja/render.h"
#include "jinja/scope.h"

#include <stdarg.h>
#include <stdio.h>

#define MAX_OPEN_STEPS UINT64_C(20000000)
#define MAX_OPEN_BYTES ((size_t)256 << 20)
#define MAX_STEPS UINT64_C(20000000)
#define MAX_BYTES ((size_t)256 << 20)
#define MAX_OUTPUT ((size_t)64 << 20)

/* ---- templates ---- */

/* Checks size and encoding; the rest of the code relies on valid UTF-8. */
static int read_source(struct jinja *t, struct str source, struct err *e)
{
    ptrdiff_t bad;

    if (source.n > JINJA_MAX_SOURCE)
        return err_set(e, E_FORMAT, "%s: the template has %zu bytes; at most %u are allowed",
                       t->name, source.n, JINJA_MAX_SOURCE);
    if ((bad = utf8_bad(source)) >= 0)
        return lex_error(source, t->name, (uint32_t)bad, e, "the template is not valid UTF-8");
    t->source = lex_source(&t->arena, source);
    return t->source.p ? OK : err_nomem(e, "the source of a template");
}

int jinja_open(struct jinja **out, struct str source, const char *name, struct err *e)
{
    struct jinja *t = mem_new(struct jinja);
    struct budget b = { .what = "reading the template",
                        .max_steps = MAX_OPEN_STEPS,
                        .max_bytes = MAX_OPEN_BYTES };
    struct parser p = { .e = e, .budget = &b };
    struct scoping s = { .e = e, .budget = &b };
    int rc;

    if (!t) return err_nomem(e, "a template");
    if (!(t->name = mem_strdup(name ? name : "template"))) {
        rc = err_nomem(e, "the name of a template");
        goto out;
    }
    t->arena.budget = &b;
    if ((rc = read_source(t, source, e)) != OK) goto out;
    s.arena = p.arena = &t->arena;
    s.source = p.source = t->source;
    s.name = p.name = t->name;
    if ((rc = lex_tokens(&t->arena, t->source, t->name, &p.tokens, e)) != OK) goto out;
    if ((rc = parse_template(&p, &t->root)) != OK) goto out;
    if ((rc = scope_template(&s, t->root, &t->fn)) != OK) goto out;
    t->free_names = s.free_names.v;
    t->n_free_names = s.free_names.n;
    t->arena.budget = NULL; /* it ends here */
    *out = t;
    t = NULL;
out:
    if (budget_failed(&b)) { /* whatever was made of it */
        rc = budget_error(&b, e);
        if (e) err_wrap(e, "%s", name ? name : "template");
    }
    mem_free(p.tokens.v);
    jinja_close(t);
    return rc;
}

void jinja_close(struct jinja *t)
{
    if (!t) return;
    arena_release(&t->arena);
    mem_free(t->name);
    mem_free(t);
}

bool jinja_mentions(const struct jinja *t, const char *name)
{
    for (size_t i = 0; i < t->n_free_names; i++)
        if (str_is(t->free_names[i], name)) return true;
    return false;
}

/* ---- failure and limits of a rendering ---- */

bool jv_failed(const struct render *r) { return r->failed; }

/* Later failures are consequences of the first one and are ignored. */
struct jval jv_fail(struct render *r, const char *fmt, ...)
{
    char text[400];
    va_list ap;

    if (r->failed) return jv_none();
    r->failed = true;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    /* The buffer may have cut a character in half. */
    text[strlen(text) - (size_t)utf8_partial(str_c(text))] = 0;
    lex_error(r->t->source, r->t->name, r->at, r->e, "%s", text);
    return jv_none();
}

struct jval jv_fail_undef(struct render *r, struct jval v)
{
    if (!v.u) return jv_fail(r, "an undefined value is used");
    return jv_fail(r, "%.*s", STR_ARG(v.u->what));
}

/* E_INVALID or E_CANCELLED, with the place at which the limit was met. */
static bool fail_budget(struct render *r)
{
    struct err e = { 0 };
    int rc = budget_error(&r->budget, &e);

    if (r->failed) return false;
    jv_fail(r, "%s", e.msg);
    r->e->code = rc;
    return false;
}

/* The limit of steps bounds the time of a rendering, whatever the template does. */
bool jv_step(struct render *r, size_t n)
{
    if (r->failed) return false;
    return budget_step(&r->budget, n) || fail_budget(r);
}

bool jv_check_room(struct render *r, size_t n)
{
    if (!budget_take(&r->budget, n)) return fail_budget(r);
    budget_give(&r->budget, n);
    return true;
}

/* The limit is checked before the system is asked, so that a template cannot use all memory of the
 * machine. */
void *jv_alloc(struct render *r, size_t n)
{
    size_t whole = n > SIZE_MAX - 15 ? SIZE_MAX : (n + 15) & ~(size_t)15; /* as the arena counts */
    void *p;

    if (!budget_take(&r->budget, whole)) {
        fail_budget(r);
        return NULL;
    }
    p = arena_alloc(&r->arena, n);
    if (!p && !r->failed) {
        r->failed = true;
        err_nomem(r->e, "the values of a chat template");
    }
    return p;
}

void *jv_array(struct render *r, size_t n, size_t size)
{
    size_t bytes;
    return jv_alloc(r, mem_mul(n, size, &bytes) ? bytes : SIZE_MAX);
}

struct str jv_copy_str(struct render *r, struct str s)
{
    char *p = jv_alloc(r, s.n + 1);

    if (!p) return STR("");
    if (s.n) memcpy(p, s.p, s.n);
    return str_of(p, s.n);
}

/* The limit of nesting protects the C stack. */
bool jv_enter(struct render *r)
{
    if (r->failed) return false;
    if (r->depth >= JINJA_MAX_DEPTH) {
        jv_fail(r, "expressions, calls or values are nested more than %d deep", JINJA_MAX_DEPTH);
        return false;
    }
    r->depth++;
    return true;
}

void jv_leave(struct render *r) { r->depth--; }

/* ---- rendering ---- */

/* false: the variable strftime_now is not a valid time. */
static bool set_now(struct render *r, const json_t *vars)
{
    const json_t *v = json_object_get(vars, "strftime_now");
    struct tm t = { .tm_isdst = -1 };
    time_t now;

    if (json_is_string(v)) {
        const char *s = json_string_value(v);
        if (sscanf(s, "%d-%d-%d%*1[ T]%d:%d:%d", &t.tm_year, &t.tm_mon, &t.tm_mday, &t.tm_hour,
                   &t.tm_min, &t.tm_sec) < 3)
            return false;
        t.tm_year -= 1900;
        t.tm_mon -= 1;
        now = timegm(&t); /* fills in the day of the week and of the year */
        return gmtime_r(&now, &r->now) != NULL;
    }
    now = time(NULL);
    return localtime_r(&now, &r->now) != NULL;
}

/* The variables of the caller become a dict. Strings are shared with the JSON values. */
static void load_vars(struct render *r, const json_t *vars)
{
    struct jval dict = jv_dict(r, json_object_size(vars));
    const char *key;
    json_t *v;

    r->vars = dict.d;
    r->exported = jv_dict(r, 0).d;
    json_object_foreach ((json_t *)vars, key, v) {
        /* The fixed time is not a variable: strftime_now is the function. */
        if (!strcmp(key, "strftime_now") && json_is_string(v)) continue;
        jdict_append(r, dict.d, jv_str(str_c(key)), json_load(r, v));
    }
}

/* The text is collected in the arena and copied to out only when all went well. */
int jinja_render(const struct jinja *t, const json_t *vars, const struct jinja_limits *limits,
                 struct buf *out, struct err *e)
{
    struct jinja_limits l = limits ? *limits : (struct jinja_limits){ 0 };
    struct render r = { .t = t,
                        .budget = { .what = "rendering the template",
                                    .max_steps = l.max_steps ? l.max_steps : MAX_STEPS,
                                    .max_bytes = l.max_bytes ? l.max_bytes : MAX_BYTES,
                                    .cancelled = l.cancelled,
                                    .stop = l.stop,
                                    .deadline_ns = l.deadline_ns },
                        .max_output = l.max_output ? l.max_output : MAX_OUTPUT,
                        .change_lists = l.change_lists,
                        .random_state = clock_ns() };
    struct jtext text = { .r = &r };
    struct err ignored;
    int rc = OK;

    r.e = e ? e : &ignored;
    r.out = &text;
    if (!json_is_object(vars))
        return err_set(e, E_INVALID, "%s: the variables are not a JSON object", t->name);
    if (!set_now(&r, vars))
        return err_set(e, E_INVALID,
                       "%s: the variable strftime_now must be a time like \"2026-01-31 23:59:59\"",
                       t->name);
    load_vars(&r, vars);
    eval_template(&r);
    /* r.e holds the first failure, wherever it occurred. */
    if (r.failed) {
        rc = r.e->code;
    } else {
        buf_put_str(out, str_of(text.p, text.n));
        rc = buf_check(out, e);
    }
    arena_release(&r.arena);
    return rc;
}
