#include "base/file.h"

#include "base/confine.h"
#include "base/mapfault.h"
#include "base/mem.h"
#include "base/sealed.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

/* The error of a failed system call on path, with the text of errno. */
static int fail_errno(const char *path, struct err *e)
{
    return err_set(e, errno == ENOMEM ? E_NOMEM : E_IO, "%s: %s", path, strerror(errno));
}

static const char *kind_of(mode_t mode)
{
    return S_ISDIR(mode)    ? "a directory"
           : S_ISFIFO(mode) ? "a FIFO"
           : S_ISCHR(mode)  ? "a character device"
           : S_ISBLK(mode)  ? "a block device"
           : S_ISSOCK(mode) ? "a socket"
           : S_ISLNK(mode)  ? "a symbolic link"
                            : "not a regular file";
}

/* Opens a regular file. Devices and pipes are refused: their size is unknown and reading may block
 * forever. O_NONBLOCK: opening a FIFO would wait for its writer before we can see what it is. */
static int open_regular(int *fd, struct stat *st, const char *path, struct err *e)
{
    int rc = OK;

    *fd = confine_open(path, O_RDONLY | O_NONBLOCK);
    if (*fd < 0 && errno == ENOENT) return err_set(e, E_NOTFOUND, "%s: %s", path, strerror(errno));
    if (*fd < 0 && errno == EXDEV)
        return err_set(e, E_INVALID, "%s: leads out of the folder that it must stay in", path);
    if (*fd < 0) return fail_errno(path, e);
    if (fstat(*fd, st) != 0) rc = fail_errno(path, e);
    else if (!S_ISREG(st->st_mode))
        rc = err_set(e, E_IO, "%s: is %s, expected a file", path, kind_of(st->st_mode));
    if (rc != OK) close(*fd);
    return rc;
}

int file_check_input(const char *path, struct err *e)
{
    struct stat st;
    int fd, rc = open_regular(&fd, &st, path, e);

    if (rc == OK) close(fd);
    return rc;
}

/* ---- maps ---- */

struct mapped_file {
    int fd; /* kept open to look at the file again; its name may be another file's by then */
    struct mapguard *guard; /* NULL: decrypted */
    off_t size;
    struct timespec changed;
    /* decrypted */
    struct sealed *sealed;    /* until all of it is; NULL: all is, or the file is mapped */
    struct mapped_file *next; /* of the list below */
    const unsigned char *p;
    size_t n;
};

/* Files that were decrypted: their pages cannot be read again, so filemap_drop leaves them alone. */
static struct {
    pthread_mutex_t lock;
    struct mapped_file *first;
} decrypted = { PTHREAD_MUTEX_INITIALIZER, NULL };

static void add_decrypted(struct mapped_file *f)
{
    pthread_mutex_lock(&decrypted.lock);
    f->next = decrypted.first;
    decrypted.first = f;
    pthread_mutex_unlock(&decrypted.lock);
}

static void remove_decrypted(struct mapped_file *f)
{
    struct mapped_file **p = &decrypted.first;

    pthread_mutex_lock(&decrypted.lock);
    while (*p && *p != f) p = &(*p)->next;
    if (*p) *p = f->next;
    pthread_mutex_unlock(&decrypted.lock);
}

static bool is_decrypted(const void *p)
{
    const unsigned char *at = p;
    bool found = false;

    pthread_mutex_lock(&decrypted.lock);
    for (const struct mapped_file *f = decrypted.first; f && !found; f = f->next)
        found = at >= f->p && at < f->p + f->n;
    pthread_mutex_unlock(&decrypted.lock);
    return found;
}

/* Takes fd over, also where it fails. */
static int map_file(struct filemap *m, int fd, const struct stat *st, const char *path,
                    struct err *e)
{
    size_t n = (size_t)st->st_size;
    struct mapped_file *f = mem_new(struct mapped_file);
    void *p = MAP_FAILED;
    int rc;

