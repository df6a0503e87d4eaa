/* group.c - which way the members of a stage sum: a pure function of their offers. */
#include "kernel/group.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

const char *group_way_name(enum group_way w)
{
    static const char *const names[GROUP_WAYS] = { "host", "ipc", "nccl" };

    return (int)w >= 0 && w < GROUP_WAYS ? names[w] : "?";
}

/* The boot id is one of the running kernel: containers of a machine share it. Without it a machine
 * is nobody's neighbour. */
static void name_host(char *out, size_t cap)
{
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, out, cap - 1) : 0;

    if (fd >= 0) close(fd);
    out[n > 0 ? n : 0] = 0;
    out[strcspn(out, "\n")] = 0;
}

void group_offer_init(struct group_offer *o)
{
    memset(o, 0, sizeof *o); /* also padding: it is sent as it lies in memory */
    o->magic = GROUP_MAGIC;
    o->size_of = sizeof *o;
    name_host(o->host, sizeof o->host);
}

int group_check_offers(const struct group_offer *o, int n, struct err *e)
{
    for (int i = 0; i < n; i++) {
        if (o[i].magic != GROUP_MAGIC || o[i].size_of != sizeof *o)
            return err_set(e, E_FORMAT, "member %d of the stage has sent no offer of this build",
                           i);
        if (!memchr(o[i].host, 0, sizeof o[i].host) ||
            !memchr(o[i].device, 0, sizeof o[i].device) || o[i].ways >> GROUP_WAYS)
            return err_set(e, E_FORMAT, "the offer of member %d of the stage is damaged", i);
    }
    return OK;
}

static bool same_host(const struct group_offer *a, const struct group_offer *b)
{
    return a->host[0] && strcmp(a->host, b->host) == 0;
}

static bool same_card(const struct group_offer *a, const struct group_offer *b)
{
    return same_host(a, b) && memcmp(a->card, b->card, sizeof a->card) == 0;
}

/* Two members of one device; false: there are none. */
static bool find_shared_card(const struct group_offer *o, int n, int *a, int *b)
{
    for (*a = 0; *a < n; ++*a)
        for (*b = *a + 1; *b < n; ++*b)
            if (o[*a].ways && o[*b].ways && same_card(&o[*a], &o[*b])) return true;
    return false;
}

/* E_UNSUPPORTED: these members cannot sum in this way. */
static int check_way(enum group_way w, const struct group_offer *o, int n, struct err *e)
{
    const char *name = group_way_name(w);
    int a, b;

    for (int i = 0; i < n; i++) {
        if (!o[i].ways)
            return err_set(e, E_UNSUPPORTED, "comm %s: member %d of the stage computes on a CPU",
                           name, i);
        if (!(o[i].ways >> w & 1))
            return err_set(e, E_UNSUPPORTED, "comm %s: member %d of the stage (%s) cannot use it",
                           name, i, o[i].device);
        if (w == GROUP_IPC && !same_host(&o[0], &o[i]))
            return err_set(e, E_UNSUPPORTED,
                           "comm ipc: members 0 and %d of the stage are on different machines", i);
    }
    if (w == GROUP_IPC && n > GROUP_IPC_MAX)
        return err_set(e, E_UNSUPPORTED, "comm ipc: %d members of a stage; at most %d", n,
                       GROUP_IPC_MAX);
    if (w == GROUP_NCCL && find_shared_card(o, n, &a, &b))
        return err_set(
            e, E_UNSUPPORTED,
            "comm nccl: members %d and %d of the stage share one GPU; NCCL wants one for "
            "each",
            a, b);
    return OK;
}

/* Processes that share a device take turns on it: a member that waits on the device for another one
 * wastes the other's time, so that they wait on the host. NCCL is for those who ask for it: for a few
 * members IPC has one trip where it has several. */
int group_choose(enum group_way *out, const struct group_offer *o, int n, int want, struct err *e)
{
    int a, b, rc;

    *out = GROUP_HOST;
    if (want == GROUP_HOST) return OK;
    if (want != GROUP_ANY) {
        if ((rc = check_way((enum group_way)want, o, n, e)) == OK) *out = (enum group_way)want;
        return rc;
    }
    if (n > 1 && !find_shared_card(o, n, &a, &b) && check_way(GROUP_IPC, o, n, NULL) == OK)
        *out = GROUP_IPC;
    return OK;
}
