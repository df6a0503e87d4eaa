/* Fuzz target: orders of a leader, steps and load orders, the greetings, cards and offers of a gang. What is
 * accepted lies inside the bytes that came. */
#include "gang/launch_impl.h"
#include "model/gangcard.h"
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

/* A question, and two cards that are compared if they pass. */
static void read_cards(const char *p, size_t n)
{
    struct gang_shape shape = { .tp = 2, .pp = 1, .way = (enum gang_way)(n % WAYS) };
    struct gangneeds needs = { .experts = n & 1, .types = n };
    struct gangask *a = calloc(1, sizeof *a);
    struct gangcard cards[2];
    struct err e;

    if (a && gangask_read(a, p, n, &e) == OK && !memchr(a->devices[1], 0, GANG_DEVICE)) abort();
    free(a);
    if (n < sizeof cards) return;
    memcpy(cards, p, sizeof cards);
    if (gangcard_check(&cards[0], 0, &e) == OK && gangcard_check(&cards[1], 1, &e) == OK)
        gangcards_match(cards, &shape, &needs, &e);
}

/* Members come to the same result whatever the offers say. */
static void read_offers(const char *p, size_t n)
{
    struct group_offer o[3];
    enum group_way way;
    struct err e;

    if (n < sizeof o) return;
    memcpy(o, p, sizeof o);
    if (group_check_offers(o, 3, &e) != OK) return;
    for (int want = GROUP_ANY; want < GROUP_WAYS; want++)
        if (group_choose(&way, o, 3, want, &e) == OK && way >= GROUP_WAYS) abort();
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
    switch (*p % 6) {
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
    case 3: read_cards(copy, n - 1); break;
    case 4: read_offers(copy, n - 1); break;
    default:
        if (n - 1 >= sizeof h) memcpy(&h, copy, sizeof h), gang_check_hello(&h, 4, secret, NULL);
        if (n - 1 >= sizeof w) memcpy(&w, copy, sizeof w), gang_check_welcome(&w, NULL);
    }
    free(copy);
    return 0;
}
