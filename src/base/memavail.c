/* memavail.c - reads /proc/meminfo, the memory files of control groups (version 2 and 1), and
 * RLIMIT_AS.
 *
 * A group's limit counts for everything below it, so all groups from the process's own up to the
 * root are read, and the least counts. Page cache is charged to a group, but is given up when memory
 * is needed: it counts as free, as it does in MemAvailable. Inside a container the path of the own
 * group is often not visible, and the root of the file system is the container's group: it is always
 * read.
 *
 * The files belong to the kernel, but a container may show others: sizes are bounded, numbers are
 * checked, and what is not understood does not limit. */
#include "base/memavail.h"

#include "base/str.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { TEXT_MOST = 16384, PATH_MOST = 4096 };

/* No real limit is larger: version 1 writes "none" as a number near 2^63. */
#define LIMIT_MOST ((uint64_t)1 << 60)

struct text {
    char p[TEXT_MOST];
    size_t n;
};

/* false: it cannot be read. A longer file is cut off. */
static bool read_text(struct text *t, const char *root, const char *path)
{
    char full[PATH_MOST];
    int fd, len = snprintf(full, sizeof full, "%s%s", root, path);
    ssize_t n;

    t->n = 0;
    if (len < 0 || (size_t)len >= sizeof full) return false;
    if ((fd = open(full, O_RDONLY | O_CLOEXEC | O_NONBLOCK)) < 0) return false;
    while (t->n < sizeof t->p) {
        n = read(fd, t->p + t->n, sizeof t->p - t->n);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        t->n += (size_t)n;
    }
    close(fd);
    return t->n > 0;
}

/* Cuts the next line off; false: there is none. */
static bool next_line(struct str *s, struct str *line)
{
    ptrdiff_t at = str_find(*s, STR("\n"));

    if (s->n == 0) return false;
    *line = at < 0 ? *s : str_take(*s, (size_t)at);
    *s = str_skip(*s, at < 0 ? s->n : (size_t)at + 1);
    return true;
}

/* The number at the beginning of s, after spaces; false: there is none, or it is out of range. */
static bool read_number(struct str s, uint64_t *out)
{
    struct str digits = str_trim(s);
    int64_t v;
    size_t n = 0;

    while (n < digits.n && digits.p[n] >= '0' && digits.p[n] <= '9') n++;
    if (n == 0 || !str_to_i64(str_take(digits, n), &v) || v < 0) return false;
    *out = (uint64_t)v;
    return true;
}

/* The number behind a word that begins a line: "MemAvailable:   123 kB", "inactive_file 4096". */
static bool find_number(const struct text *t, struct str word, uint64_t *out)
{
    struct str rest = { t->p, t->n }, line;

    while (next_line(&rest, &line))
        if (str_starts(line, word) && line.n > word.n && line.p[word.n] == ' ')
            return read_number(str_skip(line, word.n), out);
    return false;
}

static void lower(struct memavail *m, uint64_t free, uint64_t total, const char *by)
{
    if (total < m->total) m->total = total;
    if (free >= m->free) return;
    m->free = free;
    m->limit_by = by;
}

/* ---- the machine ---- */

/* Where the kernel promises no more than it has (vm.overcommit_memory 2), also memory that is never
 * touched counts. */
static void read_commit_limit(struct memavail *m, const char *root, const struct text *meminfo)
{
    struct text mode;
    uint64_t strict, limit, used;

    if (!read_text(&mode, root, "/proc/sys/vm/overcommit_memory")) return;
    if (!read_number(str_of(mode.p, mode.n), &strict) || strict != 2) return;
    if (!find_number(meminfo, STR("CommitLimit:"), &limit) || limit > LIMIT_MOST / 1024) return;
    if (!find_number(meminfo, STR("Committed_AS:"), &used)) return;
    lower(m, used < limit ? (limit - used) * 1024 : 0, m->total, "CommitLimit");
}

static void read_meminfo(struct memavail *m, const char *root)
{
    struct text t;
    uint64_t free, total;

    if (!read_text(&t, root, "/proc/meminfo")) return;
    if (!find_number(&t, STR("MemTotal:"), &total) || total > LIMIT_MOST / 1024) return;
    if (!find_number(&t, STR("MemAvailable:"), &free) || free > total) return;
    lower(m, free * 1024, total * 1024, "MemAvailable");
    read_commit_limit(m, root, &t);
}

/* ---- control groups ---- */

/* Where the files of one version are. */
struct version {
    const char *mount, *limit, *usage, *cache[2], *name;
};

static const struct version version_2 = { "/sys/fs/cgroup",
                                          "memory.max",
                                          "memory.current",
                                          { "active_file", "inactive_file" },
                                          "the cgroup's memory.max" };
static const struct version version_1 = { "/sys/fs/cgroup/memory",
                                          "memory.limit_in_bytes",
                                          "memory.usage_in_bytes",
                                          { "total_active_file", "total_inactive_file" },
                                          "the cgroup's memory.limit_in_bytes" };

/* A file of the group at path, which is below the mount point. */
static bool read_group_file(struct text *t, const char *root, const struct version *v,
                            struct str path, const char *name)
{
    char full[PATH_MOST];
    int n = snprintf(full, sizeof full, "%s%.*s/%s", v->mount, STR_ARG(path), name);

