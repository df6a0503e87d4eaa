/* mapfault.h - reads of mapped files that fail end no process.
 *
 * Reading a page of a mapped file that the file does not have any more (it was truncated), or that
 * its disk cannot deliver, raises SIGBUS. Every map that filemap_open makes has a guard here; the
 * handler of the process finds the guard of the address, marks it broken and puts zeros in place
 * of the lost pages. The thread that was reading goes on, with zeros, and whoever uses the map
 * asks later whether it is broken (filemap_check) and throws the results away.
 *
 * The handler is installed with the first guard, and again with a later one where the program has
 * installed another meanwhile. A SIGBUS at any other address goes to the handler that was there
 * before, or ends the process as without us: libtern may be loaded into a program that has a
 * handler of its own.
 *
 * Any thread may call these functions; mapguard_is_broken is one atomic load. */
#ifndef TERN_BASE_MAPFAULT_H
#define TERN_BASE_MAPFAULT_H

#include <stdbool.h>
#include <stddef.h>

struct mapguard;

/* Guards the map [p, p+n), n > 0, until mapguard_drop, which comes before munmap. NULL: there are
 * MAPFAULT_MAPS already. */
struct mapguard *mapguard_add(const void *p, size_t n);
void mapguard_drop(struct mapguard *g); /* NULL is allowed */
bool mapguard_is_broken(const struct mapguard *g);

enum { MAPFAULT_MAPS = 4096 };
#endif
