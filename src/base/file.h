/* file.h - map a file, read one whole, replace one safely.
 *
 * Errors name the path. Paths with a NUL inside cannot be expressed here; callers that
 * hold a struct str check before they make a C string of it. */
#ifndef TERN_BASE_FILE_H
#define TERN_BASE_FILE_H

#include "base/buf.h"
#include "base/err.h"

struct filemap {
    const unsigned char *p; /* read-only */
    size_t n;
};

/* Maps a regular file. An empty file maps to n == 0. */
int filemap_open(struct filemap *m, const char *path, struct err *e);
void filemap_release(struct filemap *m); /* a zeroed map is fine */
/* Tell the kernel that [p, p+n) will be read soon, or is not needed any more. */
void filemap_need(const void *p, size_t n);
void filemap_drop(const void *p, size_t n);

/* Reads at most max_bytes; a larger file is E_FORMAT. */
int file_read(struct buf *out, const char *path, size_t max_bytes, struct err *e);
/* Like file_read; a file that begins as gzip does is unpacked, max_bytes bounding the result. */
int file_read_gz(struct buf *out, const char *path, size_t max_bytes, struct err *e);

/* Writes next to path and renames over it, so that a reader sees the old or the new whole. */
int file_replace(const char *path, struct str data, struct err *e);

bool file_is_dir(const char *path);
bool file_exists(const char *path);

/* "dir/name" with the separator where one is missing; from mem_alloc. */
char *path_join(const char *dir, const char *name);
/* The part behind the last '/', never empty unless path is. */
const char *path_base(const char *path);
/* Joins name under dir only if it stays there: no absolute path, no "..", no NUL; else E_INVALID.
 */
int path_under(char **out, const char *dir, struct str name, struct err *e);
#endif
