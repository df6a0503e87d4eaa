/* Fuzz target: orders of a leader, steps and load orders, and the greetings of a gang. What is accepted
 * lies inside the bytes that came. */
#include "gang/launch_impl.h"
#include "model/loadorder.h"
#include "model/stepplan.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static void read_step(const void *p, size_t n)
{
    struct stepplan s;
    const char *a = p, *end = a + n;

    if (stepplan_read(&s, p, n, NULL) != OK) return;
    if ((const char *)(s.b.ids + s.b.n_tokens) > end ||
        (const char *)(s.b.table + (size_t)s.b.n_seqs * (size_t)s.b.table_stride) > end ||
        (const char *)(s.b.hidden_rows + s.b.n_hidden) > end || s.micro < 1)
        abort();
    if (s.b.seq_len && (const char *)(s.b.seq_len + s.b.n_seqs) > end) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    static const char secret[GANG_SECRET];
    struct order o;
    struct gang_hello h;
    struct gang_welcome w;
    struct loadorder *l;
    void *copy;

    if (n < 1 || !(copy = malloc(n))) return 0;
    memcpy(copy, p + 1, n - 1); /* aligned, and of exactly this size for the sanitizer */
    switch (*p % 4) {
    case 0: read_step(copy, n - 1); break;
    case 1:
        if (n - 1 < sizeof o) break;
        memcpy(&o, copy, sizeof o);
        if (order_check(&o, 1, NULL) == OK && o.bytes <= n - 1 - sizeof o)
            order_check_body(&o, (char *)copy + sizeof o, NULL);
        break;
    case 2:
        if ((l = calloc(1, sizeof *l)) && loadorder_read(l, copy, n - 1, NULL) == OK)
            (void)loadorder_opt(l, 1);
        free(l);
        break;
    default:
        if (n - 1 >= sizeof h) memcpy(&h, copy, sizeof h), gang_check_hello(&h, 4, secret, NULL);
        if (n - 1 >= sizeof w) memcpy(&w, copy, sizeof w), gang_check_welcome(&w, NULL);
    }
    free(copy);
    return 0;
}
