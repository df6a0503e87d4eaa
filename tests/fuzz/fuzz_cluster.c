/* Bytes that the gateway reads: the state that a worker reports, its streams with the ids of tokens
 * (in two pieces: the same as in one), and bodies of clients, of which it reads the
 * model, the cost and the prompt's hashes. */
#include "base/buf.h"
#include "base/mem.h"
#include "cluster/fleet.h"
#include "cluster/promptkey.h"
#include "cluster/units.h"
#include "member/member.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void add_bytes(void *arg, struct str bytes, bool ping)
{
    (void)ping;
    buf_put_str(arg, bytes);
}

/* Where a read ends does not matter, but for a ping that is a read of its own. */
static void read_stream(struct str text)
{
    struct units one = { 0 }, two = { 0 };
    struct buf a = { 0 }, b = { 0 };
    size_t half = text.n / 2;

    units_push(&one, text, add_bytes, &a);
    units_push(&two, str_take(text, half), add_bytes, &b);
    units_push(&two, str_skip(text, half), add_bytes, &b);
    if (str_find(text, STR(": ping")) < 0 &&
        (one.ids.n != two.ids.n || one.n_events != two.n_events ||
         !str_eq(buf_str(&a), buf_str(&b))))
        __builtin_trap();
    units_release(&one);
    units_release(&two);
    buf_release(&a);
    buf_release(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct str text = str_of((const char *)data, n);
    struct worker w = { .index = 0 };
    struct promptlook look;
    struct promptkey key;
    struct member member;
    struct err e = { 0 };

    if (fleet_read_state(&w, text, &e) == OK) worker_model(&w, STR("m"));
    for (int i = 0; i < w.n_models; i++) {
        for (int k = 0; k < w.models[i].n_aliases; k++) mem_free(w.models[i].aliases[k]);
        mem_free(w.models[i].aliases);
        mem_free(w.models[i].id);
    }
    mem_free(w.models);
    buf_release(&w.list);
    read_stream(text);
    member_read(&member, text, &e);
    promptlook_begin(&look, text);
    while (!promptlook_step(&look)) continue;
    promptkey_make(NULL, &look, 0, &key);
    return 0;
}
