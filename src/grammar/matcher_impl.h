/* matcher_impl.h - the tables of a matcher_cache; included by matcher*.c only.
 *
 * Invariants:
 * - The parent of a frame has a smaller number than the frame. Frames 0 and 1 are the bottoms.
 * - Configuration 0 (CONFIG_DEAD) is the empty set without an end: no text continues from there.
 *   Configuration 1 (CONFIG_FULL) stands for all sets with more than MATCHER_MAX_STACKS stacks: it
 *   is never left, and no matcher stands on it.
 * - Everything stored is complete. A function that runs out of memory sets `failed`, returns an
 *   arbitrary valid number, and what is computed from that number is not stored. The public
 *   functions clear `failed` when they begin and ask for it before they return. */
#ifndef TERN_GRAMMAR_MATCHER_IMPL_H
#define TERN_GRAMMAR_MATCHER_IMPL_H

#include "grammar/matcher.h"
#include "grammar/pda.h"
#include "grammar/vocabtrie.h"

enum {
    FRAME_END = 0,  /* the bottom below the root rule: the text is complete */
    FRAME_LOCAL = 1 /* the bottom below a top frame that is looked at without its stack */
};
enum { CONFIG_DEAD = 0, CONFIG_FULL = 1, CONFIG_UNKNOWN = -1 };

/* A state inside a rule, on top of the frame at which the caller of the rule continues. */
struct stack_frame {
    int32_t state, count, parent; /* count: finished rounds of a counted rule */
    int32_t min_bytes;            /* shortest way to the end of this frame and all below it */
    int32_t popped; /* the configuration when this frame is on top again, or CONFIG_UNKNOWN */
};

/* A frame in the order in which frames that differ in their counts alone are neighbours. */
struct by_count {
    int32_t state, parent, count, frame;
};

/* A set of stacks, given by their top frames. Only frames from which a byte can be read are in it:
 * calls and returns are followed when the set is made. */
struct config {
    uint32_t item; /* first of its frames in `items`, sorted by number */
    int32_t n;
    int32_t min_bytes;
    int32_t slot; /* the mask_slot with its mask, or -1 */
    bool ends;    /* FRAME_END was reached: the text may be complete */
    bool pops;    /* FRAME_LOCAL was reached: the rule of the top frame may be over */
};

/* The part of a token mask that follows from the top frame alone. */
struct top_mask {
    int32_t state, count;
    uint64_t *bits;        /* context-independent tokens that are allowed */
    struct toktrie beyond; /* context-dependent tokens, by the bytes behind the end of the rule */
    bool direct;    /* there are too many of those: the vocabulary is walked with each stack */
    uint32_t stamp; /* the mask into which `bits` were merged last */
};

/* A token that leaves a counted rule after some rounds, and its remaining bytes. */
struct overrun {
    struct toktrie_word word;
    uint8_t rounds;
};

/* Tokens by the number of rounds they take in a counted rule; see matcher_count.c. */
struct count_mask {
    int32_t state;
    uint64_t *bits;           /* tokens that stay inside the rule if no maximum is near */
    int32_t *tokens;          /* those tokens, ordered by falling number of rounds */
    int longer[256];          /* longer[k]: how many of them take more than k rounds */
    struct overrun *overruns; /* sorted by bytes */
    int n_overruns;
    bool direct; /* there are too many overruns to list */
};

/* A finished token mask. A few are kept; the least recently used one is replaced. */
struct mask_slot {
    uint64_t *bits;
    int32_t config; /* -1: a mask that no configuration refers to */
    uint64_t used;
};

/* A hash index from content to number. The caller compares the contents. */
struct intern_index {
    int32_t *slots; /* number + 1; 0: free */
    size_t mask, n; /* mask: capacity - 1, a power of two less one */
};

struct matcher_cache {
    const struct pda *pda;
    const struct vocabtrie *vocab;
    struct matcher *matchers;
    size_t limit_bytes;
    int n_words;          /* 64-bit words of a mask */
    uint8_t byte_of[256]; /* a byte of each byte class */

