/* A request body from anywhere, read as each kind there is. The target links readers of files only,
 * so what reads bodies is compiled in. */
#include "api/body.c"
#include "api/deadline.c"
#include "api/params.c"
#include "api/params_grammar.c"
#include "api/params_text.c"
#include "api/params_tools.c"

#include "base/mem.h"

static volatile unsigned long long sink;

static void touch(struct str s)
{
    for (size_t i = 0; i < s.n; i++) sink += (unsigned char)s.p[i];
}

static void touch_all(const struct params *p)
{
    struct sample_opt o = { 0 };

    touch(p->model);
    touch(p->text);
    touch(buf_str(&p->ignored));
    for (int i = 0; i < p->n_msgs; i++) touch(p->msgs[i].role), touch(p->msgs[i].content);
    for (int i = 0; i < p->n_stops; i++) touch(p->stops[i]);
    for (int i = 0; i < p->n_prompts; i++) {
        touch(p->prompts[i].text);
        for (size_t k = 0; k < p->prompts[i].n_ids; k++) sink += (unsigned)p->prompts[i].ids[k];
    }
    for (size_t k = 0; k < p->n_tokens; k++) sink += (unsigned)p->tokens[k];
    params_sample(p, &o);
    for (int i = 0; i < o.n_bias; i++) sink += (unsigned)o.bias[i].id;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const enum body_kind kinds[] = { BODY_CHAT, BODY_TEXT, BODY_TOKENIZE, BODY_DETOKENIZE };
    char *copy = mem_dup(data, n); /* exactly so many bytes: reading past them shows */
    int64_t ms;
    int priority;

    for (int i = 0; i < 4; i++) {
        struct params p = { 0 };
        struct err e = { 0 };
        int rc = params_read(&p, kinds[i], str_of(copy, n), &e);
        if (rc == OK) touch_all(&p);
        else if (rc != E_INVALID || e.code != E_INVALID || !e.msg[0]) __builtin_trap();
        for (size_t k = 0; k < p.ignored.n; k++) /* it goes into a header */
            if (p.ignored.p[k] < ' ' || p.ignored.p[k] > '~') __builtin_trap();
        params_release(&p);
    }
    sink += deadline_parse(str_of(copy, n), &ms) + params_priority(str_of(copy, n), &priority);
    mem_free(copy);
    return 0;
}
