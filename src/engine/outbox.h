/* outbox.h - events of a request, from the engine thread to the thread that reads them.
 *
 * A ring of bytes for one writer and one reader, allocated once. The writer asks for room before it
 * computes a token, so a reader that does not read stops its own request and nothing else.
 *
 * Invariants (outbox_check): tail and head differ by at most the ring's size; the bytes between
 * them are whole events; nothing follows an event with a finish. */
#ifndef TERN_ENGINE_OUTBOX_H
#define TERN_ENGINE_OUTBOX_H

#include "base/err.h"
#include "base/str.h"
#include "engine/hard.h"
#include "sample/logprob.h"

#include <stdatomic.h>

/* A sampled token with the text that became complete with it (possibly none, possibly of tokens
 * before it), or the end with the text that was held back. */
struct event {
    int32_t id;      /* -1: no token, only text or the end */
    float logprob;   /* of the token; 0 unless requested */
    int n_top;       /* alternatives, most likely first; 0 unless requested */
    int finish;      /* enum finish; not FINISH_NONE: the last event */
    uint64_t at_ns;  /* clock_ns when the token was sampled */
    struct str text; /* whole characters */
    struct top top[TOP_MAX];
};

struct outbox {
    char *ring;
    uint32_t cap;                /* bytes, a power of two */
    _Atomic uint32_t head, tail; /* bytes written, bytes read; both wrap around */
    char *text;                  /* [OUTBOX_TEXT] the reader's copy of the last event's text */
};

enum {
    OUTBOX_TEXT =
        HARD ? HARD_TEXT : 1024, /* text bytes of an event; longer text comes in several */
    OUTBOX_STEP_TEXT = 4096 /* of a step: a token's piece, and text held back for a stop string */
};

bool outbox_init(struct outbox *o);    /* false: no memory; o is empty */
void outbox_release(struct outbox *o); /* a zeroed one is allowed */

/* writer */
bool outbox_has_room(const struct outbox *o); /* for the events of two steps, with an end */
void outbox_push(struct outbox *o, const struct event *ev); /* room was asked for */
/* reader. false: there is no event. The text lives until the next call. */
bool outbox_pop(struct outbox *o, struct event *ev);

/* Checks the invariants, from the writer's thread. E_INTERNAL says what is wrong. */
int outbox_check(const struct outbox *o, struct err *e);
#endif