    if (!f) {
        rc = err_nomem(e, "a mapped file");
        goto fail;
    }
    p = mmap(NULL, n, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED) {
        rc = err_set(e, errno == ENOMEM ? E_NOMEM : E_IO, "%s: cannot map %zu bytes: %s", path, n,
                     strerror(errno));
        goto fail;
    }
    if (!(f->guard = mapguard_add(p, n))) {
        rc = err_set(e, E_NOMEM, "%s: %d files are mapped already, expected fewer", path,
                     MAPFAULT_MAPS);
        goto fail;
    }
    f->fd = fd, f->size = st->st_size, f->changed = st->st_mtim;
    *m = (struct filemap){ p, n, f, n };
    return OK;
fail:
    if (p != MAP_FAILED) munmap(p, n);
    mem_free(f);
    close(fd);
    return rc;
}

/* ---- encrypted files ---- */

static bool is_sealed(int fd)
{
    unsigned char head[8];
    ssize_t n = pread(fd, head, sizeof head, 0);

    return n > 0 && sealed_looks(head, (size_t)n);
}

/* Private memory for the decrypted bytes. Pages that are not decrypted take no memory. */
static void *map_secret(size_t n)
{
    void *p =
        mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (p != MAP_FAILED) madvise(p, n, MADV_DONTDUMP);
    return p;
}

/* Takes fd over, also where it fails. Nothing is decrypted yet. */
static int map_sealed(struct filemap *m, int fd, const struct stat *st, const char *path,
                      struct err *e)
{
    struct mapped_file *f = mem_new(struct mapped_file);
    int rc = f ? sealed_open(&f->sealed, fd, (uint64_t)st->st_size, path, e)
               : err_nomem(e, "an encrypted file");
    uint64_t n = rc == OK ? sealed_bytes(f->sealed) : 0;
    void *p = MAP_FAILED;

    if (rc == OK && n > SIZE_MAX) rc = err_nomem(e, "an encrypted file");
    if (rc == OK && n > 0 && (p = map_secret((size_t)n)) == MAP_FAILED)
        rc = err_set(e, E_NOMEM, "%s: no memory for %llu decrypted bytes", path,
                     (unsigned long long)n);
    if (rc == OK && n > 0) {
        f->fd = fd, f->p = p, f->n = (size_t)n;
        add_decrypted(f);
        *m = (struct filemap){ p, (size_t)n, f, 0 };
        return OK;
    }
    if (rc == OK) *m = (struct filemap){ 0 }; /* an empty file */
    if (f) sealed_close(f->sealed);
    mem_free(f);
    close(fd);
    return rc;
}

/* All of it is there: keys and file are not needed any more. */
static void finish_sealed(struct filemap *m)
{
    struct mapped_file *f = m->file;

    mprotect((void *)m->p, m->n, PROT_READ);
    sealed_close(f->sealed);
    close(f->fd);
    f->sealed = NULL;
    f->fd = -1;
}

int filemap_fill(struct filemap *m, size_t n, file_step_fn *step, void *arg, struct err *e)
{
    struct mapped_file *f = m->file;
    int rc = OK;

    if (!f || !f->sealed) return OK;
    while (rc == OK && m->n_ready < m->n && m->n_ready < n) {
        uint64_t i = m->n_ready / sealed_head(f->sealed)->chunk_bytes;
        size_t got = 0;

        rc = sealed_read(f->sealed, i, (unsigned char *)m->p + m->n_ready, &got, e);
        if (rc == OK) m->n_ready += got;
        if (rc == OK && step) step(arg, got);
    }
    if (rc == OK && m->n_ready == m->n) finish_sealed(m);
    return rc;
}

bool filemap_is_sealed(const struct filemap *m) { return m->file && !m->file->guard; }

int filemap_open_head(struct filemap *m, const char *path, size_t n, struct err *e)
{
    struct filemap made = { 0 };
    struct stat st;
    int fd, rc = open_regular(&fd, &st, path, e);

    if (rc != OK) return rc;
    if (is_sealed(fd)) {
        rc = map_sealed(&made, fd, &st, path, e);
        if (rc == OK) rc = filemap_fill(&made, n, NULL, NULL, e);
    } else if (st.st_size > 0) {
        rc = map_file(&made, fd, &st, path, e);
    } else {
        close(fd);
    }
    if (rc == OK) *m = made;
    else filemap_release(&made);
    return rc;
}

int filemap_open(struct filemap *m, const char *path, struct err *e)
{
    return filemap_open_head(m, path, SIZE_MAX, e);
}

/* ---- what happens to a map ---- */

