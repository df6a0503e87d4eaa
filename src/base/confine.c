/* confine.c - the walk along a confined path, one component at a time.
 *
 * Each folder on the way is held by a descriptor (O_PATH, O_NOFOLLOW), and ".." goes back to the one
 * before it: renaming folders meanwhile changes nothing. Links are read and their text is walked in
 * the same way. openat2(RESOLVE_BENEATH) would do most of this in the kernel, but it refuses absolute
 * links, and the filter of a worker's sandbox cannot look into its arguments and so denies it. */
#include "base/confine.h"

#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char mark[] = "/./."; /* followed by '/' or the end */

enum {
    MARK = sizeof mark - 1,
    DEPTH_MAX = 40, /* folders below the root */
    LINKS_MAX = 40, /* links that are followed, as in the kernel */
    ENTER = O_PATH | O_NOFOLLOW | O_CLOEXEC
};

struct walk {
    const char *root;
    char rest[PATH_MAX]; /* to be walked */
    char name[NAME_MAX + 1];
    int dirs[DEPTH_MAX + 1]; /* dirs[0] is the root */
    int n;                   /* how many are open */
    int links;
};

/* ---- the mark ---- */

/* The first mark; NULL: the path is not confined, or NULL, which the kernel refuses. */
static const char *find_mark(const char *path)
{
    const char *at = path;

    while (at && (at = strstr(at, mark)) && at[MARK] != '/' && at[MARK] != 0) at++;
    return at;
}

bool confine_is(const char *path) { return find_mark(path) != NULL; }

char *confine_path(const char *root, const char *rest)
{
    bool marked = confine_is(root), below = *rest != 0;
    size_t n = strlen(root), m = strlen(rest), at;
    char *path;

    while (n > 0 && root[n - 1] == '/') n--;
    if (!(path = mem_alloc(n + MARK + 1 + m + 1))) return NULL;
    memcpy(path, root, n);
    at = n;
    if (!marked) memcpy(path + at, mark, MARK), at += MARK;
    if (below) path[at++] = '/';
    memcpy(path + at, rest, m + 1);
    return path;
}

/* "/models/./." becomes "/models", and "/./." becomes "/". In a message the path may be quoted. */
void confine_clean(char *text)
{
    for (char *at = text; (at = strstr(at, mark));) {
        bool is_root = at == text && !at[MARK];

        if (!strchr("/'\": ,)", at[MARK])) at++;
        else memmove(at + is_root, at + MARK, strlen(at + MARK) + 1);
    }
}

/* ---- the root, in absolute paths ---- */

const char *confine_below(const char *root, const char *path)
{
    struct stat want, st;
    char prefix[PATH_MAX];
    size_t n = 1;

    if (path[0] != '/' || strlen(path) >= sizeof prefix || stat(root, &want) != 0) return NULL;
    for (;;) {
        memcpy(prefix, path, n);
        prefix[n] = 0;
        if (stat(prefix, &st) != 0) return NULL;
        if (st.st_dev == want.st_dev && st.st_ino == want.st_ino) break;
        while (path[n] == '/') n++;
        if (!path[n]) return NULL;
        n += strcspn(path + n, "/");
    }
    while (path[n] == '/') n++;
    return path + n;
}

/* ---- the walk ---- */

static int fail(int why)
{
    errno = why;
    return -1;
}

static void close_quietly(int fd)
{
    int why = errno;

    if (fd >= 0) close(fd);
    errno = why;
}

static void leave_to(struct walk *w, int n)
{
    while (w->n > n) close_quietly(w->dirs[--w->n]);
}

/* Takes the next component out of rest, "" for one that is too long; false: there is none. */
static bool take_name(struct walk *w, bool *is_last)
{
    size_t from = strspn(w->rest, "/"), n = strcspn(w->rest + from, "/"), end = from + n;

    if (n == 0) return false;
    if (n > NAME_MAX) n = 0;
    memcpy(w->name, w->rest + from, n);
    w->name[n] = 0;
    end += strspn(w->rest + end, "/");
    *is_last = w->rest[end] == 0;
    memmove(w->rest, w->rest + end, strlen(w->rest + end) + 1);
    return true;
}

