/* Fuzz target: an arbitrary request body, read as every kind of body of the API. Every accepted
 * string is read to its end, so that a sanitizer finds dangling pointers.
 *
 * The fuzz library contains only readers of files, so the readers of bodies are included as
 * sources. */
#include "api/body.c"
#include "api/deadline.c"
#include "api/params.c"
#include "api/params_grammar.c"
#include "api/params_rerank.c"
#include "api/params_text.c"
#include "api/params_tools.c"

#include "base/mem.h"

static volatile unsigned long long sink;

static void read_string(struct str s)
{
    for (size_t i = 0; i < s.n; i++) sink += (unsigned char)s.p[i];
}

static void read_all_params(const struct params *p)
{
    struct sample_opt o = { 0 };

    read_string(p->model);
    read_string(p->text);
    read_string(buf_str(&p->ignored));
    for (int i = 0; i < p->n_msgs; i++)
        read_string(p->msgs[i].role), read_string(p->msgs[i].content);
    for (int i = 0; i < p->n_stops; i++) read_string(p->stops[i]);
    for (int i = 0; i < p->n_prompts; i++) {
        read_string(p->prompts[i].text), read_string(p->prompts[i].second);
        for (size_t k = 0; k < p->prompts[i].n_ids; k++) sink += (unsigned)p->prompts[i].ids[k];
    }
    read_string(p->query.text);
    read_string(p->instruction);
    for (size_t k = 0; k < p->query.n_ids; k++) sink += (unsigned)p->query.ids[k];
    for (size_t k = 0; k < p->n_tokens; k++) sink += (unsigned)p->tokens[k];
    params_sample(p, &o);
    for (int i = 0; i < o.n_bias; i++) sink += (unsigned)o.bias[i].id;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const enum body_kind kinds[] = { BODY_CHAT,       BODY_TEXT,  BODY_TOKENIZE,
                                            BODY_DETOKENIZE, BODY_EMBED, BODY_CLASSIFY,
                                            BODY_RERANK };
    char *copy = mem_dup(data, n); /* exactly n bytes: the sanitizer finds reads past them */
    int64_t ms;
    int priority;

    for (int i = 0; i < 7; i++) {
        struct params p = { 0 };
        struct err e = { 0 };
        int rc = params_read(&p, kinds[i], str_of(copy, n), &e);
        if (rc == OK) read_all_params(&p);
        else if (rc != E_INVALID || e.code != E_INVALID || !e.msg[0]) __builtin_trap();
        for (size_t k = 0; k < p.ignored.n; k++) /* these names are sent in a header */
            if (p.ignored.p[k] < ' ' || p.ignored.p[k] > '~') __builtin_trap();
        params_release(&p);
    }
    sink +=
        deadline_parse(str_of(copy, n), &ms) + params_parse_priority(str_of(copy, n), &priority);
    mem_free(copy);
    return 0;
}