int filemap_check(const struct filemap *m, bool look, const char *path, struct err *e)
{
    const struct mapped_file *f = m->file;
    struct stat st;

    if (!f || !f->guard) return OK; /* decrypted bytes do not change with the file */
    if (mapguard_is_broken(f->guard))
        return err_set(e, E_DAMAGED,
                       "%s: a part of the file could not be read: it was truncated while it was in "
                       "use, or its disk failed",
                       path);
    if (!look || fstat(f->fd, &st) != 0) return OK;
    if (st.st_size != f->size)
        return err_set(e, E_DAMAGED,
                       "%s: the file has %lld bytes, but had %lld when it was opened: it was "
                       "changed while it was in use",
                       path, (long long)st.st_size, (long long)f->size);
    if (st.st_mtim.tv_sec != f->changed.tv_sec || st.st_mtim.tv_nsec != f->changed.tv_nsec)
        return err_set(e, E_DAMAGED,
                       "%s: the file was changed while it was in use (its modification time is "
                       "another now)",
                       path);
    return OK;
}

void filemap_release(struct filemap *m)
{
    struct mapped_file *f = m->file;

    if (f) {
        if (f->guard) mapguard_drop(f->guard);
        else remove_decrypted(f);
        munmap((void *)m->p, m->n);
        sealed_close(f->sealed);
        if (f->fd >= 0) close(f->fd);
        mem_free(f);
    }
    *m = (struct filemap){ 0 };
}

/* madvise works on whole pages. inside: only pages that lie entirely in the range, because
 * neighbouring bytes may still be needed. A refusal by the kernel costs speed only. */
static void advise_pages(const void *p, size_t n, int advice, bool inside)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE) - 1, a = (uintptr_t)p, b = a + n;

    if (inside) a = (a + page) & ~page, b &= ~page;
    else a &= ~page;
    if (b > a) madvise((void *)a, b - a, advice);
}

void filemap_need(const void *p, size_t n) { advise_pages(p, n, MADV_WILLNEED, false); }
void filemap_drop(const void *p, size_t n)
{
    if (!is_decrypted(p)) advise_pages(p, n, MADV_DONTNEED, true);
}

/* One read usually suffices; signals and large files may take several. */
static int read_all(int fd, struct buf *out, size_t size, const char *path, struct err *e)
{
    if (!buf_reserve(out, size + 1)) /* one more for buf_cstr */
        return err_set(e, E_NOMEM, "%s: out of memory: no room for %zu bytes", path, size);
    while (out->n < size) {
        ssize_t got = read(fd, out->p + out->n, size - out->n);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return fail_errno(path, e);
        if (got == 0) break; /* the file was truncated after fstat: the caller sees what is left */
        out->n += (size_t)got;
    }
    return OK;
}

static int check_most(uint64_t size, size_t max_bytes, const char *path, struct err *e)
{
    if (size <= max_bytes) return OK;
    return err_set(e, E_FORMAT, "%s: has %llu bytes, expected at most %zu", path,
                   (unsigned long long)size, max_bytes);
}

/* The decrypted bytes; a chunk may be longer than what is left of the buffer only at the end. */
static int read_sealed(int fd, struct buf *out, uint64_t file_bytes, size_t max_bytes,
                       const char *path, struct err *e)
{
    struct sealed *s = NULL;
    size_t got = 0;
    int rc = sealed_open(&s, fd, file_bytes, path, e);

    if (rc == OK) rc = check_most(sealed_bytes(s), max_bytes, path, e);
    if (rc == OK && !buf_reserve(out, (size_t)sealed_bytes(s) + 1))
        rc = err_set(e, E_NOMEM, "%s: out of memory: no room for %llu bytes", path,
                     (unsigned long long)sealed_bytes(s));
    for (uint64_t i = 0; rc == OK && i < sealed_n_chunks(s); i++) {
        rc = sealed_read(s, i, out->p + out->n, &got, e);
        if (rc == OK) out->n += got;
    }
    sealed_close(s);
    return rc;
}

int file_read(struct buf *out, const char *path, size_t max_bytes, struct err *e)
{
    struct stat st;
    int fd, rc = open_regular(&fd, &st, path, e);
    size_t size = rc == OK ? (size_t)st.st_size : 0;

    if (rc != OK) return rc;
    if (is_sealed(fd)) rc = read_sealed(fd, out, size, max_bytes, path, e);
    else if ((rc = check_most(size, max_bytes, path, e)) == OK)
        rc = read_all(fd, out, size, path, e);
    close(fd);
    return rc;
}