    struct stack_frame *frames;
    uint32_t *seen; /* [cap_frames] the closure in which a frame was met last */
    int n_frames, cap_frames;
    struct intern_index frame_index;

    struct config *configs;
    int32_t *next; /* [n_configs][n_classes] transitions, CONFIG_UNKNOWN until taken */
    int n_configs, cap_configs;
    struct intern_index config_index;
    int32_t *items; /* frames of all configurations */
    int n_items, cap_items;

    struct top_mask *tops;
    int n_tops, cap_tops;
    struct intern_index top_index;
    struct count_mask **counts;
    int n_counts, cap_counts;
    size_t mask_bytes; /* memory of tops and counts */
    struct mask_slot *slots;
    int n_slots;
    uint64_t tick;       /* orders the uses of slots */
    uint32_t mask_stamp; /* numbers the masks that are merged */

    /* The closure in progress: frames to follow, frames found, and what else was reached. */
    int32_t *pending, *found;
    int n_pending, cap_pending, n_found, cap_found;
    struct by_count *by_count; /* the found frames, sorted */
    int cap_by_count;
    uint32_t stamp;
    bool ends, pops;
    bool overflow; /* more stacks than are allowed */
    int n_bounded; /* found frames of rules with a maximum number of rounds */
    bool failed;   /* out of memory */
};

/* ---- matcher_config.c ---- */

int32_t frame_intern(struct matcher_cache *c, int32_t state, int32_t count, int32_t parent);
int32_t config_of_frame(struct matcher_cache *c, int32_t frame); /* the set of this stack alone */
int32_t config_of_start(struct matcher_cache *c);                /* before the first byte */
/* The configuration when `frame` is on top again, with all calls and returns followed. */
int32_t config_popped(struct matcher_cache *c, int32_t frame);
int32_t config_step(struct matcher_cache *c, int32_t config, int byte_class);
/* Can no byte be read from it? */
static inline bool config_is_stuck(int32_t config) { return config <= CONFIG_FULL; }
static inline int32_t config_next(struct matcher_cache *c, int32_t config, uint8_t byte)
{
    int byte_class = c->pda->class_of[byte];
    int32_t to = c->next[(size_t)config * (size_t)c->pda->n_classes + (size_t)byte_class];
    return to != CONFIG_UNKNOWN ? to : config_step(c, config, byte_class);
}
bool config_reset(
    struct matcher_cache *c); /* only the bottoms, CONFIG_DEAD and CONFIG_FULL remain */
void config_evict(struct matcher_cache *c); /* only what the matchers use remains */
void config_release(struct matcher_cache *c);
size_t config_bytes(const struct matcher_cache *c);

size_t intern_first(const struct intern_index *t, uint64_t hash);
size_t intern_next(const struct intern_index *t, size_t at);
bool intern_is_full(const struct intern_index *t); /* it must grow before the next intern_add */
bool intern_grow(
    struct intern_index *t); /* doubles it and empties it; false: no memory, unchanged */
void intern_add(struct intern_index *t, uint64_t hash, int32_t id);
void intern_clear(struct intern_index *t); /* empties it and keeps its memory */
void intern_release(struct intern_index *t);
uint64_t hash_ints(const int32_t *p, int n);

/* ---- matcher_mask.c ---- */

void masks_evict(struct matcher_cache *c); /* frees all masks */
size_t masks_bytes(const struct matcher_cache *c);

/* ---- matcher_count.c ---- */

bool count_mask_applies(const struct pda *a, int32_t state);
/* Fills the bits (zeroed before) and the trie of overruns of a top frame in a counted rule. false:
 * there are too many overruns, or memory ran out (c->failed). */
bool count_mask_fill(struct matcher_cache *c, int32_t state, int32_t count, uint64_t *bits,
                     struct toktrie *beyond);
void count_masks_evict(struct matcher_cache *c);
#endif
