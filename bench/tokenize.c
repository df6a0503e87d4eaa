/* tokenize.c - speed of opening a tokenizer and of encoding: tokenize TOKENIZER TEXT [ROUNDS]
 *
 * Prints one CSV line: tokenizer, milliseconds to open, number of ids, MB/s of the first round
 * (cold caches) and of the best. */
#include "base/clock.h"
#include "base/file.h"
#include "token/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>

static int report_failure(const struct err *e)
{
    fprintf(stderr, "tokenize: %s\n", e->msg);
    return 1;
}

int main(int argc, char **argv)
{
    struct tokenizer *t = NULL;
    struct ids ids = { 0 };
    struct buf text = { 0 };
    struct err e = { 0 };
    int rounds = argc > 3 ? atoi(argv[3]) : 10;
    double first = 0, best = 0, open_ms;
    uint64_t start = clock_ns();

    if (argc < 3) {
        fprintf(stderr, "usage: tokenize TOKENIZER TEXT [ROUNDS]\n");
        return 2;
    }
    if (tokenizer_open(&t, argv[1], &e) != OK) return report_failure(&e);
    open_ms = clock_ms_since(start);
    if (file_read_gz(&text, argv[2], 1 << 29, &e) != OK) return report_failure(&e);
    for (int i = 0; i < rounds; i++) {
        ids.n = 0;
        start = clock_ns();
        if (tokenizer_encode(t, buf_str(&text), 0, &ids, &e) != OK) return report_failure(&e);
        double speed = (double)text.n / 1e3 / clock_ms_since(start);
        if (i == 0) first = speed;
        if (speed > best) best = speed;
    }
    printf("%s,%.1f,%zu,%.1f,%.1f\n", argv[1], open_ms, ids.n, first, best);
    tokenizer_close(t);
    ids_release(&ids);
    buf_release(&text);
    return 0;
}