/* The text of the link behind fd comes before the rest. One that begins with '/' is walked from the
 * root on, if it goes through it. */
static int follow_link(struct walk *w, int fd)
{
    char text[PATH_MAX];
    ssize_t n = readlinkat(fd, "", text, sizeof text - 1);
    size_t m = strlen(w->rest), len;
    const char *to = text;

    if (n < 0) return -1;
    text[n] = 0;
    if (++w->links > LINKS_MAX) return fail(ELOOP);
    if (text[0] == '/') {
        if (!(to = confine_below(w->root, text))) return fail(EXDEV);
        leave_to(w, 1);
    }
    len = strlen(to);
    if (len + 1 + m + 1 > sizeof w->rest) return fail(ENAMETOOLONG);
    memmove(w->rest + len + 1, w->rest, m + 1);
    memcpy(w->rest, to, len);
    w->rest[len] = '/';
    return 0;
}

/* The end of the walk: *fd is what the path names, in the folder on top; -1 if it is handed over. */
static int open_last(const struct walk *w, int *fd, const struct stat *st, int flags)
{
    bool is_folder = S_ISDIR(st->st_mode);
    int own = *fd;

    if ((flags & O_DIRECTORY) && !is_folder) return fail(ENOTDIR);
    if ((flags & O_PATH) || (!S_ISREG(st->st_mode) && !is_folder)) {
        *fd = -1;
        return own;
    }
    if (is_folder) return openat(own, ".", flags | O_CLOEXEC);
    return openat(w->dirs[w->n - 1], w->name, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
}

/* One component. *out: the descriptor, if this was the last. -1: errno. */
static int take_step(struct walk *w, bool is_last, int flags, int *out)
{
    struct stat st;
    int fd, rc = 0;

    if (!w->name[0]) return fail(ENAMETOOLONG);
    if (strcmp(w->name, "..") == 0) {
        if (w->n == 1) return fail(EXDEV);
        leave_to(w, w->n - 1);
        return 0;
    }
    if ((fd = openat(w->dirs[w->n - 1], w->name, ENTER)) < 0) return -1;
    if (fstat(fd, &st) != 0) rc = -1;
    else if (S_ISLNK(st.st_mode)) rc = follow_link(w, fd);
    else if (is_last) rc = (*out = open_last(w, &fd, &st, flags)) < 0 ? -1 : 0;
    else if (!S_ISDIR(st.st_mode)) rc = fail(ENOTDIR);
    else if (w->n > DEPTH_MAX) rc = fail(ENAMETOOLONG);
    else w->dirs[w->n++] = fd, fd = -1;
    close_quietly(fd);
    return rc;
}

static int walk_path(struct walk *w, int flags)
{
    bool is_last = false;
    int fd = -1;

    while (take_name(w, &is_last)) {
        if (strcmp(w->name, ".") == 0) continue;
        if (take_step(w, is_last, flags, &fd) != 0) return -1;
        if (fd >= 0) return fd;
    }
    return openat(w->dirs[w->n - 1], ".", flags | O_CLOEXEC); /* it ends at a folder: "a/.." */
}

int confine_open(const char *path, int flags)
{
    const char *at = find_mark(path);
    char root[PATH_MAX];
    struct walk w = { .root = root };
    int fd;

    if (!at) return open(path, flags | O_CLOEXEC);
    if (strlen(path) >= sizeof root) return fail(ENAMETOOLONG);
    memcpy(root, path, (size_t)(at - path));
    memcpy(root + (at - path), "/", 2);
    memcpy(w.rest, at + MARK, strlen(at + MARK) + 1);
    if ((w.dirs[0] = open(root, O_PATH | O_DIRECTORY | O_CLOEXEC)) < 0) return -1;
    w.n = 1;
    fd = walk_path(&w, flags);
    leave_to(&w, 0);
    return fd;
}
