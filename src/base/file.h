/* file.h - map a file, read a whole file, replace a file atomically; paths.
 *
 * An encrypted file (sealed.h) is mapped and read as what it was before it was encrypted, with the
 * keys of the process's ring (keyring.h): its bytes are decrypted chunk by chunk into memory that core
 * files leave out. E_IO: there is no key for it. E_DAMAGED: it was changed.
 *
 * Every failure is a typed error whose message begins with the path: E_NOTFOUND (no such file),
 * E_IO (the system call failed), E_NOMEM, or E_FORMAT (the contents are not as promised). Paths are
 * C strings; callers that hold a struct str reject NUL bytes first (path_under does). A confined path
 * (confine.h) that leads out of its folder is E_INVALID; it exists, and is no folder. */
#ifndef TERN_BASE_FILE_H
#define TERN_BASE_FILE_H

#include "base/buf.h"
#include "base/err.h"

#include <dirent.h>
#include <sys/stat.h>

/* A file in memory, read-only: mapped, or decrypted. If another process truncates a mapped file, the
 * lost pages read as zeros (mapfault.h) and filemap_check says so: model files must not be changed
 * in place while they are in use. Replacing one by rename is fine: the map keeps the old file. */
struct filemap {
    const unsigned char *p; /* NULL for an empty file */
    size_t n;
    struct mapped_file *file; /* what it was when it was opened; NULL for an empty file */
    size_t n_ready;           /* bytes from the start that can be read; of a mapped file all */
};

/* Maps a regular file. On failure *m is unchanged. */
int filemap_open(struct filemap *m, const char *path, struct err *e);
/* The same, but of an encrypted file only the first n bytes, or a few more, are decrypted: the others
 * read as zeros until filemap_fill. */
int filemap_open_head(struct filemap *m, const char *path, size_t n, struct err *e);
/* Decrypts up to byte n (SIZE_MAX: all). step is called with the bytes of each chunk; it may be NULL.
 * OK at once for a mapped file. */
typedef void file_step_fn(void *arg, uint64_t bytes);
int filemap_fill(struct filemap *m, size_t n, file_step_fn *step, void *arg, struct err *e);
bool filemap_is_sealed(const struct filemap *m); /* was the file encrypted? */
void filemap_release(struct filemap *m);         /* a zeroed filemap is allowed */
/* Is the file still what was mapped? E_DAMAGED: a page could not be read (an atomic load tells);
 * with `look` also if the file's size or time of change is another now (a system call). */
int filemap_check(const struct filemap *m, bool look, const char *path, struct err *e);
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

/* Reads the bytes of the file as they are on the disk, in pieces, into take, until it returns
 * another code than OK, which is the result. bytes: how many there were; may be NULL. */
typedef int file_piece_fn(void *arg, const void *p, size_t n, struct err *e);
int file_scan(const char *path, file_piece_fn *take, void *arg, uint64_t *bytes, struct err *e);

/* OK if path is a regular file that can be opened. What is read by another library (TLS keys) is
 * checked by it first: a FIFO would be waited for. */
int file_check_input(const char *path, struct err *e);

/* Output is written to a temporary file beside path and renamed, so that a reader sees either the
 * old or the new contents. Only regular files are replaced: a device, a FIFO, a socket or a
 * symbolic link of that name stays, and the error (E_IO) says what it is.
 *
 * file_create opens temp for writing, a new file; it fails first where path cannot be replaced.
 * file_rename puts it in place. */
int file_create(int *fd, const char *temp, const char *path, struct err *e);
int file_rename(const char *temp, const char *path, struct err *e);
/* Both at once, with "PATH.part-PID" as the temporary file, which is removed on failure. */
int file_replace(const char *path, struct str data, struct err *e);
/* Opens path for reading and appending, and makes it where there is none. The same names are refused:
 * nothing is written through a link or into a device. */
int file_append(int *fd, const char *path, struct err *e);

bool file_is_dir(const char *path);
bool file_exists(const char *path);                /* a file or folder of this name */
bool file_stat(const char *path, struct stat *st); /* of what a link leads to; false: errno */
DIR *file_opendir(const char *path);               /* NULL: errno */

/* "dir/name", with a separator only where dir does not end in one. Freed with mem_free; NULL: no
 * memory. */
char *path_join(const char *dir, const char *name);
/* The part after the last '/', or all of path if that part is empty. Borrowed from path. */
const char *path_base(const char *path);
/* path_join for a name from an untrusted file: E_INVALID if name is empty, absolute, contains NUL
 * or has a ".." component, so that *out stays inside dir. */
int path_under(char **out, const char *dir, struct str name, struct err *e);
#endif
