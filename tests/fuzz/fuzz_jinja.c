/* Fuzz target: an arbitrary template over arbitrary variables, within small limits. The input is the
 * template's source up to the first NUL, then JSON. */
#include "base/mem.h"
#include "jinja/jinja.h"
#include "work.h"

#include <stdint.h>

static json_t *parse_variables(struct str text)
{
    json_t *vars = text.n ? json_loadb(text.p, text.n, JSON_ALLOW_NUL, NULL) : NULL;

    if (vars && json_is_object(vars)) return vars;
    json_decref(vars);
    return json_pack("{s:s, s:[i,i,i], s:{s:i, s:[s]}, s:f, s:[{s:s, s:s}], s:b}", "s",
                     "Te\xc3\xa4xt", "l", 3, 1, 2, "d", "a", 1, "b", "x", "f", 2.5, "messages",
                     "role", "user", "content", "hi", "t", 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct jinja_limits limits = {
        .max_steps = 200000, .max_bytes = 32 << 20, .max_output = 1 << 20, .change_lists = n % 2
    };
    char *copy = mem_dup(data, n); /* exactly n bytes: the sanitizer finds reads past them */
    const char *nul = copy && n ? memchr(copy, 0, n) : NULL;
    struct str source = str_of(copy, nul ? (size_t)(nul - copy) : n),
               rest = str_skip(str_of(copy, n), source.n + 1);
    struct jinja *t = NULL;
    struct buf out = { 0 };
    struct err e = { 0 };
    struct work w;
    json_t *vars;

    if (!copy) return 0;
    w = work_begin();
    if (jinja_open(&t, source, "fuzz", &e) == OK) {
        vars = parse_variables(rest);
        if (jinja_render(t, vars, &limits, &out, &e) != OK && (!e.msg[0] || out.n))
            __builtin_trap();
        json_decref(vars);
    } else if (!e.msg[0]) {
        __builtin_trap();
    }
    work_end(&w, NULL);
    jinja_close(t);
    buf_release(&out);
    mem_free(copy);
    return 0;
}