int file_scan(const char *path, file_piece_fn *take, void *arg, uint64_t *bytes, struct err *e)
{
    enum { PIECE = 1 << 18 };
    struct stat st;
    char *piece = mem_alloc(PIECE);
    uint64_t sum = 0;
    int fd, rc = piece ? open_regular(&fd, &st, path, e) : err_nomem(e, "a piece of a file");

    if (rc != OK) {
        mem_free(piece);
        return rc;
    }
    while (rc == OK) {
        ssize_t got = read(fd, piece, PIECE);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) rc = fail_errno(path, e);
        if (got <= 0) break;
        sum += (uint64_t)got;
        rc = take(arg, piece, (size_t)got, e);
    }
    close(fd);
    mem_free(piece);
    if (bytes) *bytes = sum;
    return rc;
}

/* Decompresses one gzip member. zlib counts in 32 bits, so the input is limited to 4 GiB and each
 * call's output to 1 GiB. */
static int gunzip(struct buf *out, struct str in, size_t max_bytes, const char *path, struct err *e)
{
    z_stream z = { .next_in = (Bytef *)in.p, .avail_in = (uInt)in.n };
    int rc = OK, st;

    if (in.n > UINT_MAX)
        return err_set(e, E_FORMAT, "%s: %zu bytes of gzip data: at most %u are supported", path,
                       in.n, UINT_MAX);
    if ((st = inflateInit2(&z, 16 + MAX_WBITS)) != Z_OK)
        return err_set(e, E_NOMEM, "%s: cannot start decompression: out of memory", path);
    while (rc == OK && st == Z_OK) {
        if (!buf_reserve(out, 1 << 20)) {
            rc = err_set(e, E_NOMEM, "%s: out of memory while decompressing", path);
            break;
        }
        z.next_out = (Bytef *)out->p + out->n;
        z.avail_out = (uInt)(out->cap - out->n > (1u << 30) ? 1u << 30 : out->cap - out->n);
        uInt room = z.avail_out;
        st = inflate(&z, Z_NO_FLUSH);
        out->n += room - z.avail_out;
        if (out->n > max_bytes)
            rc = err_set(e, E_FORMAT, "%s: decompresses to more than %zu bytes", path, max_bytes);
        if (st == Z_OK && z.avail_in == 0 && z.avail_out) break; /* the data ends too early */
    }
    if (rc == OK && st == Z_MEM_ERROR)
        rc = err_set(e, E_NOMEM, "%s: out of memory while decompressing", path);
    else if (rc == OK && st != Z_STREAM_END)
        rc = err_set(e, E_FORMAT, "%s: damaged gzip data after %lu bytes", path, z.total_in);
    inflateEnd(&z);
    return rc;
}

int file_read_gz(struct buf *out, const char *path, size_t max_bytes, struct err *e)
{
    struct buf raw = { 0 };
    int rc = file_read(&raw, path, max_bytes, e);

    if (rc == OK && raw.n >= 2 && (unsigned char)raw.p[0] == 0x1f &&
        (unsigned char)raw.p[1] == 0x8b) {
        rc = gunzip(out, buf_str(&raw), max_bytes, path, e);
    } else if (rc == OK) {
        *out = raw;
        raw = (struct buf){ 0 };
    }
    buf_release(&raw);
    return rc;
}

/* 0, or -1 with errno. */
static int write_all(int fd, struct str data)
{
    while (data.n > 0) {
        ssize_t n = write(fd, data.p, data.n);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return -1;
        data = str_skip(data, (size_t)n);
    }
    return 0;
}

/* The name itself counts, not what a link leads to: a rename would replace the link. */
static int check_output(const char *path, struct err *e)
{
    struct stat st;

    if (lstat(path, &st) != 0) return errno == ENOENT ? OK : fail_errno(path, e);
    if (S_ISREG(st.st_mode)) return OK;
    return err_set(e, E_IO, "%s: is %s, which is not replaced; expected a file or nothing", path,
                   kind_of(st.st_mode));
}

