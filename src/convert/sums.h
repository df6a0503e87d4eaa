/* sums.h - SHA-256 checksums of files, in the form that sha256sum prints and checks. */
#ifndef TERN_CONVERT_SUMS_H
#define TERN_CONVERT_SUMS_H

#include "base/err.h"

/* The checksum as 64 lower-case hex digits and a NUL. */
int sums_hash_file(const char *path, char hex[65], struct err *e);
/* Writes dir/SHA256SUMS over the regular files of dir, except hidden and unfinished ones
 * (".part-"), and itself. */
int sums_write_folder(const char *dir, struct err *e);
#endif
