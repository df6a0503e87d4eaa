/* guide_impl.h - what a guide is made of; seen by guide.c and mask.c only. */
#ifndef TERN_GRAMMAR_GUIDE_IMPL_H
#define TERN_GRAMMAR_GUIDE_IMPL_H

#include "grammar/guide.h"

enum {
    FRAME_END = 0,
    FRAME_LOCAL = 1
}; /* below the root; below a top whose stack is not looked at */
enum { CONF_DEAD = 0, UNKNOWN = -1 };

/* A place in a rule, on top of where its caller goes on. */
struct frame {
    int32_t state, count, parent;
    int32_t least;  /* bytes until all of it is over */
    int32_t popped; /* the set of stacks when this one is on top again, or UNKNOWN */
};

/* A set of stacks, by their tops: those from which a byte can go on. */
struct conf {
    uint32_t item;
    int32_t n;
    int32_t least, slot; /* slot: its mask, or -1 */
    bool ends, pops;     /* the grammar may be over; FRAME_LOCAL was reached */
};

/* What a top says of the vocabulary. */
struct lmask {
    int32_t state, count;
    uint64_t *bits;
    struct lex_trie beyond; /* tokens that write beyond its rule, by what they write there */
    bool direct;            /* too many of those: looked at with the whole stack each time */
    uint32_t stamp;
};

/* What a token writes beyond a counted rule, and after how many rounds of it. */
struct over {
    struct lex_word word;
    uint8_t rounds;
};

/* Of a state of a counted rule without calls, for all counts. */
struct tally {
    int32_t state;
    uint64_t *bits;    /* tokens that stay inside, however long */
    int32_t *toks;     /* those, the ones with most rounds first */
    int longer[256];   /* how many of them take more than so many */
    struct over *over; /* sorted */
    int n_over;
    bool direct; /* too many of those */
};

struct slot {
    uint64_t *bits;
    int32_t conf;
    uint64_t used;
};

struct ids_table {
    int32_t *p; /* number + 1; 0: free */
    size_t mask, n;
};

struct guide {
    const struct gauto *a;
    const struct lexicon *lex;
    struct match *matches;
    size_t most_bytes;
    int n_words;          /* of 64 bits in a mask */
    uint8_t byte_of[256]; /* one byte of each class */

    struct frame *frames;
    int n_frames, cap_frames;
    struct ids_table frame_ids;
    struct conf *confs;
    int32_t *next; /* [n_confs][n_classes] */
    int n_confs, cap_confs;
    struct ids_table conf_ids;
    int32_t *items;
    int n_items, cap_items;
    struct lmask *lmasks;
    int n_lmasks, cap_lmasks;
    struct ids_table lmask_ids;
    struct tally **tallies;
    int n_tallies;
    size_t lmask_bytes;
    struct slot *slots;
    int n_slots;
    uint64_t tick;
    uint32_t mask_stamp;

    /* while a set is made */
    int32_t *stack, *found; /* frames to look at; items found */
    int n_stack, cap_stack, n_found, cap_found;
    uint32_t *seen, stamp; /* [cap_frames] */
    bool ends, pops;
    bool lost; /* more stacks than may be: that way is closed */
};

int32_t frame_id(struct guide *m, int32_t state, int32_t count, int32_t parent);
int32_t conf_alone(struct guide *m, int32_t frame); /* the set of just that, as it is */
int32_t conf_popped(struct guide *m,
                    int32_t frame); /* and of all it stands for when it is on top again */
int32_t conf_step(struct guide *m, int32_t conf, int cls);
static inline int32_t conf_next(struct guide *m, int32_t conf, uint8_t byte)
{
    int cls = m->a->class_of[byte];
    int32_t to = m->next[(size_t)conf * (size_t)m->a->n_classes + (size_t)cls];
    return to != UNKNOWN ? to : conf_step(m, conf, cls);
}
static inline bool conf_lives(const struct guide *m, int32_t conf)
{
    const struct conf *c = &m->confs[conf];
    return c->n > 0 || c->ends || c->pops;
}

/* Numbers by what they stand for: the caller compares. */
size_t table_first(const struct ids_table *t, uint64_t hash);
size_t table_next(const struct ids_table *t, size_t at);
bool table_is_tight(const struct ids_table *t); /* it must grow before the next is put in */
void table_grow(struct ids_table *t);           /* twice the room, and empty: all is put in again */
void table_put(struct ids_table *t, uint64_t hash, int32_t id);
void table_release(struct ids_table *t);
uint64_t hash_ints(const int32_t *p, int n);

void masks_forget(struct guide *m); /* all of them */

bool tally_fits(const struct gauto *a, int32_t state);
/* The mask of a top, bits zeroed before; false: there is too much to tell. */
bool tally_mask(struct guide *m, int32_t state, int32_t count, uint64_t *bits,
                struct lex_trie *beyond);
void tallies_forget(struct guide *m);
size_t masks_bytes(const struct guide *m);
#endif
