/* iter.h - going through values: what for loops, filters and "in" stand on.
 *
 * A generator (what map, select and their like give) is worked out an item at a time, when it is
 * asked for, and is gone through once. */
#ifndef TERN_JINJA_ITER_H
#define TERN_JINJA_ITER_H

#include "jinja/value.h"

struct jiter {
    bool (*next)(struct render *r, struct jiter *it, struct jval *out);
    struct jval src;
    struct jval src0; /* what the generator is over, before its first item */
    size_t at;
    struct jiter *inner;
    const struct jargs *args;
    const void *extra; /* the generator's own */
    bool begun, done, negated, by_attr;
    const char *shows; /* in repr: "generator object do_map" */
};

/* In place, over any value; false and a failure: it cannot be gone through. */
bool jiter_begin(struct render *r, struct jiter *it, struct jval over);
bool jiter_next(struct render *r, struct jiter *it,
                struct jval *out); /* false: the end, or failed */
bool jiter_can(struct jval v);
/* A generator as a value; begins nothing. */
struct jval jiter_new(struct render *r,
                      bool (*next)(struct render *, struct jiter *, struct jval *),
                      struct jval over, const struct jargs *args);
/* A generator's own source, begun at its first item. */
bool jiter_source(struct render *r, struct jiter *it, struct jval *out);

struct jval jv_to_list(struct render *r, struct jval over);          /* list(): a new one */
struct jval jv_reversed(struct render *r, struct jval v, bool *can); /* reversed() */

/* ---- loop: what a for loop lets its body see ---- */

struct jloop {
    struct jval over; /* what its length is taken from, if that has one */
    struct jiter it;
    int64_t index0, length; /* -1: not known yet */
    int depth0;
    struct jval before, current, after, changed;
    const struct node *recursive; /* NULL: not called again */
    struct activation *act;       /* where a recursive loop was written */
};

/* Leaves recursive, act and depth0 as they are. */
void jloop_init(struct render *r, struct jloop *l, struct jval over);
bool jloop_next(struct render *r, struct jloop *l, struct jval *out);
size_t jloop_length(struct render *r, struct jloop *l);
/* loop.NAME; false: there is no such attribute. */
bool jloop_attr(struct render *r, struct jloop *l, struct str name, struct jval *out);
#endif
