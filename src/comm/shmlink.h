/* shmlink.h - a link through memory that all members share: threads of one process, or processes
 * that map the same file descriptor.
 *
 * Every ordered pair of members has a ring of bytes with one writer and one reader. A member that
 * waits spins first, then gives up its time slice, then sleeps until the other side wakes it. */
#ifndef TERN_COMM_SHMLINK_H
#define TERN_COMM_SHMLINK_H

#include "comm/comm.h"

struct shmlink;

/* Bytes of the region of so many members. */
size_t shmlink_bytes(int size);
/* An anonymous file of that size, for processes: the descriptor is inherited or sent. E_IO. */
int shmlink_file(int *fd, int size, struct err *e);
/* Joins the region as one of its members. Memory that is zero is a new region. The memory stays the
 * caller's. */
int shmlink_open(struct comm_link **out, void *region, int rank, int size, struct err *e);
/* Maps the file, which it owns from then on also after a failure, and joins. */
int shmlink_open_file(struct comm_link **out, int fd, int rank, int size, struct err *e);
#endif
