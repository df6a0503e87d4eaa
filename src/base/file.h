/* file.h - map a file, read a whole file, replace a file atomically; paths.
 *
 * Every failure is a typed error whose message begins with the path: E_NOTFOUND (no such file),
 * E_IO (the system call failed), E_NOMEM, or E_FORMAT (the contents are not as promised). Paths are
 * C strings; callers that hold a struct str reject NUL bytes first (path_under does). */
#ifndef TERN_BASE_FILE_H
#define TERN_BASE_FILE_H

#include "base/buf.h"
#include "base/err.h"

/* A file mapped into memory, read-only. If another process truncates the file, reading the lost
 * pages raises SIGBUS: model files must not be changed in place while they are in use. */
struct filemap {
    const unsigned char *p; /* NULL for an empty file */
    size_t n;
};

/* Maps a regular file. On failure *m is unchanged. */
int filemap_open(struct filemap *m, const char *path, struct err *e);
void filemap_release(struct filemap *m); /* a zeroed filemap is allowed */
/* Advice to the kernel about the bytes [p, p+n) of a map: they will be read soon (read ahead), or
 * are not needed any more (drop the pages; they are read again from the file on access). */
void filemap_need(const void *p, size_t n);
void filemap_drop(const void *p, size_t n);

/* Reads the whole file into `out`, which must be empty. A file of more than max_bytes is E_FORMAT.
 * On failure out may hold a part of the file; the caller releases it either way. */
int file_read(struct buf *out, const char *path, size_t max_bytes, struct err *e);
/* Like file_read, but decompresses a file that begins with the gzip magic number. max_bytes bounds
 * the file and the decompressed size. */
int file_read_gz(struct buf *out, const char *path, size_t max_bytes, struct err *e);

/* Writes data to "PATH.part-PID" and renames it to path, so that a reader sees either the old or
 * the new contents. On failure the old file is untouched and the temporary file is removed. */
int file_replace(const char *path, struct str data, struct err *e);

bool file_is_dir(const char *path);
bool file_exists(const char *path); /* a file or folder of this name */

/* "dir/name", with a separator only where dir does not end in one. Freed with mem_free; NULL: no
 * memory. */
char *path_join(const char *dir, const char *name);
/* The part after the last '/', or all of path if that part is empty. Borrowed from path. */
const char *path_base(const char *path);
/* path_join for a name from an untrusted file: E_INVALID if name is empty, absolute, contains NUL
 * or has a ".." component, so that *out stays inside dir. */
int path_under(char **out, const char *dir, struct str name, struct err *e);
#endif
