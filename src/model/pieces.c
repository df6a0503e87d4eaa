/* pieces.c - a running average for each way and size, and the least of them. */
#include "model/pieces.h"

#define KEPT 0.8 /* of the average, at each new time */

static int size_of(int n)
{
    int i = 0;

    while (n > 1 && i < PIECES_SIZES - 1) n /= 2, i++;
    return i;
}

/* Tokens of a piece in that way; n: the step would be whole, or its pieces too small. */
static int tokens_of(const struct pieces *p, int way, int n)
{
    int pieces = way * p->stages, tokens = pieces > 1 ? (n + pieces - 1) / pieces : n;

    return tokens < PIECES_LEAST ? n : tokens;
}

static int fastest(const struct pieces *p, const struct pieces_size *s, int n)
{
    int best = 0;

    for (int w = 1; w < PIECES_WAYS; w++)
        if (tokens_of(p, w, n) < n && s->n_tried[w] && s->ns[w] < s->ns[best]) best = w;
    return best;
}

static int way_of(const struct pieces *p, const struct pieces_size *s, int n)
{
    int again = (int)(s->n_steps / PIECES_AGAIN) % PIECES_WAYS;

    for (int w = 0; w < PIECES_WAYS; w++)
        if (tokens_of(p, w, n) < n || w == 0)
            if (s->n_tried[w] < PIECES_TRIALS) return w;
    return s->n_steps % PIECES_AGAIN == 0 ? again : fastest(p, s, n);
}

int pieces_tokens(const struct pieces *p, int n)
{
    if (p->stages < 2 || n < 2 * PIECES_LEAST) return n;
    return tokens_of(p, way_of(p, &p->sizes[size_of(n)], n), n);
}

void pieces_note(struct pieces *p, int n, int piece, uint64_t ns)
{
    struct pieces_size *s = &p->sizes[size_of(n)];
    double each = (double)ns / n;
    int way = 0;

    if (p->stages < 2 || n < 2 * PIECES_LEAST) return;
    for (int w = 1; w < PIECES_WAYS; w++)
        if (piece < n && tokens_of(p, w, n) == piece) way = w;
    /* The first time of a way has page faults and cold caches in it. */
    s->ns[way] = s->n_tried[way] < 2 ? each : KEPT * s->ns[way] + (1 - KEPT) * each;
    if (s->n_tried[way] < UINT32_MAX) s->n_tried[way]++;
    s->n_steps++;
}
