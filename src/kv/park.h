/* park.h - KV blocks of models that are not loaded: kept in host memory, or in files over a restart.
 *
 * When an engine closes, the blocks of its prefix cache can be parked here; the next engine of the
 * same model takes them back and need not compute those prompts again. A set of blocks belongs to a
 * key: a digest of everything that the numbers in a block depend on (the model, the KV type, the
 * kernels; engine/engine_park.c makes it). Within a set a block is identified as in the prefix cache,
 * by its tokens, its salt and the block before it; all of them are stored and compared, not hashes.
 *
 * The bytes of all sets together are bounded; sets that were used longest ago are dropped first.
 * With a folder every set is a file there, and with a descriptor the one set is the file behind it,
 * for a process that may open none. Files are readable by their owner only, because prompts can be
 * computed back from keys and values. The format has a version and checksums: a file that is
 * damaged, cut off or of another version is ignored with a warning, and a block is handed out only
 * after its checksum was found right.
 *
 * One thread at a time uses a park; the sets that it hands out are the caller's. */
#ifndef TERN_KV_PARK_H
#define TERN_KV_PARK_H

#include "base/err.h"
#include "kernel/kvview.h"

struct park;
struct park_set;

struct park_opt {
    uint64_t max_bytes; /* of all sets */
    const char *dir;    /* exists; NULL: sets are kept in memory, or in fd */
    bool has_fd;        /* the only set is kept in the file behind fd, which is borrowed; no dir */
    int fd;             /* open for reading and writing */
};

struct park_key {
    unsigned char digest[16];
    uint64_t block_bytes; /* keys and values of one block */
};

struct park_block {
    int32_t parent; /* its place in the set, before this one; -1: the first block of a prompt */
    uint64_t salt;
    int32_t ids[KV_BLOCK];
};

int park_open(struct park **out, const struct park_opt *opt, struct err *e);
void park_close(struct park *p);           /* NULL is allowed; files stay */
bool park_has_files(const struct park *p); /* sets outlive the process */
uint64_t park_bytes(const struct park *p); /* of all sets in memory */
/* Drops sets in memory, the one used longest ago first, until so many bytes are given back or none is
 * left; returns how many were. */
uint64_t park_shrink(struct park *p, uint64_t bytes);
/* Drops files that were used longest ago, until those that are left have the allowed size. */
void park_drop_files(struct park *p);
/* Sets that are begun from now on have at most so many bytes, if that is less than max_bytes. */
void park_set_room(struct park *p, uint64_t bytes);
/* The time (clock_ns) after which saving stops, with the blocks that are saved by then; 0: no
 * limit. */
void park_set_end(struct park *p, uint64_t end_ns);
bool park_is_late(const struct park *p);

/* Blocks that one set may have. */
int park_max_blocks(const struct park *p, const struct park_key *k);
/* A new set of up to n blocks. It is not found before park_end. */
int park_begin(struct park_set **out, struct park *p, const struct park_key *k, int n,
               struct err *e);
/* data: block_bytes, copied. Its place in the set is the number of blocks added before. */
int park_add(struct park_set *s, const struct park_block *b, const void *data, struct err *e);
/* Replaces the set of the same key, drops old sets, and takes s over, also when it fails. */
int park_end(struct park_set *s, struct err *e);

/* The set of a key, handed over; it is no longer in memory, but its file stays until it is replaced
 * or dropped. E_NOTFOUND: there is none, or it was damaged, which is logged. */
int park_take(struct park_set **out, struct park *p, const struct park_key *k, struct err *e);
void park_set_close(struct park_set *s); /* NULL is allowed; one under construction is dropped */

int park_set_n(const struct park_set *s);
void park_set_at(const struct park_set *s, int i, struct park_block *out);
/* Keys and values of block i, valid until the next call; NULL: they are damaged. */
const void *park_set_data(const struct park_set *s, int i);

/* A set in the bytes of a file, which are borrowed: for park_take, and for tests. E_FORMAT says what
 * is wrong. k NULL: of any key. */
int park_parse(struct park_set **out, const void *p, size_t n, const struct park_key *k,
               struct err *e);
/* For tests and fuzzing: makes the checksums of header and index right, as far as they lie inside. */
void park_seal(void *p, size_t n);
#endif