    return n > 0 && (size_t)n < sizeof full && read_text(t, root, full);
}

/* "max" is no number: no limit. */
static void read_group(struct memavail *m, const char *root, const struct version *v,
                       struct str path, bool cache_is_free)
{
    uint64_t limit, usage, cache, used;
    struct text t;

    if (!read_group_file(&t, root, v, path, v->limit)) return;
    if (!read_number(str_of(t.p, t.n), &limit) || limit > LIMIT_MOST) return;
    if (!read_group_file(&t, root, v, path, v->usage)) return;
    if (!read_number(str_of(t.p, t.n), &usage)) return;
    used = usage;
    if (cache_is_free && read_group_file(&t, root, v, path, "memory.stat"))
        for (int i = 0; i < 2; i++)
            if (find_number(&t, str_c(v->cache[i]), &cache)) used -= cache < used ? cache : used;
    lower(m, used < limit ? limit - used : 0, limit, v->name);
}

/* The group and all above it. A path that climbs is not followed. */
static void read_groups(struct memavail *m, const char *root, const struct version *v,
                        struct str path, bool cache_is_free)
{
    if (str_find(path, STR("..")) >= 0 || path.n == 0 || path.p[0] != '/') path = STR("");
    while (path.n > 0) {
        while (path.n > 0 && path.p[path.n - 1] == '/') path.n--;
        if (path.n == 0) break;
        read_group(m, root, v, path, cache_is_free);
        while (path.n > 0 && path.p[path.n - 1] != '/') path.n--;
    }
    read_group(m, root, v, STR(""), cache_is_free);
}

/* "memory" is in a list of controllers: "4:memory:/x", "5:cpu,memory:/x". */
static bool has_memory(struct str list)
{
    while (list.n) {
        ptrdiff_t comma = str_find(list, STR(","));
        struct str one = comma < 0 ? list : str_take(list, (size_t)comma);
        if (str_is(one, "memory")) return true;
        list = str_skip(list, comma < 0 ? list.n : (size_t)comma + 1);
    }
    return false;
}

/* Lines "0::/path" (version 2) and "N:controllers:/path" (version 1). */
static void read_cgroups(struct memavail *m, const char *root, bool cache_is_free)
{
    struct text t;
    struct str rest, line;

    if (!read_text(&t, root, "/proc/self/cgroup")) return;
    rest = str_of(t.p, t.n);
    while (next_line(&rest, &line)) {
        ptrdiff_t a = str_find(line, STR(":")), b;
        struct str tail, list;
        if (a < 0) continue;
        tail = str_skip(line, (size_t)a + 1);
        if ((b = str_find(tail, STR(":"))) < 0) continue;
        list = str_take(tail, (size_t)b);
        tail = str_skip(tail, (size_t)b + 1);
        if (list.n == 0) read_groups(m, root, &version_2, tail, cache_is_free);
        else if (has_memory(list)) read_groups(m, root, &version_1, tail, cache_is_free);
    }
}

/* ---- the process ---- */

/* The second and third number of statm: resident pages, and those of files. */
static uint64_t read_own(const char *root, const char *path)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), n[3] = { 0 };
    struct text t;
    struct str s;

    if (!read_text(&t, root, path)) return 0;
    s = str_of(t.p, t.n);
    for (int i = 0; i < 3; i++) {
        s = str_trim(s);
        if (!read_number(s, &n[i]) || n[i] > LIMIT_MOST / page) return 0;
        while (s.n > 0 && s.p[0] >= '0' && s.p[0] <= '9') s = str_skip(s, 1);
    }
    return n[1] > n[2] ? (n[1] - n[2]) * page : 0;
}

uint64_t memavail_own(int pid, const char *root)
{
    char path[64];

    snprintf(path, sizeof path, "/proc/%d/statm", pid);
    return read_own(root, path);
}

static void read_address_space(struct memavail *m, const char *root)
{
    struct rlimit lim;
    struct text t;
    uint64_t pages = 0, page = (uint64_t)sysconf(_SC_PAGESIZE);

    if (getrlimit(RLIMIT_AS, &lim) != 0 || lim.rlim_cur == RLIM_INFINITY) return;
    if (read_text(&t, root, "/proc/self/statm")) read_number(str_of(t.p, t.n), &pages);
    if (pages > LIMIT_MOST / page) return;
    m->address = pages * page < lim.rlim_cur ? lim.rlim_cur - pages * page : 0;
    lower(m, m->address, m->total, "RLIMIT_AS (ulimit -v)");
}

void memavail_read(struct memavail *out, const char *root)
{
    *out = (struct memavail){ UINT64_MAX, UINT64_MAX, UINT64_MAX, 0, "nothing" };
    read_meminfo(out, root);
    read_cgroups(out, root, true);
    read_address_space(out, root);
    out->own = read_own(root, "/proc/self/statm");
}

uint64_t memavail_unused(const char *root)
{
    struct memavail m = { UINT64_MAX, UINT64_MAX, UINT64_MAX, 0, "" };
    uint64_t free;
    struct text t;

    if (!read_text(&t, root, "/proc/meminfo")) return UINT64_MAX;
    if (find_number(&t, STR("MemFree:"), &free) && free <= LIMIT_MOST / 1024)
        lower(&m, free * 1024, m.total, "MemFree");
    read_cgroups(&m, root, false);
    return m.free;
}
