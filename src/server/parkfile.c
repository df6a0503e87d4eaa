/* parkfile.c - see parkfile.h. The name is a hash of the model's id and path: the server does not read
 * models that run isolated, so it does not know their digest. The worker compares that (kv/park.h). */
#include "server/parkfile.h"

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { OWNER_ONLY = 0600 };

/* FNV-1a, also over the NUL at the end. */
static uint64_t hash_text(uint64_t h, const char *s)
{
    do h = (h ^ (unsigned char)*s) * 0x100000001b3u;
    while (*s++);
    return h;
}

/* Two servers that share the folder do not write to one file. */
static int check_file(int fd, const char *path)
{
    struct stat st;

    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        log_warn("%s: is not a regular file; KV blocks are not parked there", path);
    } else if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        log_warn("%s: is in use by another server; KV blocks are not parked there", path);
    } else {
        return fd;
    }
    close(fd);
    return -1;
}

int parkfile_open(const char *dir, const char *id, const char *path)
{
    char name[40], *full;
    int fd;

    snprintf(name, sizeof name, "worker-%016llx.kv",
             (unsigned long long)hash_text(hash_text(0xcbf29ce484222325u, id), path));
    if (!(full = path_join(dir, name))) return -1;
    fd = open(full, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, OWNER_ONLY);
    if (fd < 0) log_warn("%s: %s; KV blocks are not parked there", full, strerror(errno));
    else fd = check_file(fd, full);
    mem_free(full);
    return fd;
}
