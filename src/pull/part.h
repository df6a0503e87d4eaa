/* part.h - a file that is being downloaded in ranges, and the record of what has arrived.
 *
 * PATH holds the bytes, each at its place; PATH.ranges one number per range: how many of its bytes are
 * there, from its beginning. The number is written after the bytes, so that a process that is killed
 * leaves a record that promises nothing that is missing. What a crash of the machine leaves is caught
 * by the checksum of the whole. The caller holds the lock of the blob; one thread. */
#ifndef TERN_PULL_PART_H
#define TERN_PULL_PART_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PART_RANGES_MOST = 1 << 20 };

struct part {
    char *path, *record;
    int fd, rec; /* -1: closed */
    uint64_t size, chunk;
    int n;          /* ranges */
    uint64_t *done; /* [n] bytes of each that are there */
    bool *taken;    /* [n] somebody is downloading it; not in the record */
    bool resumed;   /* some bytes were there when it was opened */
};

/* Opens what an earlier process left, with its ranges, or begins anew with ranges of `chunk` bytes. */
int part_open(struct part *p, const char *path, uint64_t size, uint64_t chunk, struct err *e);
int part_restart(struct part *p, uint64_t chunk, struct err *e); /* forgets all bytes */
void part_close(struct part *p);  /* keeps the files; a zeroed part is allowed */
void part_remove(struct part *p); /* closes, and removes both files */
/* Gives the bytes their name, on disk before they have it, and removes the record. Closes on success. */
int part_rename(struct part *p, const char *to, struct err *e);

uint64_t part_range_bytes(const struct part *p, int i); /* all of range i */
uint64_t part_offset(const struct part *p, int i);      /* of its next byte in the file */
/* Appends to range i. E_INVALID: more than the range has. E_IO: the disk. */
int part_write(struct part *p, int i, const void *bytes, size_t n, struct err *e);
int part_rewind(struct part *p, int i, struct err *e); /* range i begins again */
uint64_t part_have(const struct part *p);              /* bytes that are there */
uint64_t part_prefix(const struct part *p); /* bytes before the first one that is missing */
/* An untaken range with missing bytes, or -1. */
int part_next(const struct part *p);

/* Checks a record: does it fit a file of this size? chunk and done are filled on success. */
bool part_read_record(const void *bytes, size_t n, uint64_t size, uint64_t *chunk, uint64_t *done,
                      int cap, int *n_ranges);
#endif
