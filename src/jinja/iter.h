/* iter.h - iteration over values: for loops, filters and the operator "in" are built on it.
 *
 * An iterator is either a place on the caller's stack (jiter_begin) or a value of kind J_ITER
 * (jiter_new). The latter are generators: the filters map, select and others compute an item when
 * it is read, not before, as jinja2's generators do, and can be iterated once. Inside jinja/ only. */
#ifndef TERN_JINJA_ITER_H
#define TERN_JINJA_ITER_H

#include "jinja/value.h"

struct jiter {
    bool (*next)(struct render *r, struct jiter *it, struct jval *out);
    struct jval src;          /* what `next` reads; generators may store state in it */
    struct jval src0;         /* the input of a generator */
    size_t at;                /* index or byte offset of the next item */
    struct jiter *inner;      /* of a generator: the iterator over src0, once it has begun */
    const struct jargs *args; /* of the filter that made the generator */
    const void *extra;        /* further state of the generator */
    bool begun, done;
    bool negated, by_attr; /* reject, rejectattr; selectattr, rejectattr */
    const char *shows;     /* in repr(): "generator object" */
};

/* Begins in place an iteration over any value; false and a failure: not iterable. */
bool jiter_begin(struct render *r, struct jiter *it, struct jval over);
/* The next item; false: the end, or the rendering failed. */
bool jiter_next(struct render *r, struct jiter *it, struct jval *out);
bool jv_iterable(struct jval v);
/* A generator over `over`, which is not touched before the first item is read. args are copied.
 * None after a failed allocation. */
struct jval jiter_new(struct render *r,
                      bool (*next)(struct render *, struct jiter *, struct jval *),
                      struct jval over, const struct jargs *args);
/* The next item of a generator's input. */
bool jiter_source(struct render *r, struct jiter *it, struct jval *out);

struct jval jv_to_list(struct render *r, struct jval over); /* list(over): a new list */
/* reversed(v). *can: whether the type is reversible; if not, v is returned. */
struct jval jv_reversed(struct render *r, struct jval v, bool *can);

/* ---- the variable "loop" of a for loop ---- */

struct jloop {
    struct jval over; /* what is iterated: its length is loop.length if it has one */
    struct jiter it;
    int64_t index0; /* -1: before the first item */
    int64_t length; /* -1: not known yet */
    int depth0;     /* nesting of a recursive loop */
    /* previous, current and looked-ahead item; arguments of the last loop.changed() */
    struct jval before, current, after, changed;
    const struct node *recursive; /* the loop to run when `loop` is called; NULL: not recursive */
    struct activation *act;       /* variables around a recursive loop */
};

/* Leaves recursive, act and depth0 as they are. */
void jloop_init(struct render *r, struct jloop *l, struct jval over);
bool jloop_next(struct render *r, struct jloop *l, struct jval *out);
/* Reads the rest of a generator to count it; the items stay available. */
size_t jloop_length(struct render *r, struct jloop *l);
/* loop.NAME; false: no such attribute. */
bool jloop_attr(struct render *r, struct jloop *l, struct str name, struct jval *out);
#endif