/* A temporary file that an earlier process of this number left behind is removed. */
int file_create(int *fd, const char *temp, const char *path, struct err *e)
{
    int rc = check_output(path, e);

    if (rc != OK) return rc;
    unlink(temp);
    *fd = open(temp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    return *fd < 0 ? fail_errno(path, e) : OK;
}

/* The opened file is checked again: the name may lead to something else since. O_NONBLOCK: a FIFO is not
 * waited for. */
int file_append(int *fd, const char *path, struct err *e)
{
    struct stat st;
    int rc = check_output(path, e);

    *fd = -1;
    if (rc != OK) return rc;
    *fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
    if (*fd < 0) return fail_errno(path, e);
    if (fstat(*fd, &st) != 0) rc = fail_errno(path, e);
    else if (!S_ISREG(st.st_mode))
        rc = err_set(e, E_IO, "%s: is %s, expected a file", path, kind_of(st.st_mode));
    if (rc == OK) return OK;
    close(*fd);
    *fd = -1;
    return rc;
}

int file_rename(const char *temp, const char *path, struct err *e)
{
    int rc = check_output(path, e);

    return rc != OK ? rc : rename(temp, path) != 0 ? fail_errno(path, e) : OK;
}

int file_replace(const char *path, struct str data, struct err *e)
{
    struct buf name = { 0 };
    const char *tmp;
    int fd, rc;

    buf_printf(&name, "%s.part-%ld", path, (long)getpid());
    tmp = buf_cstr(&name);
    if ((rc = buf_check(&name, e)) != OK) goto out;
    if ((rc = file_create(&fd, tmp, path, e)) != OK) goto out;
    if (write_all(fd, data) != 0) rc = fail_errno(path, e);
    if (close(fd) != 0 && rc == OK) rc = fail_errno(path, e); /* NFS reports a full disk here */
    if (rc == OK) rc = file_rename(tmp, path, e);
    if (rc != OK) unlink(tmp);
out:
    buf_release(&name);
    return rc;
}

bool file_stat(const char *path, struct stat *st)
{
    int fd = confine_is(path) ? confine_open(path, O_PATH) : -1;
    bool known;

    if (fd < 0) return !confine_is(path) && stat(path, st) == 0;
    known = fstat(fd, st) == 0;
    close(fd);
    return known;
}

bool file_is_dir(const char *path)
{
    struct stat st;
    return file_stat(path, &st) && S_ISDIR(st.st_mode);
}

/* A confined path that leads out of its folder counts as existing: opening it gives the error that
 * says so. */
bool file_exists(const char *path)
{
    struct stat st;

    if (!confine_is(path)) return access(path, F_OK) == 0;
    return file_stat(path, &st) || errno == EXDEV;
}

DIR *file_opendir(const char *path)
{
    int fd = confine_open(path, O_RDONLY | O_DIRECTORY), why;
    DIR *d = fd < 0 ? NULL : fdopendir(fd);

    if (d || fd < 0) return d;
    why = errno;
    close(fd);
    errno = why;
    return NULL;
}

char *path_join(const char *dir, const char *name)
{
    size_t n = strlen(dir), more = strlen(name), slash = n && dir[n - 1] != '/';
    char *p = mem_alloc(n + slash + more + 1);

    if (!p) return NULL;
    memcpy(p, dir, n);
    if (slash) p[n] = '/';
    memcpy(p + n + slash, name, more);
    return p;
}

const char *path_base(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

/* Checks every component: "a/../b" is refused too, although it would stay inside. */
int path_under(char **out, const char *dir, struct str name, struct err *e)
{
    char *text;
    bool bad = name.n == 0 || name.p[0] == '/' || memchr(name.p, 0, name.n);

    for (size_t i = 0; i < name.n && !bad; i++) {
        bool start = i == 0 || name.p[i - 1] == '/';
        struct str rest = str_skip(name, i);
        bad = start && str_starts(rest, STR("..")) && (rest.n == 2 || rest.p[2] == '/');
    }
    if (bad)
        return err_set(e, E_INVALID, "%s: a file name must stay inside the folder, found '%.*s'",
                       dir, (int)(name.n > 100 ? 100 : name.n), name.p);
    if (!(text = mem_alloc(name.n + 1))) return err_nomem(e, "a path");
    memcpy(text, name.p, name.n);
    *out = path_join(dir, text);
    mem_free(text);
    return *out ? OK : err_nomem(e, "a path");
}
