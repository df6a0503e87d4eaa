/* stream.h - tokens → text events; stop strings, wherever token borders fall.
 *
 * Text comes out in whole characters. What may be the beginning of a stop string is held back
 * until it cannot be one any more; the stop string itself never comes out, nor anything behind
 * it. Where several could stop, the one that is complete first does. */
#ifndef TERN_ENGINE_STREAM_H
#define TERN_ENGINE_STREAM_H

#include "token/tokenizer.h"

struct stream {
    struct detok detok; /* t NULL: no tokenizer, no text */
    struct str *stops;  /* owned */
    int n_stops;
    struct buf held; /* decoded, not given out yet */
    bool stopped;
    bool unarmed;         /* stop strings are not looked for yet */
    const int32_t *shown; /* special tokens that are text; borrowed */
    int n_shown;
};

/* tok NULL is fine: then there is no text. Empty stop strings are left out. */
void stream_init(struct stream *s, const struct tokenizer *tok, const struct str *stops,
                 int n_stops);
void stream_release(struct stream *s); /* a zeroed one is fine */

/* The text goes on behind these ids (a prompt that is continued). */
void stream_prime(struct stream *s, const int32_t *ids, size_t n);
/* Appends what may be shown now; true: a stop string came, the text is over. */
bool stream_push(struct stream *s, int32_t id, struct buf *out);
bool stream_push_text(struct stream *s, struct str text, struct buf *out);
/* What is held back, at the end; true as above. */
bool stream_flush(struct stream *s, struct buf *out);
#endif
