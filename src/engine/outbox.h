/* outbox.h - what came of a request so far, from the engine's thread to whoever reads it.
 *
 * A ring of bytes for one writer and one reader, taken once. The writer asks for room before it
 * makes a token: a reader that does not read stops its own request and nothing else. */
#ifndef TERN_ENGINE_OUTBOX_H
#define TERN_ENGINE_OUTBOX_H

#include "base/str.h"
#include "sample/logprob.h"

#include <stdatomic.h>

/* A token and the text that became showable with it (maybe none, maybe of tokens before it), or the
 * end with the text that was held back. */
struct event {
    int32_t id;      /* -1: no token, only text or the end */
    float logprob;   /* of the token; 0 unless asked for */
    int n_top;       /* alternatives, most likely first; unless asked for: 0 */
    int finish;      /* enum finish; not FINISH_NONE: the last event */
    uint64_t at_ns;  /* when it was made */
    struct str text; /* whole characters */
    struct top top[TOP_MAX];
};

struct outbox {
    char *ring;
    uint32_t cap;                /* a power of two */
    _Atomic uint32_t head, tail; /* bytes written, bytes read; they wrap */
    char *text;                  /* the reader's copy of the last event's text */
};

#define OUTBOX_TEXT 1024 /* bytes of text of one event at most: longer text comes in several */
#define OUTBOX_BYTES 16384

void outbox_init(struct outbox *o);
void outbox_release(struct outbox *o); /* a zeroed one is fine */

/* writer */
bool outbox_has_room(const struct outbox *o); /* for two steps' worth: a token, its text, the end */
void outbox_push(struct outbox *o, const struct event *ev); /* there is room */
/* reader: false: nothing there. The text lives until the next call. */
bool outbox_pop(struct outbox *o, struct event *ev);
#endif
