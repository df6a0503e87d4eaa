/* stream.h - tokens → text that can be shown; stop strings, wherever token boundaries fall.
 *
 * Text comes out in whole characters. Text that may be the beginning of a stop string is held back
 * until it cannot become one any more; the stop string itself never comes out, nor anything behind
 * it. If several stop strings occur, the one that is complete first counts. */
#ifndef TERN_ENGINE_STREAM_H
#define TERN_ENGINE_STREAM_H

#include "token/tokenizer.h"

struct stream {
    struct detok detok; /* t NULL: no tokenizer, no text */
    struct str *stops;  /* [n_stops] owned */
    int n_stops;
    struct buf held;      /* decoded, not given out yet */
    bool stopped;         /* a stop string came, */
    int hit;              /* this one of the stops */
    bool unarmed;         /* stop strings are not searched yet (min_tokens) */
    const int32_t *shown; /* [n_shown] special tokens that appear as text; borrowed */
    int n_shown;
};

/* tok NULL: there is no text. Empty stop strings are left out. false: no memory; s is empty. */
bool stream_init(struct stream *s, const struct tokenizer *tok, const struct str *stops,
                 int n_stops);
void stream_release(struct stream *s); /* a zeroed one is allowed */

/* The text continues behind these ids (the end of a prompt). */
void stream_prime(struct stream *s, const int32_t *ids, size_t n);
/* Appends the text that can be shown now. true: a stop string came, the text is over. */
bool stream_push(struct stream *s, int32_t id, struct buf *out);
bool stream_push_text(struct stream *s, struct str text, struct buf *out);
/* Appends what is held back, at the end; true as above. */
bool stream_flush(struct stream *s, struct buf *out);
/* Did an addition find no memory? Then text is missing. */
bool stream_is_failed(const struct stream *s);
#endif
